//! What became of workers that failed, and how it is told.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rallypoint_core::text::{brief, plain};
use rustix::process::Signal;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::disk;
use crate::output::Tail;
use crate::time::rfc3339;

/// Of a message so many letters are in what other nodes, and whoever reads why a run was closed, are told in short.
const IN_SHORT: usize = 400;
/// An error file that is longer is not one, and would take long to read while all wait.
const LONGEST_ERROR: u64 = 16 << 20;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    ExitCode(i32),
    /// By this signal.
    Signal(i32),
    /// It had not: it made no progress for so many seconds, and was ended for that.
    Hung(u64),
}

impl Exit {
    /// Whether it is a success.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Exit::ExitCode(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::ExitCode(code) => write!(f, "exit code {code}"),
            Exit::Signal(number) => match signal_name(*number) {
                Some(name) => write!(f, "signal {number} ({name})"),
                None => write!(f, "signal {number}"),
            },
            Exit::Hung(seconds) => write!(f, "a hang: no progress for {seconds} s"),
        }
    }
}

fn signal_name(number: i32) -> Option<&'static str> {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    usize::try_from(number).ok()?.checked_sub(1).and_then(|at| NAMES.get(at)).copied()
}

/// What a worker wrote of its error, with the `record` of `torch.distributed.elastic` or in its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// The file, if it stays.
    pub file: Option<PathBuf>,
    /// What went wrong.
    pub message: String,
    /// Where, if the worker wrote that too.
    pub traceback: Option<String>,
    /// When it was written.
    #[serde(serialize_with = "moment")]
    pub time: Option<SystemTime>,
}

impl ErrorRecord {
    /// A record of which no file stays.
    #[must_use]
    pub fn new(message: String, traceback: Option<String>) -> Self {
        ErrorRecord { file: None, message, traceback, time: None }
    }

    /// The record in this file, if there is one that can be understood; `kept` says whether the file stays.
    pub(crate) fn read(file: &Path, kept: bool) -> Option<Self> {
        let about = std::fs::metadata(file).ok()?;
        // To read it might take for ever.
        let unread = disk::no_file(&about).map(str::to_owned).or_else(|| {
            let size = about.len();
            (size > LONGEST_ERROR).then(|| format!("{size} bytes long, and no error is over {LONGEST_ERROR}"))
        });
        if let Some(why) = unread {
            let message = format!("what it wrote is not read: its error file is {why}");
            return Some(ErrorRecord {
                file: kept.then(|| file.to_owned()),
                message,
                traceback: None,
                time: None,
            });
        }
        let text = std::fs::read(file).ok()?;
        let time = about.modified().ok();
        if text.is_empty() {
            return None;
        }
        let record =
            serde_json::from_slice(&text).or_else(|_| serde_json::from_slice(&without_halves(&text)));
        let (message, traceback) = record.ok().and_then(|record| parse(&record)).unwrap_or_else(|| {
            ("what it wrote is not understood: its error file has no message in JSON".to_owned(), None)
        });
        Some(ErrorRecord { file: kept.then(|| file.to_owned()), message, traceback, time })
    }
}

/// JSON with a sign for what cannot be read in place of each half of a surrogate pair that stands alone. Python writes them
/// for odd bytes in the name of a file, and nobody else takes them.
fn without_halves(json: &[u8]) -> Vec<u8> {
    const UNREADABLE: &[u8] = b"\\ufffd";
    let escaped = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mut mended, mut at) = (Vec::with_capacity(json.len()), 0);
    while at < json.len() {
        let (taken, instead) = match (json[at], escaped(at), escaped(at + 6)) {
            (_, Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, None),
            (_, Some(0xd800..=0xdfff), _) => (6, Some(UNREADABLE)),
            // What is escaped is no beginning of another escape.
            (b'\\', ..) => (2, None),
            _ => (1, None),
        };
        let end = (at + taken).min(json.len());
        mended.extend_from_slice(instead.unwrap_or(&json[at..end]));
        at = end;
    }
    mended
}

/// Where a worker may have written of its error.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) error: PathBuf,
    /// Read only where nothing of it was seen.
    pub(crate) log: Option<PathBuf>,
}

/// What it has written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) error: Option<ErrorRecord>,
    pub(crate) log: Vec<String>,
}

impl Sources {
    pub(crate) fn read(&self, kept: bool) -> Written {
        let log = self.log.as_deref().map(|log| Tail::of_file(log).unwrap_or_default());
        Written { error: ErrorRecord::read(&self.error, kept), log: log.unwrap_or_default() }
    }
}

/// Either `{"message": "..."}` or `{"message": {"message": "...", "extraInfo": {"py_callstack": "..."}}}`.
fn parse(record: &Value) -> Option<(String, Option<String>)> {
    match record.get("message")? {
        Value::String(message) => Some((message.clone(), None)),
        inner => {
            let traceback = inner.pointer("/extraInfo/py_callstack").and_then(Value::as_str);
            // What is no Python has none.
            let traceback = traceback.filter(|text| !text.trim().is_empty()).map(str::to_owned);
            Some((inner.get("message")?.as_str()?.to_owned(), traceback))
        }
    }
}

