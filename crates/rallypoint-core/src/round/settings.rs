//! What a run and a node are started with. The defaults live here and nowhere else.

use std::fmt;
use std::num::NonZeroUsize;
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
#[serde(from = "WrittenSettings", into = "WrittenSettings")]
pub struct RunSettings {
    /// Nodes that a round needs.
    pub min_nodes: usize,
    /// Nodes that a round takes.
    pub max_nodes: usize,
    /// Who gets which rank.
    pub policy: RankPolicy,
}

/// The settings as records have them: an earlier version reads a policy that it does not know as such, and the rest.
#[derive(Serialize, Deserialize)]
struct WrittenSettings {
    min_nodes: usize,
    max_nodes: usize,
    #[serde(default)]
    policy: PolicyName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segment_size: Option<NonZeroUsize>,
}

impl From<WrittenSettings> for RunSettings {
    fn from(written: WrittenSettings) -> Self {
        let policy = match (written.policy, written.segment_size) {
            (PolicyName::Sticky, _) => RankPolicy::Sticky,
            (PolicyName::Arrival, _) => RankPolicy::Arrival,
            (PolicyName::Address, _) => RankPolicy::Address,
            (PolicyName::Hint, _) => RankPolicy::Hint,
            (PolicyName::Segment, Some(size)) => RankPolicy::Segment { size },
            (PolicyName::Segment, None) | (PolicyName::Other, _) => RankPolicy::Other,
        };
        RunSettings { min_nodes: written.min_nodes, max_nodes: written.max_nodes, policy }
    }
}

impl From<RunSettings> for WrittenSettings {
    fn from(settings: RunSettings) -> Self {
        let RunSettings { min_nodes, max_nodes, policy } = settings;
        WrittenSettings { min_nodes, max_nodes, policy: policy.name(), segment_size: policy.segment_size() }
    }
}

impl RunSettings {
    /// The first setting in which `theirs` differs: its name, our value, their value.
    #[must_use]
    pub fn difference(&self, theirs: &RunSettings) -> Option<(&'static str, String, String)> {
        if self == theirs {
            return None;
        }
        let size =
            |policy: RankPolicy| policy.segment_size().map_or_else(String::new, |size| size.to_string());
        let values = |settings: &RunSettings| {
            let RunSettings { min_nodes, max_nodes, policy } = *settings;
            [min_nodes.to_string(), max_nodes.to_string(), policy.to_string(), size(policy)]
        };
        ["min_nodes", "max_nodes", "rank_policy", "segment_size"]
            .into_iter()
            .zip(values(self).into_iter().zip(values(theirs)))
            .find(|(_, (ours, theirs))| ours != theirs)
            .map(|(name, (ours, theirs))| (name, ours, theirs))
    }
}

/// Who gets which rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// Only whole segments of so many nodes of one rack, next to each other; those that do not make one stand by.
    /// Members keep their ranks as with [`Sticky`](RankPolicy::Sticky), where their segment can be filled up.
    Segment {
        /// The nodes of a segment.
        size: NonZeroUsize,
    },
    /// One that a later version knows. No node of this version can be started with it.
    Other,
}

/// The policies as words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PolicyName {
    #[default]
    Sticky,
    Arrival,
    Address,
    Hint,
    Segment,
    #[serde(other)]
    Other,
}

impl PolicyName {
    const ALL: [PolicyName; 5] =
        [PolicyName::Sticky, PolicyName::Arrival, PolicyName::Address, PolicyName::Hint, PolicyName::Segment];

    fn word(self) -> &'static str {
        match self {
            PolicyName::Sticky => "sticky",
            PolicyName::Arrival => "arrival",
            PolicyName::Address => "address",
            PolicyName::Hint => "hint",
            PolicyName::Segment => "segment",
            PolicyName::Other => "one of a later version",
        }
    }
}

impl RankPolicy {
    /// Those that are told by their name alone.
    pub const ALL: [RankPolicy; 4] =
        [RankPolicy::Sticky, RankPolicy::Arrival, RankPolicy::Address, RankPolicy::Hint];

    fn name(self) -> PolicyName {
        match self {
            RankPolicy::Sticky => PolicyName::Sticky,
            RankPolicy::Arrival => PolicyName::Arrival,
            RankPolicy::Address => PolicyName::Address,
            RankPolicy::Hint => PolicyName::Hint,
            RankPolicy::Segment { .. } => PolicyName::Segment,
            RankPolicy::Other => PolicyName::Other,
        }
    }

