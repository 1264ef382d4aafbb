//! What happens in the cluster, told to those who watch: one watch of all keys for all clients of the gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt as _, stream};

use super::translate::Notification;
use crate::v2::{Action, Code, Error, Events, History, Hub, Path, Watch};

/// About the bytes of past events that are held.
const HISTORY: usize = 64 << 20;
/// Watchers at a time.
const WATCHERS: u64 = 100_000;
/// Of a past that is not held here: each has a watch of its own, and what that has read.
const ASIDE: u64 = 1000;

/// Events that a stream's reader may be behind: an etcd that was away, or a gateway that was stopped, has many to tell.
const QUEUE: usize = 1000;

/// What a watcher asks for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) path: Path,
    pub(super) recursive: bool,
    pub(super) stream: bool,
    /// The first index to be told of.
    pub(super) since: u64,
}

/// The events that were told, and who waits for more.
#[derive(Debug)]
pub(super) struct Feed {
    state: Mutex<State>,
    /// Watchers of a past that the feed does not have.
    aside: AtomicU64,
    /// How many there ever were.
    pub(super) set_aside: AtomicU64,
    /// From here on, and from before, the past is too large to be read.
    unreadable: AtomicU64,
    pub(super) expired: AtomicU64,
}

#[derive(Debug)]
struct State {
    history: History,
    hub: Hub,
    /// The last revision that all has been told of; none before the first.
    last: Option<u64>,
    /// The revision of the moment when it began. What is told of up to it is past, also to whoever comes before it is
    /// told.
    began_at: u64,
}

impl State {
    /// Whether all of the past that is to be held has been told of.
    fn knows_the_past(&self) -> bool {
        self.last.is_some_and(|last| last >= self.began_at)
    }
}

impl Feed {
    pub(super) fn new() -> Arc<Self> {
        let history = History::after(HISTORY, u64::MAX - 1);
        let state = State { history, hub: Hub::with_queue(QUEUE), last: None, began_at: 0 };
        Arc::new(Feed {
            state: Mutex::new(state),
            aside: AtomicU64::new(0),
            set_aside: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in between leaves at worst a number wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last revision that all has been told of.
    pub(super) fn last(&self) -> Option<u64> {
        self.state().last
    }

    /// Begins after a revision, with the past from there up to `now`. Whoever waits for what was before is cut off: it
    /// can come back with its index.
    pub(super) fn begin_after(&self, revision: u64, now: u64) {
        let mut state = self.state();
        state.history = History::after(HISTORY, revision);
        state.hub.cut_all();
        state.last = Some(revision);
        state.began_at = now;
    }

    /// Does without the past that has not been told of yet. Whether there was some: nobody waits for it here.
    pub(super) fn skip_past(&self) -> bool {
        let mut state = self.state();
        let skips = !state.knows_the_past();
        if skips {
            state.history = History::after(HISTORY, state.began_at);
            state.last = Some(state.began_at);
        }
        skips
    }

    /// Whether the past can be read from a revision on, as far as that was tried.
    pub(super) fn is_readable_from(&self, revision: u64) -> bool {
        revision > self.unreadable.load(Ordering::Relaxed)
    }

    /// Tells what happened at a revision.
    pub(super) fn tell(&self, revision: u64, told: Vec<Notification>) {
        let mut state = self.state();
        // A refresh is told to nobody, now or later.
        for Notification { event, gone } in told.into_iter().filter(|told| !told.event.refresh) {
            state.history.add(Arc::clone(&event));
            state.hub.tell(&event);
            for path in gone {
                state.hub.tell_gone(&path, &event);
            }
            let expired = u64::from(event.action == Action::Expire && revision > state.began_at);
            self.expired.fetch_add(expired, Ordering::Relaxed);
        }
        state.last = Some(revision);
    }

    /// Ends all watches: the gateway stops.
    pub(super) fn close(&self) {
        self.state().hub.close();
    }

    /// Who waits, and who was cut off.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.hub.count() as u64 + self.aside.load(Ordering::Relaxed), state.hub.cut())
    }

    /// Starts a watch. None if it begins in a past that is not held here. `index` is that of now.
    pub(super) fn watch(self: &Arc<Self>, wanted: &Wanted, index: u64) -> Result<Option<Events>, Error> {
        let Wanted { path, recursive, stream, since } = wanted;
        let mut state = self.state();
        let state = &mut *state;
        if *since <= state.began_at && !state.knows_the_past() {
            return Ok(None);
        }
        let Ok(past) = state.history.since(*since, path, *recursive) else { return Ok(None) };
        let past: Vec<_> = past.take(if *stream { usize::MAX } else { 1 }).cloned().collect();
        if (*stream || past.is_empty()) && state.hub.count() as u64 >= WATCHERS {
            return Err(too_many(WATCHERS, index));
        }
        let next = state.last.map_or(*since, |last| (*since).max(last + 1));
        let watch = state.hub.watch(path.clone(), *recursive, *stream, next, past);
        let watching = Watching { feed: Arc::clone(self), watch };
        let events = stream::unfold(watching, |mut watching| async {
            let event = watching.watch.next().await?;
            Some((event, watching))
        });
        Ok(Some(events.boxed()))
    }

    /// A place for a watcher of the past, if there is one.
    pub(super) fn aside(self: &Arc<Self>, index: u64) -> Result<Aside, Error> {
        if self.aside.fetch_add(1, Ordering::Relaxed) >= ASIDE {
            self.aside.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many(ASIDE, index));
        }
        self.set_aside.fetch_add(1, Ordering::Relaxed);
        Ok(Aside(Arc::clone(self)))
    }
}

fn too_many(limit: u64, index: u64) -> Error {
    Error::new(Code::Internal, format!("too many watchers: the limit is {limit}"), index)
}

/// The place of a watcher of the past, given back when dropped.
#[derive(Debug)]
pub(super) struct Aside(Arc<Feed>);

impl Aside {
    /// What comes from a revision on is too large to be read.
    pub(super) fn cannot_read_from(&self, revision: u64) {
        self.0.unreadable.fetch_max(revision, Ordering::Relaxed);
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.aside.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Watching {
    feed: Arc<Feed>,
    watch: Watch,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.feed.state();
        if self.watch.fell_behind {
            state.hub.count_cut();
        }
        state.hub.remove(&self.watch.place);
    }
}
