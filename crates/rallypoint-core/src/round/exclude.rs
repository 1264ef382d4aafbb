//! How somebody is kept out of a run, or let in again: by an operator, or by a node.
//!
//! ```text
//!              there is a run             granted, where
//!              and room                   it expires              written
//!   Looking ─────────────────▶ Granting ─────────────▶ Writing ─────────────▶ Done
//!      ▲ │                                              │  │
//!      │ └── it cannot be, or is so already             │  └ the lease is gone: look again
//!      └──── somebody wrote in between ─────────────────┘
//! ```
//!
//! It is written together with the group's record and the event that tells of it.

use std::time::Duration;

use super::etcd::{Condition, Entry, Failure, Op, OpReply, Reply, Request, Txn, TxnReply};
use super::event::{EventRecord, What};
use super::exclusion::{Exclusion, MOST_EXCLUSIONS};
use super::keys::Keys;
use super::record::{Corrupt, RoundRecord, json, parse};
use super::whom::Whom;

/// What is to be changed of who is kept out of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusionChange {
    /// Keeps somebody out, for so long or for as long as the run lives; in other words than before, where it is kept out
    /// already.
    Exclude(Whom, String, Option<Duration>),
    /// Lets somebody in again.
    Include(Whom),
    /// Lets all in again.
    IncludeAll,
}

/// Who changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusionAuthor {
    /// An operator, who may at any time.
    Operator,
    /// A node. Others than itself and those of its machine it can keep out only as a member of the last round.
    Node {
        /// Its name.
        node: String,
        /// The machine that it was told it is on.
        host: Option<String>,
        /// The plan of the last round it was in.
        plan: String,
    },
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExclusionOutcome {
    /// It is so now.
    Done,
    /// There is no such run.
    NoRun,
    /// The run is closed.
    RunClosed,
    /// [`MOST_EXCLUSIONS`] are kept out already.
    TooMany,
    /// Nobody is kept out who could be let in.
    NotExcluded,
    /// Only a member of the last round can keep others out.
    NotAMember,
}

/// The wish to change who is kept out of a run.
///
/// Send what [`poll`](ChangeExclusions::poll) says, and tell [`handle`](ChangeExclusions::handle) what came of it, until it
/// is done.
#[derive(Debug)]
pub struct ChangeExclusions {
    keys: Keys,
    change: ExclusionChange,
    author: ExclusionAuthor,
    at_ms: u64,
    stage: Stage,
    /// What the exclusion hangs on, where it expires.
    lease: Option<i64>,
    /// What hangs on nothing any more when it is done.
    unused: Vec<i64>,
}

#[derive(Debug)]
enum Stage {
    Looking,
    Granting(Found),
    Writing(Found),
    Done(Result<ExclusionOutcome, Corrupt>),
}

#[derive(Debug, Clone)]
struct Found {
    round: Entry,
    record: Box<RoundRecord>,
    /// The leases of the exclusions that are written over or lifted.
    replaced: Vec<i64>,
}

/// What a [`ChangeExclusions`] needs next.
#[derive(Debug)]
pub enum ExclusionStep {
    /// Send this.
    Send(Request),
    /// It is done, or cannot be.
    Done(Result<ExclusionOutcome, Corrupt>),
}

impl ChangeExclusions {
    /// By somebody, at a moment in milliseconds since 1970.
    #[must_use]
    pub fn new(keys: &Keys, change: ExclusionChange, author: ExclusionAuthor, at_ms: u64) -> Self {
        let (keys, stage) = (keys.clone(), Stage::Looking);
        ChangeExclusions { keys, change, author, at_ms, stage, lease: None, unused: Vec::new() }
    }

    /// What to do next.
    #[must_use]
    pub fn poll(&self) -> ExclusionStep {
        ExclusionStep::Send(match &self.stage {
            Stage::Done(outcome) => return ExclusionStep::Done(outcome.clone()),
            Stage::Looking => Request::Txn(Txn { then: self.looks(), ..Txn::default() }),
            Stage::Granting(_) => Request::Grant(self.time().unwrap_or_default()),
            Stage::Writing(found) => self.write(found),
        })
    }

