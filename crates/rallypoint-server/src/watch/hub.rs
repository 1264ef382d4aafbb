//! The watchers, and what waits to be said to their streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::index::{Index, WatcherKey};
use crate::admission::Share;
use crate::mvcc::{Record, RecordKey, Span, Store};

/// Changes that one look at the history may cover, so that nobody waits long for the store.
const SCAN_LIMIT: usize = 4096;
/// Bytes of events after which a message ends, at the end of a revision.
const BATCH_BYTES: usize = 1 << 20;
/// Roughly the memory of a watcher, its stream and the connection's part in it.
const WEIGHT: usize = 1024;

/// Where a stream of watches is kept.
pub(crate) type StreamKey = usize;

/// All watchers of all streams.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    watchers: Slab<Watcher>,
    streams: Slab<Stream>,
    index: Index,
    /// Ids of watches that a compaction ended, on all streams.
    ended: usize,
    /// From here on watchers are still to be told of what readers see.
    telling: Option<RecordKey>,
    /// Streams that have something to say since somebody looked; woken when the store is free again.
    wakers: Vec<Waker>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Stream {
    by_id: BTreeMap<i64, WatcherKey>,
    /// Ids of watches that a compaction ended. As in etcd, the client has to cancel them too before they are free.
    ended: BTreeSet<i64>,
    /// The next id to give to a watcher that asks for none.
    next_id: i64,
    /// To be said before any event.
    answers: VecDeque<Message>,
    /// Watchers that may have events, each once.
    behind: VecDeque<WatcherKey>,
    /// Progress that was asked for, to be told when no watcher is behind.
    progress_asked: usize,
    waker: Option<Waker>,
}

impl Stream {
    fn is_taken(&self, id: i64) -> bool {
        self.by_id.contains_key(&id) || self.ended.contains(&id)
    }
}

#[derive(Debug)]
struct Watcher {
    stream: StreamKey,
    id: i64,
    span: Span,
    /// Its place in the index.
    slot: usize,
    /// The first revision that it has not been told of.
    next: i64,
    /// Among those of its stream that may have events.
    is_behind: bool,
    /// What was gathered of a message, if that takes more than one look at the history.
    gathered: Option<Box<Gathered>>,
    /// The bytes of its next message, if there was no room for it.
    wanted: usize,
    filter: Filter,
    prev_kv: bool,
    fragment: bool,
    progress_notify: bool,
    /// Told something since the last round of progress.
    is_fresh: bool,
    _share: Option<Share>,
}

/// A part of a message, and where it goes on. It is not kept for longer than it takes to gather the rest.
#[derive(Debug, Default)]
struct Gathered {
    events: Vec<WatchEvent>,
    bytes: usize,
    at: RecordKey,
}

/// What a watcher does not want to see.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Filter {
    pub(crate) no_put: bool,
    pub(crate) no_delete: bool,
}

impl Filter {
    fn passes(self, change: &Record) -> bool {
        if change.is_deletion() { !self.no_delete } else { !self.no_put }
    }
}

/// A watch to be made.
#[derive(Debug)]
pub(crate) struct WatchRequest {
    /// 0 asks for any id.
    pub(crate) id: i64,
    pub(crate) span: Span,
    /// 0 means from now on.
    pub(crate) start_revision: i64,
    pub(crate) filter: Filter,
    pub(crate) prev_kv: bool,
    pub(crate) fragment: bool,
    pub(crate) progress_notify: bool,
    /// What is taken for it, until it ends.
    pub(crate) share: Option<Share>,
}

/// What a stream is to say next.
#[derive(Debug)]
pub(crate) enum Message {
    Created {
        id: i64,
        revision: i64,
    },
    /// A watch that was not made.
    Refused {
        revision: i64,
        reason: &'static str,
    },
    Canceled {
        id: i64,
        revision: i64,
    },
    /// A watch that ended because it wanted to know what was forgotten.
    Compacted {
        id: i64,
        compact_revision: i64,
    },
    /// Everything up to the revision was told; -1 speaks for the whole stream.
    Progress {
        id: i64,
        revision: i64,
    },
    Events {
        id: i64,
        revision: i64,
        events: Vec<WatchEvent>,
        fragment: bool,
    },
}

/// One event.
#[derive(Debug)]
pub(crate) struct WatchEvent {
    pub(crate) record: Arc<Record>,
    pub(crate) prev: Option<Arc<Record>>,
}

/// The answer to [`Hub::poll`].
#[derive(Debug)]
pub(crate) enum Polled {
    Message(Message),
    /// Nothing to say now; the waker will be called.
    Pending,
    /// The next message takes about so many bytes, more than there is room for.
    NoRoom(usize),
    /// The history is long: let others at the store, then ask again.
    Again,
    /// The server stops.
    Closed,
}

impl Hub {
    pub(crate) fn open(&mut self) -> StreamKey {
        self.streams.insert(Stream::default())
    }