/// A worker that failed by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// Its rank among all workers.
    pub rank: usize,
    /// Its rank on its node.
    pub local_rank: usize,
    /// The node.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// How it ended.
    #[serde(flatten)]
    pub exit: Exit,
    /// When.
    #[serde(serialize_with = "moment")]
    pub time: Option<SystemTime>,
    /// What it wrote of its error.
    pub error: Option<ErrorRecord>,
    /// The last lines of its standard error.
    pub stderr: Vec<String>,
    /// Its log, if it stays.
    pub log: Option<PathBuf>,
    /// What may be behind it, where the exit alone does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// One of which no more is known than this.
    #[must_use]
    pub fn new(
        (rank, local_rank): (usize, usize),
        host: &str,
        pid: u32,
        exit: Exit,
        time: SystemTime,
        error: Option<ErrorRecord>,
    ) -> Self {
        let (host, stderr) = (host.to_owned(), Vec::new());
        Failure { rank, local_rank, host, pid, exit, time: Some(time), error, stderr, log: None, hint: None }
    }

    /// When it went wrong, as well as that is known: a worker writes its error down before it takes its time to end.
    pub(crate) fn moment(&self) -> Option<SystemTime> {
        let recorded = self.error.as_ref().and_then(|error| error.time);
        recorded.into_iter().chain(self.time).min()
    }

    /// Whether its last lines say what the traceback says.
    fn stderr_is_the_traceback(&self) -> bool {
        let traceback = self.error.as_ref().and_then(|error| error.traceback.as_deref());
        let last = traceback.and_then(|text| text.trim_end().lines().last());
        last.is_some_and(|last| self.stderr.iter().any(|line| line.contains(last.trim())))
    }

    /// In a few words, for other nodes.
    #[must_use]
    pub fn in_short(&self) -> String {
        if let Exit::Hung(seconds) = self.exit {
            return format!("rank {} on {} hung: no progress for {seconds} s", self.rank, self.host);
        }
        // All nodes must find the same words, also those that were told only the beginning of a long message.
        let error =
            self.error.as_ref().map(|error| format!(": {}", brief(first_line(&error.message), IN_SHORT)));
        format!("rank {} on {} failed with {}{}", self.rank, self.host, self.exit, error.unwrap_or_default())
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What made a run fail: the same first failure on all its nodes, and what followed from it on this one.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct FailureReport {
    /// The run.
    pub run_id: String,
    /// How often this node's workers had been started again.
    pub restarts: u32,
    /// The `--max-restarts` of the node whose worker failed first, if it has none left.
    pub used_up: Option<u32>,
    /// How many rounds in a row had failed, if the run was given up for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_rounds: Option<u32>,
    /// The signal that ended this node before it was known what came first, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Exit>,
    /// The failure that came first, wherever that was.
    pub first: Failure,
    /// What failed after it on this node.
    pub followed: Vec<Failure>,
}

impl FailureReport {
    /// `ours` are the failures on this node; `first` is one of them, or another node's.
    pub(crate) fn new(run_id: &str, restarts: u32, first: Failure, mut ours: Vec<Failure>) -> Self {
        ours.sort_by_key(Failure::moment);
        // What stands here says more than what was told of it.
        let own = ours.iter().position(|failure| failure.rank == first.rank);
        let first = own.map_or(first, |at| ours.remove(at));
        let (run_id, used_up, failed_rounds) = (run_id.to_owned(), None, None);
        FailureReport { run_id, restarts, used_up, failed_rounds, ended_by: None, first, followed: ours }
    }

    /// The node whose worker failed first had so many restarts, and none is left.
    pub(crate) fn used_up(mut self, max_restarts: Option<u32>) -> Self {
        self.used_up = max_restarts;
        self
    }

    /// The run was given up after so many rounds that failed.
    pub(crate) fn in_a_row(mut self, rounds: u32) -> Self {
        self.failed_rounds = Some(rounds);
        self
    }

    /// This signal has ended the node before it was known what came first. `first` is what did here.
    pub(crate) fn ended_by(mut self, signal: Signal) -> Self {
        self.ended_by = Some(Exit::Signal(signal.as_raw()));
        self
    }

    /// The failure that came first, in a few words.
    #[must_use]
    pub fn in_short(&self) -> String {
        self.first.in_short()
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = &self.first;
        match self.ended_by {
            None => writeln!(f, "run {}: rank {} failed first", self.run_id, first.rank)?,
            Some(signal) => writeln!(
                f,
                "run {}: rank {} failed; {signal} ended this node before it was known what came first",
                self.run_id, first.rank
            )?,
        }
        let time = first.moment().map(rfc3339).unwrap_or_default();
        writeln!(f, "  time        {time}")?;
        writeln!(f, "  node        {}", first.host)?;
        writeln!(f, "  rank        {} (local rank {}, process {})", first.rank, first.local_rank, first.pid)?;
        writeln!(f, "  ended with  {}", first.exit)?;
        if let Some(hint) = &first.hint {
            writeln!(f, "  hint        {hint}")?;
        }
        if let Some(max) = self.used_up {
            writeln!(f, "  restarts    none left on its node (--max-restarts {max})")?;
        }
        if let Some(rounds) = self.failed_rounds {
            writeln!(
                f,
                "  rounds      {rounds} in a row have failed with little or no progress (--max-failed-rounds)"
            )?;
        }
        if let Some(error) = &first.error {
            let what = if matches!(first.exit, Exit::Hung(_)) { "known by  " } else { "error     " };
            writeln!(f, "  {what}  {}", plain(first_line(&error.message)))?;
            if let Some(file) = &error.file {
                writeln!(f, "  error file  {}", file.display())?;
            }
            if let Some(traceback) = &error.traceback {
                let of_a_hang = matches!(first.exit, Exit::Hung(_));
                writeln!(f, "  {}", if of_a_hang { "stacks" } else { "traceback" })?;
                traceback.trim_end().lines().try_for_each(|line| writeln!(f, "    {}", plain(line)))?;
            }
        }
        if let Some(log) = &first.log {
            writeln!(f, "  log         {}", log.display())?;
        }
        if !first.stderr.is_empty() && !first.stderr_is_the_traceback() {
            writeln!(f, "  last lines of its stderr")?;
            first.stderr.iter().try_for_each(|line| writeln!(f, "    {}", plain(line)))?;
        }
        for failure in &self.followed {
            writeln!(f, "after that, {}", failure.in_short())?;
        }
        Ok(())
    }
}

fn moment<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(rfc3339).serialize(serializer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn failure(rank: usize, millis: u64, exit: Exit) -> Failure {
        Failure {
            rank,
            local_rank: rank,
            host: "a".into(),
            pid: 7,
            exit,
            time: Some(UNIX_EPOCH + Duration::from_millis(millis)),
            error: None,
            stderr: Vec::new(),
            log: None,
            hint: None,
        }
    }

    #[test]
    fn a_message_with_halves_of_letters_or_without_end_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("error.json");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            ErrorRecord::read(&file, true).map(|record| record.message)
        };
        // As Python writes the name of a file with an odd byte; a whole pair and what only looks like a half stay.
        let odd = r#"{"message": "b\udcff.txt \ud83d\ude00 \\ud800 \ud83d"}"#;
        assert_eq!(read(odd).unwrap(), "b\u{fffd}.txt \u{1f600} \\ud800 \u{fffd}");
        assert_eq!(read(""), None);
        let mut long = failure(1, 1, Exit::ExitCode(3));
        long.error = Some(ErrorRecord::new("M".repeat(2_000_000), None));
        let told = long.in_short();
        long.error = Some(ErrorRecord::new("M".repeat(8_000), None));
        assert_eq!(long.in_short(), told, "who was told the beginning says the same");
        assert!(told.len() < 500 && told.ends_with("MMM..."), "{told}");
    }

    #[test]
    fn the_one_that_wrote_its_error_first_failed_first() {
        let mut slow = failure(3, 900, Exit::ExitCode(1));
        slow.error = Some(ErrorRecord {
            file: Some("e.json".into()),
            message: "ValueError: no data".into(),
            traceback: Some("Traceback\n  line 1".into()),
            time: Some(UNIX_EPOCH + Duration::from_millis(100)),
        });
        slow.stderr = vec!["last words".into()];
        let ours = vec![failure(0, 200, Exit::Signal(9)), slow.clone()];
        let report = FailureReport::new("job", 0, slow, ours).used_up(Some(2));
        let text = report.to_string();
        for part in [
            "rank 3 failed first",
            "1970-01-01T00:00:00.100Z",
            "exit code 1",
            "none left on its node (--max-restarts 2)",
            "ValueError: no data",
            "e.json",
            "    line 1",
            "    last words",
            "after that, rank 0 on a failed with signal 9 (SIGKILL)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["first"]["exit_code"], 1);
        assert_eq!(json["followed"][0]["signal"], 9);
    }

    #[test]
    fn both_forms_of_an_error_file_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("error.json");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            ErrorRecord::read(&file, true).map(|record| (record.message, record.traceback))
        };
        assert_eq!(read(r#"{"message": "x"}"#), Some(("x".into(), None)));
        let full =
            r#"{"message": {"message": "E: x", "extraInfo": {"py_callstack": "T", "timestamp": "1"}}}"#;
        assert_eq!(read(full), Some(("E: x".into(), Some("T".into()))));
        let (message, _) = read("{").unwrap();
        assert!(message.starts_with("what it wrote is not understood"), "{message}");
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let record = ErrorRecord::read(&file, true).unwrap();
        let long = std::fs::File::create(folder.path().join("long")).unwrap();
        long.set_len(3_000_000_000).unwrap();
        let said = ErrorRecord::read(&folder.path().join("long"), true).unwrap().message;
        assert!(
            said.ends_with("its error file is 3000000000 bytes long, and no error is over 16777216"),
            "{said}"
        );
        assert_eq!(record.message, "what it wrote is not read: its error file is a named pipe");
        assert!(ErrorRecord::read(&folder.path().join("none"), true).is_none());
    }
}
