//! What is said when the nodes of a round meet again, or do not.

use std::time::Duration;

use rallypoint_core::text::{count, list};
use rallypoint_rendezvous::GroupChange;

use crate::notice::Notice;

/// Why a round is over.
#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) words: String,
    /// The words name one or more who died or left.
    pub(crate) of_group: bool,
    /// They name this member, who ended.
    pub(crate) leaver: Option<usize>,
    /// The nodes it had.
    pub(crate) nodes: usize,
}

impl Reason {
    /// With all who are gone by now, where so many are here.
    pub(crate) fn with(self, lost: &[GroupChange], here: usize) -> String {
        let gone = self.nodes.saturating_sub(here + usize::from(self.leaver.is_some()));
        let is_named = |change: &&GroupChange| match change {
            GroupChange::Died { rank, .. }
            | GroupChange::MemberReplaced { rank, .. }
            | GroupChange::MemberKeptOut { rank, .. }
            | GroupChange::Left { rank, .. } => rank.is_some() && *rank == self.leaver,
            _ => false,
        };
        let lost: Vec<&GroupChange> = lost.iter().filter(|change| !is_named(change)).collect();
        match (self.of_group, losses(&lost, gone)) {
            (_, None) => self.words,
            (true, Some(losses)) => losses,
            (false, Some(losses)) => format!("{}; {losses}", self.words),
        }
    }
}

fn who(node: &str, rank: Option<usize>) -> String {
    match rank {
        Some(rank) if node.is_empty() => format!("node {rank}"),
        Some(rank) => format!("node {rank} ({node})"),
        None => format!("node {node}"),
    }
}

/// Who of a group died and who left, in a few words.
#[must_use]
pub fn gone(lost: &[GroupChange]) -> Option<String> {
    losses(&lost.iter().collect::<Vec<_>>(), lost.len())
}

/// Who died and who left; so many are gone in all.
pub(crate) fn losses(lost: &[&GroupChange], gone: usize) -> Option<String> {
    let mut died = Vec::new();
    let mut replaced = Vec::new();
    let mut kept_out = Vec::new();
    let mut left = Vec::new();
    for change in lost {
        match change {
            GroupChange::Died { node, rank } => died.push(who(node, *rank)),
            GroupChange::MemberReplaced { node, rank } => replaced.push(who(node, *rank)),
            GroupChange::MemberKeptOut { node, rank } => kept_out.push(who(node, *rank)),
            GroupChange::Left { node, rank } => left.push(who(node, *rank)),
            _ => {}
        }
    }
    let named = died.len() + replaced.len() + kept_out.len() + left.len();
    let mut parts = Vec::new();
    let ways = [
        (died, "died"),
        (replaced, "replaced by another process"),
        (kept_out, "excluded from the run"),
        (left, "left"),
    ];
    for (who, what) in ways {
        if !who.is_empty() {
            parts.push(format!("{} {what}", list(&who)));
        }
    }
    match gone.saturating_sub(named) {
        _ if named == 0 => return None,
        0 => {}
        1 => parts.push("1 more node is gone".to_owned()),
        more => parts.push(format!("{more} more nodes are gone")),
    }
    Some(parts.join(", "))
}

/// What happened to the group.
#[must_use]
pub fn change(change: &GroupChange) -> String {
    match change {
        GroupChange::Waiting { count: 1 } => "1 more node waits to get in".to_owned(),
        GroupChange::Waiting { count } => format!("{count} more nodes wait to get in"),
        GroupChange::Died { node, rank } => format!("{} died", who(node, *rank)),
        GroupChange::MemberReplaced { node, rank } => {
            format!("{} was replaced: another process has its name now", who(node, *rank))
        }
        GroupChange::MemberKeptOut { node, rank } => {
            format!("{} was excluded from the run", who(node, *rank))
        }
        GroupChange::KeptOut { reason, .. } => format!("this node was excluded from the run: {reason}"),
        // The record that all share has no room for who wrote it.
        GroupChange::Left { node, rank: None } if node.is_empty() => "a node asks for a new round".to_owned(),
        GroupChange::Left { node, rank } => format!("{} left or asks for a new round", who(node, *rank)),
        GroupChange::Closed { reason } => format!("the run is closed: {reason}"),
        GroupChange::Excluded => "this node lost its place".to_owned(),
        GroupChange::Replaced { by } => format!("another process, at {by}, has this node's place now"),
        GroupChange::StateLost => "etcd has lost what it had of this round".to_owned(),
        GroupChange::Corrupt { problem } => format!("the run's record cannot be read ({problem})"),
        other => format!("{other:?}"),
    }
}

