//! Processes that workers leave behind. They become children of the nearest process that takes orphans in, which
//! the launcher and its guards do.

use std::collections::HashSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, waitpid};

/// For processes that SIGKILL does not end: those in the kernel, at a device that does not answer, or traced.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often those that were killed are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);

/// What `/proc` says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) parent: i32,
    group: i32,
    state: char,
}

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
        Some(Stat { name, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, state })
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
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

/// All processes of the system, in one pass.
fn processes() -> impl Iterator<Item = (Pid, Stat)> {
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

/// Takes note of the end of adopted processes, so that they do not stay as zombies. `known` are those that
/// somebody else waits for.
pub(crate) fn reap(known: &[Pid]) {
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

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        let stat = Stat::parse("12 (a) b ( c) S 3 4 5 0 -1").expect("it is a stat");
        assert_eq!(stat, Stat { name: "a) b ( c".to_owned(), parent: 3, group: 4, state: 'S' });
        assert!(Stat::parse("12 (x) Z 3 4 5").expect("it is a stat").ended());
        assert!(Stat::parse("12 (x) T 3 4 5").expect("it is a stat").stopped());
        assert_eq!(Stat::parse("nonsense"), None);
    }
}
