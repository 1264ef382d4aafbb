//! What the one node does that plans the rounds.
//!
//! It sees all nodes, decides when a round can be formed, writes each node its place, and commits the round in
//! one transaction. Whatever it writes is on the condition that it still is the leader, and each plan on the
//! condition that no later one was begun: a request that is carried out late changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::etcd::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};
use super::node::{Goal, Node, Task, json, parse};
use super::output::{Output, Refusal, WatchId};
use super::planning::Plan;
use super::publishing::progress_interval;
use super::record::{News, NodeRecord, RankRecord, RoundRecord, Wants};
use super::roster::{Present, Roster, Seat};
use crate::Backoff;

#[derive(Debug)]
pub(super) struct Lead {
    /// The revision at which this node became the leader.
    pub(super) term: i64,
    pub(super) reading: Option<Reading>,
    pub(super) roster: Roster,
    /// Nodes whose place stands in etcd.
    pub(super) placed: BTreeSet<String>,
    /// When the key of the plan was last written; 0 if it is not there.
    pub(super) fence: i64,
    pub(super) plan: Option<Plan>,
    pub(super) plans: u64,
    pub(super) run_lease: RunLease,
    pub(super) renew_at: Duration,
    /// Writes the round's record.
    pub(super) writing: bool,
    pub(super) last_call_at: Option<Duration>,
    /// When the waiting may be told again how far it is.
    pub(super) progress_at: Duration,
    /// Not before then: something that was planned with has turned out to be gone.
    pub(super) plan_at: Duration,
    pub(super) failed: Vec<LeaderTask>,
    pub(super) retry_at: Option<Duration>,
    pub(super) backoff: Backoff,
}

impl Lead {
    /// A record names the run's lease, which is to be renewed then.
    pub(super) fn recorded(&mut self, renew_at: Duration) {
        (self.run_lease, self.renew_at) = (RunLease::Recorded, renew_at);
    }

    /// Whether so few nodes are there.
    pub(super) fn sees_at_most(&self, nodes: usize) -> bool {
        self.reading.is_none() && self.roster.ids().nth(nodes).is_none()
    }
}

/// What a new leader has to know first.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) nodes: Option<(i64, Vec<Entry>)>,
    pub(super) ranks: Option<Vec<Entry>>,
    pub(super) group: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RunLease {
    /// The one that the record names.
    Recorded,
    Granting,
    /// One that no record names yet.
    New(i64),
}

/// What a request was for.
#[derive(Debug, Clone)]
pub(super) enum LeaderTask {
    ReadNodes,
    ReadRanks,
    ReadGroup,
    GrantRun,
    RenewRun,
    WriteRound(Box<RoundRecord>),
    Place { plan: u64, chunk: usize },
    Commit { plan: u64 },
}

impl Node {
    pub(super) fn become_leader(&mut self, now: Duration, term: i64) {
        if !matches!(self.goal, Goal::In) || self.lead.as_ref().is_some_and(|lead| lead.term >= term) {
            return;
        }
        self.step_down();
        self.lead = Some(Box::new(Lead {
            term,
            reading: Some(Reading::default()),
            roster: Roster::new(self.config.settings),
            placed: BTreeSet::new(),
            fence: 0,
            plan: None,
            plans: 0,
            run_lease: RunLease::Recorded,
            renew_at: now,
            writing: false,
            last_call_at: None,
            progress_at: now + progress_interval(self.config.settings.min_nodes),
            plan_at: Duration::ZERO,
            failed: vec![LeaderTask::ReadNodes, LeaderTask::ReadRanks, LeaderTask::ReadGroup],
            retry_at: Some(now),
            backoff: Backoff::default(),
        }));
    }

    pub(super) fn step_down(&mut self) {
        if let Some(lead) = self.lead.take()
            && lead.reading.is_none()
        {
            self.outputs.push_back(Output::Unwatch(WatchId::Nodes));
        }
    }

