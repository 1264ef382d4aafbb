//! A version that is in the way: waiting for its end or its return, and bringing its end about.

use std::time::Duration;

use super::super::etcd::{Failure, KeepAlive, Reply, Request, Watched};
use super::super::pace;
use super::super::record::Status;
use super::super::waiting::{self, Role, Surroundings, Waiting};
use super::{Context, Outcome, PUTTING_BACK, Stage, Way};

impl Way {
    pub(super) fn wait_for_end(&mut self, cx: &mut Context, mut waiting: Waiting) -> Outcome {
        let version = waiting.version;
        let Some(over) = self.steps.seen(Status::Final, version) else {
            if self.steps.view.record.is_none() && !self.steps.woken {
                return self.wait_for_return(cx, version, cx.out.now + PUTTING_BACK);
            }
            self.came_from = Some(version);
            return self.restart(cx);
        };
        let around = Surroundings {
            now: cx.out.now,
            max: cx.settings.max,
            created: self.steps.view.created,
            next: self.steps.view.next,
            grace_until: cx.silence.grace_until(),
            woken: self.steps.woken,
        };
        let next = waiting.next(&over.0, &around);
        self.stage = Stage::Waiting(waiting);
        match next {
            waiting::Next::List => self.ask(cx, Request::ListMembers { version }),
            waiting::Next::End => self.ask(cx, Request::DeleteRecord { over }),
            waiting::Next::Expire(place) => self.ask(cx, Request::ExpireKeepAlive(place)),
            waiting::Next::Announce => {
                self.ask(cx, Request::SwapRecord { record: over.0.with_waiting(), over, ttl: None })
            }
            waiting::Next::Wait { crowd, until } => {
                if self.steps.woken && pace::is_crowd(crowd) {
                    return self.wait(cx, crowd, until);
                }
                self.watch(cx, Watched::Version(version), until)
            }
        }
    }

    /// Whoever removes a record is seen to do it. One that is just not there is put back by its members, if they
    /// live; whoever sets up a version in the meantime makes them meet again for nothing.
    pub(super) fn wait_for_return(&mut self, cx: &mut Context, version: u64, until: Duration) -> Outcome {
        if self.steps.view.record.is_none() && cx.out.now < until {
            cx.silence.excuse(cx.out.now);
            self.stage = Stage::Returning { version, until };
            return self.pause_after_failure(cx);
        }
        self.came_from = Some(version);
        self.restart(cx)
    }

    pub(super) fn listed(
        &mut self,
        cx: &mut Context,
        version: u64,
        members: Vec<KeepAlive>,
        next: u64,
    ) -> Outcome {
        let mixed = members.iter().any(|member| member.node.is_none());
        if mixed {
            self.mixed = Some(version);
        }
        if next < self.steps.view.next {
            // The server has lost what the record was read from.
            self.members_unknown();
            return self.pause_after_failure(cx);
        }
        match &mut self.stage {
            // What went since the record was seen is among what the watch from there on tells.
            Stage::Waiting(waiting) if waiting.version == version => {
                let was_member = waiting.role != Role::Newcomer;
                waiting.listed(members, self.steps.view.next, &cx.settings.node);
                if was_member && waiting.role == Role::Newcomer {
                    self.keep_alive_lost();
                }
            }
            Stage::Seated(seat) => seat.listed(members.is_empty(), mixed),
            _ => {}
        }
        self.judge(cx)
    }

    pub(super) fn members_unknown(&mut self) {
        match &mut self.stage {
            Stage::Waiting(waiting) => waiting.look_again(),
            Stage::Seated(seat) => seat.look_again(),
            _ => {}
        }
    }

    pub(super) fn end_version(&mut self, cx: &mut Context) -> Outcome {
        match self.steps.view.record.clone() {
            Some(over) => self.ask(cx, Request::DeleteRecord { over }),
            None => self.restart(cx),
        }
    }

    pub(super) fn deleted(&mut self, cx: &mut Context, reply: &Result<Reply, Failure>) -> Outcome {
        match reply {
            Ok(Reply::Done { .. }) => {
                if let Stage::Waiting(waiting) = &self.stage {
                    self.came_from = Some(waiting.version);
                }
                self.steps.view.record = None;
                self.restart(cx)
            }
            // Who was missing may be back by the time of the next try.
            Ok(Reply::Refused) => {
                self.members_unknown();
                self.pause_after_race(cx, 1)
            }
            _ => {
                self.members_unknown();
                self.pause_after_failure(cx)
            }
        }
    }
}
