//! What a node is started with.

use std::time::Duration;

use super::VersionRank;

/// What a node wants.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name, which no other has: it stands in its keep-alives.
    pub node: String,
    /// Nodes that a version needs.
    pub min: usize,
    /// Nodes that it takes.
    pub max: usize,
    /// How long a version with enough nodes stays open.
    pub last_call: Duration,
    /// The folder of the run, as it begins the names of keep-alives.
    pub root: String,
}

impl Settings {
    /// The key of the keep-alive of a place.
    #[must_use]
    pub fn keep_alive(&self, place: VersionRank) -> String {
        let VersionRank { version, rank } = place;
        format!("{}/rdzv/v_{version}/rank_{rank}", self.root)
    }
}
