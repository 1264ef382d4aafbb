//! Out again, without leaving the others to find out.
//!
//! ```text
//! Held ── the way's last request is answered ──► Leaving ── keep-alive removed, others told ──► over
//! ```

use std::time::Duration;

use super::context::Context;
use super::etcd::{Failure, Reply, Request, VersionRank, View};
use super::outbox::{Asked, Part};
use super::pace::Pace;
use super::record::Status;
use super::way::Footing;

/// What leaving may take: the others find out anyhow.
const TIME: Duration = Duration::from_secs(5);
/// The same where etcd was silent for too long.
const IN_VAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Departure {
    stage: Stage,
    deadline: Duration,
    asked: Asked,
    pace: Pace,
    pause: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// What this node has in etcd is not known yet.
    Held,
    Leaving(Footing),
    Gone,
}

impl Departure {
    pub(super) fn new(now: Duration, in_vain: bool) -> Self {
        let deadline = now + if in_vain { IN_VAIN } else { TIME };
        let (asked, pace) = (Asked::default(), Pace::default());
        Departure { stage: Stage::Held, deadline, asked, pace, pause: None }
    }

    /// Whether it waits to be told where the node is.
    pub(super) fn is_held(&self) -> bool {
        self.stage == Stage::Held
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.stage == Stage::Gone || now >= self.deadline
    }

    /// Where the node is, in a final version or in one that was to be.
    ///
    /// A version that is not final yet is ended, as it could not become final; members of a final one see a
    /// number waiting, and come back.
    pub(super) fn leave(&mut self, cx: &mut Context, footing: Footing) {
        self.stage = Stage::Leaving(footing);
        match footing {
            Footing::Nowhere => self.stage = Stage::Gone,
            Footing::Perhaps { .. } | Footing::In { .. } => self.ask(cx, Request::ReadRecord),
        }
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        Some(self.pause.unwrap_or(self.deadline).min(self.deadline))
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        if self.pause.take_if(|pause| *pause <= cx.out.now).is_some() {
            self.ask(cx, Request::ReadRecord);
        }
    }

    pub(super) fn handle_reply(&mut self, cx: &mut Context, id: u64, reply: Result<Reply, Failure>) {
        let (Some(request), Stage::Leaving(footing)) = (self.asked.take(id), self.stage) else { return };
        match (request, reply) {
            (Request::ReadRecord, Ok(Reply::Record(view))) => self.go(cx, footing, view),
            (Request::DeleteKeepAlive(VersionRank { version, .. }), Ok(Reply::Refused)) => {
                self.ask(cx, Request::ListMembers { version });
            }
            (Request::DeleteKeepAlive(place), Ok(_)) => self.removed(cx, place),
            (Request::ListMembers { .. }, Ok(Reply::Members { members, .. })) => match footing {
                // It was gone, or is: the others may not know.
                Footing::In { place, .. } if members.iter().all(|member| member.rank != place.rank) => {
                    self.removed(cx, place);
                }
                // Another node's: after a loss of data, the version is of other nodes.
                _ => self.stage = Stage::Gone,
            },
            (Request::DeleteRecord { .. }, Ok(Reply::Done { .. })) => self.ask(cx, Request::ReadRecord),
            (Request::SwapRecord { .. }, Ok(Reply::Done { .. })) => self.stage = Stage::Gone,
            _ => self.pause = Some(cx.out.now + self.pace.after_failure(cx.out.random())),
        }
    }

    fn removed(&mut self, cx: &mut Context, place: VersionRank) {
        self.stage = Stage::Leaving(Footing::In { place, kept: false });
        self.ask(cx, Request::ReadRecord);
    }

    fn go(&mut self, cx: &mut Context, footing: Footing, view: View) {
        let (version, before, kept) = match footing {
            Footing::Nowhere => return self.stage = Stage::Gone,
            Footing::Perhaps { version, joined } => (version, joined, None),
            Footing::In { place, kept } => (place.version, 0, kept.then_some(place)),
        };
        match (view.record, kept) {
            (Some(over), _) if over.0.is_open(version) && over.0.joined() > before => {
                self.ask(cx, Request::DeleteRecord { over });
            }
            (_, Some(VersionRank { version, rank })) => {
                self.ask(cx, Request::DeleteKeepAlive(VersionRank { version, rank }));
            }
            (Some(over), None)
                if over.0.is(Status::Final, version) && matches!(footing, Footing::In { .. }) =>
            {
                self.ask(cx, Request::SwapRecord { record: over.0.with_waiting(), over, ttl: None });
            }
            _ => self.stage = Stage::Gone,
        }
    }

    fn ask(&mut self, cx: &mut Context, request: Request) {
        self.asked.ask(&mut cx.out, Part::Departure, request);
    }
}
