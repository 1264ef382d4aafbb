//! Whole segments: so many nodes of one rack, next to each other.
//!
//! A rack has as many segments as its nodes make whole. Those of the last round stay where they are, the ones with the most
//! members left first; what they lack is filled up from their own rack. What is left of the others stands by with
//! everybody who makes no segment.

use std::collections::{BTreeMap, HashMap};

use super::{Candidate, by_hint};

/// A segment of the next round.
struct Segment<'a> {
    /// Which it was in the last round, if it was one.
    last: Option<usize>,
    /// When it was whole.
    arrived: i64,
    /// By place within it.
    nodes: Vec<Candidate<'a>>,
}

/// The nodes of the next round, by rank. `candidates`: members of the last round first, by rank, then by arrival.
pub(super) fn seats<'a>(size: usize, most: usize, candidates: Vec<Candidate<'a>>) -> Vec<&'a str> {
    let mut racks: BTreeMap<&str, Vec<Candidate<'a>>> = BTreeMap::new();
    for node in candidates.into_iter().filter(|node| !node.rack.is_empty()) {
        racks.entry(node.rack).or_default().push(node);
    }
    let mut segments: Vec<Segment<'a>> = racks.into_values().flat_map(|nodes| of_rack(size, nodes)).collect();
    // Two racks can claim one segment: a node may have come back elsewhere.
    segments.sort_by_key(|segment| (segment.last.is_none(), segment.last, segment.arrived));
    segments.truncate(most / size);
    in_order(segments).into_iter().flat_map(|segment| segment.nodes).map(|node| node.id).collect()
}

/// The segments of one rack: as many as its nodes make whole.
fn of_rack<'a>(size: usize, nodes: Vec<Candidate<'a>>) -> Vec<Segment<'a>> {
    let whole = nodes.len() / size;
    let mut left: HashMap<usize, usize> = HashMap::new();
    for node in &nodes {
        if let Some(rank) = node.last_rank {
            *left.entry(rank / size).or_insert(0) += 1;
        }
    }
    let mut stay: Vec<(usize, usize)> = left.into_iter().collect();
    stay.sort_by_key(|(segment, left)| (usize::MAX - left, *segment));
    stay.truncate(whole);
    stay.sort_unstable();
    // Whoever keeps its place, segment by segment; the others fill up what is left.
    let mut segments: Vec<(Option<usize>, Vec<Option<Candidate<'a>>>)> =
        stay.iter().map(|(segment, _)| (Some(*segment), vec![None; size])).collect();
    segments.resize(whole, (None, vec![None; size]));
    let mut rest = Vec::new();
    for node in nodes {
        let place = node.last_rank.and_then(|rank| {
            let at = stay.binary_search_by_key(&(rank / size), |(segment, _)| *segment).ok()?;
            Some((at, rank % size))
        });
        match place.map(|(at, place)| &mut segments[at].1[place]) {
            Some(seat @ None) => *seat = Some(node),
            _ => rest.push(node),
        }
    }
    let free = segments.iter().flat_map(|(_, seats)| seats).filter(|seat| seat.is_none()).count();
    rest.truncate(free);
    by_hint(&mut rest);
    let mut rest = rest.into_iter();
    let fill = |(last, seats): (Option<usize>, Vec<Option<Candidate<'a>>>)| {
        let nodes: Vec<_> = seats.into_iter().filter_map(|seat| seat.or_else(|| rest.next())).collect();
        let arrived = nodes.iter().map(|node| node.arrived).max().unwrap_or(0);
        Segment { last, arrived, nodes }
    };
    segments.into_iter().map(fill).collect()
}

/// Whoever can stay where it was stays; the others fill the holes, by their first hints and as they came.
fn in_order(segments: Vec<Segment<'_>>) -> Vec<Segment<'_>> {
    let mut order: Vec<Option<Segment<'_>>> = segments.iter().map(|_| None).collect();
    let mut rest = Vec::new();
    for segment in segments {
        match segment.last.and_then(|last| order.get_mut(last)) {
            Some(place @ None) => *place = Some(segment),
            _ => rest.push(segment),
        }
    }
    let hint = |segment: &Segment<'_>| segment.nodes.first().map_or("", |node| node.hint).to_owned();
    rest.sort_by(|a, b| {
        let moved = |segment: &Segment<'_>| segment.last.is_none();
        moved(a).cmp(&moved(b)).then_with(|| crate::text::natural(&hint(a), &hint(b)))
    });
    let mut rest = rest.into_iter();
    order.into_iter().filter_map(|place| place.or_else(|| rest.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &'static str, arrived: i64, last_rank: Option<usize>) -> Candidate<'static> {
        // The first letter is the rack.
        Candidate { id, address: id, rack: &id[..1], hint: "", arrived, last_rank }
    }

    fn seated(size: usize, most: usize, mut nodes: Vec<Candidate<'static>>) -> String {
        nodes.sort_by_key(|node| (node.last_rank.is_none(), node.last_rank, node.arrived));
        seats(size, most, nodes).join(" ")
    }

    #[test]
    fn only_whole_segments_are_seated_and_a_rack_may_have_several() {
        let nodes: Vec<_> = ["a1", "b1", "a2", "c1", "a3", "b2", "a4", "a5"]
            .into_iter()
            .zip(1..)
            .map(|(id, arrived)| node(id, arrived, None))
            .collect();
        assert_eq!(seated(2, 8, nodes.clone()), "a1 a2 b1 b2 a3 a4");
        assert_eq!(seated(2, 4, nodes.clone()), "a1 a2 b1 b2", "those who were whole first");
        assert_eq!(seated(4, 8, nodes.clone()), "a1 a2 a3 a4");
        assert_eq!(seated(8, 8, nodes), "");
    }

    #[test]
    fn a_segment_is_filled_up_from_its_own_rack_or_steps_back() {
        let before = vec![node("a1", 1, Some(0)), node("a2", 2, Some(1)), node("b2", 4, Some(3))];
        let with = |more: &[Candidate<'static>]| [before.clone(), more.to_vec()].concat();
        assert_eq!(seated(2, 4, with(&[])), "a1 a2");
        assert_eq!(seated(2, 4, with(&[node("b9", 9, None), node("c1", 5, None)])), "a1 a2 b9 b2");
        let others = [node("a3", 7, None), node("c1", 5, None), node("c2", 6, None)];
        assert_eq!(seated(2, 4, with(&others)), "a1 a2 c1 c2");
    }

    #[test]
    fn of_two_segments_that_have_lost_somebody_the_rack_keeps_one() {
        let rank = |id, rank| node(id, 1, Some(rank));
        let nodes = vec![rank("a1", 0), rank("a2", 1), rank("a4", 3), rank("b1", 4), rank("b2", 5)];
        assert_eq!(seated(2, 6, nodes), "a1 a2 b1 b2");
        let nodes = vec![rank("a1", 0), rank("a4", 3), rank("b1", 4), rank("b2", 5)];
        assert_eq!(seated(2, 6, nodes), "a1 a4 b1 b2");
        // The first segment is gone: the last takes its ranks, as there are fewer.
        let nodes = vec![rank("b1", 2), rank("b2", 3), rank("c1", 4), rank("c2", 5)];
        assert_eq!(seated(2, 6, nodes), "c1 c2 b1 b2");
    }
}
