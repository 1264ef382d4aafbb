//! Equal stacks of many processes as one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::process::Process;

/// So many calls of a stack are compared and told.
const DEPTH: usize = 24;
/// So much of each.
const LINE: usize = 200;
/// So many on one line.
const INNERMOST: usize = 6;

/// What several have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Folded {
    /// Who they are, by rank.
    pub ranks: Vec<usize>,
    /// The letter of their state.
    pub state: String,
    /// They wait in `vfork` until a child has become another program or has ended.
    pub waits_for_child: bool,
    /// The calls of their first thread, the innermost first.
    pub stack: Vec<String>,
    /// Why there are none.
    pub unseen: Option<String>,
}

impl Folded {
    /// What of a process is compared with others.
    #[must_use]
    pub fn of(rank: usize, process: &Process) -> Self {
        let cut = |text: &str| text.chars().take(LINE).collect::<String>();
        let main = process.main();
        let state = main.map(|main| main.state.clone()).unwrap_or_default();
        let frames = main.map(|main| &main.frames[..]).unwrap_or_default();
        let stack: Vec<String> = frames.iter().take(DEPTH).map(|frame| cut(&frame.to_string())).collect();
        let unseen = process.unseen.first().filter(|_| stack.is_empty()).map(|why| cut(why));
        let waits_for_child = main.is_some_and(|main| main.waits_for_child);
        Folded { ranks: vec![rank], state, waits_for_child, stack, unseen }
    }

    /// Whether two do the same. Whether one runs or sleeps changes from moment to moment, and so does where it is in code that has
    /// no names, or in the interpreter on its way to a line of Python; one that is stopped stays so.
    fn key(&self) -> (Option<String>, bool, Vec<String>, Option<String>) {
        let lasts = matches!(self.state.as_str(), "T" | "t" | "D" | "Z" | "X");
        let is_python = self.stack.iter().any(|call| has_line(call));
        let counts = |call: &&String| has_name(call) && !(is_python && is_of_interpreter(call));
        let named = self.stack.iter().filter(counts).cloned().collect();
        (lasts.then(|| self.state.clone()), self.waits_for_child, named, self.unseen.clone())
    }

    /// Who they are, and their state where it is remarkable.
    fn who(&self) -> String {
        let who = if self.ranks.len() == 1 { "rank" } else { "ranks" };
        let state = match self.state.as_str() {
            "T" => ", stopped by a signal",
            "D" if self.waits_for_child => ", waiting for a child as in vfork",
            "D" => ", in the kernel, which no signal ends",
            "Z" | "X" => ", ended",
            _ => "",
        };
        format!("{who} {}{state}:", ranges(&self.ranks))
    }

    /// On one line: who, and the innermost calls that have a name. Of compiled code that Python has called, one.
    #[must_use]
    pub fn line(&self) -> String {
        let named = self.stack.iter().filter(|call| has_name(call));
        let (python, compiled): (Vec<&String>, Vec<&String>) = named.partition(|line| has_line(line));
        let most = if python.is_empty() { INNERMOST } else { 1 };
        let calls = compiled.into_iter().take(most).chain(python).chain(&self.unseen).take(INNERMOST);
        let mut calls: Vec<&str> = calls.map(String::as_str).collect();
        if calls.is_empty() {
            calls.extend(self.stack.iter().take(INNERMOST).map(String::as_str));
        }
        format!("{} {}", self.who(), calls.join(" < "))
    }

    /// As people read it: who, and what they do.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.who());
        for line in self.stack.iter().chain(&self.unseen) {
            text.push_str(&format!("    {line}\n"));
        }
        text
    }
}

/// Whether it is known which function a call is in.
fn has_name(call: &str) -> bool {
    !call.contains("+0x") && !call.starts_with("0x")
}

