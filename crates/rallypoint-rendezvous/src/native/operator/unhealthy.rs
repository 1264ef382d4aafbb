//! Who stays away because it fails its health checks. It has no key of its own then, and is known from what happened.

use std::collections::BTreeMap;

use rallypoint_core::round::What;
use rallypoint_core::timeline::Event;
use serde::Serialize;

use super::state::NodeStatus;

/// So many are named.
const MOST: usize = 64;

/// A node that has said that it fails its health checks, and not yet that it passes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unhealthy {
    /// Its name.
    pub node: String,
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// When it said so, in milliseconds since 1970, by its own clock.
    pub at_ms: u64,
}

/// Of the nodes that are not there, those whose last word on their health was that it fails.
pub(super) fn unhealthy(events: Vec<Event>, there: &[NodeStatus]) -> Vec<Unhealthy> {
    let mut last: BTreeMap<String, Unhealthy> = BTreeMap::new();
    for Event { record, .. } in events {
        match record.what {
            What::Unhealthy { problems } => {
                let node = record.by;
                last.insert(node.clone(), Unhealthy { node, problems, at_ms: record.at_ms });
            }
            What::Healthy => _ = last.remove(&record.by),
            _ => {}
        }
    }
    let is_there = |node: &str| there.iter().any(|known| known.node == node);
    last.into_values().filter(|sick| !is_there(&sick.node)).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use rallypoint_core::round::EventRecord;

    use super::*;

    #[test]
    fn the_last_word_counts() {
        let sick = |why: &str| What::Unhealthy { problems: vec![why.to_owned()] };
        let said = [("a", sick("disk")), ("b", sick("gpu")), ("a", What::Healthy), ("b", sick("clock"))];
        let events = said.into_iter().zip(1..);
        let events = events.map(|((by, what), at)| Event {
            revision: at,
            record: EventRecord::new(at.unsigned_abs(), by, 0, what),
        });
        let found = unhealthy(events.collect(), &[]);
        let b = Unhealthy { node: "b".to_owned(), problems: vec!["clock".to_owned()], at_ms: 4 };
        assert_eq!(found, [b]);
    }
}
