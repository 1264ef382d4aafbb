//! One node's presence in a run, and what it learns of the group.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::etcd::{Entry, Failure, Reply, Request, Update};
use super::keys::Keys;
use super::leader::{Lead, LeaderTask};
use super::leaving::{Leaving, LeavingTask};
use super::output::{Change, NodeEvent, Output, Refusal, WatchId};
use super::record::{NodeRecord, RankRecord, RoundRecord};
use super::settings::NodeConfig;
use crate::Backoff;

/// One node's part in a run.
///
/// After each call of `join`, `leave`, `close` or `handle_*`, drain [`poll_output`](Node::poll_output), then
/// call [`handle_timeout`](Node::handle_timeout) when the time of [`poll_timeout`](Node::poll_timeout) has
/// come. `now` is the time since any one moment.
#[derive(Debug)]
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) keys: Keys,
    pub(super) random: fastrand::Rng,
    pub(super) outputs: VecDeque<Output>,
    pub(super) next_request: u64,
    pub(super) pending: HashMap<u64, Task>,
    pub(super) goal: Goal,
    /// A round is asked for.
    pub(super) joining: bool,
    pub(super) port: u16,
    /// The last round this node was in.
    pub(super) member_of: u64,
    /// The program has been told that the group of that round is no longer as it was.
    pub(super) told: Option<Change>,

    pub(super) lease: Option<i64>,
    pub(super) standing: Option<Standing>,
    /// This process has stood in etcd before: whoever stands there instead has replaced it.
    pub(super) established: bool,
    /// A registration was never answered: this process may have been in a round that it does not know of.
    pub(super) unanswered: bool,
    /// The leases of earlier processes of this name, to be ended.
    pub(super) inherited: Vec<i64>,
    pub(super) evicting: bool,
    /// A grant or a registration is under way.
    pub(super) busy: bool,
    pub(super) retry_at: Option<Duration>,
    pub(super) backoff: Backoff,

    /// What is watched.
    pub(super) watches: Watches,
    /// What the watches told before the registration was answered, which tells how things stood then.
    pub(super) early: Vec<(WatchId, Update)>,
    /// The revision of that answer.
    pub(super) informed_at: i64,
    pub(super) group_revision: i64,
    /// The round's record as last seen, and when it was written.
    pub(super) round: Option<(RoundRecord, i64)>,
    /// The record is not in etcd (any more).
    pub(super) round_missing: bool,
    pub(super) rank: Option<RankRecord>,
    pub(super) rank_modified: i64,
    pub(super) leader_known: bool,
    pub(super) campaign_at: Option<Duration>,
    pub(super) campaigning: bool,
    pub(super) lead: Option<Box<Lead>>,

    /// When etcd was last heard of.
    pub(super) last_heard: Option<Duration>,
    /// Until then a key that is gone is no death: etcd itself was away, and its owner may not have noticed yet.
    pub(super) spare_until: Duration,
}

/// Where a node wants to be.
#[derive(Debug)]
pub(super) enum Goal {
    Out,
    In,
    Leaving(Leaving),
}

/// How much a node knows of its group, and goes on to hear of it. It watches before it registers: an etcd has
/// nothing to look up then, and with thousands of watches that is what takes it long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watches {
    None,
    /// Asked for; those that have begun.
    Opening {
        group: bool,
        rank: bool,
    },
    /// Begun, and how things stood before is not known yet.
    Open,
    /// The reply to a registration has told.
    Informed,
}

/// What a request was for.
#[derive(Debug)]
pub(super) enum Task {
    Grant,
    Register {
        lease: i64,
        record: NodeRecord,
    },
    /// Ends the lease of an earlier process of this name, which learns from it that it was replaced.
    Evict,
    Campaign,
    Leaving(LeavingTask),
    Leader {
        term: i64,
        task: LeaderTask,
    },
    /// Whatever comes of it.
    Forgotten,
}

/// What stands in etcd of this node.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    /// None if it was written by another process.
    pub(super) record: Option<NodeRecord>,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
}

impl Node {
    /// A node that is not in the run yet.
    #[must_use]
    pub fn new(config: NodeConfig, seed: u64) -> Self {
        Node {
            keys: Keys::new(&config.run),
            config,
            random: fastrand::Rng::with_seed(seed),
            outputs: VecDeque::new(),
            next_request: 0,
            pending: HashMap::new(),
            goal: Goal::Out,
            joining: false,
            port: 0,
            member_of: 0,
            told: None,
            lease: None,
            standing: None,
            established: false,
            unanswered: false,
            inherited: Vec::new(),
            evicting: false,
            busy: false,
            retry_at: None,
            backoff: Backoff::default(),
            watches: Watches::None,
            early: Vec::new(),
            informed_at: 0,
            group_revision: 0,
            round: None,
            round_missing: false,
            rank: None,
            rank_modified: 0,
            leader_known: false,
            campaign_at: None,
            campaigning: false,
            lead: None,
            last_heard: None,
            spare_until: Duration::ZERO,
        }
    }

