//! How a run is closed, by a member or by an operator.
//!
//! ```text
//!              not closed              granted               written
//!   Looking ─────────────▶ Granting ────────────▶ Writing ─────────────▶ Done
//!      ▲ │                                         │  │
//!      │ └── closed already, or not its to close   │  └ the lease of the mark is gone: grant another
//!      └──── somebody wrote in between ────────────┘
//! ```
//!
//! The mark hangs on a lease of its own, so that late nodes learn of it for a time, and then it is gone. The time begins with
//! the mark, also where a write was refused for long: the lease of an earlier try is refreshed before the next one.

use std::time::Duration;

use super::etcd::{Condition, Entry, Failure, Op, Reply, Request, Txn};
use super::event::{EventRecord, LONGEST_REASON, What};
use super::keys::Keys;
use super::output::CloseOutcome;
use super::record::{Corrupt, RoundRecord, Seat, json, parse};
use super::settings::{NodeConfig, RunSettings};
use super::view::{KnownRound, got};
use crate::text::brief;

/// The wish to close a run.
///
/// Send what [`poll`](CloseRun::poll) says, and tell [`handle`](CloseRun::handle) what came of it, until it is done.
#[derive(Debug)]
pub struct CloseRun {
    keys: Keys,
    reason: String,
    mark_ttl: Duration,
    /// Who closes it; none for an operator.
    member: Option<(Seat, RunSettings)>,
    /// When, in milliseconds since 1970, and the node that does.
    at_ms: u64,
    by: String,
    stage: Stage,
    mark: Option<i64>,
}

#[derive(Debug)]
enum Stage {
    Looking,
    /// What was found there, to be replaced by the mark. Its lease is granted, or that of an earlier try refreshed.
    Granting(Found),
    Writing(Found),
    Done(Result<CloseOutcome, Corrupt>),
}

#[derive(Debug, Clone)]
struct Found {
    /// It still stands there.
    when: Vec<Condition>,
    record: Box<RoundRecord>,
}

/// What a [`CloseRun`] needs next.
#[derive(Debug)]
pub enum CloseStep {
    /// Send this.
    Send(Request),
    /// It is done, or cannot be.
    Done(Result<CloseOutcome, Corrupt>),
}

impl CloseRun {
    /// By an operator, who may at any time, even before the first node.
    #[must_use]
    pub fn by_operator(keys: &Keys, reason: &str, mark_ttl: Duration, at_ms: u64) -> Self {
        CloseRun::new(keys, reason, mark_ttl, at_ms)
    }

    /// By the node of this name, without which the run cannot go on, whether it is in a round or not.
    #[must_use]
    pub fn by_host(keys: &Keys, node: &str, reason: &str, mark_ttl: Duration, at_ms: u64) -> Self {
        CloseRun { by: node.to_owned(), ..CloseRun::new(keys, reason, mark_ttl, at_ms) }
    }

    /// By a member of the last round, who knows its record.
    pub(super) fn by_member(
        config: &NodeConfig,
        now: Duration,
        reason: &str,
        member: (Seat, RunSettings),
        known: Option<&KnownRound>,
    ) -> Self {
        let keys = Keys::new(&config.run);
        let close = CloseRun::new(&keys, reason, config.closed_ttl, config.time_of_day(now));
        let mut close = CloseRun { member: Some(member), by: config.id.clone(), ..close };
        if let Some(known) = known {
            close.stage = close.decide(known.clone());
        }
        close
    }

