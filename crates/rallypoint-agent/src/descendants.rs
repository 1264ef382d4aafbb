//! Processes that workers leave behind. They become children of the nearest process that takes orphans in, which
//! the launcher and its guards do.

use std::collections::HashSet;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, waitpid};
use tokio::signal::unix::SignalKind;

/// For processes that SIGKILL does not end: those in the kernel, at a device that does not answer, or traced.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often children that have ended are looked for, at most.
const REAP_INTERVAL: Duration = Duration::from_millis(100);
/// How often those that were killed are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);

/// What `/proc` says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) parent: i32,
    group: i32,
    state: char,
    flags: u32,
}

/// `PF_EXITING` of the kernel's `include/linux/sched.h`.
const EXITS: u32 = 0x4;

impl Stat {
    pub(crate) fn of(pid: Pid) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
    }

    /// The name comes second, in brackets, and may itself hold brackets and spaces.
    fn parse(text: &str) -> Option<Stat> {
        let (before, fields) = text.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut fields = fields.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // The session, the terminal and its group come between.
        let flags = fields.nth(3)?.parse().ok()?;
        Some(Stat { name, parent, group, state, flags })
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// It runs no program any more, and has not ended: its memory and its devices are taken back.
    pub(crate) fn exits(&self) -> bool {
        self.flags & EXITS != 0
    }

    /// In the kernel, at a device or a disk.
    pub(crate) fn uninterruptible(&self) -> bool {
        self.state == 'D'
    }

    /// By a signal; a debugger that looks at a process is something else.
    pub(crate) fn stopped(&self) -> bool {
        self.state == 'T'
    }
}

/// When the next pass over all processes may be made. Each costs time for each of them. So among many, passes are made so
/// seldom that they take the same share of the time, however many there are.
#[derive(Debug)]
pub(crate) struct Pace {
    every: Duration,
    last: Option<tokio::time::Instant>,
}

impl Pace {
    /// After `shortest` at the earliest among up to 100 processes, and so much later among more.
    pub(crate) fn of(shortest: Duration, processes: usize) -> Self {
        let processes = u32::try_from(processes).unwrap_or(u32::MAX);
        Pace { every: shortest.max((shortest / 100).saturating_mul(processes)), last: None }
    }

    /// The first one, at once.
    pub(crate) fn next(&self) -> tokio::time::Instant {
        self.last.map_or_else(tokio::time::Instant::now, |last| last + self.every)
    }

    /// One is made now.
    pub(crate) fn pass(&mut self) {
        self.last = Some(tokio::time::Instant::now());
    }
}

#[cfg(test)]
thread_local! {
    /// How many passes were made, on this thread.
    pub(crate) static PASSES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// All processes of the system, in one pass.
fn processes() -> impl Iterator<Item = (Pid, Stat)> {
    #[cfg(test)]
    PASSES.set(PASSES.get() + 1);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?)))
}

/// The process groups in which anything still runs.
pub(crate) fn groups_that_run() -> HashSet<i32> {
    processes().filter(|(_, stat)| !stat.ended()).map(|(_, stat)| stat.group).collect()
}

/// What still runs in these process groups.
pub(crate) fn running_in(groups: &[Pid]) -> Vec<Pid> {
    let groups: HashSet<i32> = groups.iter().map(|group| group.as_raw_pid()).collect();
    let inside = processes().filter(|(_, stat)| !stat.ended() && groups.contains(&stat.group));
    inside.map(|(pid, _)| pid).collect()
}

/// The children of this process, but for those in `known`.
pub(crate) fn children(known: &[Pid]) -> Vec<(Pid, Stat)> {
    let this = getpid().as_raw_pid();
    let known: HashSet<Pid> = known.iter().copied().collect();
    processes().filter(|(pid, stat)| stat.parent == this && !known.contains(pid)).collect()
}

