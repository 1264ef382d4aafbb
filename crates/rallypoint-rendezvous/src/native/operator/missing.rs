//! Who is waited for.
//!
//! Of a group that meets again, that is known: its members. Of one that meets for the first time nobody has a list, so it is
//! told from what those have in common who are there: the places they were given by Slurm, Kubernetes or `rank_hint`, or
//! the numbers in their names.

use std::collections::BTreeSet;

use rallypoint_core::round::{Lost, Why};
use serde::Serialize;

use super::state::{NodeState, NodeStatus, RunState};

/// So many are named.
const MOST: usize = 64;

/// A node that is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Its name, or what can be said of it.
    pub node: String,
    /// Why it is waited for, or how that is known.
    pub why: String,
}

pub(super) fn missing(
    state: RunState,
    round: u64,
    min_nodes: usize,
    lost: &[Lost],
    nodes: &[NodeStatus],
) -> Vec<Missing> {
    let mut missing = match state {
        RunState::Meeting => newcomers(min_nodes, nodes),
        RunState::MeetingAgain => members(round, lost, nodes),
        _ => Vec::new(),
    };
    missing.truncate(MOST);
    missing
}

/// Members of the last round that are gone, or have not come back.
fn members(round: u64, lost: &[Lost], nodes: &[NodeStatus]) -> Vec<Missing> {
    // Who was replaced is there, as another process.
    let is_there = |lost: &&Lost| nodes.iter().any(|node| node.node == lost.node);
    let gone = lost.iter().filter(|lost| !is_there(lost)).map(|lost| {
        // It had asked for it, and is gone since.
        let what = if lost.why == Why::Again { "is gone" } else { lost.why.words() };
        Missing { node: lost.node.clone(), why: format!("node {} of round {round} {what}", lost.rank) }
    });
    let is_named = |node: &NodeStatus| lost.iter().any(|lost| lost.node == node.node);
    let late = nodes.iter().filter(|node| node.state == NodeState::Member && !is_named(node));
    let late = late.map(|node| {
        let rank = node.rank.map_or_else(|| "it".to_owned(), |rank| format!("node {rank}"));
        Missing { node: node.node.clone(), why: format!("{rank} is still in round {round}") }
    });
    gone.chain(late).collect()
}

/// Nodes that have never been there, as far as they can be told from those that are.
fn newcomers(min_nodes: usize, nodes: &[NodeStatus]) -> Vec<Missing> {
    let Some(missing) = min_nodes.checked_sub(nodes.len()).filter(|missing| *missing > 0) else {
        return Vec::new();
    };
    // Where most are missing, a pattern of those that are there says little.
    if missing > nodes.len() {
        return Vec::new();
    }
    let hints = numbered(nodes.iter().map(|node| node.hint.as_str()));
    // Places are counted from 0; those that are not are another numbering.
    if let Some(hints) = hints.filter(|hints| hints.first() == 0 && hints.last() < min_nodes) {
        let gaps = (0..min_nodes).filter(|place| !hints.numbers.contains(place)).take(MOST);
        let why = format!("none of the nodes that are there has this place, of 0 to {}", min_nodes - 1);
        return gaps.map(|place| Missing { node: hints.name(place), why: why.clone() }).collect();
    }
    let Some(names) = numbered(nodes.iter().map(host)) else { return Vec::new() };
    // Otherwise the numbers have gaps of their own, or it is one at an end.
    if names.last() - names.first() != min_nodes - 1 {
        return Vec::new();
    }
    let gaps = (names.first()..names.last()).filter(|number| !names.numbers.contains(number)).take(MOST);
    let why = "guessed from gaps in the names of those that are there";
    gaps.map(|number| Missing { node: names.name(number), why: why.to_owned() }).collect()
}

/// The host in a node's name, which is followed by its address where the node was given none.
fn host(node: &NodeStatus) -> &str {
    let name = node.node.strip_suffix(node.address.as_str()).and_then(|name| name.strip_suffix('-'));
    name.filter(|name| !name.is_empty()).unwrap_or(&node.node)
}

/// Names that differ in one number.
struct Numbered<'a> {
    before: &'a str,
    after: &'a str,
    /// With so many digits, where they have leading zeros.
    width: usize,
    numbers: BTreeSet<usize>,
}

impl Numbered<'_> {
    fn first(&self) -> usize {
        self.numbers.first().copied().unwrap_or(0)
    }

    fn last(&self) -> usize {
        self.numbers.last().copied().unwrap_or(0)
    }

    fn name(&self, number: usize) -> String {
        format!("{}{number:0width$}{}", self.before, self.after, width = self.width)
    }
}

