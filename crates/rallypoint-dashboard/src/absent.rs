//! Nodes that are not there and should be: those that the group has lost, and those that are waited for.

use std::collections::HashSet;

use serde::Serialize;

use crate::source::{Event, Lost, Seen};
use crate::text::{line, name};

/// Letters of what a node has said of itself, and of a sentence.
const WORDS: usize = 300;
/// Of many the first are shown.
const SHOWN: usize = 64;

/// A node that is not there, with what was last known of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Absent {
    pub(crate) node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    /// How it was lost, or `missing`.
    pub(crate) state: String,
    /// The same in words.
    pub(crate) words: String,
    /// How that is known.
    why: String,
    /// When it was lost.
    pub(crate) at_ms: Option<u64>,
    address: String,
    host: String,
    rack: String,
    about: String,
    since: u64,
    arrived: i64,
    /// Its place, its address and the like are known.
    pub(crate) is_known: bool,
}

/// Those that were lost first, then those of whom it is known that they are missing, then those whom nobody misses.
pub(crate) fn absent(seen: &Seen) -> Vec<Absent> {
    let there: HashSet<&str> = seen.nodes.iter().map(|node| node.node.as_str()).collect();
    let is_absent = |node: &str| !there.contains(node);
    // Who asks for a new round and is gone since is told of as missing.
    let lost: Vec<&Lost> =
        seen.lost.iter().filter(|lost| lost.why != "again" && is_absent(&lost.node)).collect();
    let names: HashSet<&str> = lost.iter().map(|lost| lost.node.as_str()).collect();
    let missing =
        seen.missing.iter().filter(|one| is_absent(&one.node) && !names.contains(one.node.as_str()));
    let missing = missing.map(|one| Absent {
        node: name(&one.node),
        state: "missing".to_owned(),
        words: "missing".to_owned(),
        why: line(&one.why, WORDS),
        ..Absent::default()
    });
    let is_waited_for = seen.meets();
    let lost = lost.iter().map(|lost| {
        let words = words(&lost.why);
        let words = if is_waited_for { format!("missing, {words}") } else { words.to_owned() };
        Absent { state: line(&lost.why, 40), words, ..gone(seen, lost) }
    });
    let finished = seen.without.iter().filter(|lost| is_absent(&lost.node)).map(|lost| {
        let words = format!("had finished, {}", words(&lost.why));
        Absent { state: "finished".to_owned(), words, ..gone(seen, lost) }
    });
    lost.chain(missing).chain(finished).take(SHOWN).collect()
}

/// What is known of a member that is gone.
fn gone(seen: &Seen, lost: &Lost) -> Absent {
    let node = seen.last_known.get(&lost.node).cloned().unwrap_or_default();
    Absent {
        node: name(&lost.node),
        rank: Some(lost.rank),
        why: format!("node {} of round {} {}", lost.rank, seen.round, words(&lost.why)),
        at_ms: lost_at(seen, &lost.node),
        address: line(&node.address, WORDS),
        host: name(&node.host),
        rack: line(&node.rack, 60),
        about: line(&node.about, WORDS),
        since: node.since,
        arrived: node.arrived,
        is_known: seen.last_known.contains_key(&lost.node),
        ..Absent::default()
    }
}

/// When it was lost, as it has said itself, or as the others were told.
pub(crate) fn lost_at(seen: &Seen, node: &str) -> Option<u64> {
    let of_round = seen.events.iter().filter(|event| event.round == seen.round);
    let told: Vec<&Event> = of_round
        .filter(|event| {
            (event.kind == "killed" && event.by == node)
                || event.lost.iter().any(|lost| lost.node == node && lost.why != "again")
        })
        .collect();
    let own = told.iter().find(|event| event.kind == "killed");
    own.or(told.first()).map(|event| event.at_ms)
}

/// How a member was lost, in words that are the same everywhere on the page.
pub(crate) fn words(why: &str) -> &'static str {
    match why {
        "died" => "died",
        "killed" => "was killed",
        "left" => "left",
        "replaced" => "was replaced",
        "excluded" => "was excluded",
        "late" => "did not come in time",
        _ => "is gone",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::source::Node;

    fn seen(state: &str) -> Seen {
        let lost = |node: &str, rank, why: &str| json!({"node": node, "rank": rank, "why": why});
        let killed = lost("gpu-011", 9, "killed");
        let mut seen: Seen = serde_json::from_value(json!({"state": state, "round": 2, "nodes": [{"node": "gpu-001", "state": "joining"}],
            "lost": [killed, lost("gpu-001", 0, "died"), lost("gpu-002", 1, "again")],
            "missing": [{"node": "gpu-011", "why": "node 9 of round 2 was killed"}, {"node": "gpu-002", "why": "node 1 of round 2 is gone"}],
            "events": [
                {"round": 1, "event": "killed", "by": "gpu-011", "at_ms": 5},
                {"round": 2, "event": "killed", "by": "gpu-011", "at_ms": 70},
                {"round": 2, "event": "lost", "by": "gpu-001", "at_ms": 90, "lost": [killed]},
            ]}))
        .unwrap();
        let place = Node { rack: "rack-0".to_owned(), host: "host-011".to_owned(), ..Node::default() };
        seen.last_known.insert("gpu-011".to_owned(), place);
        seen
    }

    #[test]
    fn who_is_lost_comes_with_when_how_and_where_it_was() {
        let shown = absent(&seen("meeting again"));
        let names: Vec<_> = shown.iter().map(|one| (&*one.node, &*one.words)).collect();
        assert_eq!(names, [("gpu-011", "missing, was killed"), ("gpu-002", "missing")], "gpu-001 is back");
        let first = &shown[0];
        assert_eq!((first.at_ms, &*first.rack, &*first.host), (Some(70), "rack-0", "host-011"));
        assert!(first.is_known && !shown[1].is_known);
        assert_eq!(absent(&seen("closed"))[0].words, "was killed", "nobody waits for it any more");
    }

    #[test]
    fn who_had_finished_before_it_went_is_not_missing() {
        let gone = json!({"node": "gpu-011", "rank": 9, "why": "died"});
        let seen: Seen = serde_json::from_value(json!({"state": "running", "round": 2, "without": [gone],
            "events": [{"round": 2, "event": "lost", "by": "gpu-001", "at_ms": 90, "lost": [gone]}]}))
        .unwrap();
        let shown: Vec<_> = absent(&seen).into_iter().map(|one| (one.state, one.words, one.at_ms)).collect();
        assert_eq!(shown, [("finished".to_owned(), "had finished, died".to_owned(), Some(90))]);
    }
}