/// Whether a call is in a file with lines, as Python's are: `f (train.py:3)`.
fn has_line(call: &str) -> bool {
    let line = call.strip_suffix(')').and_then(|call| call.rsplit_once(':')).map(|(_, line)| line);
    line.is_some_and(|line| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a call is compiled code of Python's own, as `_PyEval_EvalFrameDefault (libpython3.11.so.1.0)`.
fn is_of_interpreter(call: &str) -> bool {
    let library = call.strip_suffix(')').and_then(|call| call.rsplit_once(" (")).map(|(_, library)| library);
    library.is_some_and(|library| library.starts_with("libpython") || library.starts_with("python"))
        && !has_line(call)
}

/// Puts those together that do the same. The odd ones, which are fewest, come first.
#[must_use]
pub fn fold(all: impl IntoIterator<Item = Folded>) -> Vec<Folded> {
    let mut groups: BTreeMap<_, Folded> = BTreeMap::new();
    for one in all {
        let (key, ranks) = (one.key(), one.ranks.clone());
        groups.entry(key).or_insert_with(|| Folded { ranks: Vec::new(), ..one }).ranks.extend(ranks);
    }
    let mut folded: Vec<Folded> = groups.into_values().collect();
    folded.iter_mut().for_each(|group| group.ranks.sort_unstable());
    folded.sort_by_key(|group| (group.ranks.len(), group.ranks.first().copied()));
    folded
}

/// Numbers of something, as people write them: `rank 3`, `ranks 0-6, 9`.
#[must_use]
pub fn numbered(one: &str, numbers: &[usize]) -> String {
    let many = if numbers.len() == 1 { "" } else { "s" };
    format!("{one}{many} {}", ranges(numbers))
}

/// Numbers as people write them: `0-6, 9`.
#[must_use]
pub fn ranges(numbers: &[usize]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: usize, state: &str, stack: &[&str]) -> Folded {
        let stack = stack.iter().map(|&line| line.to_owned()).collect();
        Folded { ranks: vec![rank], state: state.to_owned(), stack, ..Folded::default() }
    }

    #[test]
    fn the_odd_ones_come_first() {
        let waiting = ["all_reduce (train.py:3)", "main (train.py:9)"];
        let all = (0..8).map(|rank| match rank {
            5 => at(rank, "S", &["acquire (lock.py:1)"]),
            6 => at(rank, "T", &waiting),
            _ if rank % 2 == 0 => at(rank, "S", &waiting),
            _ => at(rank, "R", &[&["libcuda.so+0x1f (libcuda.so)"], &waiting[..]].concat()),
        });
        let folded = fold(all);
        let who: Vec<String> = folded.iter().map(|group| ranges(&group.ranks)).collect();
        assert_eq!(who, ["5", "6", "0-4, 7"]);
        assert_eq!(folded[0].text(), "rank 5:\n    acquire (lock.py:1)\n");
        assert!(folded[1].text().starts_with("rank 6, stopped by a signal:"));
        let vforks = Folded { waits_for_child: true, ..at(2, "D", &waiting[..1]) };
        assert_eq!(vforks.line(), "rank 2, waiting for a child as in vfork: all_reduce (train.py:3)");
        assert!(folded[2].text().starts_with("ranks 0-4, 7:\n    all_reduce"));
        // On its way through the interpreter one is here, the other there.
        let called =
            ["poll (libc.so.6)", "PyObject_Vectorcall (libpython3.11.so.1.0)", "step (python_app.py:3)"];
        let calls = ["poll (libc.so.6)", "_PyEval_EvalFrameDefault (python3.11)", "step (python_app.py:3)"];
        let elsewhere = ["accept (libc.so.6)", "step (python_app.py:3)"];
        let ranks = |all: [Folded; 2]| fold(all).len();
        assert_eq!(ranks([at(0, "S", &called), at(1, "S", &calls)]), 1);
        assert_eq!(ranks([at(0, "S", &called), at(1, "S", &elsewhere)]), 2);
        assert_eq!(
            ranks([at(0, "S", &called[..2]), at(1, "S", &calls[..2])]),
            2,
            "nothing else is known of them"
        );
        let compiled =
            ["libc.so.6+0x1 (libc.so.6)", "poll (libc.so.6)", "sock_recv (_socket.so)", "step (train.py:3)"];
        assert_eq!(at(3, "S", &compiled).line(), "rank 3: poll (libc.so.6) < step (train.py:3)");
        assert_eq!(at(3, "S", &compiled[..3]).line(), "rank 3: poll (libc.so.6) < sock_recv (_socket.so)");
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(numbered("rank", &[3]), "rank 3");
        assert_eq!(numbered("rank", &[4, 3]), "ranks 3, 4");
        assert_eq!(ranges(&[3, 1, 2, 7, 9, 8, 20, 21]), "1-3, 7-9, 20, 21");
    }
}
