//! Processes that see to it that nothing outlives the launcher, even if that one is killed.
//!
//! `rallypoint run` is a chain of three processes: the *command*, which the user started, a second guard, and the
//! *launcher*, which does the work.
//!
//! ```text
//! command ── guard ── launcher ── workers
//! ```
//!
//! Each takes orphans in, and is told by the kernel when the one before it is gone. So whichever of them are killed,
//! the workers and whatever they started are children of one that is left, and it ends them. Only whoever kills all
//! three at once, and spares the workers, leaves something behind.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, setpgid, setsid,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::Instant;

use crate::descendants::{self, Stat};
use crate::disk;
use crate::signals::{AT_ONCE, KNOWN_SIGNALS, is_handled, is_ignored, is_ours, outlive_file_limit};
use crate::temporary;

/// Set for the launcher by its guards: their process numbers, and the temporary folder that they remove.
pub const GUARD_VARIABLE: &str = "RALLYPOINT_GUARD";
/// What the second guard is called.
const NAME: &str = "launch-guard";
/// How many guards there are before the launcher.
const GUARDS: usize = 2;
/// A launcher that was asked to end and has not, so long after its workers' grace, is killed.
const LATE: Duration = Duration::from_secs(40);
/// A launcher whose first thread has ended, and which has not so long after, has a thread that hangs in the kernel, at a
/// disk that does not answer for instance.
const HANGS: Duration = Duration::from_secs(2);
/// How often that is looked at; nothing tells of it.
const LOOK: Duration = Duration::from_secs(1);
/// Before the exit code, in the name of a process that is about to end.
const ENDED: &str = "ended-";
/// For a process that was killed to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a guard is told.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The signals that end the launcher; others are passed on all the same.
    pub ends: Vec<Signal>,
    /// How long its workers have from the first of them.
    pub grace: Duration,
    /// A worker is on the command's terminal, so the launcher stays in that one's session.
    pub on_terminal: bool,
}

/// Which of the three this process is.
#[derive(Debug)]
pub enum Part {
    /// The launcher, which has guards.
    Launcher(Guarded),
    /// A guard; its launcher has ended.
    Guard {
        /// How.
        status: ExitStatus,
        /// Processes that do not end even by SIGKILL.
        left: Vec<Pid>,
    },
}

/// What a process of the chain knows of those before it.
#[derive(Debug, Clone)]
pub struct Guarded {
    /// The command first, and this process's parent last.
    guards: Vec<Pid>,
    folder: PathBuf,
}

/// Makes this process the guard of a launcher, and waits for that one's end; in the launcher it returns at once. To
/// be called before anything else is started.
pub fn guard(orders: &Orders) -> io::Result<Part> {
    let before = std::env::var(GUARD_VARIABLE).ok().and_then(|text| Guarded::parse(&text));
    if let Some(before) = &before {
        // Started by way of `/proc/self/exe`, it would be called `exe` in `top`. `killall rallypoint` spares the guard.
        let name = if before.guards.len() == GUARDS { c"rallypoint" } else { c"launch-guard" };
        let _ = rustix::thread::set_name(name);
    }
    match before {
        Some(guarded) if guarded.guards.len() == GUARDS => {
            set_child_subreaper(Some(getpid()))?;
            guarded.tell_of_its_end()?;
            stand_apart(orders)?;
            Ok(Part::Launcher(guarded))
        }
        before => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(stand(before, orders))
        }
    }
}

/// Leaves the process group of the guard, and the terminal where that can be: a terminal may stop whoever writes to it
/// in the background (`stty tostop`), where the launcher always is. Workers under torchrun are in sessions of their own, too.
fn stand_apart(orders: &Orders) -> io::Result<()> {
    if orders.on_terminal {
        setpgid(None, None)?;
    } else {
        setsid()?;
    }
    Ok(())
}