    pub(super) fn leader_timeout(&self) -> Option<Duration> {
        let lead = self.lead.as_ref()?;
        let waits = lead.retry_at.is_some() || lead.writing;
        if waits || lead.reading.is_some() || lead.run_lease != RunLease::Recorded {
            return lead.retry_at;
        }
        let unsure = lead.roster.is_unsure().then_some(self.spare_until);
        let progress = self.has_progress(lead).then_some(lead.progress_at);
        let plan = lead.last_call_at.filter(|_| lead.plan.is_none()).map(|at| at.max(lead.plan_at));
        let plan_at = Some(lead.plan_at).filter(|at| lead.plan.is_none() && *at > Duration::ZERO);
        let renew = Some(lead.renew_at).filter(|at| *at < Duration::MAX);
        [unsure, progress, plan, plan_at, renew].into_iter().flatten().min()
    }

    pub(super) fn leader_request(&mut self, task: LeaderTask) {
        let Some(lead) = &self.lead else { return };
        let term = lead.term;
        let request = match &task {
            LeaderTask::ReadNodes => Request::Range(self.keys.nodes()),
            LeaderTask::ReadRanks => Request::Range(self.keys.ranks()),
            LeaderTask::ReadGroup => Request::Txn(Txn {
                then: vec![Op::Get(self.keys.round()), Op::Get(self.keys.plan())],
                ..Txn::default()
            }),
            LeaderTask::GrantRun => Request::Grant(self.config.run_ttl),
            LeaderTask::RenewRun => Request::Renew(self.round.as_ref().map_or(0, |(record, _)| record.lease)),
            LeaderTask::WriteRound(record) => {
                let written = match &self.round {
                    Some((_, modified)) if !self.round_missing => {
                        Condition::ModifiedAt(self.keys.round(), *modified)
                    }
                    _ => Condition::Missing(self.keys.round()),
                };
                self.leader_txn(
                    vec![written],
                    vec![Op::Put { key: self.keys.round(), value: json(record), lease: record.lease }],
                )
            }
            LeaderTask::Place { chunk, .. } => self.places(*chunk),
            LeaderTask::Commit { .. } => self.commit(),
        };
        self.request(Task::Leader { term, task }, request);
    }

    /// A transaction of a leader who still is one.
    pub(super) fn leader_txn(&self, mut when: Vec<Condition>, then: Vec<Op>) -> Request {
        let term = self.lead.as_ref().map_or(0, |lead| lead.term);
        when.push(Condition::CreatedAt(self.keys.leader(), term));
        let otherwise =
            vec![Op::Get(self.keys.leader()), Op::Get(self.keys.round()), Op::Get(self.keys.plan())];
        Request::Txn(Txn { when, then, otherwise })
    }

