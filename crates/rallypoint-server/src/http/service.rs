//! The store with what it does not have itself: a lock, a clock, and a task that ends what has a TTL.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::durable::{Promise, Ticket, V2Batch};
use crate::identity::Identity;
use crate::v2::{Answer, Error, Kept, Place, Request, Store, Time, Untold};

/// What the v3 half says of itself.
pub(crate) struct V3 {
    /// Its lines in Prometheus' text format.
    pub(crate) metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Whether it takes nothing more in.
    pub(crate) is_full: Box<dyn Fn() -> bool + Send + Sync>,
}

/// What a client may ask for at most.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The bytes of a body.
    pub(crate) body: usize,
    /// How long a body may take to arrive.
    pub(crate) body_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // A form of 10 MiB is etcd's limit on v2.
        Limits { body: 10 << 20, body_time: Duration::from_secs(60) }
    }
}

/// The v2 half of the server. What has a TTL is ended by a task of its own, for as long as this lives.
pub(crate) struct Service {
    pub(super) identity: Arc<Identity>,
    pub(super) limits: Limits,
    pub(super) v3: V3,
    pub(super) started: Time,
    store: Mutex<Store>,
    clock: Clock,
    /// Told when something ends earlier than all before, and when the service ends.
    sooner: Arc<Notify>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// What a request is answered with, and the indices at that moment.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) index: u64,
    pub(super) raft_index: u64,
}

impl Service {
    /// To be called inside a tokio runtime.
    pub(crate) fn start(identity: Arc<Identity>, v3: V3, limits: Limits, store: Store) -> Arc<Self> {
        let clock = Clock::new();
        let service = Arc::new(Service {
            identity,
            v3,
            started: clock.now(),
            store: Mutex::new(store),
            limits,
            clock,
            sooner: Arc::default(),
        });
        tokio::spawn(expire(Arc::downgrade(&service), Arc::clone(&service.sooner)));
        service
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The store, as of now.
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        // A panic in between leaves at worst a number wrong.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a request. Where there is a ticket, the answer must wait for it: it tells of what is not on disk.
    pub(super) fn apply(&self, request: Request) -> (Result<Answered, Error>, Option<Ticket>) {
        self.write(|store| {
            let before = store.next_end();
            let answer = store.apply(self.now(), &request.path, request.op);
            if store.next_end().is_some_and(|end| before.is_none_or(|before| end < before)) {
                self.sooner.notify_one();
            }
            let (index, raft_index) = (store.index(), store.raft_index());
            (answer.map(|answer| Answered { answer, index, raft_index }), store.ticket())
        })
    }

    /// Changes the store, then tells the writer, if there is one.
    fn write<R>(&self, write: impl FnOnce(&mut Store) -> R) -> R {
        let mut store = self.store();
        let result = write(&mut store);
        let bell = store.bell();
        drop(store);
        if let Some(bell) = bell {
            // It may have been rung already.
            let _ = bell.try_send(());
        }
        result
    }

    /// What is to be written, whom to tell of what then, and the promise to those who wait for it.
    pub(crate) fn take_changes(&self) -> Option<(V2Batch, Vec<Untold>, Promise)> {
        let mut store = self.store();
        let (taken, untold) = store.take_changes()?;
        let (index, raft_index) = (store.index(), store.raft_index());
        Some((V2Batch { changes: taken.changes, index, raft_index }, untold, taken.promise))
    }

    /// What was taken is on disk.
    pub(crate) fn settle(&self, untold: Vec<Untold>) {
        self.store().settle(untold);
    }

    /// What was taken was not kept; the promise to those who wait for what came after it.
    pub(crate) fn go_back(&self, kept: Kept) -> Option<Promise> {
        self.store().go_back(kept)
    }

    /// Whether there is no room on the disk.
    pub(crate) fn set_full(&self, is_full: bool) {
        if let Some(journal) = self.store().journal() {
            journal.set_full(is_full);
        }
    }

    /// About the bytes of memory of all nodes.
    pub(crate) fn weight(&self) -> usize {
        self.store().weight()
    }

    /// Ends the watches: the server stops.
    pub(crate) fn close(&self) {
        self.store().close();
    }

    pub(super) fn unwatch(&self, place: &Place) {
        self.store().unwatch(place);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.sooner.notify_one();
    }
}

/// Ends what has a TTL at its time, for as long as the service lives.
async fn expire(service: Weak<Service>, sooner: Arc<Notify>) {
    while let Some(alive) = service.upgrade() {
        let now = alive.now();
        let next = alive.write(|store| {
            store.expire(now);
            store.next_end()
        });
        drop(alive);
        match next {
            // Whichever comes first, the next round looks again.
            Some(end) => _ = timeout(end.since(now), sooner.notified()).await,
            None => sooner.notified().await,
        }
    }
}

/// The time of day at the start, and how long ago that was: TTLs must not feel it when the time is set.
struct Clock {
    start: Duration,
    since: Instant,
}

impl Clock {
    fn new() -> Self {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start, since: Instant::now() }
    }

    fn now(&self) -> Time {
        Time::since_epoch(self.start + self.since.elapsed())
    }
}