    /// Asks for a round after the last one this node was in. `port` is free here, should it become the master.
    pub fn join(&mut self, now: Duration, port: u16) {
        self.joining = true;
        self.port = port;
        if matches!(self.goal, Goal::Out) {
            self.goal = Goal::In;
        }
        self.settle();
        self.drive(now);
    }

    /// What came of a request.
    pub fn handle_reply(&mut self, now: Duration, id: u64, reply: Result<Reply, Failure>) {
        if reply.is_ok() {
            self.heard(now);
        }
        match self.pending.remove(&id) {
            Some(Task::Grant) => self.granted(now, &reply),
            Some(Task::Register { lease, record }) => self.registered(now, lease, record, reply),
            Some(Task::Evict) => self.evicted(now, &reply),
            Some(Task::Campaign) => self.campaigned(now, reply),
            Some(Task::Leaving(task)) => self.handle_leaving(now, task, reply),
            Some(Task::Leader { term, task }) => self.handle_leader(now, term, task, reply),
            Some(Task::Forgotten) | None => {}
        }
        self.drive(now);
    }

    /// What happened to the keys of a watch.
    pub fn handle_update(&mut self, now: Duration, watch: WatchId, update: Update) {
        self.heard(now);
        match watch {
            WatchId::Nodes => self.nodes_update(now, update),
            _ if self.watches != Watches::Informed => self.begun(watch, update),
            WatchId::Group => self.group_update(now, update),
            WatchId::Rank => self.rank_update(update),
        }
        self.drive(now);
    }

    /// A refresh of the lease was answered.
    pub fn handle_renewed(&mut self, now: Duration, _lease: i64) {
        self.heard(now);
        self.drive(now);
    }

    /// The lease that was kept is gone.
    pub fn handle_lease_lost(&mut self, now: Duration, lease: i64) {
        self.heard(now);
        if self.lease == Some(lease) {
            self.lose_lease();
        }
        self.drive(now);
    }

    /// The time of [`poll_timeout`](Node::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.campaign_at.is_some_and(|at| at <= now) {
            self.campaign_at = None;
            self.campaign();
        }
        self.drive(now);
    }

    /// What to do next; none if there is nothing.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`handle_timeout`](Node::handle_timeout), unless something else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        [self.retry_at, self.campaign_at, self.leader_timeout()].into_iter().flatten().min()
    }

    /// Etcd has said something. After a long silence, all nodes get the time of a lease to find their way back.
    fn heard(&mut self, now: Duration) {
        // Refreshed every third of its time, no lease runs out in a shorter one.
        let silence = self.config.lease_ttl.mul_f64(0.6);
        if self.last_heard.is_some_and(|last| now.saturating_sub(last) > silence) {
            self.spare_until = now + self.config.lease_ttl + Duration::from_secs(1);
        }
        self.last_heard = Some(now);
    }

    /// Does what is to be done now.
    pub(super) fn drive(&mut self, now: Duration) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        match self.goal {
            Goal::Out => {}
            Goal::In => self.drive_in(now),
            Goal::Leaving(_) => self.drive_leaving(now),
        }
        self.drive_leader(now);
    }

    pub(super) fn request(&mut self, task: Task, request: Request) {
        self.next_request += 1;
        self.pending.insert(self.next_request, task);
        self.outputs.push_back(Output::Request { id: self.next_request, request });
    }

    pub(super) fn tell(&mut self, event: NodeEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    /// A round was asked for while the node was leaving.
    pub(super) fn rejoin(&mut self, now: Duration) {
        if self.joining {
            self.goal = Goal::In;
            self.drive(now);
        }
    }

    pub(super) fn is_joining(&self) -> bool {
        self.joining
    }

    pub(super) fn stop_joining(&mut self) {
        self.joining = false;
    }
}

pub(super) fn json(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records have no keys that JSON cannot hold")
}

pub(super) fn parse<T: DeserializeOwned>(entry: &Entry) -> Result<T, Refusal> {
    serde_json::from_str(&entry.value)
        .map_err(|error| Refusal::Corrupt { key: entry.key.clone(), problem: error.to_string() })
}
