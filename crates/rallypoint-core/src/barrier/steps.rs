//! One step of a node's way after the other: a request, a watch or a pause, and never two of them.
//!
//! ```text
//!         ┌────────────► Asking ── reply ────────────┐
//! decide ─┼────────────► Watching ── news, or time ──┼──► decide
//!         └────────────► Paused ── time ──► Asking ──┘
//! ```

use std::time::Duration;

use super::context::Context;
use super::etcd::{Request, View, Watched};
use super::outbox::{Asked, Part};
use super::output::WatchId;
use super::pace::{self, Pace};
use super::record::{Record, Status};

#[derive(Debug, Default)]
pub(super) struct Steps {
    asked: Asked,
    rest: Rest,
    pub(super) pace: Pace,
    /// The record as it was seen last.
    pub(super) view: View,
    /// Whether it was seen because it changed: then others change it, too.
    pub(super) woken: bool,
}

/// What is waited for, if it is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Rest {
    #[default]
    None,
    /// A change, until then.
    Watching { until: Option<Duration> },
    /// To look at the record at that time.
    Paused { until: Duration },
}

impl Steps {
    /// Whether a request is under way.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_open()
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.rest {
            Rest::None => None,
            Rest::Watching { until } => until,
            Rest::Paused { until } => Some(until),
        }
    }

    /// The time of a pause is over: looks at the record. Says whether it was a watch instead, which ends.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context) -> bool {
        match self.rest {
            Rest::Paused { until } if until <= cx.out.now => {
                self.ask(cx, Request::ReadRecord);
                false
            }
            Rest::Watching { until: Some(until) } if until <= cx.out.now => {
                self.woken = false;
                self.end_watch(cx)
            }
            _ => false,
        }
    }

    /// Ends the watch. Says whether there was one.
    pub(super) fn end_watch(&mut self, cx: &mut Context) -> bool {
        let watching = matches!(self.rest, Rest::Watching { .. });
        if watching {
            cx.out.unwatch(WatchId::Record);
            self.rest = Rest::None;
        }
        watching
    }

    /// The request of this number, if it is the one that is waited for.
    pub(super) fn answered(&mut self, id: u64) -> Option<Request> {
        self.asked.take(id)
    }

    pub(super) fn ask(&mut self, cx: &mut Context, request: Request) {
        self.rest = Rest::None;
        self.asked.ask(&mut cx.out, Part::Way, request);
    }

    pub(super) fn pause(&mut self, cx: &Context, pause: Duration) {
        self.rest = Rest::Paused { until: cx.out.now + pause };
    }

    pub(super) fn pause_after_failure(&mut self, cx: &mut Context) {
        let pause = self.pace.after_failure(cx.out.random());
        self.pause(cx, pause);
    }

    pub(super) fn pause_after_race(&mut self, cx: &mut Context, rivals: usize) {
        let pause = self.pace.after_race(rivals, cx.out.random());
        self.pause(cx, pause);
    }

    /// Waits for the next change of the record, until `until` at most; where `crowd` nodes are about to change
    /// it, it looks away for a while first.
    pub(super) fn wait(&mut self, cx: &mut Context, crowd: usize, until: Option<Duration>) {
        if self.woken && pace::is_crowd(crowd) {
            let time = until.unwrap_or(Duration::MAX).saturating_sub(cx.out.now);
            let away = pace::look_away(crowd, cx.out.random()).min(time);
            return self.pause(cx, away);
        }
        self.watch(cx, Watched::Record, until);
    }

    pub(super) fn watch(&mut self, cx: &mut Context, keys: Watched, until: Option<Duration>) {
        self.rest = Rest::Watching { until };
        cx.out.watch(WatchId::Record, keys, self.view.next);
    }

    /// Waits for nothing any more.
    pub(super) fn halt(&mut self, cx: &mut Context) {
        self.end_watch(cx);
        self.asked.forget();
        self.rest = Rest::None;
    }

    /// A record was written over the one that was seen, at this index.
    pub(super) fn wrote(&mut self, record: &Record, index: u64) {
        self.view.record = Some((record.clone(), index));
        self.view.next = index + 1;
        self.woken = true;
        self.pace.succeeded();
    }

    /// The record seen last with its index, where it is of this version and status.
    pub(super) fn seen(&self, status: Status, version: u64) -> Option<(Record, u64)> {
        self.view.record.clone().filter(|(record, _)| record.is(status, version))
    }
}