async fn stand(before: Option<Guarded>, orders: &Orders) -> io::Result<Part> {
    // Children that were there before, of a shell that became this process, are none of ours; with them around,
    // orphans of theirs could not be told from ours. The second guard has none.
    let adopts = descendants::children(&[]).is_empty();
    if adopts {
        set_child_subreaper(Some(getpid()))?;
    }
    // What it says last may go to a file.
    outlive_file_limit()?;
    let mut ended = signal(SignalKind::child())?;
    let mut signals = listen(before.is_some())?;
    if let Some(before) = &before {
        before.tell_of_its_end()?;
    }
    let next = Guarded::after(before.as_ref());
    let child = next.start()?;
    let orphaned = || before.as_ref().is_some_and(Guarded::alone);
    // The second guard comes first, since it has the workers' orphans.
    let late = if before.is_some() { LATE } else { LATE + 2 * KILL_TIMEOUT };
    let (mut asked, mut deadline): (Option<(Instant, Signal)>, Option<Instant>) = (None, None);
    let mut hangs_since: Option<Instant> = None;
    let mut looks = tokio::time::interval(LOOK);
    let status = loop {
        let too_late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = ended.recv() => {
                if let Some(status) = reap(child, adopts) {
                    break status;
                }
            }
            (signal, ignored) = next_of(&mut signals) => {
                if ignored && !orphaned() {
                    continue;
                }
                let ends = orders.ends.contains(&signal) || signal == AT_ONCE || orphaned();
                // One that is about to be started would be ended by what is none of its business.
                if !ends && !is_handled(child, signal) {
                    continue;
                }
                // A terminal that is closed hangs up more than once, and means no haste.
                let again = ends
                    && before.is_none()
                    && signal != Signal::HUP
                    && asked.is_some_and(|(at, first)| at.elapsed() >= one_request(first, signal));
                // It fails only if the launcher has just ended.
                let _ = kill_process(child, if again { AT_ONCE } else { signal });
                if ends {
                    wake(child);
                    asked.get_or_insert((Instant::now(), signal));
                    // Of a command that was killed the workers have no grace.
                    let grace = if orphaned() { Duration::ZERO } else { orders.grace };
                    // None if that is after the end of time.
                    let end = Instant::now().checked_add(grace.saturating_add(late));
                    deadline = deadline.into_iter().chain(end).min();
                }
            }
            _ = looks.tick() => {
                if asked.is_some() {
                    wake(child);
                }
                match told_of_end(child) {
                    None => hangs_since = None,
                    Some(status) => {
                        if hangs_since.get_or_insert_with(Instant::now).elapsed() >= HANGS {
                            break status;
                        }
                    }
                }
            }
            () = too_late => break kill(child, adopts).await,
        }
    };
    // A second guard that ended by itself has swept, and named what it could not end.
    let swept = before.is_none() && status.code().is_some();
    let left = if adopts && !swept { descendants::sweep(&[]) } else { Vec::new() };
    if !swept {
        remove(&next.folder);
    }
    Ok(Part::Guard { status, left })
}

