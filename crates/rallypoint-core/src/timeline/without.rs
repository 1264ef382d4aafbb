//! Whom a round goes on without.
//!
//! The leader tells that a member is gone. Whether it had done its part only the launchers know, and one of them writes that
//! down: then nobody meets again.

use std::collections::HashSet;

use super::Event;
use crate::round::{Lost, What};

/// Members that are gone after their workers had finished, each in a round that goes on.
#[derive(Debug, Clone, Default)]
pub struct Without(HashSet<(u64, String)>);

impl Without {
    /// Those of whom these events tell.
    #[must_use]
    pub fn told_by(events: &[Event]) -> Self {
        let told = events.iter().filter_map(|Event { record, .. }| match &record.what {
            What::Without { node, .. } => Some((record.round, node.clone())),
            _ => None,
        });
        Without(told.collect())
    }

    /// Whether that round goes on without that member.
    #[must_use]
    pub fn has(&self, round: u64, node: &str) -> bool {
        self.0.contains(&(round, node.to_owned()))
    }

    /// Whether it goes on though it has lost these. `all`: how many that are, since only the first are named.
    #[must_use]
    pub fn has_all(&self, round: u64, lost: &[Lost], all: usize) -> bool {
        lost.len() == all && lost.iter().all(|lost| self.has(round, &lost.node))
    }
}
