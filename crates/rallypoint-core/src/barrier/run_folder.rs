//! Puts the end of the run's folder off for as long as the node is there.
//!
//! ```text
//! Off ── first join ──► Due ── its time ──► Renewing ──► Due
//! ```

use std::time::Duration;

use super::RUN_TTL;
use super::context::Context;
use super::etcd::{Failure, Reply, Request};
use super::outbox::{Asked, Part};

/// Not in the way of the nodes that are about to meet.
const FIRST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct RunFolder {
    due: Option<Duration>,
    asked: Asked,
}

impl RunFolder {
    pub(super) fn start(&mut self, cx: &mut Context) {
        if self.due.is_none() && !self.asked.is_open() {
            self.due = Some(cx.out.now + FIRST.mul_f64(cx.out.random()));
        }
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.due
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        if self.due.take_if(|due| *due <= cx.out.now).is_some() {
            self.asked.ask(&mut cx.out, Part::RunFolder, Request::RenewRun);
        }
    }

    pub(super) fn handle_reply(&mut self, cx: &mut Context, id: u64, reply: &Result<Reply, Failure>) {
        if self.asked.take(id).is_some() {
            // A refusal is an etcd that cannot: the folder is put back when it has ended.
            let after = if reply.is_ok() { RUN_TTL / 2 } else { RUN_TTL / 100 };
            self.due = Some(cx.out.now + after);
        }
    }
}
