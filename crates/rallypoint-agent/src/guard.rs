//! A second process that sees to it that nothing outlives the launcher, even if that one is killed.
//!
//! `rallypoint run` is two processes: the *guard*, which the user started, and the *launcher*, its child, which does
//! the work. Both take orphans in. When the launcher is killed, its workers become the guard's children, and the
//! guard kills them. When the guard is killed, the launcher gets a signal from the kernel, and ends its workers.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::descendants;

/// Set for the launcher by its guard: the guard's process number, and the temporary folder that it removes.
pub const GUARD_VARIABLE: &str = "RALLYPOINT_GUARD";
/// What is passed on to the launcher.
const SIGNALS: [SignalKind; 6] = [
    SignalKind::interrupt(),
    SignalKind::terminate(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
];

/// Which of the two this process is.
#[derive(Debug)]
pub enum Part {
    /// The launcher, which has a guard.
    Launcher(Guarded),
    /// The guard; its launcher has ended.
    Guard(ExitStatus),
}

/// What a launcher knows of its guard.
#[derive(Debug, Clone)]
pub struct Guarded {
    guard: Pid,
    folder: PathBuf,
}

/// Makes this process the guard of a launcher, and waits for that one's end; in the launcher it returns at once. To
/// be called before anything else is started.
pub fn guard() -> io::Result<Part> {
    if let Some(guarded) = std::env::var(GUARD_VARIABLE).ok().and_then(|text| Guarded::parse(&text)) {
        set_child_subreaper(Some(getpid()))?;
        // SIGTERM, as if somebody had asked for the end; `Guarded::alone` tells the difference.
        set_parent_process_death_signal(Some(Signal::TERM))?;
        return Ok(Part::Launcher(guarded));
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(stand()).map(Part::Guard)
}

async fn stand() -> io::Result<ExitStatus> {
    set_child_subreaper(Some(getpid()))?;
    let mut ended = signal(SignalKind::child())?;
    let mut signals = Vec::new();
    for kind in SIGNALS {
        signals.push((kind, signal(kind)?));
    }
    let name = format!("rallypoint_{}_{:08x}", std::process::id(), fastrand::u32(..));
    let folder = std::env::temp_dir().join(name);
    let guarded = Guarded { guard: getpid(), folder };
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command.args(std::env::args_os().skip(1)).env(GUARD_VARIABLE, guarded.to_text());
    // A signal from the terminal reaches the guard alone, which passes it on once.
    command.process_group(0);
    let launcher = Pid::from_child(&command.spawn()?);
    let status = loop {
        tokio::select! {
            _ = ended.recv() => {
                if let Some(status) = reap(launcher) {
                    break status;
                }
            }
            number = next(&mut signals) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // It fails only if the launcher has just ended.
                    let _ = kill_process(launcher, signal);
                }
            }
        }
    };
    descendants::sweep(&[]);
    remove(&guarded.folder);
    Ok(status)
}

/// Waits for every child that has ended; the launcher's status, if it is one of them.
fn reap(launcher: Pid) -> Option<ExitStatus> {
    let mut status = None;
    while let Ok(Some((pid, ended))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == launcher {
            status = Some(ExitStatus::from_raw(ended.as_raw()));
        }
    }
    status
}

async fn next(signals: &mut [(SignalKind, tokio::signal::unix::Signal)]) -> i32 {
    std::future::poll_fn(|context| {
        for (kind, signal) in signals.iter_mut() {
            if signal.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(kind.as_raw_value());
            }
        }
        std::task::Poll::Pending
    })
    .await
}

impl Guarded {
    fn to_text(&self) -> String {
        format!("{}:{}", self.guard.as_raw_pid(), self.folder.display())
    }

    /// None if the variable is some other launcher's, whose worker this process is.
    fn parse(text: &str) -> Option<Self> {
        let (guard, folder) = text.split_once(':')?;
        let guard = Pid::from_raw(guard.parse().ok()?)?;
        (getppid() == Some(guard)).then(|| Guarded { guard, folder: folder.into() })
    }

    /// Whether the guard is gone.
    #[must_use]
    pub fn alone(&self) -> bool {
        getppid() != Some(self.guard)
    }

    /// The name of a folder that is removed when the launcher is gone.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the guard would do, for a launcher that has lost it. To be called when the workers have ended.
    pub fn clean_up(&self) {
        descendants::sweep(&[]);
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    // Most often it is gone already.
    let _ = std::fs::remove_dir_all(folder);
}
