//! What workers do at this moment: whole in their log folders, in short for whoever asks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rallypoint_stacks::{Folded, Process, fold};
use rustix::process::Pid;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use crate::descendants::Stat;
use crate::output::Tail;
use crate::progress::Source;
use crate::time::rfc3339;

/// For what was seen to come from the thread that has looked.
const A_MOMENT: Duration = Duration::from_millis(200);

/// A worker that can be looked at.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) rank: usize,
    pub(crate) pid: Pid,
    /// Whether its silence means something: that of one in a debugger on the terminal does not.
    pub(crate) judged: bool,
    /// The last lines of its standard error.
    pub(crate) tail: Tail,
    /// Where all that is seen of it goes.
    pub(crate) file: Option<PathBuf>,
    pub(crate) progress: Source,
}

impl Subject {
    pub(crate) fn has_ended(&self) -> bool {
        !runs(self.pid)
    }

    /// The kernel takes it down: it has called `exit`, or a signal ends it.
    pub(crate) fn is_ending(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.exits())
    }
}

/// Whether a process is there and has not ended.
pub(super) fn runs(pid: Pid) -> bool {
    Stat::of(pid).is_some_and(|stat| !stat.ended())
}

/// For how long workers are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) time: Duration,
    /// So long at most while it was seen of none of them what it does.
    pub(super) at_most: Duration,
}

impl From<Duration> for Look {
    fn from(time: Duration) -> Self {
        Look { time, at_most: time }
    }
}

/// Looks at the workers that run, for so long; what they do, those that do the same as one, the odd ones first.
pub(super) async fn look(subjects: &[Subject], Look { time, at_most }: Look, why: &str) -> Vec<Folded> {
    let subjects: Vec<Subject> = subjects.iter().filter(|subject| !subject.has_ended()).cloned().collect();
    if subjects.is_empty() {
        return Vec::new();
    }
    let (send, seen) = oneshot::channel();
    let why = why.to_owned();
    let look = move || {
        let pids: Vec<u32> = subjects.iter().map(|subject| subject.pid.as_raw_pid().unsigned_abs()).collect();
        let processes = rallypoint_stacks::look_longer(&pids, time, at_most);
        let each = subjects.iter().zip(&processes);
        // Who asked may have given up.
        let _ = send.send(fold(each.clone().map(|(subject, process)| Folded::of(subject.rank, process))));
        for (subject, process) in each {
            keep(subject, process, &why);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("autopsy".to_owned()).spawn(look) {
        warn!("it cannot be looked at what the workers do: {error}");
        return Vec::new();
    }
    let seen = tokio::time::timeout(time.max(at_most) + A_MOMENT, seen).await;
    seen.ok().and_then(Result::ok).unwrap_or_default()
}

/// Writes down all that was seen of a worker, over what was seen before.
fn keep(subject: &Subject, process: &Process, why: &str) {
    let Some(file) = &subject.file else { return };
    let mut text = format!("{}: rank {}, {why}\n\n{process}", rfc3339(SystemTime::now()), subject.rank);
    let lines = subject.tail.lines();
    if !lines.is_empty() {
        let _ = write!(text, "\nlast lines of its stderr\n{}\n", lines.join("\n"));
    }
    if let Err(error) = write(file, &text) {
        debug!(%error, "the stacks of rank {} cannot be written to {}", subject.rank, file.display());
    }
}

fn write(file: &Path, text: &str) -> std::io::Result<()> {
    // Whoever reads it meanwhile sees the one or the other.
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, file)
}
