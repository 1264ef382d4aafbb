//! A node's way from no place at all to a final version.
//!
//! ```text
//!          no record                published
//! Entering ─────────► Creating ───────────────► Entering
//!    │ ▲  joinable             final
//!    │ │ ───────────► Seated ─────────► over: met
//!    │ │ final
//!    │ │ ───────────► Waiting ── its end ──► Entering
//!    │ │ the reply to a join is lost
//!    │ └ ───────────► Doubting ── ended or not joined ──► Entering
//!    └ closed ──► over
//! ```
//!
//! Whatever the record says that a stage does not expect leads back to `Entering`. What is done in a version that is
//! being formed is in `forming`, and beside one that is final in `ending`.

mod ending;
mod forming;

use std::time::Duration;

use super::context::Context;
use super::creating::Creating;
use super::etcd::{Failure, Reply, Request, Update, VersionRank, Watched};
use super::output::NodeEvent;
use super::record::Record;
use super::seat::Seat;
use super::steps::Steps;
use super::waiting::{Role, Waiting};

/// How long the members of a version that etcd has lost may take to put it back: they know it when their
/// keep-alives are due.
const PUTTING_BACK: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Way {
    stage: Stage,
    steps: Steps,
    /// The place in the last final version, until the node has another or has given it up.
    past: Option<VersionRank>,
    /// The place whose keep-alive is to be kept.
    kept: Option<VersionRank>,
    /// The version whose end this node has seen.
    came_from: Option<u64>,
    /// The last version that was seen to have members of PyTorch's.
    mixed: Option<u64>,
    /// The index at which the record was created that this node tried to join last.
    joined_in: u64,
    /// The latest version that this node was in.
    last: u64,
    /// The latest version that it has seen: one that it sets up is later still.
    highest: u64,
}

/// Where on the way the node is.
#[derive(Debug, Clone, PartialEq, Default)]
enum Stage {
    /// Not on the way.
    #[default]
    Off,
    /// Looks for a version that takes nodes; `paced` after it kept out of the others' way.
    Entering { paced: bool },
    /// Sets a version up.
    Creating(Creating),
    /// To find out whether it has joined this version, which had so many nodes before.
    Doubting { version: u64, joined: usize },
    /// In a version.
    Seated(Seat),
    /// Beside a final version.
    Waiting(Waiting),
    /// Beside one that etcd has lost: until then, its members may put it back.
    Returning { version: u64, until: Duration },
}

/// How far it has come.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub(super) enum Outcome {
    /// It goes on.
    Going,
    /// The version is final, and this node in it.
    Met {
        place: VersionRank,
        record: Record,
        index: u64,
    },
    Closed {
        reason: String,
    },
}

/// What a node that stops on its way may have in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Footing {
    Nowhere,
    /// It may have joined this version, which had so many nodes before.
    Perhaps {
        version: u64,
        joined: usize,
    },
    /// It has; `kept` if it has a keep-alive there.
    In {
        place: VersionRank,
        kept: bool,
    },
}

