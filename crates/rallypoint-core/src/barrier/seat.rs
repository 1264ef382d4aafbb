//! A node's place in a version, from joining it until it is final.
//!
//! ```text
//!                        frozen                 keep-alive written            confirmed
//! Gathering or LastCall ────────► Confirming ──────────────────► Confirming ───────────► Completing
//!                                 (not written)                   (written)                   │ final
//!                                                          met ◄── keep-alive renewed ────────┘
//! ```
//!
//! If the version ends on the way, or is not the one that was joined, the place is gone. The record does not say whose
//! a rank is, and after etcd lost data another node can have it, in a record that reads the same. The keep-alive says
//! it; so it is asked for once more when the version is final. Who slept until the other one had gone could take that
//! keep-alive; so the record must have this node's confirmation where this node wanted it.

use std::time::Duration;

use super::context::Context;
use super::etcd::{Request, VersionRank, View};
use super::last_call::{self, LastCall};
use super::pace::{self, Pace};
use super::record::{Record, Status};
use super::{FROZEN_TTL, LAST_CALL_TTL};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seat {
    place: VersionRank,
    /// The index at which the record was created that this node has joined.
    created: u64,
    /// The index of its last write there. A server with an earlier state may not have this node in it.
    written_at: u64,
    /// Nodes that it needs. One of PyTorch's that waited out the last call of a version that etcd has lost fixes the
    /// next one of that number, whoever is in it.
    min: usize,
    /// The confirmations as it wrote them, or may have: the last of them is its own.
    confirmed: Vec<String>,
    stage: Stage,
}

#[derive(Debug, Clone, PartialEq)]
enum Stage {
    /// Others will fix the version.
    Gathering,
    /// This node will.
    LastCall(LastCall),
    /// The version is fixed; `written` once the keep-alive is there.
    Confirming { written: bool },
    /// Confirmed.
    Completing,
}

/// What comes next.
pub(super) enum Next {
    Ask(Request),
    /// Wait for a change of the record, beside so many others that change it.
    Wait {
        crowd: usize,
        until: Option<Duration>,
    },
    /// Wait for a change of the record, or of the members of this version.
    Watch {
        version: u64,
        until: Duration,
    },
    /// Look again after this time.
    Pause(Duration),
    /// The version is final.
    Met {
        record: Record,
        index: u64,
    },
    /// The place is gone; a keep-alive that was written must not be taken for a member's.
    Gone {
        written: bool,
    },
}

impl Seat {
    /// A place in this record, which this node has written at `index`. `before` is the version whose members may
    /// all be on their way.
    pub(super) fn new(cx: &Context, record: &Record, created: u64, index: u64, before: Option<u64>) -> Self {
        let rank = record.joined().saturating_sub(1);
        let place = VersionRank { version: record.version.unwrap_or_default(), rank };
        let stage = if record.status == Status::Frozen {
            Stage::Confirming { written: false }
        } else if rank + 1 == cx.settings.min {
            Stage::LastCall(LastCall::new(cx.out.now, cx.settings.last_call, record.joined(), before))
        } else {
            Stage::Gathering
        };
        Seat { place, created, written_at: index, min: cx.settings.min, confirmed: Vec::new(), stage }
    }

    pub(super) fn place(&self) -> VersionRank {
        self.place
    }

    /// Whether a keep-alive may be there.
    pub(super) fn may_be_kept(&self) -> bool {
        matches!(self.stage, Stage::Confirming { .. } | Stage::Completing)
    }

    pub(super) fn last_call_until(&self) -> Option<Duration> {
        match &self.stage {
            Stage::LastCall(last_call) => Some(last_call.until),
            _ => None,
        }
    }

    /// What comes next, with the record as it is.
    pub(super) fn next(&mut self, cx: &Context, view: &View) -> Next {
        if let Stage::LastCall(mut last_call) = self.stage.clone() {
            match self.seen(view, Status::Joinable) {
                Some(over) => {
                    let next = called(&mut last_call, cx.out.now, over);
                    self.stage = Stage::LastCall(last_call);
                    return next;
                }
                None => self.stage = Stage::Gathering,
            }
        }
        if self.stage == Stage::Gathering {
            if let Some((record, _)) = self.seen(view, Status::Joinable) {
                return Next::Wait { crowd: record.joined(), until: None };
            }
            if self.seen(view, Status::Frozen).is_none() {
                return Next::Gone { written: false };
            }
            self.stage = Stage::Confirming { written: false };
        }
        let key = cx.settings.keep_alive(self.place);
        if let (Stage::Confirming { written }, Some(over)) = (&self.stage, self.seen(view, Status::Frozen))
            && !over.0.has_confirmed(&key)
        {
            if !written {
                return Next::Ask(Request::WriteKeepAlive(self.place));
            }
            let record = over.0.with_confirmed(&key);
            let ttl = (record.status == Status::Frozen).then_some(FROZEN_TTL);
            return Next::Ask(Request::SwapRecord { record, over: over.clone(), ttl });
        }
        self.stage = Stage::Completing;
        match (self.seen(view, Status::Final), self.seen(view, Status::Frozen)) {
            (Some((record, _)), _) if self.has_confirmed(record) => {
                Next::Ask(Request::RenewKeepAlive(self.place))
            }
            (None, Some((record, _))) if self.has_confirmed(record) => {
                Next::Wait { crowd: record.joined() - record.confirmed(), until: None }
            }
            _ => Next::Gone { written: true },
        }
    }

