//! What every part of a node is given with each call: the time, who this node is, and the way out.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::etcd::{Failure, Reply, Request};
use super::keys::Keys;
use super::output::{NodeEvent, Output};
use super::record::{NodeRecord, RoundRecord};
use super::settings::NodeConfig;
use crate::Backoff;

pub(super) struct Context<'a> {
    pub(super) now: Duration,
    pub(super) config: &'a NodeConfig,
    pub(super) keys: &'a Keys,
    pub(super) random: &'a mut fastrand::Rng,
    pub(super) out: &'a mut Outbox,
}

impl Context<'_> {
    /// The time of day, in milliseconds since 1970. It is written down for people; nothing is decided by it.
    pub(super) fn time_of_day(&self) -> u64 {
        self.config.time_of_day(self.now)
    }
}

/// What a request was for.
#[derive(Debug)]
pub(super) enum Task {
    Grant,
    Register {
        lease: i64,
        record: NodeRecord,
        /// When the key was made that it takes over; none if it makes one.
        created: Option<i64>,
    },
    /// Ends the lease of an earlier process of this name, which learns from it that it was replaced.
    Evict,
    Look,
    Campaign,
    Close,
    Departure(DepartureTask),
    Leader {
        /// Which of the times that this node has led.
        term: u64,
        task: LeaderTask,
    },
    /// Whatever comes of it.
    Forgotten,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DepartureTask {
    Say,
    /// `again`: if others are there, it is tried once more.
    Sweep {
        again: bool,
    },
    SweepAfterMembers,
    Revoke,
}

#[derive(Debug, Clone)]
pub(super) enum LeaderTask {
    ReadNodes { reading: u64 },
    ReadRanks,
    ReadGroup,
    GrantRun,
    RenewRun { lease: i64 },
    WriteRound(Box<RoundRecord>),
    Place { plan: u64, chunk: usize },
    Commit { plan: u64 },
    Complete { plan: u64 },
    Ask { ids: Vec<String>, lease: i64, fences: bool },
    LookFor { ids: Vec<String>, since: Duration },
    Tidy { stale: Vec<String>, lease: i64 },
}

/// What is to be done outside, and which requests have no answer yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    outputs: VecDeque<Output>,
    last_number: u64,
    pending: HashMap<u64, Pending>,
    /// Counts the times that what was known of etcd was thrown away. What was asked before says nothing any more.
    epoch: u64,
    /// The latest revision seen in this epoch.
    seen: i64,
}

#[derive(Debug)]
struct Pending {
    task: Task,
    epoch: u64,
    /// The latest revision that was known when it was asked.
    seen: i64,
}

/// A request that was answered.
pub(super) struct Answered {
    pub(super) task: Task,
    pub(super) reply: Result<Reply, Failure>,
    /// The answer is from before a revision that was known when it was asked: etcd has lost data.
    pub(super) history_lost: bool,
}

impl Outbox {
    /// A number that nothing else of this node has.
    pub(super) fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn request(&mut self, task: Task, request: Request) {
        let id = self.new_number();
        self.pending.insert(id, Pending { task, epoch: self.epoch, seen: self.seen });
        self.outputs.push_back(Output::Request { id, request });
    }

    pub(super) fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(super) fn tell(&mut self, event: NodeEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes note of a revision that etcd has told of.
    pub(super) fn saw(&mut self, revision: i64) {
        self.seen = self.seen.max(revision);
    }

    /// What was known of etcd is thrown away.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.seen = 0;
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What a reply is worth. One that tells of a time before this epoch is as good as none.
    pub(super) fn answered(&mut self, id: u64, reply: Result<Reply, Failure>) -> Option<Answered> {
        let Pending { task, epoch, seen } = self.pending.remove(&id)?;
        let revision = reply.as_ref().ok().and_then(Reply::revision);
        let stale = revision.is_some() && epoch != self.epoch;
        let history_lost = !stale && revision.is_some_and(|revision| revision < seen);
        if stale || history_lost {
            return Some(Answered { task, reply: Err(Failure::Unknown), history_lost });
        }
        self.saw(revision.unwrap_or(0));
        Some(Answered { task, reply, history_lost })
    }
}

/// The wait after a refusal, at most.
const REFUSED: Duration = Duration::from_millis(100);

/// When to try again what has failed: later each time.
#[derive(Debug, Default)]
pub(super) struct Retry {
    at: Option<Duration>,
    backoff: Backoff,
}

impl Retry {
    /// It has failed, or was refused.
    pub(super) fn failed(&mut self, context: &mut Context<'_>) {
        let wait = self.backoff.next(context.random.f64());
        self.at = Some(self.at.unwrap_or(context.now + wait));
    }

    /// A condition did not hold, and now it is known how things are: the next try has a better chance. It waits all the
    /// same, since somebody may write as fast as this node does.
    pub(super) fn refused(&mut self, context: &mut Context<'_>) {
        self.backoff = Backoff::default();
        let wait = REFUSED.mul_f64(0.25 + 0.75 * context.random.f64());
        self.at = Some(self.at.unwrap_or(context.now + wait));
    }

    pub(super) fn succeeded(&mut self) {
        *self = Retry::default();
    }

    /// Whether something waits to be tried again.
    pub(super) fn waits(&self) -> bool {
        self.at.is_some()
    }

    pub(super) fn at(&self) -> Option<Duration> {
        self.at
    }

    /// Whether it is time now; then it waits no longer.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let due = self.at.is_some_and(|at| at <= now);
        if due {
            self.at = None;
        }
        due
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::settings::{RankPolicy, RunSettings};
    use super::*;

    /// What a part is given in a test, with a way out that can be looked at.
    pub(in crate::round) struct Bench {
        config: NodeConfig,
        keys: Keys,
        random: fastrand::Rng,
        pub(in crate::round) out: Outbox,
    }

    impl Bench {
        pub(in crate::round) fn new() -> Self {
            let settings = RunSettings { min_nodes: 1, max_nodes: 2, policy: RankPolicy::Sticky };
            Bench {
                config: NodeConfig::new("job", "n0", settings),
                keys: Keys::new("job"),
                random: fastrand::Rng::with_seed(0),
                out: Outbox::default(),
            }
        }

        pub(in crate::round) fn context(&mut self) -> Context<'_> {
            let Bench { config, keys, random, out } = self;
            Context { now: Duration::from_secs(1), config, keys, random, out }
        }
    }
}