    /// Forgets a stream and its watchers.
    pub(crate) fn drop_stream(&mut self, stream: StreamKey) {
        let Stream { by_id, ended, .. } = self.streams.remove(stream);
        self.ended -= ended.len();
        for watcher in by_id.into_values() {
            self.remove(watcher);
        }
    }

    /// Ends all streams.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.wakers.extend(self.streams.iter_mut().filter_map(|(_, stream)| stream.waker.take()));
    }

    /// The number of watchers.
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    /// The number of streams.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Roughly the memory of the watchers.
    pub(crate) fn weight(&self) -> usize {
        (self.watchers.len() + self.ended + self.streams.len()) * WEIGHT
    }

    /// Answers that wait to be read. A stream that has many gets no more requests carried out.
    pub(crate) fn answers_waiting(&self, stream: StreamKey) -> usize {
        let stream = &self.streams[stream];
        stream.answers.len() + stream.progress_asked
    }

    /// Makes a watch, or refuses it; either way the answer waits on the stream.
    pub(crate) fn create(&mut self, store: &Store, stream: StreamKey, request: WatchRequest) {
        let revision = store.visible();
        let answer = match self.try_create(revision, stream, request) {
            Ok(id) => Message::Created { id, revision },
            Err(reason) => Message::Refused { revision, reason },
        };
        self.streams[stream].answers.push_back(answer);
    }

    /// Answers a watch that the server has no room for.
    pub(crate) fn refuse(&mut self, store: &Store, stream: StreamKey, reason: &'static str) {
        self.streams[stream].answers.push_back(Message::Refused { revision: store.visible(), reason });
    }

    fn try_create(
        &mut self,
        revision: i64,
        key: StreamKey,
        request: WatchRequest,
    ) -> Result<i64, &'static str> {
        let stream = &mut self.streams[key];
        if request.span.is_empty() {
            return Err("mvcc: watcher range is empty");
        }
        let id = match request.id {
            0 => {
                while stream.is_taken(stream.next_id) {
                    stream.next_id += 1;
                }
                stream.next_id += 1;
                stream.next_id - 1
            }
            id if stream.is_taken(id) => {
                return Err("mvcc: duplicate watch ID provided on the WatchStream");
            }
            id => id,
        };
        let next = if request.start_revision == 0 { revision + 1 } else { request.start_revision };
        let is_behind = next <= revision;
        let entry = self.watchers.vacant_entry();
        let watcher = entry.key();
        stream.by_id.insert(id, watcher);
        if is_behind {
            stream.behind.push_back(watcher);
        }
        entry.insert(Watcher {
            stream: key,
            id,
            slot: self.index.insert(&request.span, watcher),
            span: request.span,
            next,
            is_behind,
            gathered: None,
            wanted: 0,
            filter: request.filter,
            prev_kv: request.prev_kv,
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            is_fresh: true,
            _share: request.share,
        });
        Ok(id)
    }

    /// Ends a watch. One that does not exist gets no answer.
    pub(crate) fn cancel(&mut self, store: &Store, stream: StreamKey, id: i64) {
        if let Some(watcher) = self.streams[stream].by_id.remove(&id) {
            self.remove(watcher);
            self.streams[stream].behind.retain(|behind| *behind != watcher);
        } else if self.streams[stream].ended.remove(&id) {
            self.ended -= 1;
        } else {
            return;
        }
        self.streams[stream].answers.push_back(Message::Canceled { id, revision: store.visible() });
    }

    /// Asks for the progress of a stream.
    pub(crate) fn ask_progress(&mut self, stream: StreamKey) {
        self.streams[stream].progress_asked += 1;
    }

    /// Tells the watchers that want to know their progress, if they were told nothing since the last round.
    pub(crate) fn notify_progress(&mut self, store: &Store, key: StreamKey) {
        let revision = self.progress(store);
        let stream = &mut self.streams[key];
        for (id, watcher) in &stream.by_id {
            let watcher = &mut self.watchers[*watcher];
            if watcher.progress_notify && !watcher.is_behind && !watcher.is_fresh {
                stream.answers.push_back(Message::Progress { id: *id, revision });
            }
            watcher.is_fresh = false;
        }
    }

    /// Marks the watchers of a change that was just committed.
    pub(crate) fn publish(&mut self, change: &Record) {
        let Hub { watchers, streams, index, wakers, .. } = self;
        index.for_each(&change.key, |key| {
            let watcher = &mut watchers[key];
            if watcher.is_behind || change.mod_revision < watcher.next || !watcher.filter.passes(change) {
                return;
            }
            // Nothing before this change concerned it.
            watcher.next = change.mod_revision;
            watcher.is_behind = true;
            let stream = &mut streams[watcher.stream];
            stream.behind.push_back(key);
            wakers.extend(stream.waker.take());
        });
    }

    /// Watchers are to be told of what readers see from a place on: [`Hub::publish`] has yet to be called for it.
    pub(crate) fn tell_from(&mut self, place: RecordKey) {
        self.telling = Some(place);
    }

    /// From where on they are.
    pub(crate) fn told_to(&self) -> Option<RecordKey> {
        self.telling
    }

    /// They were told of all.
    pub(crate) fn told_all(&mut self) {
        self.telling = None;
    }

    /// Up to here every watcher that is not behind was told.
    fn progress(&self, store: &Store) -> i64 {
        self.telling.map_or(store.visible(), |(revision, _)| revision - 1)
    }

    /// Those to be woken, now that the store is free.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// What a stream is to say next, if it takes about so many bytes at most.
    pub(crate) fn poll(&mut self, store: &Store, key: StreamKey, room: usize, waker: &Waker) -> Polled {
        if self.closed {
            return Polled::Closed;
        }
        let mut scan_left = SCAN_LIMIT;
        loop {
            let stream = &mut self.streams[key];
            if let Some(answer) = stream.answers.pop_front() {
                return Polled::Message(answer);
            }
            let Some(watcher) = stream.behind.pop_front() else { break };
            if scan_left == 0 {
                stream.behind.push_front(watcher);
                return Polled::Again;
            }
            match self.catch_up(store, watcher, room, &mut scan_left) {
                Ok(None) => {}
                Ok(Some(message)) => return Polled::Message(message),
                Err(bytes) => {
                    self.streams[key].behind.push_front(watcher);
                    return Polled::NoRoom(bytes);
                }
            }
        }
        let revision = self.progress(store);
        let stream = &mut self.streams[key];
        if stream.progress_asked > 0 {
            stream.progress_asked -= 1;
            return Polled::Message(Message::Progress { id: -1, revision });
        }
        stream.waker = Some(waker.clone());
        Polled::Pending
    }

    /// The next message to one watcher. It stays behind if there is more. One for which there is no room is an error:
    /// the bytes that it takes.
    fn catch_up(
        &mut self,
        store: &Store,
        key: WatcherKey,
        room: usize,
        scan_left: &mut usize,
    ) -> Result<Option<Message>, usize> {
        let watcher = &mut self.watchers[key];
        let id = watcher.id;
        if watcher.next < store.compacted() {
            let stream = &mut self.streams[watcher.stream];
            stream.by_id.remove(&id);
            stream.ended.insert(id);
            self.ended += 1;
            self.remove(key);
            return Ok(Some(Message::Compacted { id, compact_revision: store.compacted() }));
        }
        if watcher.wanted > room {
            return Err(watcher.wanted);
        }
        let begun = watcher.gathered.take().map(|begun| *begun);
        let Gathered { mut events, mut bytes, at } =
            begun.unwrap_or_else(|| Gathered { at: (watcher.next, 0), ..Gathered::default() });
        let mut next = store.visible() + 1;
        let (mut last, _) = at;
        // Of one key there are few, however much else has changed. What was changed at the compaction is in the log alone.
        let (of_key, of_all) = match &watcher.span {
            Span::One(key) if watcher.next > store.compacted() => (Some(store.changes_of(key, at)), None),
            _ => (None, Some(store.changes_at(at))),
        };
        let changes = of_key.into_iter().flatten().chain(of_all.into_iter().flatten());
        for change in changes {
            // A revision is never split.
            if change.mod_revision > last && (*scan_left == 0 || bytes >= BATCH_BYTES) {
                next = change.mod_revision;
                break;
            }
            // One with very many changes takes more than one look.
            if *scan_left == 0 {
                watcher.gathered = Some(Box::new(Gathered { events, bytes, at: change.at() }));
                self.streams[watcher.stream].behind.push_front(key);
                return Ok(None);
            }
            last = change.mod_revision;
            *scan_left = scan_left.saturating_sub(1);
            if watcher.span.contains(&change.key) && watcher.filter.passes(change) {
                let prev = Some(change)
                    .filter(|change| watcher.prev_kv && !change.is_creation())
                    .and_then(|change| store.get_at(&change.key, change.mod_revision - 1));
                bytes += change.weight() + prev.map_or(0, |prev| prev.weight());
                events.push(WatchEvent { record: Arc::clone(change), prev: prev.cloned() });
            }
        }
        if bytes > room {
            watcher.wanted = bytes;
            return Err(bytes);
        }
        watcher.wanted = 0;
        watcher.next = next;
        watcher.is_behind = next <= store.visible();
        if watcher.is_behind {
            self.streams[watcher.stream].behind.push_back(key);
        }
        if events.is_empty() {
            return Ok(None);
        }
        watcher.is_fresh = true;
        Ok(Some(Message::Events { id, revision: store.visible(), events, fragment: watcher.fragment }))
    }

    fn remove(&mut self, key: WatcherKey) {
        let watcher = self.watchers.remove(key);
        if let Some(moved) = self.index.remove(&watcher.span, watcher.slot) {
            self.watchers[moved].slot = watcher.slot;
        }
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
