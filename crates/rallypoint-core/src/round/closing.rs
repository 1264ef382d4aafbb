//! A member's wish to close the run, until it is carried out or cannot be.
//!
//! ```text
//!            send what `CloseRun` wants              it is done, or cannot be
//!   Waiting ───────────────────────────▶ Asking ─────────────────────────────▶ told
//!      ▲                                    │
//!      └──── answered; a moment later ──────┘
//!            if that failed
//! ```

use std::time::Duration;

use super::close::{CloseRun, CloseStep};
use super::context::{Context, Retry, Task};
use super::etcd::{Failure, OpReply, Reply, Request};
use super::output::CloseOutcome;
use super::view::View;

#[derive(Debug)]
pub(super) struct Closing {
    run: CloseRun,
    /// The epoch in which it last looked.
    epoch: u64,
    asking: bool,
    retry: Retry,
}

impl Closing {
    pub(super) fn new(run: CloseRun, epoch: u64) -> Self {
        Closing { run, epoch, asking: false, retry: Retry::default() }
    }

    pub(super) fn retries_at(&self) -> Option<Duration> {
        self.retry.at()
    }

    /// What became of it, once that is known.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) -> Option<CloseOutcome> {
        self.retry.is_due(context.now);
        if self.asking || self.retry.waits() {
            return None;
        }
        let epoch = context.out.epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.run.look_again();
        }
        match self.run.poll() {
            CloseStep::Send(request) => {
                self.asking = true;
                context.out.request(Task::Close, request);
                None
            }
            CloseStep::Done(outcome) => {
                if let Some(mark) = self.run.unused_mark() {
                    context.out.request(Task::Forgotten, Request::Revoke(mark));
                }
                // A record that cannot be read is told by what follows from it.
                Some(outcome.unwrap_or(CloseOutcome::NotAMember))
            }
        }
    }

    pub(super) fn handle(
        &mut self,
        context: &mut Context<'_>,
        view: &mut View,
        reply: Result<Reply, Failure>,
    ) {
        self.asking = false;
        if let Ok(Reply::Txn(reply)) = &reply {
            match (self.run.mark(), reply.results.first()) {
                (Some((record, lease)), _) if reply.held => {
                    view.wrote_round(reply.revision, record, lease);
                }
                (_, Some(OpReply::Got(entry))) => {
                    view.see_round(reply.revision, entry.as_ref());
                    view.see_exclusions(reply.revision, reply.results.get(1).cloned());
                }
                _ => {}
            }
        }
        if !self.run.handle(reply) {
            self.retry.failed(context);
        }
    }
}