    /// The nodes of a segment, where only whole ones are seated.
    #[must_use]
    pub fn segment_size(self) -> Option<NonZeroUsize> {
        if let RankPolicy::Segment { size } = self { Some(size) } else { None }
    }

    /// The policy of that name; `segment` has a size.
    pub fn named(name: &str, segment_size: Option<NonZeroUsize>) -> Result<Self, String> {
        let Some(name) = PolicyName::ALL.into_iter().find(|policy| policy.word() == name) else {
            let names = PolicyName::ALL.map(PolicyName::word).join(", ");
            return Err(format!("{name:?} is not a rank policy; there are: {names}"));
        };
        match (name, segment_size) {
            (PolicyName::Segment, Some(size)) => Ok(RankPolicy::Segment { size }),
            (PolicyName::Segment, None) => Err(
                "the rank policy 'segment' needs 'segment_size', the nodes of one rack that are seated together"
                    .to_owned(),
            ),
            (name, Some(_)) => Err(format!(
                "'segment_size' is of the rank policy 'segment', and this one is '{}'",
                name.word()
            )),
            (name, None) => {
                Ok(RankPolicy::ALL.into_iter().find(|policy| policy.name() == name).unwrap_or_default())
            }
        }
    }
}

impl fmt::Display for RankPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().word())
    }
}

impl FromStr for RankPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        RankPolicy::named(name, None)
    }
}

/// What a node does that is kept out of its run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenExcluded {
    /// It ends.
    #[default]
    End,
    /// It waits until the exclusion is lifted or has expired, and then for a round.
    Wait,
}

impl FromStr for WhenExcluded {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "end" => Ok(WhenExcluded::End),
            "wait" => Ok(WhenExcluded::Wait),
            _ => Err(format!("a node that is excluded can 'end' or 'wait', and not {name:?}")),
        }
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
    /// See [`NodeRecord::host`](super::NodeRecord::host).
    pub host: String,
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
    /// What this node does when it is kept out of the run.
    pub when_excluded: WhenExcluded,
    /// See [`default_lease`].
    pub lease_ttl: Duration,
    /// See [`DEFAULT_RUN_TTL`].
    pub run_ttl: Duration,
    /// See [`DEFAULT_CLOSED_TTL`].
    pub closed_ttl: Duration,
    /// See [`DEFAULT_LAST_CALL`].
    pub last_call: Duration,
    /// How long a group that has lost somebody waits for a replacement before it meets smaller than it was; zero for not at all.
    pub replacement: Duration,
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
            host: String::new(),
            rack: String::new(),
            hint: String::new(),
            about: String::new(),
            since: 0,
            clock: Duration::ZERO,
            settings,
            when_excluded: WhenExcluded::default(),
            lease_ttl: default_lease(settings.max_nodes),
            run_ttl: DEFAULT_RUN_TTL,
            closed_ttl: DEFAULT_CLOSED_TTL,
            last_call: DEFAULT_LAST_CALL,
            replacement: Duration::ZERO,
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

    #[test]
    fn settings_are_read_by_earlier_versions_and_from_them() {
        let size = NonZeroUsize::new(4).expect("4 is not 0");
        let settings = RunSettings { min_nodes: 4, max_nodes: 8, policy: RankPolicy::Segment { size } };
        let text = serde_json::to_string(&settings).unwrap_or_default();
        assert_eq!(text, r#"{"min_nodes":4,"max_nodes":8,"policy":"segment","segment_size":4}"#);
        assert_eq!(serde_json::from_str::<RunSettings>(&text).ok(), Some(settings));
        let of = |text: &str| serde_json::from_str::<RunSettings>(text).ok().map(|settings| settings.policy);
        assert_eq!(of(r#"{"min_nodes":1,"max_nodes":2}"#), Some(RankPolicy::Sticky));
        assert_eq!(of(r#"{"min_nodes":1,"max_nodes":2,"policy":"moon"}"#), Some(RankPolicy::Other));
        assert_eq!(of(r#"{"min_nodes":1,"max_nodes":2,"policy":"segment"}"#), Some(RankPolicy::Other));
        let other = RunSettings { policy: RankPolicy::Segment { size: NonZeroUsize::MIN }, ..settings };
        assert_eq!(settings.difference(&other), Some(("segment_size", "4".to_owned(), "1".to_owned())));
    }
}