    pub(super) fn handle_leader(
        &mut self,
        now: Duration,
        term: i64,
        task: LeaderTask,
        reply: Result<Reply, Failure>,
    ) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.term == term) else { return };
        if matches!(task, LeaderTask::WriteRound(_)) {
            lead.writing = false;
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(Failure::LeaseGone) => return self.run_lease_gone(),
            Err(Failure::Unknown) => {
                lead.failed.push(task);
                let wait = lead.backoff.next(self.random.f64());
                lead.retry_at = lead.retry_at.or(Some(now + wait));
                return;
            }
        };
        lead.backoff = Backoff::default();
        match (task, reply) {
            (LeaderTask::ReadNodes, Reply::Range { revision, entries }) => {
                if let Some(reading) = &mut lead.reading {
                    reading.nodes = Some((revision, entries));
                }
                self.start_leading(now);
            }
            (LeaderTask::ReadRanks, Reply::Range { entries, .. }) => {
                if let Some(reading) = &mut lead.reading {
                    reading.ranks = Some(entries);
                }
                self.start_leading(now);
            }
            (LeaderTask::ReadGroup, Reply::Txn(reply)) => {
                if let Some(reading) = &mut lead.reading {
                    reading.group = true;
                }
                let revision = reply.revision;
                let mut results = reply.results.into_iter();
                let (round, plan) = (results.next(), results.next());
                if let Some(OpReply::Got(Some(entry))) = plan {
                    lead.fence = entry.mod_revision;
                }
                match round {
                    Some(OpReply::Got(Some(entry))) => self.round_is(&entry),
                    _ => self.round_gone(revision),
                }
                self.start_leading(now);
            }
            (LeaderTask::GrantRun, Reply::Granted(lease)) => lead.run_lease = RunLease::New(lease),
            (LeaderTask::RenewRun, _) => lead.renew_at = now + self.config.run_ttl / 3,
            (LeaderTask::WriteRound(record), Reply::Txn(reply)) => self.round_written(now, *record, reply),
            (LeaderTask::Place { plan, chunk }, Reply::Txn(reply)) => self.placed(plan, chunk, reply),
            (LeaderTask::Commit { plan }, Reply::Txn(reply)) => self.committed(now, plan, reply),
            _ => {}
        }
    }

    fn run_lease_gone(&mut self) {
        if let Some(lead) = &mut self.lead {
            lead.plan = None;
            lead.writing = false;
            if lead.run_lease != RunLease::Granting {
                lead.run_lease = RunLease::Granting;
                self.leader_request(LeaderTask::GrantRun);
            }
        }
    }

    fn start_leading(&mut self, now: Duration) {
        let Some(lead) = &mut self.lead else { return };
        let Some(Reading { nodes: Some(_), ranks: Some(_), group: true }) = &lead.reading else { return };
        let Some(Reading { nodes: Some((revision, nodes)), ranks: Some(ranks), .. }) = lead.reading.take()
        else {
            return;
        };
        for entry in &nodes {
            put_node(&mut lead.roster, self.keys.id_of(&entry.key), entry);
        }
        lead.placed = ranks.iter().map(|entry| self.keys.id_of(&entry.key).to_owned()).collect();
        if let Some((record, _)) = self.round.as_ref().filter(|_| !self.round_missing) {
            // Who has a place in an earlier round may be in it still. If not, it asks again when it hears of this.
            for entry in &ranks {
                let id = self.keys.id_of(&entry.key);
                let Ok(rank) = parse::<RankRecord>(entry) else { continue };
                let same = |node: &Present| node.record.incarnation == rank.incarnation;
                if rank.round < record.round && lead.roster.get(id).is_some_and(same) {
                    lead.roster.spend(id, entry.mod_revision);
                }
            }
            let members = ranks.iter().filter_map(|entry| {
                let RankRecord { plan, rank, incarnation, left, .. } = parse(entry).ok()?;
                let seat = Seat { rank, incarnation, left, lost: false, gone: false };
                (plan == record.plan).then(|| (self.keys.id_of(&entry.key).to_owned(), seat))
            });
            let members: HashMap<_, _> = members.collect();
            // Whose place a plan has overwritten that came to nothing had asked for another round, or was replaced.
            // So the group was no longer whole, and its leader may have ended before it said so.
            let unaccounted = record.world_size.saturating_sub(members.len());
            let lost_count = record.news.lost_count.max(unaccounted);
            let told = News { lost_count, ..record.news.clone() };
            lead.roster.complete(record.round, members, &told);
            lead.roster.look_at_all(now < self.spare_until);
        }
        let keys = Watched::Prefix(self.keys.nodes());
        self.outputs.push_back(Output::Watch { id: WatchId::Nodes, keys, from: Some(revision + 1) });
    }

    pub(super) fn nodes_update(&mut self, now: Duration, update: Update) {
        let spared = now < self.spare_until;
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.reading.is_none()) else { return };
        match update {
            Update::Events(events) => {
                for event in events {
                    match event {
                        Event::Put(entry) => {
                            let id = self.keys.id_of(&entry.key);
                            put_node(&mut lead.roster, id, &entry);
                        }
                        Event::Delete { key, .. } => lead.roster.remove(self.keys.id_of(&key), spared),
                    }
                }
            }
            Update::Snapshot { entries, .. } => {
                let there: BTreeSet<&str> = entries.iter().map(|entry| self.keys.id_of(&entry.key)).collect();
                let gone: Vec<String> =
                    lead.roster.ids().filter(|id| !there.contains(id)).map(str::to_owned).collect();
                for id in gone {
                    lead.roster.remove(&id, spared);
                }
                for entry in &entries {
                    put_node(&mut lead.roster, self.keys.id_of(&entry.key), entry);
                }
            }
        }
        match lead.roster.get(&self.config.id) {
            Some(node) if node.record.incarnation != self.config.incarnation => {
                return self.refuse(Refusal::Replaced);
            }
            Some(_) => {}
            // Its own lease has ended, or that of a process that had replaced it.
            None => self.standing = None,
        }
        // A plan with somebody who is gone is not worth committing.
        let roster = &lead.roster;
        let stands = |plan: &Plan| {
            plan.seats.iter().all(|(id, incarnation)| {
                roster.get(id).is_some_and(|node| {
                    node.record.incarnation == *incarnation && node.record.wants == Wants::Join
                })
            })
        };
        lead.plan = lead.plan.take().filter(|plan| plan.committing || stands(plan));
    }

    pub(super) fn drive_leader(&mut self, now: Duration) {
        let Some(lead) = &mut self.lead else { return };
        if lead.retry_at.is_some_and(|at| at <= now) {
            lead.retry_at = None;
            for task in std::mem::take(&mut lead.failed) {
                self.reissue(task);
            }
        }
        let ready = |lead: &&mut Box<Lead>| lead.reading.is_none() && lead.retry_at.is_none();
        let Some(lead) = self.lead.as_mut().filter(ready) else { return };
        if lead.roster.is_unsure() && now >= self.spare_until {
            lead.roster.look_at_all(false);
        }
        if lead.run_lease == RunLease::Granting {
            return;
        }
        let lost_record = self.round_missing || self.round.is_none();
        if lost_record || matches!(lead.run_lease, RunLease::New(_)) {
            return self.make_record(now);
        }
        if self.round.as_ref().is_some_and(|(record, _)| record.closed.is_some()) {
            (lead.renew_at, lead.last_call_at, lead.plan_at) = (Duration::MAX, None, Duration::ZERO);
            return;
        }
        if lead.renew_at <= now {
            lead.renew_at = now + self.config.run_ttl / 3;
            self.leader_request(LeaderTask::RenewRun);
        }
        self.drive_plan(now);
        self.publish(now);
    }

    /// Sends a request again that may have been carried out, if it is still of use.
    fn reissue(&mut self, task: LeaderTask) {
        let Some(lead) = &mut self.lead else { return };
        match &task {
            LeaderTask::Place { plan, .. } | LeaderTask::Commit { plan }
                if lead.plan.is_none() || *plan != lead.plans => {}
            // Made anew from what is known by then.
            LeaderTask::WriteRound(_) => {}
            _ => self.leader_request(task),
        }
    }

    /// A condition of a leader's transaction did not hold. What stands in etcd tells which.
    pub(super) fn not_held(&mut self, reply: TxnReply) {
        let mut found = reply.results.into_iter().map(|result| match result {
            OpReply::Got(entry) => entry,
            _ => None,
        });
        let (leader, round, plan) = (found.next().flatten(), found.next().flatten(), found.next().flatten());
        let Some(lead) = &mut self.lead else { return };
        if leader.is_none_or(|entry| entry.create_revision != lead.term) {
            // The watch tells who it is now.
            return self.step_down();
        }
        lead.fence = plan.map_or(0, |entry| entry.mod_revision);
        match round {
            Some(entry) => {
                self.round_is(&entry);
                self.round_missing = false;
            }
            None => self.round_gone(reply.revision),
        }
    }
}

fn put_node(roster: &mut Roster, id: &str, entry: &Entry) {
    match parse::<NodeRecord>(entry) {
        Ok(record) => roster.put(id, Present::new(record, entry)),
        // Not a node of ours: it is not there.
        Err(_) => roster.remove(id, false),
    }
}