    fn new(keys: &Keys, reason: &str, mark_ttl: Duration, at_ms: u64) -> Self {
        CloseRun {
            keys: keys.clone(),
            reason: brief(reason, LONGEST_REASON),
            mark_ttl,
            member: None,
            at_ms,
            by: String::new(),
            stage: Stage::Looking,
            mark: None,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn poll(&self) -> CloseStep {
        CloseStep::Send(match (&self.stage, self.mark) {
            (Stage::Done(outcome), _) => return CloseStep::Done(outcome.clone()),
            (Stage::Looking, _) => Request::Txn(Txn { then: self.looks(), ..Txn::default() }),
            (Stage::Writing(found), Some(lease)) => {
                let closed = self.closed(found);
                let what = What::Closed { reason: self.reason.clone() };
                let event = EventRecord::new(self.at_ms, &self.by, closed.round, what);
                let then = vec![
                    event.put(&self.keys, closed.events.saturating_sub(1), lease),
                    Op::Put { key: self.keys.round(), value: json(&closed), lease },
                ];
                Request::Txn(Txn { when: found.when.clone(), then, otherwise: self.looks() })
            }
            (Stage::Granting(_), Some(lease)) => Request::Renew(lease),
            (Stage::Granting(_) | Stage::Writing(_), None) => Request::Grant(self.mark_ttl),
        })
    }

    /// The record, and who is kept out: a leader that sees the one must know of the other.
    fn looks(&self) -> Vec<Op> {
        vec![Op::Get(self.keys.round()), Op::Range(self.keys.exclusions())]
    }

    /// What was found may be of another history: looks again before anything is written.
    pub(super) fn look_again(&mut self) {
        if matches!(self.stage, Stage::Granting(_) | Stage::Writing(_)) {
            self.stage = Stage::Looking;
        }
    }

    /// What came of it. False if it failed: wait a moment before the next try.
    pub fn handle(&mut self, reply: Result<Reply, Failure>) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Looking);
        let went_on;
        (self.stage, went_on) = match (stage, reply) {
            (Stage::Looking, Ok(Reply::Txn(reply))) => {
                (self.look(reply.results.into_iter().next().and_then(got)), true)
            }
            (Stage::Granting(found), Ok(Reply::Granted(lease))) => {
                self.mark = Some(lease);
                (Stage::Writing(found), true)
            }
            (Stage::Granting(found), Ok(Reply::Renewed)) => (Stage::Writing(found), true),
            (Stage::Writing(_), Ok(Reply::Txn(reply))) if reply.held => {
                (Stage::Done(Ok(CloseOutcome::Closed)), true)
            }
            // Somebody wrote in between, or an earlier try got through after all.
            (Stage::Writing(_), Ok(Reply::Txn(reply))) => {
                (self.look(reply.results.into_iter().next().and_then(got)), false)
            }
            (Stage::Granting(found) | Stage::Writing(found), Err(Failure::LeaseGone)) => {
                self.mark = None;
                (Stage::Granting(found), false)
            }
            (stage @ (Stage::Granting(_) | Stage::Done(_)), _) => (stage, false),
            // Whether it was written is not known.
            (Stage::Looking | Stage::Writing(_), _) => (Stage::Looking, false),
        };
        went_on
    }

    /// The record that the next write leaves, and what it hangs on.
    pub(super) fn mark(&self) -> Option<(RoundRecord, i64)> {
        let (Stage::Writing(found), Some(lease)) = (&self.stage, self.mark) else { return None };
        Some((self.closed(found), lease))
    }

    /// The record of the run, once it is closed.
    fn closed(&self, found: &Found) -> RoundRecord {
        let record = (*found.record).clone();
        RoundRecord { closed: Some(self.reason.clone()), events: record.events + 1, ..record }
    }

    /// A lease that was granted for the mark and is not needed.
    #[must_use]
    pub fn unused_mark(&self) -> Option<i64> {
        match &self.stage {
            Stage::Done(Ok(CloseOutcome::Closed)) => None,
            Stage::Done(_) => self.mark,
            _ => None,
        }
    }

