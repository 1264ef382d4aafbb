//! How the leader forms a round: when, with whom, and the transactions that make it so.

use std::collections::HashMap;
use std::time::Duration;

use super::etcd::{Condition, Op, OpReply, Request, TxnReply};
use super::leader::{LeaderTask, RunLease};
use super::node::{Node, Task, json, parse};
use super::publishing::progress_interval;
use super::record::{MasterRecord, News, RankRecord, RoundRecord};
use super::roster::Seat;

/// Places in one transaction; etcd takes 128 operations.
const PLACES: usize = 120;
/// Transactions under way at a time.
const IN_FLIGHT: usize = 8;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: String,
    pub(super) record: RoundRecord,
    pub(super) seats: Vec<(String, u64)>,
    pub(super) members: HashMap<String, Seat>,
    /// The round before this one, and when its record was written, 0 if there is none: the commit follows on that
    /// and nothing else, however often it is tried.
    pub(super) last_round: u64,
    pub(super) last_modified: i64,
    /// When rank 0 last said where it is.
    pub(super) master_modified: i64,
    /// Since when the plan is the last one begun.
    pub(super) fence: Option<i64>,
    pub(super) next: usize,
    pub(super) in_flight: usize,
    pub(super) committing: bool,
}

impl Plan {
    fn chunks(&self) -> usize {
        self.seats.len().div_ceil(PLACES)
    }
}

impl Node {
    /// Writes the places of a chunk. The first one also makes this the last plan begun.
    pub(super) fn places(&self, chunk: usize) -> Request {
        let Some((lead, plan)) = self.lead.as_ref().and_then(|lead| Some((lead, lead.plan.as_ref()?))) else {
            return self.leader_txn(vec![], vec![]);
        };
        let lease = plan.record.lease;
        let key = self.keys.plan();
        let (when, mut then) = match plan.fence {
            Some(fence) => (Condition::ModifiedAt(key, fence), vec![]),
            None => {
                let put = Op::Put { key: key.clone(), value: plan.id.clone(), lease };
                (Condition::unchanged_since(key, lead.fence), vec![put])
            }
        };
        let first = chunk * PLACES;
        let seats = plan.seats.iter().enumerate().skip(first).take(PLACES);
        then.extend(seats.map(|(rank, (id, incarnation))| {
            let (round, plan, incarnation) = (plan.record.round, plan.id.clone(), *incarnation);
            let value = json(&RankRecord { round, plan, rank, incarnation, left: false });
            Op::Put { key: self.keys.rank(id), value, lease }
        }));
        self.leader_txn(vec![when], then)
    }

    /// The point at which a round is complete.
    pub(super) fn commit(&self) -> Request {
        let plan = self.lead.as_ref().and_then(|lead| lead.plan.as_ref());
        let Some(plan) = plan else {
            return self.leader_txn(vec![], vec![]);
        };
        let when = vec![
            Condition::unchanged_since(self.keys.round(), plan.last_modified),
            Condition::ModifiedAt(self.keys.plan(), plan.fence.unwrap_or_default()),
            Condition::ModifiedAt(self.keys.node(&plan.seats[0].0), plan.master_modified),
        ];
        let (value, lease) = (json(&plan.record), plan.record.lease);
        self.leader_txn(when, vec![Op::Put { key: self.keys.round(), value, lease }])
    }

    /// Forms a round when there is a reason and enough nodes, and nobody to wait for.
    pub(super) fn drive_plan(&mut self, now: Duration) {
        let Some(lead) = &mut self.lead else { return };
        if lead.plan.is_some() {
            return self.advance_plan();
        }
        if lead.plan_at > now {
            return;
        }
        lead.plan_at = Duration::ZERO;
        let settings = self.config.settings;
        let roster = &lead.roster;
        let (joined, survivors, outstanding) = (roster.joined(), roster.survivors(), roster.outstanding());
        let enough = joined >= settings.min_nodes && roster.wants_a_round();
        // Newcomers alone never go past members that are at work.
        if !enough || (outstanding > 0 && survivors == 0) {
            lead.last_call_at = None;
            return;
        }
        let all_here = outstanding == 0 && (survivors > 0 || joined >= settings.max_nodes);
        let last_call = *lead.last_call_at.get_or_insert(now + self.config.last_call);
        if (all_here || last_call <= now) && !lead.writing {
            self.begin_plan();
        }
    }