/// The last number in each name. None unless the names are the same but for it, and no two have the same.
fn numbered<'a>(names: impl Iterator<Item = &'a str>) -> Option<Numbered<'a>> {
    let mut all: Option<Numbered<'a>> = None;
    for name in names {
        let end = name.rfind(|letter: char| letter.is_ascii_digit())? + 1;
        let begin = name[..end]
            .rfind(|letter: char| !letter.is_ascii_digit())
            .map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
        let digits = &name[begin..end];
        let number: usize = digits.parse().ok()?;
        let width = if digits.starts_with('0') { digits.len() } else { 0 };
        let (before, after) = (&name[..begin], &name[end..]);
        let all = all.get_or_insert(Numbered { before, after, width: 0, numbers: BTreeSet::new() });
        if (all.before, all.after) != (before, after) || !all.numbers.insert(number) {
            return None;
        }
        all.width = all.width.max(width);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, hint: &str) -> NodeStatus {
        NodeStatus {
            node: name.to_owned(),
            state: NodeState::Joining,
            rank: None,
            address: "10.0.0.1".to_owned(),
            host: String::new(),
            rack: String::new(),
            about: String::new(),
            since: 0,
            lease: 0,
            lease_left: None,
            hint: hint.to_owned(),
            arrived: 1,
        }
    }

    fn names(min_nodes: usize, nodes: &[NodeStatus]) -> Vec<String> {
        let missing = missing(RunState::Meeting, 0, min_nodes, &[], nodes);
        missing.into_iter().map(|missing| missing.node).collect()
    }

    #[test]
    fn who_is_missing_is_told_from_those_who_are_there() {
        let hosts = |numbers: &[usize]| -> Vec<NodeStatus> {
            numbers.iter().map(|number| node(&format!("gpu-{number:03}-10.0.0.1"), "")).collect()
        };
        let all_but_17: Vec<usize> = (1..=64).filter(|number| *number != 17).collect();
        assert_eq!(names(64, &hosts(&all_but_17)), ["gpu-017"]);
        assert_eq!(names(63, &hosts(&all_but_17)), [""; 0], "nobody is missing");
        // Any others of a large machine.
        assert_eq!(names(4, &hosts(&[3, 40, 77])), [""; 0]);
        // Which of the ends is missing cannot be told.
        assert_eq!(names(4, &hosts(&[2, 3, 4])), [""; 0]);
        // Two hosts have one number in their names.
        assert_eq!(names(4, &[node("a1", ""), node("b3", "")]), [""; 0]);
        assert_eq!(names(4, &[node("node", ""), node("knoten", "")]), [""; 0]);
        assert_eq!(names(3, &[node("knöten-9", ""), node("knöten-11", "")]), ["knöten-10"]);
        // Too few are there to tell, or their numbers are no numbers of nodes.
        assert_eq!(names(8, &hosts(&[17, 20])), [""; 0]);
        assert_eq!(names(3, &[node("pod-3", ""), node("pod-18446744073709551615", "")]), [""; 0]);
        assert_eq!(names(usize::MAX, &hosts(&[1, 3])), [""; 0]);
    }

    #[test]
    fn places_that_were_given_are_known_at_the_ends_too() {
        let nodes = [node("x", "0"), node("y", "2")];
        assert_eq!(names(4, &nodes), ["1", "3"]);
        assert_eq!(names(4, &[node("x", "1"), node("y", "2"), node("z", "3")]), [""; 0], "0 or 4");
        assert_eq!(names(3, &[node("x", "train-0"), node("y", "train-2")]), ["train-1"]);
        assert_eq!(names(4, &[node("x", "7"), node("y", "3")]), [""; 0], "places of another numbering");
    }

    #[test]
    fn of_a_group_that_meets_again_the_members_are_known() {
        let lost = [Lost { node: "c".to_owned(), rank: 2, why: Why::Died }];
        let late = NodeStatus { state: NodeState::Member, rank: Some(1), ..node("b", "") };
        let missing = missing(RunState::MeetingAgain, 4, 3, &lost, &[node("a", ""), late]);
        let missing: Vec<_> = missing.iter().map(|it| (it.node.as_str(), it.why.as_str())).collect();
        assert_eq!(missing, [("c", "node 2 of round 4 died"), ("b", "node 1 is still in round 4")]);
    }
}
