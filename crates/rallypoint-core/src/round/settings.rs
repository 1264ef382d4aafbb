//! What a run and a node are started with. The defaults live here and nowhere else.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A node of a small group that is not heard of for this long is dead. See [`default_lease`].
pub const DEFAULT_LEASE: Duration = Duration::from_secs(5);
/// The longest that [`default_lease`] gives.
pub const LONGEST_DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The shortest lease that etcd grants.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(2);
/// What a run leaves in etcd is gone this long after its last node.
pub const DEFAULT_RUN_TTL: Duration = Duration::from_secs(600);
/// Late nodes learn for this long that the run is over.
pub const DEFAULT_CLOSED_TTL: Duration = Duration::from_secs(600);
/// How long a round with enough nodes waits for more.
pub const DEFAULT_LAST_CALL: Duration = Duration::from_secs(30);
/// How many nodes a leader gives their places in one transaction: etcd takes 128 operations, and a few are for the rest.
pub const PLACES_PER_REQUEST: usize = 120;

/// A node of a group of up to so many that is not heard of for this long is dead: 5 s up to 1,000 nodes, and a second
/// more for each further 600, up to 30 s.
///
/// Each node refreshes its lease four times in it. That is what a group at work costs its etcd, and it grows with the
/// group: at 5 s, 10,000 nodes would ask for 8,000 refreshes a second.
#[must_use]
pub fn default_lease(max_nodes: usize) -> Duration {
    let more = max_nodes.saturating_sub(1_000).div_ceil(600);
    let more = Duration::from_secs(u64::try_from(more).unwrap_or(u64::MAX));
    DEFAULT_LEASE.saturating_add(more).min(LONGEST_DEFAULT_LEASE)
}

/// What all nodes of a run must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Nodes that a round needs.
    pub min_nodes: usize,
    /// Nodes that a round takes.
    pub max_nodes: usize,
    /// Who gets which rank.
    #[serde(default)]
    pub policy: RankPolicy,
}

impl RunSettings {
    /// The first setting in which `theirs` differs: its name, our value, their value.
    #[must_use]
    pub fn difference(&self, theirs: &RunSettings) -> Option<(&'static str, String, String)> {
        if self == theirs {
            return None;
        }
        let values = |settings: &RunSettings| {
            [settings.min_nodes.to_string(), settings.max_nodes.to_string(), settings.policy.to_string()]
        };
        ["min_nodes", "max_nodes", "rank_policy"]
            .into_iter()
            .zip(values(self).into_iter().zip(values(theirs)))
            .find(|(_, (ours, theirs))| ours != theirs)
            .map(|(name, (ours, theirs))| (name, ours, theirs))
    }
}

/// Who gets which rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankPolicy {
    /// Members keep their ranks from round to round; others fill the holes by rack and hint, and without those in order
    /// of arrival.
    #[default]
    Sticky,
    /// In order of arrival.
    Arrival,
    /// Sorted by address.
    Address,
    /// Sorted by the nodes' hints, the nodes of one rack next to each other.
    Hint,
    /// One that a later version knows. No node of this version can be started with it.
    #[serde(other)]
    Other,
}

impl RankPolicy {
    /// All that there are.
    pub const ALL: [RankPolicy; 4] =
        [RankPolicy::Sticky, RankPolicy::Arrival, RankPolicy::Address, RankPolicy::Hint];

    fn name(self) -> &'static str {
        match self {
            RankPolicy::Sticky => "sticky",
            RankPolicy::Arrival => "arrival",
            RankPolicy::Address => "address",
            RankPolicy::Hint => "hint",
            RankPolicy::Other => "one of a later version",
        }
    }
}

impl fmt::Display for RankPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RankPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        RankPolicy::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let names = RankPolicy::ALL.map(RankPolicy::name).join(", ");
            format!("{name:?} is not a rank policy; there are: {names}")
        })
    }
}

/// What one node is started with.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Beginning of the run's keys; ends in a slash.
    pub run: String,
    /// The node's name in the run.
    pub id: String,
    /// Tells this process from others of that name.
    pub incarnation: u64,
    /// Where others reach this node.
    pub address: String,
    /// See [`NodeRecord::rack`](super::NodeRecord::rack).
    pub rack: String,
    /// See [`NodeRecord::hint`](super::NodeRecord::hint).
    pub hint: String,
    /// See [`NodeRecord::about`](super::NodeRecord::about).
    pub about: String,
    /// See [`NodeRecord::since`](super::NodeRecord::since).
    pub since: u64,
    /// The time of day, since 1970, when the machine's clock is at zero.
    pub clock: Duration,
    /// What all nodes of the run must agree on.
    pub settings: RunSettings,
    /// See [`default_lease`].
    pub lease_ttl: Duration,
    /// See [`DEFAULT_RUN_TTL`].
    pub run_ttl: Duration,
    /// See [`DEFAULT_CLOSED_TTL`].
    pub closed_ttl: Duration,
    /// See [`DEFAULT_LAST_CALL`].
    pub last_call: Duration,
    /// See [`PLACES_PER_REQUEST`].
    pub places_per_request: usize,
}

impl NodeConfig {
    /// What the leader's key holds while this process leads: its node's name, and what tells the process from every
    /// other.
    pub(super) fn leader_value(&self) -> String {
        format!("{} {:x}", self.id, self.incarnation)
    }

    /// The time of day, in milliseconds since 1970, when the machine's clock is at `now`.
    pub(super) fn time_of_day(&self, now: Duration) -> u64 {
        u64::try_from((self.clock + now).as_millis()).unwrap_or(u64::MAX)
    }

    /// The node in a leader's key.
    #[must_use]
    pub fn leader_of(value: &str) -> &str {
        value.rsplit_once(' ').map_or(value, |(node, _)| node)
    }

    /// The defaults.
    #[must_use]
    pub fn new(run: &str, id: &str, settings: RunSettings) -> Self {
        NodeConfig {
            run: run.to_owned(),
            id: id.to_owned(),
            incarnation: 0,
            address: String::new(),
            rack: String::new(),
            hint: String::new(),
            about: String::new(),
            since: 0,
            clock: Duration::ZERO,
            settings,
            lease_ttl: default_lease(settings.max_nodes),
            run_ttl: DEFAULT_RUN_TTL,
            closed_ttl: DEFAULT_CLOSED_TTL,
            last_call: DEFAULT_LAST_CALL,
            places_per_request: PLACES_PER_REQUEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_grows_with_the_group_and_the_refreshes_grow_less() {
        let leases =
            [1, 1_000, 1_001, 4_000, 10_000, 16_000, usize::MAX].map(|nodes| default_lease(nodes).as_secs());
        assert_eq!(leases, [5, 5, 6, 10, 20, 30, 30]);
    }
}