/// Lets a process that was asked to end go on, if it is stopped: it would heed nothing but SIGKILL, and do nothing of what
/// belongs to a good end.
fn wake(pid: Pid) {
    if Stat::of(pid).is_some_and(|stat| stat.stopped()) {
        // It fails only if the process has just ended.
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// The signals that are passed on; and whether this process was to ignore them, which holds unless `told` by one of
/// them of the end of the process before it.
fn listen(told: bool) -> io::Result<Vec<(Signal, bool, Signals)>> {
    let mut signals = Vec::new();
    let known = KNOWN_SIGNALS.map(|(_, number)| (number, is_ignored(number)));
    for (number, ignored) in known.into_iter().chain(told.then_some((AT_ONCE, false))) {
        if !ignored || (told && number == GONE) {
            signals.push((number, ignored, signal(SignalKind::from_raw(number.as_raw()))?));
        }
    }
    Ok(signals)
}

/// Signals that come within this time are one request: `timeout` sends its own twice, to the command and to the group that
/// it is in. Who hits a key twice means it, and who sends another one.
fn one_request(first: Signal, signal: Signal) -> Duration {
    match signal {
        Signal::INT | Signal::QUIT => Duration::from_millis(100),
        _ if first != signal => Duration::from_millis(100),
        _ => Duration::from_secs(1),
    }
}

async fn next_of(signals: &mut [(Signal, bool, Signals)]) -> (Signal, bool) {
    std::future::poll_fn(|context| {
        for (number, ignored, signal) in signals.iter_mut() {
            if signal.poll_recv(context).is_ready() {
                return std::task::Poll::Ready((*number, *ignored));
            }
        }
        std::task::Poll::Pending
    })
    .await
}

/// To be called at the very end: says with which code this process is about to end. A process with a thread that hangs in
/// the kernel cannot be waited for; so its name says it, which everybody can read.
pub fn announce(code: u8) {
    if let Ok(name) = CString::new(format!("{ENDED}{code}")) {
        // Then the code is not known.
        let _ = rustix::thread::set_name(&name);
    }
}

/// The status of a process that has ended but for threads that hang, as it told before. None while it runs.
fn told_of_end(pid: Pid) -> Option<ExitStatus> {
    let stat = Stat::of(pid).filter(Stat::ended)?;
    let code = stat.name.strip_prefix(ENDED).and_then(|code| code.parse::<u8>().ok());
    // The code is in the second byte. One that was killed tells nothing.
    Some(ExitStatus::from_raw(code.map_or(Signal::KILL.as_raw(), |code| i32::from(code) << 8)))
}

/// Waits for every child that has ended, or for this one alone; its status, if it is one of them.
fn reap(child: Pid, all: bool) -> Option<ExitStatus> {
    let mut status = None;
    loop {
        let ended = if all {
            rustix::process::wait(WaitOptions::NOHANG)
        } else {
            rustix::process::waitpid(Some(child), WaitOptions::NOHANG)
        };
        match ended {
            Ok(Some((pid, ended))) if pid == child => status = Some(ExitStatus::from_raw(ended.as_raw())),
            Ok(Some(_)) => {}
            _ => return status,
        }
    }
}

/// Kills a launcher that does not end; its status, or what it would be if even that does not help.
async fn kill(child: Pid, all: bool) -> ExitStatus {
    let _ = kill_process(child, Signal::KILL);
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        if let Some(status) = reap(child, all) {
            return status;
        }
        if Instant::now() >= deadline {
            return ExitStatus::from_raw(Signal::KILL.as_raw());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The arguments of this process. The second guard has those of the command, and does not show them: whoever kills
/// all that looks like the command, or like the program it runs, spares it, and it ends what that leaves behind.
#[must_use]
pub fn arguments() -> Vec<OsString> {
    let own: Vec<OsString> = std::env::args_os().collect();
    if own != [NAME] {
        return own;
    }
    let guarded = std::env::var(GUARD_VARIABLE).ok().and_then(|text| Guarded::parse(&text));
    let command = guarded.and_then(|guarded| guarded.guards.first().copied());
    let line = command.and_then(|pid| std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).ok());
    line.map_or(own, |mut line| {
        line.pop();
        line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect()
    })
}

/// What a process of the chain gets when the one before it is gone, as if somebody had asked for the end;
/// [`Guarded::alone`] tells the difference.
const GONE: Signal = Signal::TERM;

impl Guarded {
    /// What the process knows that this one starts.
    fn after(before: Option<&Guarded>) -> Self {
        let folder = before.map_or_else(temporary::name, |before| before.folder.clone());
        let mut guards = before.map(|before| before.guards.clone()).unwrap_or_default();
        guards.push(getpid());
        Guarded { guards, folder }
    }

    /// Starts the process that knows this.
    fn start(&self) -> io::Result<Pid> {
        let mut command = Command::new("/proc/self/exe");
        let mut arguments = arguments().into_iter();
        let name = arguments.next();
        if self.guards.len() < GUARDS && is_ours() {
            command.arg0(NAME);
        } else {
            command.arg0(name.unwrap_or_default()).args(arguments);
        }
        command.env(GUARD_VARIABLE, self.to_text());
        // A signal from the terminal reaches the command alone, which passes it on once. The launcher sees to itself.
        if self.guards.len() < GUARDS {
            command.process_group(0);
        }
        command.spawn().map(|child| Pid::from_child(&child))
    }

    fn to_text(&self) -> String {
        let guards: Vec<_> = self.guards.iter().map(|guard| guard.as_raw_pid().to_string()).collect();
        format!("{}:{}", guards.join(","), self.folder.display())
    }

    /// None if the variable is some other launcher's, whose worker this process is.
    fn parse(text: &str) -> Option<Self> {
        let (guards, folder) = text.split_once(':')?;
        let pid = |text: &str| Pid::from_raw(text.parse().ok()?);
        let guards: Vec<Pid> = guards.split(',').map(pid).collect::<Option<_>>()?;
        (getppid() == guards.last().copied()).then(|| Guarded { guards, folder: folder.into() })
    }

    fn tell_of_its_end(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(GONE))?;
        if self.alone() {
            // It was gone before the kernel knew whom to tell.
            kill_process(getpid(), GONE)?;
        }
        Ok(())
    }

    /// Whether one of the guards is gone.
    #[must_use]
    pub fn alone(&self) -> bool {
        let parent_of = |pid: Pid| Stat::of(pid).and_then(|stat| Pid::from_raw(stat.parent));
        getppid() != self.guards.last().copied()
            || self.guards.windows(2).any(|pair| parent_of(pair[1]) != Some(pair[0]))
    }

    /// Whether the command is stopped, as by Ctrl-Z.
    #[must_use]
    pub fn paused(&self) -> bool {
        self.guards.first().and_then(|command| Stat::of(*command)).is_some_and(|stat| stat.stopped())
    }

    /// The process group of the command: the one that may read from the terminal, where a user runs it there.
    #[must_use]
    pub fn terminal_group(&self) -> Option<Pid> {
        self.guards.first().and_then(|command| getpgid(Some(*command)).ok())
    }

    /// The name of a folder that is removed when the launcher is gone.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the guards would do, for a launcher that has lost them. To be called when the workers have ended. Those
    /// that do not end even by SIGKILL are returned.
    pub fn clean_up(&self) -> Vec<Pid> {
        let left = descendants::sweep(&[]);
        remove(&self.folder);
        left
    }
}

fn remove(folder: &Path) {
    // Most often it is gone already.
    let _ = disk::remove(folder.to_owned());
    if let Some(in_memory) = temporary::in_memory(folder) {
        let _ = disk::remove(in_memory);
    }
}
