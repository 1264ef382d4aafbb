//! What happened in a run, as its nodes write it down.
//!
//! The leader writes what concerns the group in the very transaction that makes it so: a round and the event that it was
//! formed stand there together, or neither does. Each node writes what concerns itself. Both write over what is oldest, so a
//! run has a bounded number of events, however long it lasts.

use serde::{Deserialize, Serialize};

use super::context::Context;
use super::etcd::Op;
use super::keys::Keys;
use super::record::{Lost, MasterRecord, RECORD_VERSION, RoundRecord, json, number};
use super::whom::Whom;
use crate::text::brief;

/// Reasons are cut to so many letters: every node reads the record that has them, and etcd takes no request that is too large.
pub(super) const LONGEST_REASON: usize = 1000;
/// So many members of a round are named in the event that it was formed. The places of the last round have all.
pub const NAMED_MEMBERS: usize = 256;
/// So many failed health checks of a node are named, in so many letters each.
const NAMED_PROBLEMS: usize = 8;
const LONGEST_PROBLEM: usize = 300;
/// So many of those are named who are new in a round.
pub const NAMED_NEWCOMERS: usize = 32;

/// An event, as it stands in etcd. Its revision there says in which order events came about, whatever the clocks of nodes say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// See [`RECORD_VERSION`].
    #[serde(default)]
    pub version: u32,
    /// When, in milliseconds since 1970, by the clock of who wrote it.
    #[serde(deserialize_with = "number")]
    pub at_ms: u64,
    /// The node that wrote it; empty for an operator.
    #[serde(default)]
    pub by: String,
    /// The last round by then; of [`What::Formed`], the one that was formed.
    #[serde(default, deserialize_with = "number")]
    pub round: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

impl EventRecord {
    /// An event of this version.
    #[must_use]
    pub fn new(at_ms: u64, by: &str, round: u64, what: What) -> Self {
        let what = match what {
            What::Stopped { why } => What::Stopped { why: brief(&why, LONGEST_REASON) },
            What::Closed { reason } => What::Closed { reason: brief(&reason, LONGEST_REASON) },
            What::Unhealthy { problems } => {
                let problems = problems.iter().take(NAMED_PROBLEMS);
                What::Unhealthy { problems: problems.map(|why| brief(why, LONGEST_PROBLEM)).collect() }
            }
            what => what,
        };
        EventRecord { version: RECORD_VERSION, at_ms, by: by.to_owned(), round, what }
    }

