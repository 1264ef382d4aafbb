//! Who was lost and has not come back, in whichever round that was: a group that has gone on with fewer could use it.

use std::collections::BTreeMap;

use rallypoint_core::round::{Lost, What, Why};
use rallypoint_core::timeline::Event;
use serde::Serialize;

/// So many are named.
const MOST: usize = 64;

/// A node that the group has lost, and that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotBack {
    /// Its name.
    pub node: String,
    /// How it was lost.
    pub why: Why,
    /// The round that it was in.
    pub round: u64,
    /// Its place there.
    pub rank: usize,
    /// When that was told, in milliseconds since 1970.
    pub at_ms: u64,
}

/// As far as the events tell; who was lost last comes first.
pub(super) fn not_back(events: &[Event], is_there: impl Fn(&str) -> bool) -> Vec<NotBack> {
    let mut last: BTreeMap<String, NotBack> = BTreeMap::new();
    let mut note = |node: &str, rank, why, round, at_ms| {
        // What was told first of a loss is nearest to it.
        if why != Why::Again && last.get(node).is_none_or(|known| known.round < round) {
            let lost = NotBack { node: node.to_owned(), why, round, rank, at_ms };
            last.insert(lost.node.clone(), lost);
        }
    };
    for Event { record, .. } in events {
        let (at, round) = (record.at_ms, record.round);
        match &record.what {
            What::Killed { rank } => note(&record.by, *rank, Why::Killed, round, at),
            What::Lost { lost, .. } => {
                lost.iter().for_each(|Lost { node, rank, why }| note(node, *rank, *why, round, at));
            }
            What::Formed(formed) => {
                let before = round.saturating_sub(1);
                formed.gone.iter().for_each(|Lost { node, rank, why }| note(node, *rank, *why, before, at));
            }
            _ => {}
        }
    }
    let mut all: Vec<NotBack> = last.into_values().filter(|lost| !is_there(&lost.node)).collect();
    all.sort_by_key(|lost| std::cmp::Reverse(lost.at_ms));
    all.truncate(MOST);
    all
}

#[cfg(test)]
mod tests {
    use rallypoint_core::round::{EventRecord, Formed};

    use super::*;

    #[test]
    fn who_was_lost_in_any_round_is_named_until_it_is_there_again() {
        let lost = |node: &str, why| vec![Lost { node: node.to_owned(), rank: 3, why }];
        let told = |node, why| What::Lost { lost: lost(node, why), count: 1, within_ms: None, found: None };
        let formed = Formed { gone: lost("d", Why::Left), ..Formed::default() };
        let said = [
            (1, "b", What::Killed { rank: 3 }),
            (1, "a", told("b", Why::Killed)),
            (2, "a", told("c", Why::Died)),
            (2, "a", told("a", Why::Again)),
            (3, "a", What::Formed(Box::new(formed))),
            (3, "a", told("c", Why::Left)),
            (3, "a", told("e", Why::Died)),
        ];
        let events: Vec<Event> = said
            .into_iter()
            .zip(1..)
            .map(|((round, by, what), at)| Event {
                revision: at,
                record: EventRecord::new(at.unsigned_abs(), by, round, what),
            })
            .collect();
        let found = not_back(&events, |node| node == "e");
        let found: Vec<_> =
            found.iter().map(|lost| (&*lost.node, lost.why, lost.round, lost.at_ms)).collect();
        assert_eq!(
            found,
            [("c", Why::Left, 3, 6), ("d", Why::Left, 2, 5), ("b", Why::Killed, 1, 1)],
            "the last loss of each"
        );
    }
}
