//! What comes of the leader's requests, and what its watch tells.

use super::super::context::{Context, LeaderTask, Task};
use super::super::etcd::{Event, Failure, Reply, Request, TxnReply, Update};
use super::super::record::RoundRecord;
use super::super::view::{View, got};
use super::plan::Planned;
use super::reading::{self, Known, Reading};
use super::roster::Asked;
use super::run_lease::RunLease;
use super::{Leader, Word, missing};

impl Leader {
    /// The lease that a request has named.
    fn lease_of(&self, task: &LeaderTask) -> Option<i64> {
        match task {
            LeaderTask::RenewRun { lease }
            | LeaderTask::Ask { lease, .. }
            | LeaderTask::Tidy { lease, .. } => Some(*lease),
            LeaderTask::WriteRound(record) => Some(record.lease),
            LeaderTask::Place { plan, .. } | LeaderTask::Commit { plan } | LeaderTask::Complete { plan } => {
                self.planner.lease_of(*plan)
            }
            LeaderTask::ReadNodes { .. }
            | LeaderTask::ReadRanks
            | LeaderTask::ReadGroup
            | LeaderTask::LookFor { .. }
            | LeaderTask::GrantRun => None,
        }
    }

    fn is_run_lease(&self, view: &View, lease: Option<i64>) -> bool {
        let run = match self.run_lease {
            RunLease::Granting { .. } => return false,
            RunLease::New { lease, .. } => Some(lease),
            RunLease::Recorded { .. } => view.known().map(|known| known.record.lease),
        };
        lease.is_some() && run == lease
    }

    /// Sends a request again that may have been carried out, if it is still of use.
    pub(super) fn send_again(&mut self, context: &mut Context<'_>, task: LeaderTask) {
        match task {
            LeaderTask::ReadNodes { .. } | LeaderTask::ReadRanks | LeaderTask::ReadGroup => {
                reading::ask(context, self.term, task);
            }
            LeaderTask::GrantRun => {
                if let RunLease::Granting { gone } = self.run_lease {
                    self.grant_run(context, gone);
                }
            }
            LeaderTask::Place { plan, chunk } => {
                self.planner.place(context, self.term, &self.roster, plan, chunk);
            }
            LeaderTask::Commit { plan } => self.planner.commit(context, self.term, plan),
            LeaderTask::Complete { plan } => {
                self.planner.complete(context, self.term, &self.roster, plan);
            }
            // Made anew from what is known by then.
            LeaderTask::RenewRun { .. }
            | LeaderTask::WriteRound(_)
            | LeaderTask::Ask { .. }
            | LeaderTask::LookFor { .. }
            | LeaderTask::Tidy { .. } => {}
        }
    }