impl Way {
    /// Begins the way to the next version, unless it is under way.
    pub(super) fn start(&mut self, cx: &mut Context) {
        if self.stage == Stage::Off {
            self.came_from = self.past.map(|past| past.version).or(self.came_from);
            self.stage = Stage::Entering { paced: false };
            self.steps.pace.succeeded();
            let Outcome::Going = self.ask(cx, Request::ReadRecord) else { return };
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.stage != Stage::Off
    }

    /// Whether a request is under way: only its reply tells what this node has in etcd.
    pub(super) fn is_asking(&self) -> bool {
        self.steps.is_asking()
    }

    /// Stops, and says where.
    pub(super) fn stop(&mut self, cx: &mut Context) -> Footing {
        let kept = |place| Footing::In { place, kept: true };
        let footing = match &self.stage {
            Stage::Doubting { version, joined } => Footing::Perhaps { version: *version, joined: *joined },
            Stage::Seated(seat) => Footing::In { place: seat.place(), kept: seat.may_be_kept() },
            _ => self.past.map_or(Footing::Nowhere, kept),
        };
        self.halt(cx);
        (self.past, self.kept) = (None, None);
        footing
    }

    /// The place whose keep-alive is to be kept.
    pub(super) fn kept(&self) -> Option<VersionRank> {
        self.kept
    }

    /// The keep-alive is gone for good, and its key may be another node's.
    pub(super) fn keep_alive_lost(&mut self) {
        self.came_from = self.past.map(|past| past.version).or(self.came_from);
        (self.past, self.kept) = (None, None);
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.steps.timeout()
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) -> Outcome {
        if !self.steps.handle_timeout(cx) {
            return Outcome::Going;
        }
        // Whoever was given time to come back may have.
        self.members_unknown();
        self.judge(cx)
    }

    pub(super) fn handle_update(&mut self, cx: &mut Context, update: Update) -> Outcome {
        if !self.steps.end_watch(cx) {
            return Outcome::Going;
        }
        match update {
            Update::Record(view) => {
                if let Stage::Waiting(waiting) = &mut self.stage {
                    waiting.seen_up_to(view.next);
                }
                (self.steps.view, self.steps.woken) = (view, true);
                self.judge(cx)
            }
            Update::Failed => {
                self.members_unknown();
                self.steps.woken = false;
                self.pause_after_failure(cx)
            }
            Update::Gone { .. } | Update::FolderGone | Update::Cleared => {
                if update == Update::FolderGone && !matches!(self.stage, Stage::Waiting(_)) {
                    let until = cx.out.now + PUTTING_BACK;
                    self.stage = Stage::Returning { version: self.highest, until };
                    self.kept = None;
                }
                self.members_unknown();
                self.steps.woken = false;
                self.ask(cx, Request::ReadRecord)
            }
        }
    }

    pub(super) fn handle_reply(
        &mut self,
        cx: &mut Context,
        id: u64,
        reply: Result<Reply, Failure>,
    ) -> Outcome {
        let Some(request) = self.steps.answered(id) else { return Outcome::Going };
        match (request, reply) {
            (Request::ReadRecord, Ok(Reply::Record(view))) => {
                (self.steps.view, self.steps.woken) = (view, false);
                self.judge(cx)
            }
            (Request::CreateRecord { record, .. }, reply) => self.created(cx, record, &reply),
            (Request::SwapRecord { record, .. }, reply) => self.swapped(cx, &record, &reply),
            (Request::DeleteRecord { .. }, reply) => self.deleted(cx, &reply),
            (Request::ListMembers { version }, Ok(Reply::Members { members, next })) => {
                self.listed(cx, version, members, next)
            }
            (Request::WriteKeepAlive(place), Ok(Reply::Done { .. })) => {
                self.kept = Some(place);
                match self.stage.clone() {
                    Stage::Seated(mut seat) => {
                        let next = seat.kept(cx, &mut self.steps.pace, &self.steps.view);
                        self.seated(cx, seat, next)
                    }
                    _ => self.judge(cx),
                }
            }
            // A server that lost what came later has given the rank to another node.
            (Request::WriteKeepAlive(_), Ok(Reply::Refused)) => {
                self.stage = Stage::Entering { paced: false };
                self.pause_after_failure(cx)
            }
            (Request::RenewKeepAlive(place), Ok(reply)) => match self.stage.clone() {
                Stage::Seated(seat) => {
                    // One that was lost is kept no more, and a late write of it may have come since.
                    let own = reply != Reply::Refused && self.kept == Some(place);
                    let next = seat.checked(&self.steps.view, own);
                    self.seated(cx, seat, next)
                }
                _ => self.judge(cx),
            },
            (Request::DeleteKeepAlive(place), _) => {
                // Whatever became of it: what is left of the key runs out.
                self.past = self.past.filter(|past| *past != place);
                self.judge(cx)
            }
            (Request::ExpireKeepAlive(_), _) => {
                if let Stage::Waiting(waiting) = &mut self.stage {
                    waiting.expiring();
                }
                self.judge(cx)
            }
            (
                request @ (Request::MakeRun { .. }
                | Request::ReadCounter
                | Request::SwapCounter { .. }
                | Request::MakeVersion { .. }),
                reply,
            ) => self.creating(cx, &request, &reply),
            _ => self.pause_after_failure(cx),
        }
    }

    /// What there is to say of it.
    pub(super) fn progress(&self, now: Duration, max: usize) -> NodeEvent {
        let record = self.steps.view.record.as_ref().map(|(record, _)| record);
        let joined = record.map_or(0, Record::joined);
        NodeEvent::Progress {
            version: record.and_then(|record| record.version),
            joined,
            last_call: match &self.stage {
                Stage::Seated(seat) => seat.last_call_until().map(|until| until.saturating_sub(now)),
                _ => None,
            },
            spare: matches!(&self.stage, Stage::Waiting(waiting) if waiting.role == Role::Newcomer)
                && joined >= max,
        }
    }

    /// Goes on with the record as it was seen last.
    fn judge(&mut self, cx: &mut Context) -> Outcome {
        let seen = self.steps.view.record.as_ref().and_then(|(record, _)| record.version);
        self.highest = self.highest.max(seen.unwrap_or(0));
        match self.stage.clone() {
            Stage::Off => Outcome::Going,
            Stage::Entering { paced } => self.enter(cx, paced),
            Stage::Creating(_) => self.restart(cx),
            Stage::Doubting { version, joined } => self.doubt(cx, version, joined),
            Stage::Seated(mut seat) => {
                let next = seat.next(cx, &self.steps.view);
                self.seated(cx, seat, next)
            }
            Stage::Waiting(waiting) => self.wait_for_end(cx, waiting),
            Stage::Returning { version, until } => self.wait_for_return(cx, version, until),
        }
    }

    fn restart(&mut self, cx: &mut Context) -> Outcome {
        self.enter(cx, false)
    }

    /// A record was written over another; which one it was, the stage tells.
    fn swapped(&mut self, cx: &mut Context, record: &Record, reply: &Result<Reply, Failure>) -> Outcome {
        let done = match *reply {
            Ok(Reply::Done { index }) => Some(index),
            _ => None,
        };
        if let Some(index) = done {
            self.steps.wrote(record, index);
        }
        match self.stage.clone() {
            // Published: whoever set a version up is the first to join it.
            Stage::Creating(_) if done.is_some() => self.enter(cx, true),
            Stage::Creating(_) => {
                self.stage = Stage::Entering { paced: false };
                self.pause_after_failure(cx)
            }
            Stage::Entering { .. } if done.is_some() => self.joined(cx, record, done.unwrap_or_default()),
            Stage::Entering { .. } if reply.is_err() => {
                let version = record.version.unwrap_or_default();
                self.stage = Stage::Doubting { version, joined: record.joined() - 1 };
                self.pause_after_failure(cx)
            }
            Stage::Entering { .. } => {
                self.pause_after_race(cx, cx.settings.max.saturating_sub(record.joined()))
            }
            Stage::Seated(mut seat) => {
                let next = match done {
                    Some(index) => {
                        seat.wrote(cx.out.now, record, index);
                        seat.next(cx, &self.steps.view)
                    }
                    None => {
                        if reply.is_err() {
                            seat.may_have_written(record);
                        }
                        seat.lost_race(cx, &mut self.steps.pace, record)
                    }
                };
                self.seated(cx, seat, next)
            }
            Stage::Waiting(mut waiting) if done.is_some() => {
                waiting.announced(cx.out.now);
                self.wait_for_end(cx, waiting)
            }
            _ => self.pause_after_race(cx, record.joined()),
        }
    }

    fn ask(&mut self, cx: &mut Context, request: Request) -> Outcome {
        if let Request::DeleteKeepAlive(place) | Request::ExpireKeepAlive(place) = &request {
            self.kept = self.kept.filter(|kept| kept != place);
        }
        self.steps.ask(cx, request);
        Outcome::Going
    }

    fn pause(&mut self, cx: &Context, pause: Duration) -> Outcome {
        self.steps.pause(cx, pause);
        Outcome::Going
    }

    fn pause_after_failure(&mut self, cx: &mut Context) -> Outcome {
        self.steps.pause_after_failure(cx);
        Outcome::Going
    }

    fn pause_after_race(&mut self, cx: &mut Context, rivals: usize) -> Outcome {
        self.steps.pause_after_race(cx, rivals);
        Outcome::Going
    }

    fn wait(&mut self, cx: &mut Context, crowd: usize, until: Option<Duration>) -> Outcome {
        self.steps.wait(cx, crowd, until);
        Outcome::Going
    }

    fn watch(&mut self, cx: &mut Context, keys: Watched, until: Option<Duration>) -> Outcome {
        self.steps.watch(cx, keys, until);
        Outcome::Going
    }

    fn halt(&mut self, cx: &mut Context) {
        self.steps.halt(cx);
        self.stage = Stage::Off;
    }
}
