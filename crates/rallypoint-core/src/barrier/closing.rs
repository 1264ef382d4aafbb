//! Closes the run, whatever state it is in.
//!
//! ```text
//! Off ── close ──► Reading ── not closed ──► Writing ── done ──► Off
//!                     ▲  └──── closed ──────────┼──────────────► Off
//!                     └── refused or not known ─┘ (after a pause)
//! ```

use std::time::Duration;

use super::context::Context;
use super::etcd::{Failure, Reply, Request, View};
use super::outbox::{Asked, Part};
use super::output::NodeEvent;
use super::pace::Pace;
use super::record::{Record, Status};

#[derive(Debug, Default)]
pub(super) struct Closing {
    /// Why.
    reason: String,
    asked: Asked,
    pace: Pace,
    pause: Option<Duration>,
}

impl Closing {
    pub(super) fn close(&mut self, cx: &mut Context, reason: &str) {
        if !self.asked.is_open() && self.pause.is_none() {
            reason.clone_into(&mut self.reason);
            self.ask(cx, Request::ReadRecord);
        }
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.pause
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        if self.pause.take_if(|pause| *pause <= cx.out.now).is_some() {
            self.ask(cx, Request::ReadRecord);
        }
    }

    pub(super) fn handle_reply(&mut self, cx: &mut Context, id: u64, reply: Result<Reply, Failure>) {
        let Some(request) = self.asked.take(id) else { return };
        match (request, reply) {
            (Request::ReadRecord, Ok(Reply::Record(View { record: None, .. }))) => {
                self.ask(cx, Request::MakeRun { counter: 0 });
            }
            (Request::ReadRecord, Ok(Reply::Record(View { record: Some(over), .. }))) => {
                if over.0.status == Status::Closed {
                    return self.closed(cx);
                }
                self.ask(cx, Request::SwapRecord { record: over.0.to_closed(&self.reason), over, ttl: None });
            }
            (Request::MakeRun { .. }, Ok(Reply::Done { .. })) => {
                self.ask(cx, Request::CreateRecord { record: Record::closed(&self.reason), ttl: None });
            }
            (Request::CreateRecord { .. } | Request::SwapRecord { .. }, Ok(Reply::Done { .. })) => {
                self.closed(cx);
            }
            _ => self.pause = Some(cx.out.now + self.pace.after_failure(cx.out.random())),
        }
    }

    fn closed(&mut self, cx: &mut Context) {
        self.pace.succeeded();
        cx.out.event(NodeEvent::Closed);
    }

    fn ask(&mut self, cx: &mut Context, request: Request) {
        self.asked.ask(&mut cx.out, Part::Closing, request);
    }
}
