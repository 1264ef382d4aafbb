//! What the keys of a run hold, as JSON.
//!
//! Nodes of different versions meet in one run. A later version may add fields: an earlier one leaves them out, or
//! keeps them where it writes a record again that others wrote (`more`). It may add words to an enum: an earlier one
//! reads those as `Other`. What an earlier version must not take part in gets another key.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::etcd::Entry;
use super::keys::GROUP_EVENTS;

use super::settings::RunSettings;

/// What the records of this version say. It tells people who wrote what; nothing is decided by it.
pub const RECORD_VERSION: u32 = 1;

/// A record as etcd gets it.
pub(super) fn json(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records have no keys that JSON cannot hold")
}

/// A record as etcd has it.
pub(super) fn parse<T: DeserializeOwned>(entry: &Entry) -> Result<T, Corrupt> {
    serde_json::from_str(&entry.value)
        .map_err(|error| Corrupt { key: entry.key.clone(), problem: error.to_string() })
}

/// No round has this number, and no group so many nodes. Who says so is no node of ours, and what is counted on from
/// there would overflow.
const ABSURD: u64 = 1 << 52;

/// A number of a record, if it is not absurd.
pub(super) fn number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let number = u64::deserialize(deserializer)?;
    let sane = Some(number).filter(|number| *number < ABSURD).and_then(|number| T::try_from(number).ok());
    sane.ok_or_else(|| D::Error::custom(format!("{number} is absurd")))
}

/// A number that nothing depends on: one that is none begins at 0.
fn number_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = Value::deserialize(deserializer)?.as_u64();
    Ok(number.filter(|number| *number < ABSURD - GROUP_EVENTS).unwrap_or(0))
}

/// What stands in etcd is not what a node writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    /// Where.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

/// How many of the lost members the group's record names; it must not grow with the group.
pub const NAMED_LOSSES: usize = 8;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// See [`RECORD_VERSION`].
    #[serde(default)]
    pub version: u32,
    /// Tells one process of this name from the next.
    pub incarnation: u64,
    /// Where others reach it.
    pub address: String,
    /// A free port there, should it become the master.
    pub port: u16,
    /// What it wants.
    pub wants: Wants,
    /// It asks for a round after this one: the last it was in; 0 for none.
    #[serde(deserialize_with = "number")]
    pub round: u64,
    /// The seat it had there. It says so for a leader whose etcd has lost all else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<Seat>,
    /// What it was started with.
    pub settings: RunSettings,
    /// The name of the machine it runs on, by which it can be kept out of the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Nodes of one rack are kept together by [`RankPolicy::Hint`](super::RankPolicy::Hint), and when they come together
    /// by [`RankPolicy::Sticky`](super::RankPolicy::Sticky). The segments of
    /// [`RankPolicy::Segment`](super::RankPolicy::Segment) are of one rack each.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rack: String,
    /// Its place among the others, for the same two.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// Whatever it wants the others to know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// When it was started, in seconds since 1970: of two processes of one name, the later one has it.
    #[serde(default)]
    pub since: u64,
}

/// A node's seat in a round that was completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The round's number.
    #[serde(deserialize_with = "number")]
    pub round: u64,
    /// Its plan. No two rounds have the same, whatever etcd has lost in between.
    pub plan: String,
    /// The node's rank.
    #[serde(deserialize_with = "number")]
    pub rank: usize,
    /// The number of members.
    #[serde(deserialize_with = "number")]
    pub world_size: usize,
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
    /// Something that a later version knows.
    #[serde(other)]
    Other,
}

/// A node's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// See [`RECORD_VERSION`].
    #[serde(default)]
    pub version: u32,
    /// The round it is for.
    #[serde(deserialize_with = "number")]
    pub round: u64,
    /// The plan it is from: it counts only if this very plan is committed.
    pub plan: String,
    /// The place.
    #[serde(deserialize_with = "number")]
    pub rank: usize,
    /// The process it is for.
    pub incarnation: u64,
    /// When that was started: see [`NodeRecord::since`]. 0 where an earlier version has not said it.
    #[serde(default)]
    pub since: u64,
    /// The process has left in good order. It says so here too, since the leader may be gone with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// It left because too few nodes had come in its time, at this moment: in milliseconds since 1970, by its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gave_up_ms: Option<u64>,
    /// The leader misses this node's key, and asks whether it is there: if so, it registers again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// The place that this node's name had in the last round when this plan was begun: it still has it if the plan
    /// comes to nothing. And what its process then wanted before that round counts no more, also where this is another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousPlace>,
    /// What a later version has added.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// The place that a node's name had before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousPlace {
    /// The number of that round; 0 where an earlier version has not said it.
    #[serde(default, deserialize_with = "number")]
    pub round: u64,
    /// Its plan.
    pub plan: String,
    /// The place.
    pub rank: usize,
    /// The process it was for.
    pub incarnation: u64,
    /// When that was started, as in [`RankRecord::since`].
    #[serde(default)]
    pub since: u64,
}

impl RankRecord {
    /// Whether that process had the place before.
    pub(super) fn is_after(&self, incarnation: u64) -> bool {
        self.previous.as_ref().is_some_and(|previous| previous.incarnation == incarnation)
    }