    fn look(&self, entry: Option<Entry>) -> Stage {
        let Some(entry) = entry else {
            // Before the first node, or etcd has lost what it had. The mark holds all the same.
            let (round, settings) = match &self.member {
                Some((seat, settings)) => (seat.round, Some(*settings)),
                None => (0, None),
            };
            let record = Box::new(RoundRecord::without_round(round, settings, 0));
            return Stage::Granting(Found { when: vec![Condition::Missing(self.keys.round())], record });
        };
        match parse(&entry) {
            Ok(record) => {
                let (text, modified, lease) = (entry.value, entry.mod_revision, entry.lease);
                self.decide(KnownRound { record, text, modified, lease })
            }
            // An operator ends also what no node can read.
            Err(_) if self.member.is_none() => {
                let when = vec![Condition::ModifiedAt(self.keys.round(), entry.mod_revision)];
                Stage::Granting(Found { when, record: Box::new(RoundRecord::without_round(0, None, 0)) })
            }
            Err(corrupt) => Stage::Done(Err(corrupt)),
        }
    }

    /// What to do with a record as it stands.
    fn decide(&self, known: KnownRound) -> Stage {
        let record = &known.record;
        if record.closed.is_some() {
            let ours = self.mark == Some(known.lease);
            return Stage::Done(Ok(if ours { CloseOutcome::Closed } else { CloseOutcome::AlreadyClosed }));
        }
        // The others may have gone on without this node. Where its round was lost, nobody has.
        if record.has_round() && self.member.as_ref().is_some_and(|(seat, _)| seat.plan != record.plan) {
            return Stage::Done(Ok(CloseOutcome::NotAMember));
        }
        Stage::Granting(Found { when: known.stands(&self.keys.round()), record: Box::new(known.record) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::etcd::{OpReply, TxnReply};
    use super::super::settings::RankPolicy;
    use super::*;

    /// etcd was restored, and has the record of another round at the very revision that a member knows.
    #[test]
    fn a_member_closes_only_the_record_that_it_knows() {
        let settings = RunSettings { min_nodes: 1, max_nodes: 1, policy: RankPolicy::Sticky };
        let seat = Seat { round: 1, plan: "2-1-a".to_owned(), rank: 0, world_size: 1 };
        let record =
            RoundRecord { plan: seat.plan.clone(), ..RoundRecord::without_round(1, Some(settings), 7) };
        let text = json(&record);
        let known = KnownRound { record, text: text.clone(), modified: 3, lease: 7 };
        let (keys, config) = (Keys::new("job"), NodeConfig::new("job", "n0", settings));
        let mut close = CloseRun::by_member(&config, Duration::ZERO, "done", (seat, settings), Some(&known));
        assert!(close.handle(Ok(Reply::Granted(8))));
        let CloseStep::Send(Request::Txn(txn)) = close.poll() else { panic!("{close:?}") };
        assert!(txn.when.contains(&Condition::Holds(keys.round(), text)), "{txn:?}");
    }

    /// etcd is full for a while: by when it takes the mark, its lease is no older than that of any other.
    #[test]
    fn a_mark_that_was_refused_gets_its_whole_time() {
        let none = || {
            let results = vec![OpReply::Got(None), OpReply::Found(Vec::new())];
            Ok(Reply::Txn(TxnReply { held: true, revision: 1, results }))
        };
        let mut close = CloseRun::by_operator(&Keys::new("job"), "done", Duration::from_secs(600), 0);
        let sends = |close: &CloseRun| match close.poll() {
            CloseStep::Send(request) => request,
            CloseStep::Done(_) => panic!("{close:?}"),
        };
        assert!(close.handle(none()) && close.handle(Ok(Reply::Granted(8))));
        assert!(!close.handle(Err(Failure::Refused)), "it waits a moment");
        assert!(close.handle(none()));
        assert_eq!(sends(&close), Request::Renew(8));
        assert!(!close.handle(Err(Failure::Unknown)));
        assert_eq!(sends(&close), Request::Renew(8));
        assert!(close.handle(Ok(Reply::Renewed)));
        let Request::Txn(txn) = sends(&close) else { panic!("{close:?}") };
        assert!(matches!(&txn.then[1], Op::Put { lease: 8, .. }), "{txn:?}");
        // It took too long even so.
        assert!(!close.handle(Err(Failure::Refused)) && close.handle(none()));
        assert!(!close.handle(Err(Failure::LeaseGone)));
        assert_eq!(sends(&close), Request::Grant(Duration::from_secs(600)));
    }
}