    /// What came of it. False if it failed: wait a moment before the next try.
    pub fn handle(&mut self, reply: Result<Reply, Failure>) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Looking);
        let went_on;
        (self.stage, went_on) = match (stage, reply) {
            (Stage::Looking, Ok(Reply::Txn(reply))) => (self.look(reply), true),
            (Stage::Granting(found), Ok(Reply::Granted(lease))) => {
                self.lease = Some(lease);
                (Stage::Writing(found), true)
            }
            (Stage::Writing(found), Ok(Reply::Txn(reply))) if reply.held => {
                self.unused.extend(found.replaced);
                (Stage::Done(Ok(ExclusionOutcome::Done)), true)
            }
            // Somebody wrote in between, or an earlier try got through after all.
            (Stage::Writing(_), Ok(Reply::Txn(reply))) => (self.look(reply), false),
            // Its own, or the run's.
            (Stage::Writing(_), Err(Failure::LeaseGone)) => {
                self.lease = None;
                (Stage::Looking, false)
            }
            (stage @ (Stage::Granting(_) | Stage::Done(_)), _) => (stage, false),
            // Whether it was written is not known.
            (Stage::Looking | Stage::Writing(_), _) => (Stage::Looking, false),
        };
        went_on
    }

    /// Leases on which nothing hangs any more, once it is done.
    #[must_use]
    pub fn unused_leases(&self) -> Vec<i64> {
        let mut unused = self.unused.clone();
        if !matches!(self.stage, Stage::Done(Ok(ExclusionOutcome::Done))) {
            unused.extend(self.lease);
        }
        unused
    }

    fn time(&self) -> Option<Duration> {
        if let ExclusionChange::Exclude(_, _, time) = &self.change { *time } else { None }
    }

    fn by(&self) -> &str {
        match &self.author {
            ExclusionAuthor::Operator => "",
            ExclusionAuthor::Node { node, .. } => node,
        }
    }

    /// The exclusion that is to stand there.
    fn exclusion(&self) -> Option<Exclusion> {
        let ExclusionChange::Exclude(whom, reason, time) = &self.change else { return None };
        Some(Exclusion::new(whom.clone(), reason, self.by(), self.at_ms, *time))
    }

    fn looks(&self) -> Vec<Op> {
        vec![Op::Get(self.keys.round()), Op::Range(self.keys.exclusions())]
    }

    fn look(&self, reply: TxnReply) -> Stage {
        let mut results = reply.results.into_iter();
        let (Some(OpReply::Got(Some(round))), Some(OpReply::Found(standing))) =
            (results.next(), results.next())
        else {
            return Stage::Done(Ok(ExclusionOutcome::NoRun));
        };
        let record: Box<RoundRecord> = match parse(&round) {
            Ok(record) => Box::new(record),
            Err(corrupt) => return Stage::Done(Err(corrupt)),
        };
        // An earlier try may have got through, and its answer was lost.
        let ours = self.exclusion().map(|exclusion| json(&exclusion));
        if standing.iter().any(|entry| Some(&entry.value) == ours.as_ref()) {
            return Stage::Done(Ok(ExclusionOutcome::Done));
        }
        if let Some(cannot) = self.cannot(&record, &standing) {
            return Stage::Done(Ok(cannot));
        }
        let replaced =
            standing.iter().filter(|entry| self.replaces(&entry.key) && entry.lease != record.lease);
        let replaced = replaced.map(|entry| entry.lease).collect();
        let found = Found { round, record, replaced };
        if self.time().is_some() && self.lease.is_none() {
            Stage::Granting(found)
        } else {
            Stage::Writing(found)
        }
    }

    /// Whether the key of an exclusion is written over, or removed.
    fn replaces(&self, key: &str) -> bool {
        match &self.change {
            ExclusionChange::Exclude(whom, ..) | ExclusionChange::Include(whom) => {
                key == self.keys.exclusion(whom)
            }
            ExclusionChange::IncludeAll => true,
        }
    }

    fn cannot(&self, record: &RoundRecord, standing: &[Entry]) -> Option<ExclusionOutcome> {
        if record.closed.is_some() {
            return Some(ExclusionOutcome::RunClosed);
        }
        let there = standing.iter().any(|entry| self.replaces(&entry.key));
        if let ExclusionChange::Exclude(whom, ..) = &self.change {
            let may = match &self.author {
                ExclusionAuthor::Operator => true,
                ExclusionAuthor::Node { node, host, plan } => {
                    let itself = *whom == Whom::Node(node.clone())
                        || host.as_ref().is_some_and(|host| *whom == Whom::Host(host.clone()));
                    itself || record.has_round() && *plan == record.plan
                }
            };
            if !may {
                return Some(ExclusionOutcome::NotAMember);
            }
            return (!there && standing.len() >= MOST_EXCLUSIONS).then_some(ExclusionOutcome::TooMany);
        }
        (!there).then_some(ExclusionOutcome::NotExcluded)
    }

    fn write(&self, found: &Found) -> Request {
        let record = &found.record;
        let events = record.events + 1;
        let (what, op) = match (&self.change, self.exclusion()) {
            (_, Some(exclusion)) => {
                let put = exclusion.put(&self.keys, self.lease.unwrap_or(record.lease));
                let Exclusion { whom, reason, until_ms, .. } = exclusion;
                (What::Excluded { whom, reason, until_ms }, put)
            }
            (ExclusionChange::Include(whom), None) => {
                (What::Included { whom: Some(whom.clone()) }, Op::Delete(self.keys.exclusion(whom)))
            }
            (ExclusionChange::Exclude(..) | ExclusionChange::IncludeAll, None) => {
                (What::Included { whom: None }, Op::DeletePrefix(self.keys.exclusions()))
            }
        };
        let event = EventRecord::new(self.at_ms, self.by(), record.round, what);
        let value = json(&RoundRecord { events, ..(**record).clone() });
        let then = vec![
            event.put(&self.keys, record.events, record.lease),
            Op::Put { key: self.keys.round(), value, lease: found.round.lease },
            op,
        ];
        let when = Condition::stands(self.keys.round(), found.round.mod_revision, &found.round.value);
        Request::Txn(Txn { when: when.to_vec(), then, otherwise: self.looks() })
    }
}
