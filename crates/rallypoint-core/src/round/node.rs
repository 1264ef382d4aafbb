//! One node's presence in a run, and what it learns of the group.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::etcd::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};
use super::keys::Keys;
use super::leader::{Lead, LeaderTask};
use super::leaving::{Leaving, LeavingTask};
use super::output::{Change, Joined, NodeEvent, Output, Refusal, WatchId};
use super::record::{NodeRecord, RankRecord, RoundRecord, Wants, Why};
use super::settings::NodeConfig;
use crate::Backoff;

/// How long it may take until one of the others has taken the place of a leader that is gone. Long against the
/// time in which the news of a new leader gets around, so that few try.
const SUCCESSION: Duration = Duration::from_millis(250);

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
    next_request: u64,
    pending: HashMap<u64, Task>,
    pub(super) goal: Goal,
    /// A round is asked for.
    joining: bool,
    port: u16,
    /// The last round this node was in.
    pub(super) member_of: u64,
    /// The program has been told that the group of that round is no longer as it was.
    told: Option<Change>,

    pub(super) lease: Option<i64>,
    pub(super) standing: Option<Standing>,
    /// This process has stood in etcd before: whoever stands there instead has replaced it.
    established: bool,
    /// The leases of earlier processes of this name, to be ended.
    inherited: Vec<i64>,
    evicting: bool,
    /// A grant or a registration is under way.
    busy: bool,
    retry_at: Option<Duration>,
    backoff: Backoff,
    watching: bool,

    group_revision: i64,
    /// The round's record as last seen, and when it was written.
    pub(super) round: Option<(RoundRecord, i64)>,
    /// The record is not in etcd (any more).
    pub(super) round_missing: bool,
    rank: Option<RankRecord>,
    rank_modified: i64,
    leader_known: bool,
    campaign_at: Option<Duration>,
    campaigning: bool,
    pub(super) lead: Option<Box<Lead>>,

    /// When etcd was last heard of.
    last_heard: Option<Duration>,
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
    record: Option<NodeRecord>,
    pub(super) created: i64,
    pub(super) modified: i64,
    lease: i64,
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
            inherited: Vec::new(),
            evicting: false,
            busy: false,
            retry_at: None,
            backoff: Backoff::default(),
            watching: false,
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
            WatchId::Group => self.group_update(now, update),
            WatchId::Rank => self.rank_update(update),
            WatchId::Nodes => self.nodes_update(now, update),
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

    fn drive_in(&mut self, now: Duration) {
        if self.busy || self.retry_at.is_some() {
            return;
        }
        let Some(lease) = self.lease else {
            self.busy = true;
            self.request(Task::Grant, Request::Grant(self.config.lease_ttl));
            return;
        };
        let wanted = self.record(if self.joining { Wants::Join } else { Wants::Stay });
        let stands = self.standing.as_ref().filter(|standing| standing.lease == lease);
        // A member at work need not say so: what it joined with still stands. Whoever is not watching has not
        // seen the reply to its registration, nor what happened since.
        let enough = stands.and_then(|standing| standing.record.as_ref()).filter(|_| self.watching);
        if enough.is_none_or(|record| self.joining && *record != wanted) {
            self.register(lease, wanted);
        } else if let Some(lease) = self.inherited.last()
            && !self.evicting
        {
            self.evicting = true;
            self.request(Task::Evict, Request::Revoke(*lease));
        }
        if !self.leader_known && !self.campaigning && self.campaign_at.is_none() {
            self.succeed(now);
        }
    }

    pub(super) fn record(&self, wants: Wants) -> NodeRecord {
        NodeRecord {
            incarnation: self.config.incarnation,
            address: self.config.address.clone(),
            port: self.port,
            wants,
            round: self.member_of,
            settings: self.config.settings,
            rack: self.config.rack.clone(),
            hint: self.config.hint.clone(),
            about: self.config.about.clone(),
            since: self.config.since,
        }
    }

    /// One request to join, whatever is there: the node's key, the leader's where there is none, and a look at
    /// the round and at this node's place: an earlier try may have got through, and been planned with.
    fn register(&mut self, lease: i64, record: NodeRecord) {
        self.busy = true;
        let key = self.keys.node(&self.config.id);
        let when = match &self.standing {
            Some(standing) => Condition::ModifiedAt(key.clone(), standing.modified),
            None => Condition::Missing(key.clone()),
        };
        let txn = Txn {
            when: vec![when],
            then: vec![
                Op::Put { key: key.clone(), value: json(&record), lease },
                Op::Txn(Txn {
                    when: vec![Condition::Missing(self.keys.leader())],
                    then: vec![self.put_leader(lease)],
                    otherwise: vec![Op::Get(self.keys.leader())],
                }),
                Op::Get(self.keys.round()),
                Op::Get(self.keys.rank(&self.config.id)),
            ],
            otherwise: vec![Op::Get(key), Op::Get(self.keys.round())],
        };
        self.request(Task::Register { lease, record }, Request::Txn(txn));
    }

    fn put_leader(&self, lease: i64) -> Op {
        Op::Put { key: self.keys.leader(), value: self.config.id.clone(), lease }
    }

    fn granted(&mut self, now: Duration, reply: &Result<Reply, Failure>) {
        self.busy = false;
        match reply {
            Ok(Reply::Granted(lease)) if matches!(self.goal, Goal::In) => {
                self.lease = Some(*lease);
                self.outputs.push_back(Output::Keep(*lease));
            }
            Ok(Reply::Granted(lease)) => self.request(Task::Forgotten, Request::Revoke(*lease)),
            _ => self.retry(now),
        }
    }

    fn registered(&mut self, now: Duration, lease: i64, record: NodeRecord, reply: Result<Reply, Failure>) {
        self.busy = false;
        let reply = match reply {
            Ok(Reply::Txn(reply)) => reply,
            Err(Failure::LeaseGone) => return self.lose_lease(),
            _ => return self.retry(now),
        };
        self.backoff = Backoff::default();
        if !reply.held {
            return self.found(reply.results);
        }
        if self.lease != Some(lease) {
            // Lost while the reply was under way, and the key with it.
            self.standing = None;
            return;
        }
        let created = self.standing.as_ref().map_or(reply.revision, |standing| standing.created);
        self.standing = Some(Standing { record: Some(record), created, modified: reply.revision, lease });
        self.established = true;
        self.take_group(now, reply);
    }

    fn evicted(&mut self, now: Duration, reply: &Result<Reply, Failure>) {
        self.evicting = false;
        match reply {
            Err(Failure::Unknown) => self.retry(now),
            _ => drop(self.inherited.pop()),
        }
    }

    /// Another record stands where this node wanted to write.
    fn found(&mut self, results: Vec<OpReply>) {
        let mut results = results.into_iter();
        let (Some(OpReply::Got(Some(entry))), round) = (results.next(), results.next()) else {
            self.standing = None;
            return;
        };
        let record = serde_json::from_str::<NodeRecord>(&entry.value).ok();
        let ours = record.filter(|record| record.incarnation == self.config.incarnation);
        if ours.is_none() {
            if self.established {
                return self.refuse(Refusal::Replaced);
            }
            // Whoever has no place in this run must not take the place of one who has.
            if let Some(OpReply::Got(Some(entry))) = round
                && let Ok(RoundRecord { settings: Some(theirs), .. }) = parse(&entry)
                && let Some((setting, ours, theirs)) = self.config.settings.difference(&theirs)
            {
                return self.refuse(Refusal::Mismatch { setting, ours, theirs });
            }
            // First in, so that the one whose end is under way stays the last.
            self.inherited.insert(0, entry.lease);
        }
        let (created, modified) = (entry.create_revision, entry.mod_revision);
        self.standing = Some(Standing { record: ours, created, modified, lease: entry.lease });
    }

    /// What the registration told of the group.
    fn take_group(&mut self, now: Duration, reply: TxnReply) {
        let revision = reply.revision;
        // What the watch has told already is newer, and in order.
        let news = !self.watching || revision > self.group_revision;
        let begins = !self.watching;
        if begins {
            self.watching = true;
            self.group_revision = revision;
            let rank = Watched::Key(self.keys.rank(&self.config.id));
            let group = Watched::Prefix(self.keys.group());
            self.outputs.push_back(Output::Watch { id: WatchId::Group, keys: group, from: revision + 1 });
            self.outputs.push_back(Output::Watch { id: WatchId::Rank, keys: rank, from: revision + 1 });
        }
        for result in reply.results {
            match result {
                OpReply::Txn(_) if !news => {}
                OpReply::Txn(TxnReply { held: true, .. }) => {
                    self.leader_known = true;
                    self.become_leader(now, revision);
                }
                OpReply::Txn(TxnReply { results, .. }) => {
                    if let Some(OpReply::Got(Some(entry))) = results.into_iter().next() {
                        self.leader_is(now, &entry);
                    }
                }
                OpReply::Got(Some(entry)) if entry.key == self.keys.round() => self.round_is(&entry),
                OpReply::Got(Some(entry)) if begins => self.rank_is(Some(&entry)),
                OpReply::Got(_) | OpReply::Done => {}
            }
        }
    }

    pub(super) fn lose_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.outputs.push_back(Output::Forget(lease));
        }
        self.standing = None;
        self.step_down();
    }

    fn retry(&mut self, now: Duration) {
        let random = self.random.f64();
        self.retry_at = Some(now + self.backoff.next(random));
    }

    pub(super) fn request(&mut self, task: Task, request: Request) {
        self.next_request += 1;
        self.pending.insert(self.next_request, task);
        self.outputs.push_back(Output::Request { id: self.next_request, request });
    }

    pub(super) fn tell(&mut self, event: NodeEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    fn group_update(&mut self, now: Duration, update: Update) {
        match update {
            Update::Events(events) => {
                for event in events {
                    match event {
                        Event::Put(entry) if entry.mod_revision > self.group_revision => {
                            self.group_revision = entry.mod_revision;
                            self.group_entry(now, &entry);
                        }
                        Event::Delete { key, revision } if revision > self.group_revision => {
                            self.group_revision = revision;
                            self.group_gone(now, &key, revision);
                        }
                        _ => {}
                    }
                }
            }
            Update::Snapshot { revision, entries } => {
                self.group_revision = revision;
                for key in [self.keys.leader(), self.keys.round()] {
                    if !entries.iter().any(|entry| entry.key == key) {
                        self.group_gone(now, &key, revision);
                    }
                }
                for entry in &entries {
                    self.group_entry(now, entry);
                }
            }
        }
    }

    fn group_entry(&mut self, now: Duration, entry: &Entry) {
        if entry.key == self.keys.leader() {
            self.leader_is(now, entry);
        } else if entry.key == self.keys.round() {
            self.round_is(entry);
        }
    }

    fn group_gone(&mut self, now: Duration, key: &str, revision: i64) {
        if key == self.keys.leader() {
            // The one that is gone may be an earlier one than this node.
            if self.lead.as_ref().is_none_or(|lead| lead.term < revision) {
                self.leader_known = false;
                self.step_down();
                self.succeed(now);
            }
        } else if key == self.keys.round() {
            self.round_gone(revision);
        }
    }

    /// The round's record was not there at this revision. It may have been written since.
    pub(super) fn round_gone(&mut self, revision: i64) {
        self.round_missing |= self.round.as_ref().is_none_or(|(_, modified)| *modified < revision);
    }

    fn leader_is(&mut self, now: Duration, entry: &Entry) {
        self.leader_known = true;
        self.campaign_at = None;
        // Also where the reply to the request that made it so was lost.
        if self.lease == Some(entry.lease) {
            self.become_leader(now, entry.create_revision);
        } else if self.lead.as_ref().is_some_and(|lead| lead.term < entry.create_revision) {
            self.step_down();
        }
    }

    /// Takes the place of a leader that is gone, after a random moment: few come early, and the larger the group
    /// the fewer, so that whoever is first is known to the others before they try.
    pub(super) fn succeed(&mut self, now: Duration) {
        let stands = self.standing.as_ref().is_some_and(|standing| standing.record.is_some());
        if !matches!(self.goal, Goal::In) || !stands || self.leader_known {
            return;
        }
        let nodes =
            self.round.as_ref().map_or(2, |(round, _)| round.world_size.max(round.news.joined).max(2));
        let random = self.random.f64().max(f64::MIN_POSITIVE);
        let part = (1.0 + random.ln() / (nodes as f64).ln()).max(0.0);
        self.campaign_at = Some(now + SUCCESSION.mul_f64(part));
    }

    fn campaign(&mut self) {
        let (Some(lease), Some(standing)) = (self.lease, &self.standing) else { return };
        if self.leader_known || self.campaigning || !matches!(self.goal, Goal::In) {
            return;
        }
        let (leader, node) = (self.keys.leader(), self.keys.node(&self.config.id));
        let txn = Txn {
            when: vec![Condition::Missing(leader.clone()), Condition::ModifiedAt(node, standing.modified)],
            then: vec![self.put_leader(lease)],
            otherwise: vec![Op::Get(leader)],
        };
        self.campaigning = true;
        self.request(Task::Campaign, Request::Txn(txn));
    }

    fn campaigned(&mut self, now: Duration, reply: Result<Reply, Failure>) {
        self.campaigning = false;
        match reply {
            Ok(Reply::Txn(reply)) if reply.held => {
                if self.lease.is_some() && reply.revision > self.group_revision {
                    self.leader_known = true;
                    self.become_leader(now, reply.revision);
                }
            }
            Ok(Reply::Txn(reply)) => match reply.results.first() {
                // The watch tells of it too, and in its order.
                Some(OpReply::Got(Some(entry))) if entry.mod_revision > self.group_revision => {
                    self.leader_is(now, entry);
                }
                Some(OpReply::Got(Some(_))) => {}
                // No leader, so it was this node's own key: it is gone with its lease, or another process has it.
                _ if reply.revision >= self.group_revision => self.standing = None,
                _ => {}
            },
            Err(Failure::LeaseGone) => self.lose_lease(),
            _ => {
                if !self.leader_known {
                    let random = self.random.f64();
                    self.campaign_at = Some(now + self.backoff.next(random));
                }
            }
        }
    }

    /// The round as it stands; news of it may be among what is known already.
    pub(super) fn round_is(&mut self, entry: &Entry) {
        if self.round.as_ref().is_some_and(|(_, modified)| *modified >= entry.mod_revision) {
            return;
        }
        match serde_json::from_str::<RoundRecord>(&entry.value) {
            Ok(record) => {
                self.round = Some((record, entry.mod_revision));
                self.round_missing = false;
                self.settle();
            }
            Err(error) => {
                self.refuse(Refusal::Corrupt { key: entry.key.clone(), problem: error.to_string() });
            }
        }
    }

    fn rank_update(&mut self, update: Update) {
        let entry = match update {
            Update::Events(events) => events.into_iter().next_back().and_then(|event| match event {
                Event::Put(entry) => Some(entry),
                Event::Delete { .. } => None,
            }),
            Update::Snapshot { entries, .. } => entries.into_iter().next(),
        };
        self.rank_is(entry.as_ref());
    }

    fn rank_is(&mut self, entry: Option<&Entry>) {
        self.rank = None;
        let Some(entry) = entry else { return };
        match parse::<RankRecord>(entry) {
            Ok(rank) => {
                let ours = rank.incarnation == self.config.incarnation;
                if ours && rank.left {
                    // It was in that round, whether it knew or not, and has left it.
                    self.member_of = self.member_of.max(rank.round);
                }
                self.rank_modified = entry.mod_revision;
                self.rank = Some(rank).filter(|rank| ours && !rank.left);
                self.settle();
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Draws the conclusions from what is known of the round.
    pub(super) fn settle(&mut self) {
        let Some((record, _)) = &self.round else { return };
        if !matches!(self.goal, Goal::In) {
            return;
        }
        if let Some(reason) = record.closed.clone() {
            if self.joining {
                self.refuse(Refusal::Closed(reason));
            } else {
                // Its program may still need the round's data: it stays until it is told to leave.
                self.tell_change(Change::Closed(reason));
            }
            return;
        }
        if self.member_of == 0
            && let Some(theirs) = &record.settings
            && let Some((setting, ours, theirs)) = self.config.settings.difference(theirs)
        {
            return self.refuse(Refusal::Mismatch { setting, ours, theirs });
        }
        if self.joining && record.round > self.member_of {
            let seat =
                self.rank.as_ref().filter(|rank| rank.plan == record.plan && rank.round == record.round);
            if let (Some(seat), Some(master)) = (seat, &record.master)
                && seat.rank == 0
                && (&master.address, master.port) != (&self.config.address, self.port)
            {
                // Planned with what this node said before, and the others cannot meet there: it asks again.
                self.member_of = record.round;
            } else if let (Some(seat), Some(master)) = (seat, &record.master) {
                let joined = Joined {
                    round: record.round,
                    rank: seat.rank,
                    world_size: record.world_size,
                    address: master.address.clone(),
                    port: master.port,
                    lease: record.lease,
                };
                self.joining = false;
                self.member_of = joined.round;
                self.told = None;
                self.tell(NodeEvent::Joined(joined));
            }
        }
        // A place in a round that is over already: this node was a member and has missed it. It asks again.
        if self.joining
            && let (Some((record, _)), Some(rank)) = (&self.round, &self.rank)
            && (self.member_of + 1..record.round).contains(&rank.round)
        {
            self.member_of = rank.round;
        }
        let Some((record, _)) = &self.round else { return };
        if self.joining {
            let (joined, spare) = (record.news.joined, record.news.spares > 0 && record.news.waiting == 0);
            let last_call = record.news.last_call_ms.map(Duration::from_millis);
            self.tell(NodeEvent::Progress { joined, last_call, spare });
        } else if self.member_of > 0
            && let Some(change) = change_in(record, self.member_of)
        {
            self.tell_change(change);
        }
    }

    fn tell_change(&mut self, change: Change) {
        if self.told.as_ref() != Some(&change) {
            self.told = Some(change.clone());
            self.tell(NodeEvent::Changed(change));
        }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.joining = false;
        self.tell(NodeEvent::Refused(refusal));
        self.depart();
    }

    /// Ends all watches and forgets the group.
    pub(super) fn forget_group(&mut self) {
        if std::mem::take(&mut self.watching) {
            self.outputs.push_back(Output::Unwatch(WatchId::Group));
            self.outputs.push_back(Output::Unwatch(WatchId::Rank));
        }
        self.step_down();
        (self.round, self.rank, self.round_missing) = (None, None, false);
        (self.campaign_at, self.leader_known, self.group_revision) = (None, false, 0);
    }

    /// This node's place in the last round, if it was in that, when it was written, and the lease that places hang
    /// on.
    pub(super) fn place(&self) -> Option<(RankRecord, i64, i64)> {
        let (record, _) = self.round.as_ref()?;
        let rank = self.rank.as_ref().filter(|rank| rank.plan == record.plan && !self.round_missing)?;
        Some((rank.clone(), self.rank_modified, record.lease))
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy || self.campaigning
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

    pub(super) fn wait_before_retry(&mut self, now: Duration) {
        self.retry(now);
    }

    pub(super) fn is_waiting_to_retry(&self) -> bool {
        self.retry_at.is_some()
    }
}

/// What the members of round `member_of` should know of it.
fn change_in(record: &RoundRecord, member_of: u64) -> Option<Change> {
    if record.round > member_of {
        return Some(Change::Excluded);
    }
    if let Some(lost) = record.news.lost.first() {
        let (node, rank) = (lost.node.clone(), lost.rank);
        return Some(match lost.why {
            Why::Died => Change::Died { node, rank },
            Why::Left | Why::Again => Change::Left { node, rank },
        });
    }
    if record.news.lost_count > 0 {
        return Some(Change::Excluded);
    }
    (record.news.waiting > 0).then_some(Change::Waiting(record.news.waiting))
}

pub(super) fn json(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records have no keys that JSON cannot hold")
}

pub(super) fn parse<T: DeserializeOwned>(entry: &Entry) -> Result<T, Refusal> {
    serde_json::from_str(&entry.value)
        .map_err(|error| Refusal::Corrupt { key: entry.key.clone(), problem: error.to_string() })
}
