//! What `/proc` tells of a process and its threads. None of it needs more than to be the same user.

use std::fs;

/// A thread, as the kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) state: char,
    /// The function of the kernel that it sleeps in.
    pub(crate) wait_channel: Option<String>,
}

/// The threads of a process, the first one first.
pub(crate) fn tasks(pid: u32) -> Vec<Task> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut tasks: Vec<Task> = ids.filter_map(|id| task(pid, id)).collect();
    tasks.sort_by_key(|task| (task.id != pid, task.id));
    tasks
}

fn task(pid: u32, id: u32) -> Option<Task> {
    let folder = format!("/proc/{pid}/task/{id}");
    let (name, state) = stat(&fs::read_to_string(format!("{folder}/stat")).ok()?)?;
    let channel = fs::read_to_string(format!("{folder}/wchan")).ok();
    let wait_channel =
        channel.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty() && text != "0");
    Some(Task { id, name, state, wait_channel })
}

/// The name, which comes second and may itself hold brackets and spaces, and the state.
fn stat(text: &str) -> Option<(String, char)> {
    let (before, fields) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    Some((name, fields.split_whitespace().next()?.chars().next()?))
}

/// The functions of the kernel in which whoever has called `vfork` waits for the child, of several versions.
const VFORK: [&str; 4] = ["kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"];

impl Task {
    /// Whether it waits, as in `vfork`, until a child has become another program or has ended.
    pub(crate) fn waits_for_child(&self) -> bool {
        let sleeps_there = |channel: &String| VFORK.contains(&channel.as_str());
        self.state == 'D' && self.wait_channel.as_ref().is_some_and(sleeps_there)
    }
}

/// The only child of a process, if it has just one.
pub(crate) fn only_child(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = text.split_whitespace();
    let only = children.next()?.parse().ok()?;
    children.next().is_none().then_some(only)
}

/// What the state of a thread means.
pub(crate) fn words(state: char) -> &'static str {
    match state {
        'R' => "runs",
        'S' => "sleeps",
        'D' => "waits in the kernel, which no signal ends",
        'T' => "is stopped by a signal",
        't' => "is stopped by a debugger",
        'Z' | 'X' => "has ended",
        'I' => "is idle",
        _ => "is in an unknown state",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_name_may_hold_brackets() {
        assert_eq!(stat("12 (a) b ( c) S 3 4"), Some(("a) b ( c".to_owned(), 'S')));
        assert_eq!(stat("nonsense"), None);
    }

    #[test]
    fn who_waits_for_a_child_as_in_vfork_is_told_from_who_waits_for_a_disk() {
        let task = |state, channel: Option<&str>| Task {
            id: 7,
            name: "train".to_owned(),
            state,
            wait_channel: channel.map(str::to_owned),
        };
        assert!(task('D', Some("kernel_clone")).waits_for_child());
        assert!(!task('D', Some("io_schedule")).waits_for_child() && !task('D', None).waits_for_child());
        assert!(!task('S', Some("kernel_clone")).waits_for_child());
    }

    #[test]
    fn this_process_has_its_first_thread_first() {
        let pid = std::process::id();
        let seen = std::thread::spawn(move || tasks(pid)).join().unwrap();
        assert!(seen.len() >= 2 && seen[0].id == pid, "{seen:?}");
    }
}
