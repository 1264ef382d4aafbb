//! How far a rendezvous has come, and what it waits for, in words.

use std::time::Duration;

use rallypoint_core::round::{Exclusion, kept_out};
use rallypoint_core::text::{are, count, plain};

/// How far a rendezvous has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// The round that is being formed.
    pub round: u64,
    /// Nodes that are there, as far as this node knows.
    pub joined: usize,
    /// Nodes that a round needs.
    pub min_nodes: usize,
    /// Nodes that a round takes.
    pub max_nodes: usize,
    /// Of those, the ones that a round could have now, where only whole segments are seated.
    pub seatable: Option<usize>,
    /// The nodes of a segment, where only whole ones are seated.
    pub segment_size: Option<usize>,
    /// What is left of the last call, once enough nodes are there.
    pub last_call: Option<Duration>,
    /// The group is full, or this node is excluded: it stands by as a spare.
    pub spare: bool,
    /// Why this node itself is excluded, while it waits to be let in again.
    pub kept_out: Option<Exclusion>,
    /// All who are excluded from the run, as far as this node knows.
    pub exclusions: Vec<Exclusion>,
}

impl Progress {
    /// What a node waits for, in words: `waiting for 2 nodes: 1 of 3 is here`. `left`: what is left of the last call by now.
    #[must_use]
    pub fn waits_for(&self, left: Option<Duration>) -> String {
        let waits = self.waits(left);
        match kept_out(&self.exclusions).filter(|_| self.kept_out.is_none()) {
            Some(others) => format!("{waits}; {others}"),
            None => waits,
        }
    }

    fn waits(&self, left: Option<Duration>) -> String {
        let Progress { joined, min_nodes, max_nodes, .. } = *self;
        if let Some(exclusion) = &self.kept_out {
            let (until, reason) = (exclusion.until(), plain(&exclusion.reason));
            return format!("excluded from the run, {until}: {reason}; waiting to be let in again");
        }
        if self.spare {
            return match self.segment_size {
                Some(size) => {
                    format!("standing by as a spare: only whole segments of {size} of one rack are seated")
                }
                None => format!("standing by as a spare: the group has its {}", count(max_nodes, "node")),
            };
        }
        if let (Some(size), Some(seatable)) = (self.segment_size, self.seatable)
            && seatable < min_nodes
            && seatable < joined
        {
            let here = are(joined, "node", "here");
            return format!(
                "waiting for whole segments of {size} nodes of one rack: {here}, {seatable} of {min_nodes} in such"
            );
        }
        // This node is here, whether the others have counted it yet or not.
        let here = joined.max(1);
        if here < min_nodes {
            let is = if here == 1 { "is" } else { "are" };
            let missing = count(min_nodes - here, "node");
            return format!("waiting for {missing}: {here} of {min_nodes} {is} here");
        }
        if joined == 0 {
            // Nobody has counted this node, so nothing is known of the others.
            return "waiting for the other nodes".to_owned();
        }
        if joined >= max_nodes {
            return format!("{}: starting", are(joined, "node", "here"));
        }
        let here = count(joined, "node");
        match left.map(|left| left.as_secs_f64().round()) {
            Some(left) if left >= 1.0 => {
                format!("{here} here, up to {max_nodes} may come: starting in {left} s")
            }
            // Not every node is told how long it is.
            _ => format!("{here} here, up to {max_nodes} may come: starting soon"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_is_missing_and_what_happens_next() {
        let mut progress = Progress { min_nodes: 3, max_nodes: 4, ..Progress::default() };
        assert_eq!(progress.waits_for(None), "waiting for 2 nodes: 1 of 3 is here");
        progress.joined = 3;
        let left = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(progress.waits_for(left(11.6)), "3 nodes here, up to 4 may come: starting in 12 s");
        for left in [None, left(0.4)] {
            assert_eq!(progress.waits_for(left), "3 nodes here, up to 4 may come: starting soon");
        }
        progress.joined = 4;
        assert_eq!(progress.waits_for(left(12.0)), "4 nodes are here: starting");
        (progress.joined, progress.min_nodes) = (0, 1);
        assert_eq!(progress.waits_for(None), "waiting for the other nodes");
        progress.spare = true;
        assert_eq!(progress.waits_for(None), "standing by as a spare: the group has its 4 nodes");
    }
}
