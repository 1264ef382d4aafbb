//! A version that is being formed: setting it up, getting in, and what is done for a place in it.

use super::super::creating::{self, Creating};
use super::super::etcd::{Failure, Reply, Request, View, Watched};
use super::super::record::{Record, Status};
use super::super::seat::{self, Seat};
use super::super::waiting::{Role, Waiting};
use super::super::{FROZEN_TTL, LAST_CALL_TTL, SETUP_TTL, pace};
use super::{Context, Outcome, Stage, Way};

impl Way {
    pub(super) fn enter(&mut self, cx: &mut Context, paced: bool) -> Outcome {
        self.stage = Stage::Entering { paced };
        let Some(over) = self.steps.view.record.clone() else {
            let record = Record::setup(Some(&cx.settings.node));
            return self.ask(cx, Request::CreateRecord { record, ttl: Some(SETUP_TTL) });
        };
        let record = &over.0;
        let version = record.version.unwrap_or_default();
        match record.status {
            Status::Closed => {
                let reason = record.reason().to_owned();
                self.halt(cx);
                (self.past, self.kept) = (None, None);
                Outcome::Closed { reason }
            }
            // Versions only grow. An earlier one is of a server that lost its data, begun by a node that did not
            // know of ours.
            Status::Joinable | Status::Frozen if version <= self.last => self.end_version(cx),
            // A record that nodes with other settings wrote can be fuller than ours may be.
            Status::Joinable if record.joined() < cx.settings.max => {
                let rivals = cx.settings.max - record.joined();
                if pace::is_crowd(rivals) && !paced {
                    self.stage = Stage::Entering { paced: true };
                    let pause = pace::before_entry(rivals, cx.out.random());
                    return self.pause(cx, pause);
                }
                self.joined_in = self.steps.view.created;
                let (joined, _) = record.with_node(cx.settings.max);
                let ttl = if joined.status == Status::Frozen {
                    Some(FROZEN_TTL)
                } else {
                    (joined.joined() >= cx.settings.min).then_some(LAST_CALL_TTL)
                };
                self.ask(cx, Request::SwapRecord { record: joined, over, ttl })
            }
            Status::Final => {
                let place = self.past.filter(|past| past.version == version);
                match (place, self.past) {
                    (None, Some(stale)) => self.ask(cx, Request::DeleteKeepAlive(stale)),
                    (place, _) => {
                        let role = place.map_or(Role::Newcomer, Role::Member);
                        self.wait_for_end(cx, Waiting::new(version, role))
                    }
                }
            }
            Status::Setup | Status::Joinable | Status::Frozen => self.wait(cx, record.joined(), None),
        }
    }

    pub(super) fn created(
        &mut self,
        cx: &mut Context,
        record: Record,
        reply: &Result<Reply, Failure>,
    ) -> Outcome {
        match *reply {
            Ok(Reply::Done { index }) => {
                self.steps.view = View { record: Some((record, index)), created: index, next: index + 1 };
                let (creating, request) = Creating::new(index, self.highest);
                self.stage = Stage::Creating(creating);
                self.ask(cx, request)
            }
            Ok(Reply::Refused) => self.pause_after_race(cx, cx.settings.max),
            _ => self.pause_after_failure(cx),
        }
    }

    pub(super) fn creating(
        &mut self,
        cx: &mut Context,
        request: &Request,
        reply: &Result<Reply, Failure>,
    ) -> Outcome {
        let Stage::Creating(creating) = &mut self.stage else { return self.pause_after_failure(cx) };
        let over = (Record::setup(Some(&cx.settings.node)), creating.over);
        match creating.reply(request, reply) {
            creating::Next::Ask(request) => self.ask(cx, request),
            creating::Next::Publish(record) => self.ask(cx, Request::SwapRecord { record, over, ttl: None }),
            creating::Next::GiveUp => {
                self.stage = Stage::Entering { paced: false };
                self.pause_after_failure(cx)
            }
        }
    }

    pub(super) fn joined(&mut self, cx: &mut Context, record: &Record, index: u64) -> Outcome {
        let before = self.came_from.filter(|before| self.mixed != Some(*before));
        self.stage = Stage::Seated(Seat::new(cx, record, self.steps.view.created, index, before));
        // Only now: that no keep-alive of a version is left says that all who live have come back.
        match self.past {
            Some(past) => self.ask(cx, Request::DeleteKeepAlive(past)),
            None => self.judge(cx),
        }
    }

    /// Does what comes next for a node that is in a version.
    pub(super) fn seated(&mut self, cx: &mut Context, seat: Seat, next: seat::Next) -> Outcome {
        let place = seat.place();
        self.stage = Stage::Seated(seat);
        match next {
            seat::Next::Ask(request) => self.ask(cx, request),
            seat::Next::Wait { crowd, until } => self.wait(cx, crowd, until),
            seat::Next::Watch { version, until } => self.watch(cx, Watched::Version(version), Some(until)),
            seat::Next::Pause(pause) => self.pause(cx, pause),
            seat::Next::Met { record, index } => {
                self.halt(cx);
                self.past = Some(place);
                self.last = place.version;
                Outcome::Met { place, record, index }
            }
            seat::Next::Gone { written: false } => self.restart(cx),
            seat::Next::Gone { written: true } => {
                self.stage = Stage::Entering { paced: false };
                self.ask(cx, Request::DeleteKeepAlive(place))
            }
        }
    }

    /// The reply to a join was lost, and the record does not say whose a rank is. A rank that nobody confirms
    /// would hold up the version until its TTL ends it, so where one may be ours we end it at once.
    pub(super) fn doubt(&mut self, cx: &mut Context, version: u64, joined: usize) -> Outcome {
        match &self.steps.view.record {
            Some((record, _))
                if record.is_open(version)
                    && record.joined() > joined
                    && self.steps.view.created == self.joined_in =>
            {
                self.end_version(cx)
            }
            _ => self.restart(cx),
        }
    }
}