    pub(in crate::round) fn handle(
        &mut self,
        context: &mut Context<'_>,
        view: &mut View,
        task: LeaderTask,
        reply: Result<Reply, Failure>,
    ) -> Word {
        match &task {
            LeaderTask::WriteRound(_) => self.newsroom.written(matches!(&reply, Err(Failure::Unknown))),
            LeaderTask::Tidy { .. } => self.planner.tidied(),
            LeaderTask::Ask { ids, .. } => {
                let held = matches!(&reply, Ok(Reply::Txn(reply)) if reply.held);
                let asked = if held { Asked::at(context.now) } else { Asked::No };
                self.roster.were_asked(ids, Asked::Asking, asked);
            }
            LeaderTask::LookFor { ids, since } if reply.is_err() => {
                self.roster.look_failed(ids, *since, context.now);
            }
            _ => {}
        }
        match &reply {
            Ok(Reply::Txn(_) | Reply::Range { .. }) => self.denied_since = None,
            Err(Failure::Denied) => _ = self.denied_since.get_or_insert(context.now),
            _ => {}
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(Failure::LeaseGone) => {
                let lease = self.lease_of(&task);
                let of_plan = matches!(
                    task,
                    LeaderTask::Place { .. } | LeaderTask::Commit { .. } | LeaderTask::Complete { .. }
                );
                let of_run = self.is_run_lease(view, lease);
                if of_run || (of_plan && lease.is_some()) {
                    self.planner.forget();
                }
                // The run's lease is gone, and what hung on it, if it is still the run's. The watch tells of that.
                if of_run {
                    self.grant_run(context, lease);
                }
                return Word::Nothing;
            }
            Err(Failure::Unknown | Failure::Refused | Failure::Denied) => {
                // Whether a plan that was given up has begun is not known any more. Its first request begins it.
                if let LeaderTask::Place { plan, chunk: 0 } | LeaderTask::Complete { plan } = task
                    && self.planner.lease_of(plan).is_none()
                {
                    self.epoch = None;
                }
                self.failed.push(task);
                self.retry.failed(context);
                return Word::Nothing;
            }
        };
        match (task, reply) {
            (LeaderTask::ReadNodes { reading: number }, Reply::Range { revision, entries }) => {
                if let Some(reading) = &mut self.reading {
                    reading.nodes_are(number, revision, entries);
                }
                return self.begin(context, view);
            }
            (LeaderTask::ReadRanks, Reply::Range { revision, entries }) => {
                if let Some(reading) = &mut self.reading {
                    reading.ranks_are(revision, entries);
                }
                return self.begin(context, view);
            }
            (LeaderTask::ReadGroup, Reply::Txn(reply)) => {
                if let Some(reading) = &mut self.reading {
                    reading.group_is_read();
                }
                view.see_exclusions(reply.revision, reply.results.get(2).cloned());
                let mut found = reply.results.into_iter().map(got);
                view.see_round(reply.revision, found.next().flatten().as_ref());
                self.planner.fence_is(found.next().flatten().as_ref());
                return self.begin(context, view);
            }
            (LeaderTask::GrantRun, Reply::Granted(lease)) => {
                if let RunLease::Granting { gone } = self.run_lease {
                    self.run_lease = RunLease::granted(context, lease, gone);
                } else {
                    context.out.request(Task::Forgotten, Request::Revoke(lease));
                }
            }
            (LeaderTask::WriteRound(record), Reply::Txn(reply)) => {
                if !reply.held {
                    return self.refused(context, view, reply);
                }
                self.newsroom.stands();
                self.wrote(context, view, *record, reply.revision);
            }
            (LeaderTask::Place { plan, chunk }, Reply::Txn(reply)) => {
                let planned = self.planner.placed(plan, chunk, reply);
                return self.planned(context, view, planned);
            }
            (LeaderTask::Commit { plan }, Reply::Txn(reply)) => {
                let planned = self.planner.committed(context, plan, reply);
                return self.planned(context, view, planned);
            }
            (LeaderTask::LookFor { ids, since }, Reply::Txn(reply)) => {
                missing::looked_for(context, &ids, since, reply, &mut self.roster, &mut self.planner);
            }
            (LeaderTask::Ask { fences, .. }, Reply::Txn(reply)) => {
                if !reply.held {
                    return self.refused(context, view, reply);
                }
                if fences {
                    self.planner.fenced(reply.revision);
                }
            }
            (LeaderTask::Complete { plan }, Reply::Txn(reply)) => {
                let planned = self.planner.completed(context, plan, reply);
                return self.planned(context, view, planned);
            }
            (LeaderTask::Tidy { stale, .. }, Reply::Txn(reply)) => {
                if !reply.held {
                    // Most often the group was told something in between. Nothing else waits for this.
                    let word = self.refused(context, view, reply);
                    self.retry.succeeded();
                    return word;
                }
                self.planner.removed(&stale, reply.revision);
            }
            _ => {}
        }
        Word::Nothing
    }

    fn planned(&mut self, context: &mut Context<'_>, view: &mut View, planned: Planned) -> Word {
        match planned {
            Planned::Nothing => {}
            Planned::Refused(reply) => return self.refused(context, view, reply),
            Planned::Complete(last, record, revision) => {
                self.roster.begin(last);
                self.roster.look_at_all();
                self.newsroom.formed(context.now, record.world_size);
                self.wrote(context, view, *record, revision);
            }
        }
        Word::Nothing
    }

