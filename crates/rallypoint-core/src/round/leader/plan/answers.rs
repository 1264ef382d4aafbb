//! What the requests of a plan have come to.

use super::super::super::context::Context;
use super::super::super::etcd::TxnReply;
use super::super::super::record::{RoundRecord, parse};
use super::super::super::view::got;
use super::super::roster::LastRound;
use super::Planner;

/// What a request of a plan has come to.
#[derive(Debug)]
pub(in super::super) enum Planned {
    Nothing,
    /// A condition did not hold.
    Refused(TxnReply),
    /// The round is complete, and its record was written at that revision.
    Complete(LastRound, Box<RoundRecord>, i64),
}

impl Planner {
    pub(in super::super) fn placed(&mut self, number: u64, chunk: usize, reply: TxnReply) -> Planned {
        let Some(plan) = self.plan.as_mut().filter(|plan| plan.number == number) else {
            if chunk == 0 {
                self.may_have_begun(reply);
            }
            return Planned::Nothing;
        };
        let begun = match reply.results.get(2).cloned().and_then(got) {
            // An earlier try got through.
            Some(entry) if !reply.held && chunk == 0 && entry.value == plan.record.plan => {
                Some(entry.mod_revision)
            }
            _ => reply.held.then_some(reply.revision),
        };
        let Some(begun) = begun else {
            self.plan = None;
            return Planned::Refused(reply);
        };
        if chunk == 0 {
            (plan.fence, self.fence, self.loose) = (Some(begun), begun, false);
        }
        plan.written.insert((begun, chunk));
        plan.in_flight -= 1;
        Planned::Nothing
    }

    /// An earlier plan's first request is answered. If that plan has begun, by this try or by one before, the next one's
    /// first condition has to know.
    fn may_have_begun(&mut self, reply: TxnReply) {
        let stands = reply.results.into_iter().nth(2).and_then(got).map(|entry| entry.mod_revision);
        let begun = if reply.held { Some(reply.revision) } else { stands };
        self.fence = self.fence.max(begun.unwrap_or(0));
    }

    /// A plan was to be made so at once.
    pub(in super::super) fn completed(
        &mut self,
        context: &Context<'_>,
        number: u64,
        reply: TxnReply,
    ) -> Planned {
        if self.lease_of(number).is_none() {
            self.may_have_begun(reply);
            return Planned::Nothing;
        }
        if reply.held {
            self.fenced(reply.revision);
        } else {
            self.fence_is(reply.results.get(2).cloned().and_then(got).as_ref());
        }
        self.committed(context, number, reply)
    }

    pub(in super::super) fn committed(
        &mut self,
        context: &Context<'_>,
        number: u64,
        reply: TxnReply,
    ) -> Planned {
        let Some(plan) = self.plan.take_if(|plan| plan.number == number) else { return Planned::Nothing };
        let (record, revision) = if reply.held {
            (plan.record, reply.revision)
        } else {
            // An earlier try may have got through, and its reply was lost. There may be news of the round since.
            let found = reply.results.get(1).cloned().and_then(got);
            let ours = found.and_then(|entry| Some((parse::<RoundRecord>(&entry).ok()?, entry.mod_revision)));
            match ours.filter(|(record, _)| record.plan == plan.record.plan) {
                Some(ours) => ours,
                // The master is gone, or the run was closed. The watch tells soon.
                None => return Planned::Refused(reply),
            }
        };
        (self.last_call, self.replacement, self.wait) = (None, None, None);
        (self.gathering, self.untidy) = (None, true);
        self.retry.succeeded();
        if !plan.last_plan.is_empty() {
            self.outdated_store = Some(context.keys.store(plan.last_round, &plan.last_plan));
        }
        let last = LastRound {
            round: record.round,
            plan: record.plan.clone(),
            world_size: record.world_size,
            members: plan.members,
            told: record.news.clone(),
            state_lost: false,
        };
        Planned::Complete(last, Box::new(record), revision)
    }
}