    /// The rank that this node's name has in the round of `plan`, and the process it is for.
    #[must_use]
    pub fn in_plan(&self, plan: &str) -> Option<(usize, u64)> {
        if self.plan == plan {
            return Some((self.rank, self.incarnation));
        }
        let previous = self.previous.as_ref().filter(|previous| previous.plan == plan)?;
        Some((previous.rank, previous.incarnation))
    }

    /// When the process was started that has this name's place in the round of `plan`.
    pub(super) fn since_in(&self, plan: &str) -> u64 {
        if self.plan == plan { self.since } else { self.previous.as_ref().map_or(0, |place| place.since) }
    }
}

/// The last completed round, and the news of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// See [`RECORD_VERSION`].
    #[serde(default)]
    pub version: u32,
    /// Its number; 0 before the first.
    #[serde(deserialize_with = "number")]
    pub round: u64,
    /// The plan that was committed; empty where there is no round.
    #[serde(default)]
    pub plan: String,
    /// Its members' number.
    #[serde(default, deserialize_with = "number")]
    pub world_size: usize,
    /// Where they meet.
    #[serde(default)]
    pub master: Option<MasterRecord>,
    /// What all nodes of the run are started with; none if an operator closed the run before its first node.
    #[serde(default)]
    pub settings: Option<RunSettings>,
    /// The run's lease, which what outlives a node hangs on; 0 for none.
    #[serde(default)]
    pub lease: i64,
    /// Why the run is over, once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// What has changed since the round was completed.
    #[serde(default)]
    pub news: News,
    /// Members of the round before that had died, left or been replaced when this one was planned, the first few. They may
    /// have been told of in no news: nobody reads those of a round that all have asked to be over. Who had asked for this
    /// round before it died is not among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Lost>,
    /// How many events of the group were written down: the next one goes where the oldest is.
    #[serde(default, deserialize_with = "number_or_none", skip_serializing_if = "is_zero")]
    pub events: u64,
    /// What a later version has added.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde has it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RoundRecord {
    /// The record of a run without a round, after round `round`.
    #[must_use]
    pub fn without_round(round: u64, settings: Option<RunSettings>, lease: i64) -> Self {
        RoundRecord {
            version: RECORD_VERSION,
            round,
            plan: String::new(),
            world_size: 0,
            master: None,
            settings,
            lease,
            closed: None,
            news: News::default(),
            without: Vec::new(),
            events: 0,
            more: BTreeMap::new(),
        }
    }

    /// Whether a round stands here.
    #[must_use]
    pub fn has_round(&self) -> bool {
        !self.plan.is_empty()
    }
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
    #[serde(default, deserialize_with = "number")]
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
    /// Of those, the ones that a round could have now, where only whole segments are seated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seatable: Option<usize>,
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
    /// Its lease ended.
    Died,
    /// Another process took its name.
    Replaced,
    /// It left in good order.
    Left,
    /// Its launcher was killed, and what it had started left in good order all the same. No leader writes it, since the record
    /// of such a node says that it leaves; it is told from what the node wrote of itself.
    Killed,
    /// It is there, and asks for a new round.
    Again,
    /// It was excluded from the run.
    Excluded,
    /// It was there, and did not come to the next round in time. It hangs, or died and nobody knew yet.
    Late,
    /// In a way that a later version knows.
    #[serde(other)]
    Other,
}

impl Why {
    /// What is said of such a member.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Why::Died => "died",
            Why::Replaced => "was replaced by another process of that name",
            Why::Left => "left",
            Why::Killed => "was killed",
            Why::Again => "asks for a new round",
            Why::Excluded => "was excluded from the run",
            Why::Late => "did not come in time",
            Why::Other => "is gone",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn what_is_absurd_is_no_record() {
        let node = json!({
            "incarnation": u64::MAX, "address": "a", "port": 1, "wants": "join", "round": 7,
            "seat": { "round": 7, "plan": "p", "rank": 0, "world_size": 2 },
            "settings": { "min_nodes": 1, "max_nodes": 2 },
        });
        assert_eq!(from_value::<NodeRecord>(node.clone()).unwrap().round, 7);
        let round = json!({ "round": 7, "plan": "p", "world_size": 2, "news": { "lost_count": 1 } });
        assert_eq!(from_value::<RoundRecord>(round.clone()).unwrap().world_size, 2);
        let place = json!({ "round": 7, "plan": "p", "rank": 1, "incarnation": 1 });
        assert_eq!(from_value::<RankRecord>(place.clone()).unwrap().rank, 1);
        let with = |record: &Value, field: &str| {
            let mut record = record.clone();
            *record.pointer_mut(field).unwrap() = u64::MAX.into();
            record
        };
        for field in ["/round", "/seat/round", "/seat/rank", "/seat/world_size"] {
            let error = from_value::<NodeRecord>(with(&node, field)).unwrap_err().to_string();
            assert!(error.contains("18446744073709551615 is absurd"), "{field}: {error}");
        }
        for field in ["/round", "/world_size", "/news/lost_count"] {
            from_value::<RoundRecord>(with(&round, field)).unwrap_err();
        }
        for field in ["/round", "/rank"] {
            from_value::<RankRecord>(with(&place, field)).unwrap_err();
        }
    }
}
