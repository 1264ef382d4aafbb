//! What a plan of a round writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::super::super::context::Context;
use super::super::super::etcd::{Condition, Op};
use super::super::super::event::{Formed, What, put_group_events};
use super::super::super::record::{PreviousPlace, RECORD_VERSION, RankRecord, RoundRecord, json};
use super::super::roster::{Member, Roster};
use super::super::term::put_round;

/// So many chunks of places are looked at as a round is completed: those of 12,000 nodes. etcd takes 128 conditions, and a
/// few are for the rest.
const STANDING: usize = 100;

/// A round that is being formed.
#[derive(Debug)]
pub(super) struct Plan {
    /// Tells its requests from those of every other plan, also of one before a loss of data.
    pub(super) number: u64,
    pub(super) record: RoundRecord,
    pub(super) seats: Vec<(String, u64)>,
    pub(super) members: HashMap<String, Member>,
    /// The plan that this one follows, and when its record was written, 0 if there is none: the commit follows on
    /// that and nothing else, however often it is tried.
    pub(super) last_plan: String,
    pub(super) last_round: u64,
    pub(super) last_modified: i64,
    /// What rank 0 last said, among it where it is, and when.
    pub(super) master: (String, i64),
    /// Since when the plan is the last one begun.
    pub(super) fence: Option<i64>,
    /// When each chunk of places was written.
    pub(super) written: BTreeSet<(i64, usize)>,
    pub(super) next: usize,
    pub(super) in_flight: usize,
    pub(super) committing: bool,
    /// What is told of it once it is complete, but for the time that this took.
    pub(super) formed: Formed,
    pub(super) begun: Duration,
}

impl Plan {
    /// What a chunk of places writes.
    pub(super) fn places(&self, context: &Context<'_>, roster: &Roster, chunk: usize) -> Vec<Op> {
        let size = context.config.places_per_request;
        let seats = self.seats.iter().enumerate().skip(chunk * size).take(size);
        let place = |(rank, (id, incarnation)): (usize, &(String, u64))| {
            let previous = roster.member(id).map(|member| PreviousPlace {
                round: self.last_round,
                plan: self.last_plan.clone(),
                rank: member.rank,
                incarnation: member.incarnation,
                since: member.since,
            });
            let record = RankRecord {
                version: RECORD_VERSION,
                round: self.record.round,
                plan: self.record.plan.clone(),
                rank,
                incarnation: *incarnation,
                since: self.members.get(id).map_or(0, |member| member.since),
                left: false,
                gave_up_ms: None,
                asked: false,
                previous,
                more: BTreeMap::new(),
            };
            Op::Put { key: context.keys.rank(id), value: json(&record), lease: self.record.lease }
        };
        seats.map(place).collect()
    }

    /// Makes this the last plan begun, if the one before was `fence`.
    pub(super) fn start(&self, context: &Context<'_>, fence: i64) -> (Vec<Condition>, Vec<Op>) {
        let put = put_plan(context, &self.record.plan, self.record.lease);
        // An earlier plan may have been committed by a request that had no answer: its places must stand.
        let round = Condition::unchanged_since(context.keys.round(), self.last_modified);
        (vec![round, Condition::unchanged_since(context.keys.plan(), fence)], vec![put])
    }

    /// The round's record, and the event that it was formed.
    pub(super) fn put_round(&self, context: &Context<'_>) -> Vec<Op> {
        let formed = Formed { placing_ms: millis(context.now, self.begun), ..self.formed.clone() };
        let mut then = put_group_events(context, &self.record, vec![What::Formed(Box::new(formed))]);
        then.push(put_round(context, &self.record));
        then
    }

    /// All places stand, each part as it was written: etcd may have been restored to a time among them, and the leader not know
    /// it yet. Where there are more parts than can be asked for, those that were written last: so many are not written by who
    /// does not hear of that.
    pub(super) fn places_stand(&self, context: &Context<'_>) -> Vec<Condition> {
        let first = |chunk: usize| self.seats.get(chunk * context.config.places_per_request);
        let written =
            self.written.iter().rev().take(STANDING).filter_map(|(at, chunk)| Some((at, first(*chunk)?)));
        written.map(|(at, (id, _))| Condition::ModifiedAt(context.keys.rank(id), *at)).collect()
    }

    /// The master is where it said it would be.
    pub(super) fn master_stands(&self, context: &Context<'_>) -> [Condition; 2] {
        let (text, modified) = &self.master;
        Condition::stands(context.keys.node(&self.seats[0].0), *modified, text)
    }
}

/// Makes a plan the last one begun, or says again that a completed round's is: no other is committed from then on.
pub(super) fn put_plan(context: &Context<'_>, plan: &str, lease: i64) -> Op {
    Op::Put { key: context.keys.plan(), value: plan.to_owned(), lease }
}

/// From `then` to `now`.
pub(super) fn millis(now: Duration, then: Duration) -> u64 {
    u64::try_from(now.saturating_sub(then).as_millis()).unwrap_or(u64::MAX)
}