    pub(super) fn begin_plan(&mut self) {
        let Some(lead) = &mut self.lead else { return };
        let (last_round, last_modified, lease) = match (&self.round, &lead.run_lease) {
            (Some((record, modified)), _) => (record.round, *modified, record.lease),
            (None, RunLease::New(lease)) => (lead.roster.last_round(), 0, *lease),
            _ => return,
        };
        lead.plans += 1;
        let id = format!("{}-{}", lead.term, lead.plans);
        let seats: Vec<_> = lead.roster.seats();
        let round = last_round.max(lead.roster.last_round()) + 1;
        let nodes = seats.iter().map(|id| lead.roster.get(id).map(|node| (id, node)));
        let Some(nodes) = nodes.collect::<Option<Vec<_>>>() else { return };
        let Some((first, master)) = nodes.first() else { return };
        let next = RoundRecord {
            round,
            plan: id.clone(),
            world_size: nodes.len(),
            master: Some(MasterRecord {
                node: (*first).clone(),
                address: master.record.address.clone(),
                port: master.record.port,
            }),
            settings: Some(self.config.settings),
            lease,
            closed: None,
            news: News::default(),
        };
        let members = nodes.iter().enumerate().map(|(rank, (id, node))| {
            let incarnation = node.record.incarnation;
            ((*id).clone(), Seat { rank, incarnation, left: false, lost: false, gone: false })
        });
        lead.plan = Some(Plan {
            id,
            record: next,
            members: members.collect(),
            last_round,
            last_modified,
            master_modified: master.modified,
            seats: nodes.iter().map(|(id, node)| ((*id).clone(), node.record.incarnation)).collect(),
            fence: None,
            next: 0,
            in_flight: 0,
            committing: false,
        });
        self.advance_plan();
    }

    pub(super) fn advance_plan(&mut self) {
        loop {
            let Some(lead) = &mut self.lead else { return };
            let (plans, writing) = (lead.plans, lead.writing);
            let Some(plan) = &mut lead.plan else { return };
            // The others wait for the first: it makes this the last plan begun.
            let limit = if plan.fence.is_none() { 1 } else { IN_FLIGHT };
            let task = if plan.next < plan.chunks() {
                if plan.in_flight >= limit {
                    return;
                }
                plan.in_flight += 1;
                plan.next += 1;
                LeaderTask::Place { plan: plans, chunk: plan.next - 1 }
            } else if plan.in_flight == 0 && !plan.committing && !writing {
                plan.committing = true;
                LeaderTask::Commit { plan: plans }
            } else {
                return;
            };
            self.leader_request(task);
        }
    }

    pub(super) fn placed(&mut self, number: u64, chunk: usize, reply: TxnReply) {
        let Some(lead) = &mut self.lead else { return };
        let Some(plan) = lead.plan.as_mut().filter(|_| number == lead.plans) else {
            // An earlier plan's; if it has begun, the next one's first condition has to know.
            if reply.held && chunk == 0 {
                lead.fence = lead.fence.max(reply.revision);
            }
            return;
        };
        let begun = match reply.results.get(2) {
            Some(OpReply::Got(Some(entry))) if !reply.held && entry.value == plan.id => {
                Some(entry.mod_revision)
            }
            _ if reply.held => Some(reply.revision),
            _ => None,
        };
        let Some(begun) = begun.filter(|_| reply.held || chunk == 0) else {
            lead.plan = None;
            return self.not_held(reply);
        };
        if chunk == 0 {
            (plan.fence, lead.fence) = (Some(begun), begun);
        }
        plan.in_flight -= 1;
        let seats = plan.seats.iter().skip(chunk * PLACES).take(PLACES);
        lead.placed.extend(seats.map(|(id, _)| id.clone()));
    }

    pub(super) fn committed(&mut self, now: Duration, number: u64, reply: TxnReply) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.plans == number) else { return };
        let Some(plan) = lead.plan.take() else { return };
        let (record, revision) = if reply.held {
            (plan.record, reply.revision)
        } else {
            // An earlier try may have got through, and its reply was lost. There may be news of the round since.
            let ours = match reply.results.get(1) {
                Some(OpReply::Got(Some(entry))) => parse::<RoundRecord>(entry)
                    .ok()
                    .filter(|record| record.plan == plan.id)
                    .map(|record| (record, entry.mod_revision)),
                _ => None,
            };
            let Some(ours) = ours else {
                // The master is gone, or the run was closed. The watch tells soon.
                lead.plan_at = now + Duration::from_millis(50);
                return self.not_held(reply);
            };
            ours
        };
        lead.roster.complete(record.round, plan.members, &record.news);
        lead.roster.look_at_all(now < self.spare_until);
        lead.last_call_at = None;
        lead.progress_at = now + progress_interval(record.world_size);
        self.tidy(plan.last_round);
        self.round_now(now, record, revision);
    }

    /// Removes what only earlier rounds had a use for, unless the next plan has begun by then. Whatever comes of
    /// it: the run's lease ends one day.
    pub(super) fn tidy(&mut self, last: u64) {
        let Some(lead) = &mut self.lead else { return };
        let mut then = Vec::new();
        if last > 0 {
            then.push(Op::DeletePrefix(self.keys.store(last)));
        }
        let stale = lead.placed.iter().filter(|id| !lead.roster.knows(id));
        let stale: Vec<String> = stale.take(PLACES).cloned().collect();
        for id in stale {
            then.push(Op::Delete(self.keys.rank(&id)));
            lead.placed.remove(&id);
        }
        if !then.is_empty() {
            let when = vec![Condition::ModifiedAt(self.keys.plan(), lead.fence)];
            let request = self.leader_txn(when, then);
            self.request(Task::Forgotten, request);
        }
    }
}
