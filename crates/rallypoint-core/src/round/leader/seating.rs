//! Who gets in, and where.

mod segments;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::IpAddr;

use super::super::settings::{RankPolicy, RunSettings};
use crate::text::natural;

/// A node that is ready for the next round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate<'a> {
    pub(super) id: &'a str,
    pub(super) address: &'a str,
    pub(super) rack: &'a str,
    pub(super) hint: &'a str,
    /// The revision at which it came.
    pub(super) arrived: i64,
    /// The place it had in the last round.
    pub(super) last_rank: Option<usize>,
}

/// The nodes of the next round, by rank: members of the last round first, then those who came first.
pub(super) fn seats<'a>(settings: &RunSettings, mut candidates: Vec<Candidate<'a>>) -> Vec<&'a str> {
    candidates.sort_by_key(|node| (node.last_rank.is_none(), node.last_rank, node.arrived));
    if let RankPolicy::Segment { size } = settings.policy {
        return segments::seats(size.get(), settings.max_nodes, candidates);
    }
    candidates.truncate(settings.max_nodes);
    match settings.policy {
        // A policy of a later version is no node's of this one.
        RankPolicy::Sticky | RankPolicy::Segment { .. } | RankPolicy::Other => return sticky(&candidates),
        RankPolicy::Arrival => candidates.sort_by_key(|node| node.arrived),
        RankPolicy::Address => candidates.sort_by(|a, b| {
            by_address(a.address, b.address).then_with(|| (a.arrived, a.id).cmp(&(b.arrived, b.id)))
        }),
        RankPolicy::Hint => {
            candidates.sort_by_key(|node| node.arrived);
            by_hint(&mut candidates);
        }
    }
    candidates.into_iter().map(|node| node.id).collect()
}

/// Whoever can keep a rank keeps it; the others fill the holes by their hints, and without those as they came.
fn sticky<'a>(candidates: &[Candidate<'a>]) -> Vec<&'a str> {
    let mut seats = vec![None; candidates.len()];
    let mut rest = Vec::new();
    for node in candidates {
        match node.last_rank.and_then(|rank| seats.get_mut(rank)) {
            Some(seat @ None) => *seat = Some(node.id),
            _ => rest.push(node.clone()),
        }
    }
    by_hint(&mut rest);
    let mut rest = rest.into_iter().map(|node| node.id);
    seats.into_iter().filter_map(|seat| seat.or_else(|| rest.next())).collect()
}

/// Racks in the order of their first hint; within a rack by hint; those of one hint as they stand.
fn by_hint(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by(|a, b| natural(a.hint, b.hint));
    let mut racks = HashMap::new();
    for node in candidates.iter() {
        let next = racks.len();
        racks.entry(node.rack).or_insert(next);
    }
    candidates.sort_by_key(|node| racks[node.rack]);
}

fn by_address(a: &str, b: &str) -> Ordering {
    match (a.parse::<IpAddr>(), b.parse::<IpAddr>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => natural(a, b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node<'a>(id: &'a str, arrived: i64, last_rank: Option<usize>) -> Candidate<'a> {
        Candidate { id, address: id, rack: "", hint: "", arrived, last_rank }
    }

    fn settings(max_nodes: usize, policy: RankPolicy) -> RunSettings {
        RunSettings { min_nodes: 1, max_nodes, policy }
    }

    #[test]
    fn members_keep_their_ranks_and_newcomers_fill_the_holes_in_order_of_arrival() {
        let nodes = vec![
            node("late", 9, None),
            node("two", 3, Some(2)),
            node("early", 5, None),
            node("zero", 1, Some(0)),
        ];
        assert_eq!(seats(&settings(8, RankPolicy::Sticky), nodes), ["zero", "early", "two", "late"]);
    }

    #[test]
    fn newcomers_with_hints_fill_the_holes_by_them() {
        let hinted = |id, arrived, hint, last_rank| Candidate { hint, ..node(id, arrived, last_rank) };
        let first = || vec![hinted("c", 1, "10", None), hinted("a", 3, "0", None), hinted("b", 2, "9", None)];
        assert_eq!(seats(&settings(3, RankPolicy::Sticky), first()), ["a", "b", "c"]);
        let racks =
            first().into_iter().zip(["r1", "r1", "r2"]).map(|(node, rack)| Candidate { rack, ..node });
        assert_eq!(seats(&settings(3, RankPolicy::Sticky), racks.collect()), ["a", "c", "b"]);
        // a and b are gone: two others take their places, by their hints, and move nobody.
        let then =
            vec![hinted("e", 4, "12", None), hinted("c", 1, "10", Some(2)), hinted("d", 5, "11", None)];
        assert_eq!(seats(&settings(3, RankPolicy::Sticky), then), ["d", "e", "c"]);
    }

    #[test]
    fn a_rank_beyond_the_new_size_moves_to_the_first_hole() {
        let nodes = vec![node("one", 2, Some(1)), node("five", 1, Some(5)), node("new", 9, None)];
        assert_eq!(seats(&settings(8, RankPolicy::Sticky), nodes), ["five", "one", "new"]);
    }

    #[test]
    fn of_too_many_the_members_get_in_first_then_who_came_first() {
        let nodes = vec![
            node("spare", 2, None),
            node("later", 3, None),
            node("member", 9, Some(1)),
            node("other", 8, Some(3)),
        ];
        assert_eq!(seats(&settings(3, RankPolicy::Sticky), nodes), ["other", "member", "spare"]);
    }

    #[test]
    fn other_policies_sort() {
        let nodes = || vec![node("10.0.0.10", 1, Some(1)), node("10.0.0.9", 2, Some(0)), node("n", 0, None)];
        assert_eq!(seats(&settings(3, RankPolicy::Arrival), nodes()), ["n", "10.0.0.10", "10.0.0.9"]);
        assert_eq!(seats(&settings(3, RankPolicy::Address), nodes()), ["10.0.0.9", "10.0.0.10", "n"]);
        let hinted = |id, rack, hint| Candidate { rack, hint, ..node(id, 1, None) };
        let nodes = vec![
            hinted("a", "r2", "node-10"),
            hinted("b", "r1", "node-3"),
            hinted("c", "r2", "node-2"),
            hinted("d", "r1", "node-11"),
        ];
        assert_eq!(seats(&settings(4, RankPolicy::Hint), nodes), ["c", "a", "b", "d"]);
    }
}
