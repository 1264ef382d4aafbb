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
//! The mark hangs on a lease of its own, so that late nodes learn of it for a time, and then it is gone.

use std::time::Duration;

use super::etcd::{Condition, Entry, Failure, Op, Reply, Request, Txn};
use super::keys::Keys;
use super::output::CloseOutcome;
use super::record::{Corrupt, RoundRecord, Seat, json, parse};
use super::settings::RunSettings;
use super::view::{KnownRound, got};

/// The wish to close a run.
///
/// Send what [`poll`](CloseRun::poll) says, and tell [`handle`](CloseRun::handle) what came of it, until it is done.
#[derive(Debug)]
pub struct CloseRun {
    key: String,
    reason: String,
    mark_ttl: Duration,
    /// Who closes it; none for an operator.
    member: Option<(Seat, RunSettings)>,
    stage: Stage,
    mark: Option<i64>,
}

#[derive(Debug)]
enum Stage {
    Looking,
    /// What was found there, to be replaced by the mark.
    Granting(Found),
    Writing(Found),
    Done(Result<CloseOutcome, Corrupt>),
}

#[derive(Debug, Clone)]
struct Found {
    /// It still stands there, and not something that another history has at the same revision.
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
    pub fn by_operator(keys: &Keys, reason: &str, mark_ttl: Duration) -> Self {
        CloseRun::new(keys, reason, mark_ttl, None)
    }

    /// By a member of the last round, who knows its record.
    pub(super) fn by_member(
        keys: &Keys,
        reason: &str,
        mark_ttl: Duration,
        member: (Seat, RunSettings),
        known: Option<&KnownRound>,
    ) -> Self {
        let mut close = CloseRun::new(keys, reason, mark_ttl, Some(member));
        if let Some(known) = known {
            let lease = known.lease;
            close.stage = close.decide(known.record.clone(), known.modified, lease, None);
        }
        close
    }

    fn new(keys: &Keys, reason: &str, mark_ttl: Duration, member: Option<(Seat, RunSettings)>) -> Self {
        let (key, reason) = (keys.round(), reason.to_owned());
        CloseRun { key, reason, mark_ttl, member, stage: Stage::Looking, mark: None }
    }

    /// What to do next.
    #[must_use]
    pub fn poll(&self) -> CloseStep {
        CloseStep::Send(match (&self.stage, self.mark) {
            (Stage::Done(outcome), _) => return CloseStep::Done(outcome.clone()),
            (Stage::Looking, _) => {
                Request::Txn(Txn { then: vec![Op::Get(self.key.clone())], ..Txn::default() })
            }
            (Stage::Writing(found), Some(lease)) => {
                let closed = RoundRecord { closed: Some(self.reason.clone()), ..(*found.record).clone() };
                let put = Op::Put { key: self.key.clone(), value: json(&closed), lease };
                let otherwise = vec![Op::Get(self.key.clone())];
                Request::Txn(Txn { when: found.when.clone(), then: vec![put], otherwise })
            }
            (Stage::Granting(_) | Stage::Writing(_), _) => Request::Grant(self.mark_ttl),
        })
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
            (Stage::Writing(_), Ok(Reply::Txn(reply))) if reply.held => {
                (Stage::Done(Ok(CloseOutcome::Closed)), true)
            }
            // Somebody wrote in between, or an earlier try got through after all.
            (Stage::Writing(_), Ok(Reply::Txn(reply))) => {
                (self.look(reply.results.into_iter().next().and_then(got)), false)
            }
            (Stage::Writing(found), Err(Failure::LeaseGone)) => {
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
        Some((RoundRecord { closed: Some(self.reason.clone()), ..(*found.record).clone() }, lease))
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
            return self.write(Found { when: vec![Condition::Missing(self.key.clone())], record });
        };
        match parse(&entry) {
            Ok(record) => self.decide(record, entry.mod_revision, entry.lease, Some(entry.value)),
            // An operator ends also what no node can read.
            Err(_) if self.member.is_none() => {
                let when = vec![Condition::ModifiedAt(self.key.clone(), entry.mod_revision)];
                self.write(Found { when, record: Box::new(RoundRecord::without_round(0, None, 0)) })
            }
            Err(corrupt) => Stage::Done(Err(corrupt)),
        }
    }

    /// What to do with a record as it stands.
    fn decide(&self, record: RoundRecord, modified: i64, lease: i64, value: Option<String>) -> Stage {
        if record.closed.is_some() {
            let ours = self.mark == Some(lease);
            return Stage::Done(Ok(if ours { CloseOutcome::Closed } else { CloseOutcome::AlreadyClosed }));
        }
        // The others may have gone on without this node. Where its round was lost, nobody has.
        if record.has_round() && self.member.as_ref().is_some_and(|(seat, _)| seat.plan != record.plan) {
            return Stage::Done(Ok(CloseOutcome::NotAMember));
        }
        let mut when = vec![Condition::ModifiedAt(self.key.clone(), modified)];
        when.extend(value.map(|value| Condition::Holds(self.key.clone(), value)));
        self.write(Found { when, record: Box::new(record) })
    }

    fn write(&self, found: Found) -> Stage {
        if self.mark.is_some() { Stage::Writing(found) } else { Stage::Granting(found) }
    }
}