/// That a node is gone that nobody misses.
pub(crate) fn had_finished(ended: &GroupChange) -> String {
    let ended = match ended {
        // It does not ask for another round.
        GroupChange::Left { node, rank } => format!("{} left", who(node, *rank)),
        other => change(other),
    };
    format!("{ended}; its workers had finished, and the others go on")
}

/// That workers take long to end, and why they have to.
pub(crate) fn stopping(why: Option<&str>, left: Duration) -> String {
    let why = why.map(|why| format!("{why}: ")).unwrap_or_default();
    let seconds = (left.as_secs_f64() * 10.0).round() / 10.0;
    format!("{why}the workers of this node have {seconds} s more to end")
}

/// What comes after what another node told of.
pub(crate) fn after(notice: &Notice) -> String {
    match notice.restarts {
        Some(restarts) if restarts.left == 0 && restarts.leaves => format!(
            "node {} has {}, and leaves if the others can go on without it; meeting again",
            notice.node,
            none_left(restarts.max)
        ),
        Some(restarts) if restarts.left == 0 => {
            format!("node {} has {}: the run ends", notice.node, none_left(restarts.max))
        }
        _ => "meeting again".to_owned(),
    }
}

/// That the restarts of a node that had so many are used up.
fn none_left(max: u32) -> String {
    format!("no restarts left (--max-restarts {max})")
}

/// That a node's restarts have come back.
pub(crate) fn came_back(max: u32, seconds: f64) -> String {
    let all = match max {
        1 => "its restart is there again".to_owned(),
        max => format!("all its {} are there again", count(max as usize, "restart")),
    };
    format!("this node's workers have run for {seconds} s without failing first: {all}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::{Leaving, Restarts};

    #[test]
    fn who_hears_of_a_failure_is_told_whether_it_goes_on() {
        let told = |left, leaves| {
            let restarts = Some(Restarts { left, max: 2, leaves });
            after(&Notice { restarts, ..Notice::leaves(1, "host1", Leaving::Asked) })
        };
        assert_eq!(told(1, false), "meeting again");
        assert_eq!(told(0, false), "node 1 has no restarts left (--max-restarts 2): the run ends");
        assert!(told(0, true).ends_with("leaves if the others can go on without it; meeting again"));
        assert_eq!(after(&Notice::leaves(1, "host1", Leaving::Asked)), "meeting again");
    }

    #[test]
    fn all_who_are_gone_are_named_or_counted() {
        let died = |rank| GroupChange::Died { node: format!("h{rank}"), rank: Some(rank) };
        let left = GroupChange::Left { node: "h9".into(), rank: Some(9) };
        let reason =
            |of_group| Reason { words: "node 1 (h1) died".into(), of_group, leaver: None, nodes: 10 };
        assert_eq!(reason(true).with(&[], 8), "node 1 (h1) died", "nothing more is known");
        assert_eq!(reason(true).with(&[died(1), died(2)], 8), "node 1 (h1) and node 2 (h2) died");
        assert_eq!(
            reason(true).with(&[died(1), died(2), died(3), left], 1),
            "node 1 (h1), node 2 (h2) and node 3 (h3) died, node 9 (h9) left, 5 more nodes are gone"
        );
        let reason = |words: &str, leaver| Reason { words: words.into(), of_group: false, leaver, nodes: 3 };
        assert_eq!(
            reason("rank 0 on h0 failed", None).with(&[died(1)], 2),
            "rank 0 on h0 failed; node 1 (h1) died"
        );
        assert_eq!(
            reason("node 2 (h2) was killed", Some(2)).with(&[died(1), died(2)], 1),
            "node 2 (h2) was killed; node 1 (h1) died"
        );
        assert_eq!(
            reason("node 2 (h2) was killed", Some(2)).with(&[died(2)], 2),
            "node 2 (h2) was killed",
            "nobody is counted twice"
        );
    }

    #[test]
    fn one_is_one_two_are_two_and_nobody_has_no_name() {
        let left = |node: &str, rank| change(&GroupChange::Left { node: node.to_owned(), rank });
        assert_eq!(left("h1", Some(1)), "node 1 (h1) left or asks for a new round");
        assert_eq!(left("", Some(1)), "node 1 left or asks for a new round");
        assert_eq!(left("", None), "a node asks for a new round");
        let finished = GroupChange::Left { node: "h1".to_owned(), rank: Some(1) };
        assert_eq!(
            had_finished(&finished),
            "node 1 (h1) left; its workers had finished, and the others go on"
        );
        assert_eq!(change(&GroupChange::Waiting { count: 1 }), "1 more node waits to get in");
        assert_eq!(change(&GroupChange::Waiting { count: 2 }), "2 more nodes wait to get in");
        assert!(came_back(1, 60.0).ends_with("for 60 s without failing first: its restart is there again"));
        assert!(came_back(3, 0.5).ends_with("all its 3 restarts are there again"));
    }
}