    /// A condition did not hold. What stands in etcd tells which. Whatever it was, the next try waits a moment.
    fn refused(&mut self, context: &mut Context<'_>, view: &mut View, reply: TxnReply) -> Word {
        let exclusions = reply.results.get(3).cloned();
        let mut found = reply.results.into_iter().map(got);
        let (leader, round, plan) = (found.next().flatten(), found.next().flatten(), found.next().flatten());
        self.retry.failed(context);
        view.see_leader(reply.revision, leader.as_ref());
        let ours = context.config.leader_value();
        if leader.is_none_or(|it| it.create_revision != self.term.began || it.value != ours) {
            return Word::NotLeading;
        }
        self.planner.fence_is(plan.as_ref());
        view.see_round(reply.revision, round.as_ref());
        view.see_exclusions(reply.revision, exclusions);
        Word::Nothing
    }

    /// This node has written the round's record.
    fn wrote(&mut self, context: &mut Context<'_>, view: &mut View, record: RoundRecord, revision: i64) {
        self.retry.succeeded();
        self.run_lease.is_named(context, record.lease);
        let lease = record.lease;
        view.wrote_round(revision, record, lease);
    }

    /// Leads, once all is read that it takes.
    fn begin(&mut self, context: &mut Context<'_>, view: &View) -> Word {
        // What is known of the round may be of another history. All is read anew once it is known again.
        if view.is_blind() {
            return Word::Nothing;
        }
        let Some(Known { nodes, since, ranks }) =
            Reading::finish(&mut self.reading, context, self.term, view)
        else {
            return Word::Nothing;
        };
        self.retry.succeeded();
        self.read_at = Some(context.now);
        let keys = context.keys;
        for entry in &nodes {
            self.roster.read(keys.id_of(&entry.key), entry);
        }
        let changed = !since.is_empty();
        for event in since {
            self.happened(context, event);
        }
        self.planner.places_are(ranks.iter().map(|entry| keys.id_of(&entry.key).to_owned()));
        if let Some(known) = view.known().filter(|known| known.record.has_round()) {
            let last = reading::last_round(context, &mut self.roster, &known.record, &ranks);
            self.roster.begin(last);
        }
        self.take_claims(context, view);
        self.roster.look_at_all();
        if changed { self.own_key(context) } else { Word::Nothing }
    }

    /// Something has happened to a node's key.
    fn happened(&mut self, context: &mut Context<'_>, event: Event) {
        let key = match &event {
            Event::Put(entry) => &entry.key,
            Event::Delete { key, .. } => key,
        };
        let id = context.keys.id_of(key).to_owned();
        match event {
            Event::Put(entry) => self.roster.read(&id, &entry),
            Event::Delete { revision, .. } => self.roster.remove(&id, revision),
        }
        self.planner.changed(context, &id, &self.roster);
    }

    /// What the watch on the nodes tells.
    pub(in crate::round) fn update(&mut self, context: &mut Context<'_>, update: Update) -> Word {
        let Update::Events(events) = update else {
            // What it says may be of another history than the rest of what is known.
            self.epoch = None;
            return Word::Nothing;
        };
        if let Some(reading) = &mut self.reading {
            reading.happened(context, self.term, events);
            return Word::Nothing;
        }
        for event in events {
            self.happened(context, event);
        }
        self.own_key(context)
    }

    /// What stands under this node's own name.
    fn own_key(&self, context: &Context<'_>) -> Word {
        match self.roster.get(&context.config.id) {
            Some(node) if node.record.incarnation != context.config.incarnation => {
                Word::OthersKey { record: Box::new(node.record.clone()), modified: node.modified }
            }
            Some(_) => Word::Nothing,
            // Its own lease has ended, or that of a process that had replaced it.
            None => Word::OwnKeyGone,
        }
    }
}
