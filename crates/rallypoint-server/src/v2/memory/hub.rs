//! Who watches what.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::v2::wire::{Event, Path};

/// How far the reader of a stream may fall behind, as in etcd. Then it is cut off: it can come back with the
/// index it has.
const QUEUE: usize = 100;

/// The watchers by the path they watch.
#[derive(Debug)]
pub(crate) struct Hub {
    watchers: BTreeMap<Path, BTreeMap<u64, Watcher>>,
    next_id: u64,
    count: usize,
    cut: u64,
    closed: bool,
    /// Events that wait for a stream's reader, at most.
    queue: usize,
}

impl Default for Hub {
    fn default() -> Self {
        Hub::with_queue(QUEUE)
    }
}

#[derive(Debug)]
struct Watcher {
    recursive: bool,
    /// One that is no stream ends with its first event.
    stream: bool,
    since: u64,
    events: mpsc::Sender<Queued>,
}

/// An event that waits for its watcher.
///
/// A stream holds on to none: what its reader leaves must not outlive the history. One that is no stream holds on to
/// its only one, which is read at once.
#[derive(Debug)]
enum Queued {
    Kept(Arc<Event>),
    Past(Weak<Event>),
}

impl Queued {
    fn new(event: &Arc<Event>, stream: bool) -> Self {
        if stream { Queued::Past(Arc::downgrade(event)) } else { Queued::Kept(Arc::clone(event)) }
    }
}

/// The client's end of a watch. The events end when it was told all it asked for, or was cut off.
#[derive(Debug)]
pub(crate) struct Watch {
    events: mpsc::Receiver<Queued>,
    pub(crate) place: WatcherId,
    /// The history has moved on before its events were read.
    pub(crate) fell_behind: bool,
}

impl Watch {
    /// The next event. None at the end, and when the history has moved on before it was read: then the watch is cut off.
    pub(crate) async fn next(&mut self) -> Option<Arc<Event>> {
        match self.events.recv().await? {
            Queued::Kept(event) => Some(event),
            Queued::Past(event) => {
                let event = event.upgrade();
                self.fell_behind |= event.is_none();
                event
            }
        }
    }
}

/// Where a watcher is, to take it away.
#[derive(Debug, Clone)]
pub(crate) struct WatcherId {
    path: Path,
    id: u64,
}

impl Hub {
    /// One whose streams may be so many events behind.
    pub(crate) fn with_queue(queue: usize) -> Self {
        Hub { watchers: BTreeMap::new(), next_id: 0, count: 0, cut: 0, closed: false, queue }
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How many were cut off because they did not read.
    pub(crate) fn cut(&self) -> u64 {
        self.cut
    }

    /// One more was.
    pub(crate) fn count_cut(&mut self) {
        self.cut += 1;
    }

    /// Ends all watches of now.
    pub(crate) fn cut_all(&mut self) {
        self.watchers.clear();
        self.count = 0;
    }

    /// Ends all watches, those to come too once they were told of the past.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.watchers.clear();
        self.count = 0;
    }

