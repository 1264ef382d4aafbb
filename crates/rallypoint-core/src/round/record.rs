//! What the keys of a run hold, as JSON.

use serde::{Deserialize, Serialize};

use super::settings::RunSettings;

/// How many of the lost members the group's record names; it must not grow with the group.
pub const NAMED_LOSSES: usize = 8;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Tells one process of this name from the next.
    pub incarnation: u64,
    /// Where others reach it.
    pub address: String,
    /// A free port there, should it become the master.
    pub port: u16,
    /// What it wants.
    pub wants: Wants,
    /// The last round it was in; 0 for none.
    pub round: u64,
    /// What it was started with.
    pub settings: RunSettings,
    /// Nodes of one rack are kept together by [`RankPolicy::Hint`](super::RankPolicy::Hint).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rack: String,
    /// Its place among the others, for [`RankPolicy::Hint`](super::RankPolicy::Hint).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// Whatever it wants the others to know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// When it was started, in seconds since 1970; only for people to read.
    #[serde(default)]
    pub since: u64,
}

/// What a node wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wants {
    /// A round after the last one it was in.
    Join,
    /// The place it has: its lease had run out.
    Stay,
    /// To be gone, in good order.
    Leave,
}

/// A node's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// The round it is for.
    pub round: u64,
    /// The plan it is from: it counts only if this very plan is committed.
    pub plan: String,
    /// The place.
    pub rank: usize,
    /// The process it is for.
    pub incarnation: u64,
    /// The node has left this place in good order. It says so here too, since the leader may be gone with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
}

/// The last completed round, and the news of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Its number; 0 before the first.
    pub round: u64,
    /// The plan that was committed.
    #[serde(default)]
    pub plan: String,
    /// Its members' number.
    #[serde(default)]
    pub world_size: usize,
    /// Where they meet.
    #[serde(default)]
    pub master: Option<MasterRecord>,
    /// What all nodes of the run are started with; none if an operator closed the run before its first node.
    #[serde(default)]
    pub settings: Option<RunSettings>,
    /// The lease that what outlives a node hangs on.
    #[serde(default)]
    pub lease: i64,
    /// Why the run is over, once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// What has changed since the round was completed.
    #[serde(default)]
    pub news: News,
}

/// Rank 0 of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterRecord {
    /// Its name.
    pub node: String,
    /// Where others reach it.
    pub address: String,
    /// The port where the workers meet.
    pub port: u16,
}

/// What has changed since a round was completed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Members that the group has lost, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// How many in all.
    #[serde(default)]
    pub lost_count: usize,
    /// Nodes that there is room for.
    #[serde(default)]
    pub waiting: usize,
    /// Nodes that there is no room for.
    #[serde(default)]
    pub spares: usize,
    /// Nodes that are ready for the next round, at the time of writing.
    #[serde(default)]
    pub joined: usize,
    /// What was left of the last call, at the time of writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call_ms: Option<u64>,
}

impl News {
    /// Whether the group should go on as it is.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost_count == 0 && self.waiting == 0
    }
}

/// A member that the group has lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Its name.
    pub node: String,
    /// The place it had.
    pub rank: usize,
    /// How.
    pub why: Why,
}

/// How a group lost a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// Its lease ended, or another process took its name.
    Died,
    /// It left in good order.
    Left,
    /// It is there, and asks for a new round.
    Again,
}