    /// The record was written as it was asked for.
    pub(super) fn wrote(&mut self, now: Duration, record: &Record, index: u64) {
        self.written_at = index;
        self.may_have_written(record);
        match &mut self.stage {
            Stage::LastCall(last_call) => last_call.refreshed(now),
            Stage::Confirming { .. } => self.stage = Stage::Completing,
            Stage::Gathering | Stage::Completing => {}
        }
    }

    /// Nobody knows whether it was.
    pub(super) fn may_have_written(&mut self, record: &Record) {
        self.confirmed = record.keep_alives.clone().unwrap_or_default();
    }

    /// It was not, or that is not known; `record` is what this node wanted to write.
    pub(super) fn lost_race(&self, cx: &mut Context, pace: &mut Pace, record: &Record) -> Next {
        match self.stage {
            Stage::Confirming { .. } => self.line_up(cx, pace, record),
            _ => Next::Pause(pace.after_race(record.joined(), cx.out.random())),
        }
    }

    /// The keep-alive is there.
    pub(super) fn kept(&mut self, cx: &mut Context, pace: &mut Pace, view: &View) -> Next {
        if let Stage::Confirming { written } = &mut self.stage {
            *written = true;
            pace.succeeded();
            if let Some((record, _)) = self.seen(view, Status::Frozen)
                && pace::is_crowd(record.joined())
            {
                return self.line_up(cx, pace, record);
            }
        }
        self.next(cx, view)
    }

    /// The version is final, and the keep-alive is this node's, or it is not.
    pub(super) fn checked(&self, view: &View, own: bool) -> Next {
        match self.seen(view, Status::Final) {
            Some((record, index)) if own => Next::Met { record: record.clone(), index: *index },
            _ => Next::Gone { written: true },
        }
    }

    /// The keep-alives of the version before: whether none is left, and whether some were PyTorch's.
    pub(super) fn listed(&mut self, all_back: bool, mixed: bool) {
        if let Stage::LastCall(last_call) = &mut self.stage {
            last_call.listed(all_back, mixed);
        }
    }

    /// A keep-alive of the version before is gone.
    pub(super) fn look_again(&mut self) {
        if let Stage::LastCall(last_call) = &mut self.stage {
            last_call.look_again();
        }
    }

    /// Whether it was this node that confirmed its place in the record.
    fn has_confirmed(&self, record: &Record) -> bool {
        let confirmed = record.keep_alives.as_deref().unwrap_or_default();
        !self.confirmed.is_empty() && confirmed.starts_with(&self.confirmed)
    }

    /// The nodes of a frozen version know their ranks, so they can take turns.
    fn line_up(&self, cx: &mut Context, pace: &mut Pace, record: &Record) -> Next {
        let key = |rank| cx.settings.keep_alive(VersionRank { rank, ..self.place });
        let before = (0..self.place.rank).filter(|rank| !record.has_confirmed(&key(*rank))).count();
        Next::Pause(pace.turn(before, cx.out.random()))
    }

    /// The record, where it is of this status, and the one that this place is in: one of the same number can be made
    /// by nodes that did not know of it, after etcd lost its data.
    fn seen<'a>(&self, view: &'a View, status: Status) -> Option<&'a (Record, u64)> {
        view.record.as_ref().filter(|(record, index)| {
            record.is(status, self.place.version)
                && view.created == self.created
                && *index >= self.written_at
                && record.joined() > self.place.rank
                && (status == Status::Joinable || record.joined() >= self.min)
        })
    }
}

fn called(last_call: &mut LastCall, now: Duration, over: &(Record, u64)) -> Next {
    let record = &over.0;
    let swap = |record, ttl| Next::Ask(Request::SwapRecord { record, over: over.clone(), ttl: Some(ttl) });
    match last_call.next(now, record.joined()) {
        last_call::Next::List(version) => Next::Ask(Request::ListMembers { version }),
        last_call::Next::Freeze => swap(record.to_frozen(), FROZEN_TTL),
        last_call::Next::Refresh => swap(record.clone(), LAST_CALL_TTL),
        last_call::Next::Wait { members_of: Some(version), until } => Next::Watch { version, until },
        last_call::Next::Wait { members_of: None, until } => {
            Next::Wait { crowd: record.joined(), until: Some(until) }
        }
    }
}
