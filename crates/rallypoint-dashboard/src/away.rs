//! Who stays away because it is sick, and who is about to go because it is preempted, as the page shows it.

use std::collections::HashMap;

use serde::Serialize;

use crate::source::{Event, Seen, Unhealthy};
use crate::text::{line, name};

/// Letters of what is wrong.
const WORDS: usize = 300;
/// Of many the first are named, and of many problems of one.
const NAMED: usize = 64;
const PROBLEMS: usize = 8;

/// A node that fails its health checks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sick {
    node: String,
    problems: Vec<String>,
    at_ms: u64,
}

/// A member that is going to be taken away.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Preempted {
    pub(crate) node: String,
    rank: Option<usize>,
    /// None where it stays until all workers have saved.
    pub(crate) until_ms: Option<u64>,
    at_ms: u64,
}

pub(crate) fn sick(seen: &Seen) -> Vec<Sick> {
    let shown = |sick: &Unhealthy| Sick {
        node: name(&sick.node),
        problems: sick.problems.iter().take(PROBLEMS).map(|problem| line(problem, WORDS)).collect(),
        at_ms: sick.at_ms,
    };
    seen.unhealthy.iter().take(NAMED).map(shown).collect()
}

/// Those that have said that they go, and are in that round still.
pub(crate) fn preempted(seen: &Seen) -> Vec<Preempted> {
    let said = seen.events.iter().filter(|event| event.kind == "preempted" && event.round == seen.round);
    let last: HashMap<&str, &Event> = said.map(|event| (event.by.as_str(), event)).collect();
    let members = seen.nodes.iter().filter(|node| ["member", "leaving"].contains(&&*node.state));
    let going = members.filter_map(|node| {
        // One of its name that came later was told nothing.
        let event = last.get(node.node.as_str()).filter(|event| node.arrived <= event.revision)?;
        Some(Preempted {
            node: name(&node.node),
            rank: node.rank,
            until_ms: event.left_ms.map(|left| event.at_ms.saturating_add(left)),
            at_ms: event.at_ms,
        })
    });
    if seen.state == "closed" { Vec::new() } else { going.take(NAMED).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_preempted_as_long_as_it_is_in_the_round_in_which_it_said_so() {
        let going = |state: &str, round: u64, node: serde_json::Value| {
            let said = json!({"revision": 7, "event": "preempted", "by": "a", "round": 2, "at_ms": 1000, "left_ms": 20_000});
            let run = json!({"state": state, "round": round, "nodes": [node], "events": [said]});
            preempted(&serde_json::from_value(run).unwrap())
        };
        let node =
            |state: &str, arrived: i64| json!({"node": "a", "state": state, "rank": 1, "arrived": arrived});
        let told = going("running", 2, node("member", 5));
        assert_eq!((&*told[0].node, told[0].until_ms), ("a", Some(21_000)));
        assert_eq!(going("running", 3, node("member", 5)), [], "another round");
        assert_eq!(going("running", 2, node("spare", 5)), [], "it is out of the round");
        assert_eq!(going("running", 2, node("member", 9)), [], "another process of that name");
        assert_eq!(going("closed", 2, node("leaving", 5)), []);
    }
}
