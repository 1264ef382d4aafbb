//! Processes that workers leave behind. They become children of the nearest process that takes orphans in, which
//! the launcher and its guard do.

use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, getpgrp, kill_process, kill_process_group, waitpid};

/// What `/proc` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    group: i32,
    ended: bool,
}

impl Stat {
    fn of(pid: Pid) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
    }

    /// The name comes second, in brackets, and may itself hold brackets and spaces.
    fn parse(text: &str) -> Option<Stat> {
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let ended = matches!(fields.next()?, "Z" | "X");
        Some(Stat { parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, ended })
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Whether anything still runs in this process group.
pub(crate) fn group_runs(group: Pid) -> bool {
    let member = |stat: Stat| stat.group == group.as_raw_pid() && !stat.ended;
    processes().any(|pid| Stat::of(pid).is_some_and(member))
}

/// The children of this process that it did not start itself.
fn adopted(known: &[Pid]) -> Vec<(Pid, Stat)> {
    let this = rustix::process::getpid().as_raw_pid();
    let child = |pid| Stat::of(pid).filter(|stat| stat.parent == this).map(|stat| (pid, stat));
    processes().filter(|pid| !known.contains(pid)).filter_map(child).collect()
}

/// Takes note of the end of adopted processes, so that they do not stay as zombies. `known` are those that
/// somebody else waits for.
pub(crate) fn reap(known: &[Pid]) {
    for (pid, _) in adopted(known).into_iter().filter(|(_, stat)| stat.ended) {
        // Whoever else waited for it was quicker.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Kills every adopted process, what is in its group, and what that leaves behind, until there is none.
pub(crate) fn sweep(known: &[Pid]) {
    loop {
        let left = adopted(known);
        if left.is_empty() {
            return;
        }
        for (pid, stat) in left {
            // Each of these fails only for what has ended.
            if let Some(group) = Pid::from_raw(stat.group).filter(|group| *group != getpgrp()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        let stat = Stat::parse("12 (a) b ( c) S 3 4 5 0 -1").expect("it is a stat");
        assert_eq!(stat, Stat { parent: 3, group: 4, ended: false });
        assert!(Stat::parse("12 (x) Z 3 4 5").expect("it is a stat").ended);
        assert_eq!(Stat::parse("nonsense"), None);
    }
}
