//! How long a node waits on its way, and how it knows that etcd is silent meanwhile.
//!
//! ```text
//!         it finds the group full             etcd is silent for as long
//! Waits ◄─────────────────────────► Stands by ───────────────────────────► over
//!   └── its time ──► over
//! ```
//!
//! A spare waits for a version for as long as the run lives, and for an etcd that does not answer as long as everybody. Who
//! only waits for news asks for nothing, and would not know that nobody is there to tell it: so it asks now and then.

use std::time::Duration;

use super::context::Context;
use super::etcd::Request;
use super::outbox::{Asked, Part};
use super::output::NodeEvent;

/// How long a node on its way asks for nothing: a silence of a keep-alive's time is known to who waits, too.
const QUIET: Duration = Duration::from_secs(4);

/// A request that has no answer for so long is not answered: what is asked here takes milliseconds.
const LATE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Nothing when it does not wait, or has said that its time is over.
    wait: Option<Wait>,
    /// Its time was over while etcd was silent.
    in_vain: bool,
    asked: Asked,
}

#[derive(Debug)]
struct Wait {
    time: Duration,
    /// When the time began.
    since: Duration,
    spare: bool,
}

impl Patience {
    /// The node sets out, and has this time.
    pub(super) fn begin(&mut self, now: Duration, time: Duration) {
        self.wait = Some(Wait { time, since: now, spare: false });
        self.in_vain = false;
    }

    pub(super) fn end(&mut self) {
        self.wait = None;
    }

    /// Whether it has given up an etcd that is silent: nothing more is expected of it.
    pub(super) fn was_in_vain(&self) -> bool {
        self.in_vain
    }

    /// The time of one that was a spare and is none begins anew.
    pub(super) fn stands_by(&mut self, now: Duration, spare: bool) {
        if let Some(wait) = &mut self.wait
            && std::mem::replace(&mut wait.spare, spare) != spare
        {
            wait.since = now;
        }
    }

    fn over_at(&self, cx: &Context) -> Option<Duration> {
        let Wait { time, since, spare } = self.wait.as_ref()?;
        let begin = if *spare { cx.out.unanswered_since()?.max(*since) } else { *since };
        // A time that no clock reaches is never.
        begin.checked_add(*time)
    }

    fn asks_at(&self, cx: &Context) -> Option<Duration> {
        let waits = self.wait.is_some() && !self.asked.is_open();
        waits.then(|| cx.out.asked_at() + QUIET)
    }

    pub(super) fn timeout(&self, cx: &Context) -> Option<Duration> {
        [self.over_at(cx), self.asks_at(cx)].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        let now = cx.out.now;
        if self.over_at(cx).is_some_and(|at| at <= now) {
            self.end();
            let silent = cx.out.unanswered_since().map(|since| now.saturating_sub(since));
            let silent = silent.filter(|silent| *silent >= LATE);
            self.in_vain = silent.is_some();
            cx.out.event(NodeEvent::OutOfTime { silent });
        }
        if self.asks_at(cx).is_some_and(|at| at <= now) {
            self.asked.ask(&mut cx.out, Part::Patience, Request::Greet);
        }
    }

    /// Whatever came of it, it was heard or not.
    pub(super) fn handle_reply(&mut self, id: u64) {
        self.asked.take(id);
    }
}
