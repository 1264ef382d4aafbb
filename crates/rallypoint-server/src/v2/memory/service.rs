//! The store with what it does not have itself: a lock, a clock, and a task that ends what has a TTL.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::future::BoxFuture;
use futures::stream::StreamExt as _;
use futures::{FutureExt as _, stream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::buried::Buried;
use super::change::{Kept, Untold};
use super::hub::Watch;
use super::store::{Answer, Store};
use crate::durable::{Lost, Promise, Ticket, V2Batch, kept};
use crate::identity::{ETCD_VERSION, Identity, RAFT_TERM};
use crate::prometheus::Page;
use crate::v2::clock::Clock;
use crate::v2::keys::{self, Answered, Counts, Events, Keys, Login};
use crate::v2::wire::{Code, Error, Request};

/// What the v3 half says of itself.
pub(crate) struct V3 {
    /// Its lines in Prometheus' text format.
    pub(crate) metrics: Box<dyn Fn(&mut Page) + Send + Sync>,
    /// Whether it takes nothing more in.
    pub(crate) is_full: Box<dyn Fn() -> bool + Send + Sync>,
    /// Whether a client may ask for keys, once that is known; none if everybody may.
    pub(crate) users: Box<dyn Fn(Option<Login>) -> Option<BoxFuture<'static, bool>> + Send + Sync>,
}

/// The v2 half of the server. What has a TTL is ended by a task of its own, for as long as this lives.
pub(crate) struct Service {
    /// To hand itself to its watches.
    me: Weak<Service>,
    identity: Arc<Identity>,
    v3: V3,
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

impl Service {
    /// To be called inside a tokio runtime.
    pub(crate) fn start(identity: Arc<Identity>, v3: V3, store: Store) -> Arc<Self> {
        let service = Arc::new_cyclic(|me| Service {
            me: Weak::clone(me),
            identity,
            v3,
            store: Mutex::new(store),
            clock: Clock::new(),
            sooner: Arc::default(),
        });
        tokio::spawn(expire(Arc::downgrade(&service), Arc::clone(&service.sooner)));
        service
    }

    /// The store, as of now.
    fn store(&self) -> MutexGuard<'_, Store> {
        // A panic in between leaves at worst a number wrong.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a request. Where there is a ticket, the answer must wait for it: it tells of what is not on disk.
    fn carry_out(&self, request: Request) -> (Result<Answered, Error>, Option<Ticket>) {
        self.write(|store| {
            let before = store.next_end();
            let answer = store.apply(self.clock.now(), &request.path, request.op);
            if store.next_end().is_some_and(|end| before.is_none_or(|before| end < before)) {
                self.sooner.notify_one();
            }
            let (index, raft_index) = (store.index(), store.raft_index());
            let answered = |answer| Answered { answer, index, raft_index, raft_term: RAFT_TERM };
            (answer.map(|answer| answered(self.answer(answer))), store.ticket())
        })
    }

    fn answer(&self, answer: Answer) -> keys::Answer {
        match answer {
            Answer::Event(event) => keys::Answer::Event(event),
            Answer::Listing(listing) => keys::Answer::Listing(listing),
            Answer::Watch(watch) => {
                keys::Answer::Watch(Watching { service: Weak::clone(&self.me), watch }.events())
            }
        }
    }

    /// Changes the store, then tells the writer, if there is one.
    fn write<R>(&self, write: impl FnOnce(&mut Store) -> R) -> R {
        let mut store = self.store();
        let result = write(&mut store);
        let bell = store.bell();
        let buried = store.take_buried();
        drop(store);
        if !buried.is_empty() {
            self.forget(buried);
        }
        if let Some(bell) = bell {
            // It may have been rung already.
            let _ = bell.try_send(());
        }
        result
    }

    /// Forgets what was taken out of the tree, on a thread of its own: that takes long.
    fn forget(&self, buried: Vec<Buried>) {
        let service = Weak::clone(&self.me);
        tokio::task::spawn_blocking(move || {
            for buried in buried {
                let mut remains = buried.into_remains();
                while service.upgrade().is_some_and(|service| !service.store().forget(&mut remains)) {}
            }
        });
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
}

impl Keys for Service {
    /// Whoever may ask may do everything.
    fn apply(&self, request: Request, login: Option<Login>) -> BoxFuture<'_, Result<Answered, Error>> {
        if let Some(may_ask) = (self.v3.users)(login) {
            let answered = async move {
                if !may_ask.await {
                    return Err(Error::new(Code::Unauthorized, "Insufficient credentials", 0));
                }
                let (answered, ticket) = self.carry_out(request);
                kept(ticket).await.map_err(lost)?;
                answered
            };
            return answered.boxed();
        }
        // A watch that is not asked for any more ends, whatever becomes of the wait.
        let (answered, ticket) = self.carry_out(request);
        async move {
            kept(ticket).await.map_err(lost)?;
            answered
        }
        .boxed()
    }

    fn cluster_id(&self) -> u64 {
        self.identity.cluster_id
    }

    fn version(&self) -> String {
        ETCD_VERSION.to_owned()
    }

    /// A server that takes nothing more in is not well, as etcd has it.
    fn ill(&self) -> BoxFuture<'_, Option<String>> {
        let is_full = (self.v3.is_full)() || self.store().is_full();
        std::future::ready(is_full.then(|| "ALARM NOSPACE".to_owned())).boxed()
    }

    fn counts(&self) -> Counts {
        let store = self.store();
        let hub = store.hub();
        Counts { stats: store.stats().clone(), watchers: hub.count() as u64, cut: hub.cut() }
    }

    fn metrics(&self, page: &mut Page) {
        let (nodes, weight) = {
            let store = self.store();
            (store.nodes() as u64, store.weight() as u64)
        };
        page.gauge("rallypoint_v2_keys", "Files and directories of v2", nodes);
        page.gauge("rallypoint_v2_bytes", "About the memory that they take", weight);
        // Those of v3 may take a lock of their own.
        (self.v3.metrics)(page);
    }
}

/// An answer that tells of what could not be kept.
fn lost(lost: Lost) -> Error {
    let cause = match lost {
        Lost::NoSpace => "etcdserver: mvcc: database space exceeded",
        Lost::Stopped => "etcdserver: server stopped",
    };
    Error::new(Code::Internal, cause, 0)
}

/// A watch that is taken away when it is dropped.
struct Watching {
    service: Weak<Service>,
    watch: Watch,
}

impl Watching {
    fn events(self) -> Events {
        stream::unfold(self, |mut watching| async {
            let event = watching.watch.next().await?;
            Some((event, watching))
        })
        .boxed()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(service) = self.service.upgrade() {
            service.store().unwatch(&self.watch.place);
        }
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
        let now = alive.clock.now();
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