/// Takes note of the end of adopted processes, so that they do not stay as zombies.
#[derive(Debug)]
pub(crate) struct Reaper {
    child_ended: tokio::signal::unix::Signal,
    /// Those that somebody else waits for.
    known: Vec<Pid>,
    pace: Pace,
    /// A child has ended that was not looked for yet.
    wanted: bool,
}

impl Reaper {
    pub(crate) fn new(known: Vec<Pid>) -> io::Result<Self> {
        let child_ended = tokio::signal::unix::signal(SignalKind::child())?;
        Ok(Reaper { child_ended, pace: Pace::of(REAP_INTERVAL, known.len()), known, wanted: false })
    }

    /// Waits until children end, and looks for all that have by then. May be dropped and called again.
    pub(crate) async fn turn(&mut self) {
        if !self.wanted {
            self.child_ended.recv().await;
            self.wanted = true;
        }
        tokio::time::sleep_until(self.pace.next()).await;
        self.wanted = false;
        self.pace.pass();
        reap(&self.known);
    }
}

fn reap(known: &[Pid]) {
    for (pid, _) in children(known).into_iter().filter(|(_, stat)| stat.ended()) {
        // Whoever else waited for it was quicker.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// The process groups of this process and of those above it. One of a worker's may be in the command's, which is on the
/// terminal together with whatever a user runs there.
fn groups_above() -> HashSet<i32> {
    let next = |(_, stat): &(Pid, Stat)| {
        let parent = Pid::from_raw(stat.parent)?;
        Some((parent, Stat::of(parent)?))
    };
    let this = Stat::of(getpid()).map(|stat| (getpid(), stat));
    std::iter::successors(this, next).map(|(_, stat)| stat.group).collect()
}

/// Kills every adopted process, what is in its group, and what that leaves behind, until there is none. Those
/// that do not end even so are returned.
pub(crate) fn sweep(known: &[Pid]) -> Vec<Pid> {
    let deadline = Instant::now() + SWEEP_TIMEOUT;
    let above = groups_above();
    loop {
        let left = children(known);
        if left.is_empty() || Instant::now() >= deadline {
            return left.into_iter().map(|(pid, _)| pid).collect();
        }
        for (pid, stat) in left {
            // Each of these fails only for what has ended.
            if let Some(group) = Pid::from_raw(stat.group).filter(|_| !above.contains(&stat.group)) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        thread::sleep(SWEEP_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers tell of their ends one by one; so do all their children that became this process's.
    #[tokio::test(start_paused = true)]
    async fn children_that_end_one_after_the_other_are_looked_for_together() {
        let cost = async |children: usize| {
            let mut reaper = Reaper::new(Vec::new()).expect("there is room for a handler");
            reaper.pace = Pace::of(REAP_INTERVAL, children);
            let (before, began) = (PASSES.get(), tokio::time::Instant::now());
            while began.elapsed() < Duration::from_millis(5) * u32::try_from(children).expect("it is small") {
                // Another one has ended by the time of each look.
                reaper.wanted = true;
                reaper.turn().await;
            }
            (PASSES.get() - before) * children
        };
        let (few, many) = (cost(100).await, cost(400).await);
        assert!(few > 0 && many <= 4 * few + 400, "{few} looks at a process for 100, and {many} for 400");
    }

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        let stat = |text| Stat::parse(text).expect("it is a stat");
        let seen = stat("12 (a) b ( c) S 3 4 5 0 -1 4194304 9");
        let name = "a) b ( c".to_owned();
        assert_eq!(seen, Stat { name, parent: 3, group: 4, state: 'S', flags: 0x40_0000 });
        assert!(!seen.exits() && stat("12 (x) D 3 4 5 0 -1 4194308 9").exits());
        assert!(stat("12 (x) Z 3 4 5 0 -1 4194316 9").ended());
        assert!(stat("12 (x) T 3 4 5 0 -1 4194304 9").stopped());
        assert_eq!(Stat::parse("nonsense"), None);
    }
}
