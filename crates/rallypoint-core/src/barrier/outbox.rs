//! What goes out: the numbers of requests, whose they are, and the queue that is drained.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::etcd::{Request, Watched};
use super::output::{NodeEvent, Output, WatchId};

/// The part that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Way,
    KeepAlive,
    Group,
    Departure,
    Closing,
    RunFolder,
    Patience,
}

#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) now: Duration,
    random: fastrand::Rng,
    /// The highest index that etcd has named.
    index: u64,
    next: u64,
    /// When something was asked for last.
    asked_at: Duration,
    /// The first that was asked for since etcd was heard last.
    unanswered_since: Option<Duration>,
    /// Whose requests are under way, and the index that was known when they were sent.
    pending: HashMap<u64, (Part, u64)>,
    outputs: VecDeque<Output>,
}

impl Outbox {
    pub(super) fn new(seed: u64) -> Self {
        Outbox {
            now: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            index: 0,
            next: 0,
            asked_at: Duration::ZERO,
            unanswered_since: None,
            pending: HashMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// From 0 up to 1.
    pub(super) fn random(&mut self) -> f64 {
        self.random.f64()
    }

    pub(super) fn event(&mut self, event: NodeEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    pub(super) fn watch(&mut self, id: WatchId, keys: Watched, from: u64) {
        self.outputs.push_back(Output::Watch { id, keys, from });
    }

    pub(super) fn unwatch(&mut self, id: WatchId) {
        self.outputs.push_back(Output::Unwatch(id));
    }

    pub(super) fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Whose request this was, and the index that was known when it was sent.
    pub(super) fn whose(&mut self, id: u64) -> Option<(Part, u64)> {
        self.pending.remove(&id)
    }

    /// Etcd has said something.
    pub(super) fn heard(&mut self) {
        self.unanswered_since = None;
    }

    pub(super) fn asked_at(&self) -> Duration {
        self.asked_at
    }

    /// Since when nothing that was asked for was answered, nor anything else heard.
    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        self.unanswered_since
    }

    /// Etcd has named this index.
    pub(super) fn saw_index(&mut self, index: u64) {
        self.index = self.index.max(index);
    }

    /// Indices begin anew from here.
    pub(super) fn index_went_back(&mut self, index: u64) {
        self.index = index;
    }
}

/// The one request that a part waits for: a late reply to an earlier one is not taken for its own.
#[derive(Debug, Default)]
pub(super) struct Asked(Option<(u64, Request)>);

impl Asked {
    pub(super) fn ask(&mut self, out: &mut Outbox, part: Part, request: Request) {
        out.next += 1;
        out.asked_at = out.now;
        out.unanswered_since.get_or_insert(out.now);
        out.pending.insert(out.next, (part, out.index));
        out.outputs.push_back(Output::Request { id: out.next, request: Box::new(request.clone()) });
        self.0 = Some((out.next, request));
    }

    /// The request of this number, if it is the one that is waited for.
    pub(super) fn take(&mut self, id: u64) -> Option<Request> {
        self.0.take_if(|(asked, _)| *asked == id).map(|(_, request)| request)
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Waits for it no longer.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
