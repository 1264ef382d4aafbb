//! A node's looks at all that concerns it: when it is blind, when others call it lost, and now and then while it waits.
//!
//! ```text
//!              a reason to look            answered
//!   at rest ─────────────────────▶ asked ────────────▶ at rest
//!      ▲                             │ failed
//!      └──────── waits a moment ◀────┘
//! ```

use std::time::Duration;

use super::context::{Context, Retry, Task};
use super::view::look;

/// A node that waits for a round makes sure now and then that etcd has it as it should, at least this seldom; more
/// seldom in larger groups.
const CHECK_PER_NODE: Duration = Duration::from_millis(3);

#[derive(Debug, Default)]
pub(super) struct Look {
    busy: bool,
    retry: Retry,
    /// When the last one was answered.
    last: Duration,
    /// One is wanted, whatever else there is to do.
    wanted: bool,
    /// The plan of the round in which this node is called lost, once it has looked why.
    lost_in: Option<String>,
}

impl Look {
    pub(super) fn retries_at(&self) -> Option<Duration> {
        self.retry.at()
    }

    /// etcd can be reached again.
    pub(super) fn may_be_asked(&mut self) {
        self.retry.succeeded();
    }

    /// When to look whether etcd still has this node as it should, where so many are there: whoever took its name may have
    /// died before this one could be told.
    pub(super) fn check_at(&self, joined: usize, lease: Duration) -> Option<Duration> {
        let every = CHECK_PER_NODE.saturating_mul(u32::try_from(joined).unwrap_or(u32::MAX));
        (!self.busy).then(|| self.last + every.max(lease * 2))
    }

    /// Whether it has to look first why it is called lost in the round of that plan.
    pub(super) fn asks_why(&mut self, plan: &str) -> bool {
        let asks = self.lost_in.as_deref() != Some(plan);
        self.wanted |= asks;
        asks
    }

    /// It has looked. `lost_in`: the plan of the round in which it is called lost.
    pub(super) fn knows_why(&mut self, lost_in: Option<&str>) {
        if std::mem::take(&mut self.wanted) {
            self.lost_in = lost_in.map(str::to_owned);
        }
    }

    /// Looks, if there is a reason, and this node's own key `stands`.
    pub(super) fn drive(&mut self, context: &mut Context<'_>, stands: bool, wanted: bool) {
        self.retry.is_due(context.now);
        if stands && (wanted || self.wanted) && !self.busy && !self.retry.waits() {
            self.busy = true;
            let request = look(context);
            context.out.request(Task::Look, request);
        }
    }

    pub(super) fn failed(&mut self, context: &mut Context<'_>) {
        self.busy = false;
        self.retry.failed(context);
    }

    pub(super) fn answered(&mut self, now: Duration) {
        self.busy = false;
        self.retry.succeeded();
        self.last = now;
    }

    /// A registration has seen the same.
    pub(super) fn seen(&mut self, now: Duration) {
        self.last = now;
    }
}
