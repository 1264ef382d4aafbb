//! What a run and its nodes are doing, in a word.

use std::fmt;

use serde::{Serialize, Serializer};

/// A node that is there.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// What it is to the run.
    pub state: NodeState,
    /// Its place in the last round.
    pub rank: Option<usize>,
    /// Where others reach it.
    pub address: String,
    /// The machine it runs on, as it says; empty from an earlier version.
    pub host: String,
    /// Its rack.
    pub rack: String,
    /// What it says of itself.
    pub about: String,
    /// When it was started, in seconds since 1970, by its own clock.
    pub since: u64,
    /// Its lease in etcd.
    #[serde(skip)]
    pub lease: i64,
    /// Seconds that are left of it, as it was last refreshed, once [`ask_leases`](super::ask_leases) has asked.
    pub lease_left: Option<i64>,
    /// Its place among the others, as it was told.
    pub hint: String,
    /// The revision at which it came.
    pub arrived: i64,
}

/// What a node is to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NodeState {
    /// In the last round. While the group meets again, it has not asked for the next one yet.
    Member,
    /// It asks for the next round.
    Joining,
    /// Not in the last round, and there is room for it.
    Waiting,
    /// Not in the last round, and there is no room for it.
    Spare,
    /// On its way out.
    Leaving,
    /// Kept out of the run: it is there, and no round has a place for it.
    Excluded,
}

impl NodeState {
    /// All that there are.
    pub const ALL: [NodeState; 6] = [
        NodeState::Member,
        NodeState::Joining,
        NodeState::Waiting,
        NodeState::Spare,
        NodeState::Leaving,
        NodeState::Excluded,
    ];
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeState::Member => "member",
            NodeState::Joining => "joining",
            NodeState::Waiting => "waiting",
            NodeState::Spare => "spare",
            NodeState::Leaving => "leaving",
            NodeState::Excluded => "excluded",
        })
    }
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// Its nodes wait for each other, before the first round.
    Meeting,
    /// Its nodes are at work.
    Running,
    /// Nodes were lost, or wait to get in.
    MeetingAgain,
    /// It is over.
    Closed,
    /// No node is there, and nobody has closed it.
    Abandoned,
    /// What stands in etcd was not written by a node.
    Unreadable,
}

impl RunState {
    /// `there`: the nodes that are there.
    pub(super) fn of(corrupt: bool, closed: bool, there: usize, round: u64, meets_again: bool) -> Self {
        match round {
            _ if corrupt => RunState::Unreadable,
            _ if closed => RunState::Closed,
            // What it has left is there for those who are started again.
            _ if there == 0 => RunState::Abandoned,
            0 => RunState::Meeting,
            _ if meets_again => RunState::MeetingAgain,
            _ => RunState::Running,
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunState::Meeting => "meeting",
            RunState::Running => "running",
            RunState::MeetingAgain => "meeting again",
            RunState::Closed => "closed",
            RunState::Abandoned => "abandoned",
            RunState::Unreadable => "unreadable",
        })
    }
}

impl Serialize for RunState {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
