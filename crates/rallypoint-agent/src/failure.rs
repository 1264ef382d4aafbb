//! What became of workers that failed, and how it is told.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rallypoint_core::text::plain;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::disk;
use crate::output::Tail;
use crate::time::rfc3339;

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
        if let Some(kind) = disk::no_file(&about) {
            // To read it might take for ever.
            let message = format!("what it wrote is not read: its error file is {kind}");
            return Some(ErrorRecord {
                file: kept.then(|| file.to_owned()),
                message,
                traceback: None,
                time: None,
            });
        }
        let text = std::fs::read(file).ok()?;
        let time = about.modified().ok();
        let (message, traceback) = parse(&serde_json::from_slice(&text).ok()?)?;
        Some(ErrorRecord { file: kept.then(|| file.to_owned()), message, traceback, time })
    }
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
        let error = self.error.as_ref().map(|error| format!(": {}", first_line(&error.message)));
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
        FailureReport { run_id, restarts, used_up, failed_rounds, first, followed: ours }
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

    /// The failure that came first, in a few words.
    #[must_use]
    pub fn in_short(&self) -> String {
        self.first.in_short()
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = &self.first;
        writeln!(f, "run {}: rank {} failed first", self.run_id, first.rank)?;
        let time = first.moment().map(rfc3339).unwrap_or_default();
        writeln!(f, "  time        {time}")?;
        writeln!(f, "  host        {}", first.host)?;
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
                "  rounds      {rounds} in a row have failed soon after their start (--max-failed-rounds)"
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
        assert_eq!(read("{"), None);
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let record = ErrorRecord::read(&file, true).unwrap();
        assert_eq!(record.message, "what it wrote is not read: its error file is a named pipe");
        assert!(ErrorRecord::read(&folder.path().join("none"), true).is_none());
    }
}