    /// The write that keeps an event of the group: its `number`th.
    pub(super) fn put(&self, keys: &Keys, number: u64, lease: i64) -> Op {
        Op::Put { key: keys.group_event(number), value: json(self), lease }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum What {
    /// A round is complete.
    Formed(Box<Formed>),
    /// Members have died, left or been replaced, or ask for another round.
    Lost {
        /// The first few.
        lost: Vec<Lost>,
        /// How many in all.
        count: usize,
        /// Who died was there so long before this, at most: its lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_ms: Option<u64>,
        /// Members of the round that its leader found there when it began to lead, once it knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        found: Option<usize>,
    },
    /// Nodes that are not in the round are there.
    Waiting {
        /// There is room for these.
        waiting: usize,
        /// And none for these.
        spares: usize,
    },
    /// Another node plans the rounds from now on.
    Leads {
        /// Members of the round that it found there when it began to, if it knows by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        found: Option<usize>,
    },
    /// A worker of this node has failed, as the first in the group.
    Failed(Box<Failed>),
    /// This node is going to be taken away; the workers of all nodes may save before.
    Preempted {
        /// Its place in the round.
        rank: usize,
        /// The name of the signal that said so.
        signal: String,
        /// How long they have, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_ms: Option<u64>,
    },
    /// The launcher of this node was killed, and has stopped its workers and left in good order all the same.
    Killed {
        /// Its place in the round.
        rank: usize,
    },
    /// A member is gone whose workers had finished, and its round goes on without it.
    Without {
        /// Its name.
        node: String,
        /// Its place in the round.
        rank: usize,
    },
    /// The workers of the round were started.
    Working,
    /// The workers of the round have ended.
    Stopped {
        /// Why, in words.
        why: String,
    },
    /// The run is over.
    Closed {
        /// Why, in the words of who closed it.
        reason: String,
    },
    /// Somebody is kept out of the run.
    Excluded {
        /// Who.
        #[serde(flatten)]
        whom: Whom,
        /// Why, in words.
        reason: String,
        /// Until about when, in milliseconds since 1970; none for as long as the run lives.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
    },
    /// Somebody who was kept out may come again.
    Included {
        /// Who; none for all.
        #[serde(flatten)]
        whom: Option<Whom>,
    },
    /// The time is over for which somebody was kept out. The leader writes it when it has seen it.
    Expired {
        /// Who.
        #[serde(flatten)]
        whom: Whom,
        /// Why it was kept out, in words.
        #[serde(default)]
        reason: String,
    },
    /// This node fails its health checks, and stays away from the others, or ends.
    Unhealthy {
        /// What is wrong, in words.
        problems: Vec<String>,
    },
    /// This node passes them again.
    Healthy,
    /// This node is in a round. Only a node's own log has it.
    Joined {
        /// Its place.
        rank: usize,
        /// Among so many.
        world_size: usize,
        /// So long after it asked for a round.
        waited_ms: u64,
    },
    /// Something that a later version knows.
    #[serde(other)]
    Other,
}

/// A round that is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formed {
    /// The number of its members.
    pub world_size: usize,
    /// Its rank 0.
    #[serde(default)]
    pub master: Option<MasterRecord>,
    /// Its members by rank, the first few hundred.
    #[serde(default)]
    pub members: Vec<String>,
    /// Members that were not in the round before, the first few. Empty in the first round, where all are new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Newcomer>,
    /// How many in all.
    #[serde(default)]
    pub joined_count: usize,
    /// Members of the round before that are gone, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Lost>,
    /// Members of the round before that the leader found there when it began to lead. None in the first round, and where that
    /// is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<usize>,
    /// Nodes that there was no room for.
    #[serde(default)]
    pub spares: usize,
    /// Until enough nodes were there, from when the leader first saw one that was ready.
    #[serde(default)]
    pub gathering_ms: u64,
    /// Then until no others were waited for.
    #[serde(default)]
    pub last_call_ms: u64,
    /// Then until each had its place.
    #[serde(default)]
    pub placing_ms: u64,
}

impl Formed {
    /// The time that it took in all.
    #[must_use]
    pub fn took_ms(&self) -> u64 {
        self.gathering_ms.saturating_add(self.last_call_ms).saturating_add(self.placing_ms)
    }
}

/// A member that was not in the round before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newcomer {
    /// Its name.
    pub node: String,
    /// Its place.
    pub rank: usize,
    /// Who had it and is gone, where ranks are kept from round to round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<String>,
}

/// A worker that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its rank among all workers.
    pub rank: usize,
    /// And among those of its node.
    pub local_rank: usize,
    /// Where.
    pub host: String,
    /// How it ended, in words.
    pub exit: String,
    /// What went wrong, as far as it said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Where in its program, or the last lines it wrote; the end of it, where that is long.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub traceback: String,
}

/// The writes that keep the last events that a record of the group counts.
pub(super) fn put_group_events(context: &Context<'_>, record: &RoundRecord, events: Vec<What>) -> Vec<Op> {
    let first = record.events.saturating_sub(events.len() as u64);
    let put = |(number, what): (u64, What)| {
        let event = EventRecord::new(context.time_of_day(), &context.config.id, record.round, what);
        event.put(context.keys, number, record.lease)
    };
    (first..).zip(events).map(put).collect()
}