    /// Starts a watch that is told of `past` first. Without a stream the first of it is all.
    pub(crate) fn watch(
        &mut self,
        path: Path,
        recursive: bool,
        stream: bool,
        since: u64,
        past: Vec<Arc<Event>>,
    ) -> Watch {
        let capacity = if stream { past.len() + self.queue } else { 1 };
        let (sender, events) = mpsc::channel(capacity);
        let done = !stream && !past.is_empty();
        for event in past {
            // Full only for a watch that has its one event.
            if sender.try_send(Queued::new(&event, stream)).is_err() {
                break;
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        let place = WatcherId { path: path.clone(), id };
        if !done && !self.closed {
            let watcher = Watcher { recursive, stream, since, events: sender };
            self.watchers.entry(path).or_default().insert(id, watcher);
            self.count += 1;
        }
        Watch { events, place, fell_behind: false }
    }

    /// Ends a watch, if it has not ended by itself.
    pub(crate) fn remove(&mut self, place: &WatcherId) {
        if let Some(here) = self.watchers.get_mut(&place.path) {
            self.count -= usize::from(here.remove(&place.id).is_some());
            if here.is_empty() {
                self.watchers.remove(&place.path);
            }
        }
    }

    /// Tells those who watch the node of the event or, recursively, a directory above it that it is not
    /// hidden from.
    pub(crate) fn tell(&mut self, event: &Arc<Event>) {
        if self.count == 0 {
            return;
        }
        for path in event.node.path.lineage() {
            let here = path == event.node.path;
            if here || !event.node.path.is_hidden_from(&path) {
                self.tell_at(&path, event, |watcher| here || watcher.recursive);
            }
        }
    }

    /// The paths below a directory that somebody watches.
    pub(crate) fn watched_below<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a Path> {
        let below = self.watchers.range((Bound::Included(directory.child(b"")), Bound::Unbounded));
        below.map(|(path, _)| path).take_while(|path| path.is_below(directory))
    }

    /// Tells those who watch a node that went with the directory of the event.
    pub(crate) fn tell_gone(&mut self, path: &Path, event: &Arc<Event>) {
        self.tell_at(path, event, |_| true);
    }

    fn tell_at(&mut self, path: &Path, event: &Arc<Event>, concerns: impl Fn(&Watcher) -> bool) {
        let Some(here) = self.watchers.get_mut(path) else { return };
        let before = here.len();
        here.retain(|_, watcher| {
            if !concerns(watcher) || event.index() < watcher.since {
                return true;
            }
            match watcher.events.try_send(Queued::new(event, watcher.stream)) {
                Ok(()) => watcher.stream,
                Err(TrySendError::Full(_)) => {
                    self.cut += 1;
                    false
                }
                Err(TrySendError::Closed(_)) => false,
            }
        });
        self.count -= before - here.len();
        if here.is_empty() {
            self.watchers.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::v2::wire::{Action, View};

    fn event(index: u64, path: &str) -> Arc<Event> {
        let node = View { path: Path::clean(path.as_bytes()), modified: index, ..View::default() };
        let event = Arc::new(Event::new(Action::Set, node, None));
        // As the history does.
        std::mem::forget(Arc::clone(&event));
        event
    }

    fn watch(hub: &mut Hub, path: &str, recursive: bool, stream: bool, since: u64) -> Watch {
        hub.watch(Path::clean(path.as_bytes()), recursive, stream, since, Vec::new())
    }

    fn told(watch: &mut Watch) -> Vec<u64> {
        let next = || watch.next().now_or_never().flatten();
        std::iter::from_fn(next).map(|event| event.index()).collect()
    }

    #[test]
    fn one_that_is_no_stream_ends_with_its_first_event() {
        let mut hub = Hub::default();
        let (mut once, mut stream) =
            (watch(&mut hub, "/a", false, false, 0), watch(&mut hub, "/a", false, true, 0));
        hub.tell(&event(1, "/a"));
        hub.tell(&event(2, "/a"));
        assert_eq!((told(&mut once), told(&mut stream)), (vec![1], vec![1, 2]));
        assert_eq!(hub.count(), 1);
        assert!(once.events.is_closed());
    }

    #[test]
    fn only_recursive_watchers_hear_of_nodes_below_and_only_of_those_not_hidden() {
        let mut hub = Hub::default();
        let mut dir = watch(&mut hub, "/a", false, true, 0);
        let mut all = watch(&mut hub, "/", true, true, 0);
        let mut hidden = watch(&mut hub, "/a/_h", true, true, 0);
        for (index, path) in [(1, "/a/b"), (2, "/a/_h/c"), (3, "/a"), (4, "/a/_h"), (5, "/ab")] {
            hub.tell(&event(index, path));
        }
        assert_eq!(told(&mut dir), [3]);
        assert_eq!(told(&mut all), [1, 3, 5]);
        assert_eq!(told(&mut hidden), [2, 4]);
    }

    #[test]
    fn a_watch_of_the_future_sleeps_until_then() {
        let mut hub = Hub::default();
        let mut watch = watch(&mut hub, "/a", false, false, 3);
        for index in 1..5 {
            hub.tell(&event(index, "/a"));
        }
        assert_eq!(told(&mut watch), [3]);
    }

    #[test]
    fn a_stream_that_nobody_reads_is_cut_and_keeps_what_it_was_told() {
        let mut hub = Hub::default();
        let mut slow = watch(&mut hub, "/a", false, true, 0);
        let mut fast = watch(&mut hub, "/a", false, true, 0);
        for index in 1..=150 {
            hub.tell(&event(index, "/a"));
            assert_eq!(told(&mut fast), [index]);
        }
        assert_eq!((hub.count(), hub.cut()), (1, 1));
        assert_eq!(told(&mut slow), (1..=100).collect::<Vec<_>>());
        assert!(slow.events.is_closed());
    }

    #[test]
    fn closed_it_ends_the_watches_and_keeps_none() {
        let mut hub = Hub::default();
        let mut open = watch(&mut hub, "/a", true, true, 0);
        hub.tell(&event(1, "/a"));
        hub.close();
        hub.tell(&event(2, "/a"));
        assert_eq!(told(&mut open), [1]);
        hub.remove(&open.place);
        let late = hub.watch(Path::clean(b"/a"), false, true, 0, vec![event(1, "/a")]);
        assert!(open.events.is_closed() && late.events.is_closed() && late.events.len() == 1);
        assert_eq!(hub.count(), 0);
    }

    #[test]
    fn a_removed_watch_leaves_nothing_behind() {
        let mut hub = Hub::default();
        let watches: Vec<Watch> = (0..10).map(|_| watch(&mut hub, "/a", false, true, 0)).collect();
        for watch in &watches {
            hub.remove(&watch.place);
            hub.remove(&watch.place);
        }
        assert!(hub.count() == 0 && hub.watchers.is_empty());
        // One whose reader is gone goes with the next event.
        drop(watch(&mut hub, "/a", false, true, 0));
        hub.tell(&event(1, "/a"));
        assert!(hub.count() == 0 && hub.watchers.is_empty() && hub.cut() == 0);
    }

    #[test]
    fn a_stream_holds_on_to_nothing_that_the_history_has_let_go_of() {
        let mut hub = Hub::default();
        let mut slow = watch(&mut hub, "/a", false, true, 0);
        let mut once = watch(&mut hub, "/a", false, false, 0);
        let view = View { path: Path::clean(b"/a"), modified: 1, ..View::default() };
        let event = Arc::new(Event::new(Action::Set, view, None));
        hub.tell(&event);
        let gone = Arc::downgrade(&event);
        drop(event);
        assert_eq!(gone.strong_count(), 1, "the one that is no stream has it");
        assert_eq!(told(&mut once), [1]);
        assert_eq!((told(&mut slow), gone.strong_count()), (vec![], 0));
    }
}
