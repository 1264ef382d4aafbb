//! The tree with its index, its TTLs, its history and its watchers: what a request does and what it answers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::buried::Buried;
use super::change::{Change, Keeping};
use super::history::History;
use super::hub::{Hub, Watch, WatcherId};
use super::tree::{Content, Listing, Node, PathError};
use crate::v2::stats::Stats;
use crate::v2::wire::{Action, Code, Compare, Error, Event, Op, Path, Put, Result, Time, View};

/// A fresh etcd has used three indices for itself. Clients take 0 for "no index", so they must not see it.
const FIRST_INDEX: u64 = 3;

/// Nodes that are forgotten with what they were in, where others wait.
const FORGET_AT_ONCE: usize = 1_000;

/// What it takes in at most.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// About the bytes of memory for nodes.
    pub(crate) nodes: usize,
    /// About the bytes of memory for past events that watchers may ask for.
    pub(crate) history: usize,
    /// Watchers at a time.
    pub(crate) watchers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { nodes: 1 << 30, history: 64 << 20, watchers: 100_000 }
    }
}

/// All of v2's data. It has no clock: every call says what time it is, and time must not go back.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) root: Node,
    pub(super) index: u64,
    /// Grows with every request to write, done or refused, as raft's does.
    pub(super) raft_index: u64,
    /// The nodes that end, by their end.
    pub(super) ends: BTreeSet<(Time, Path)>,
    pub(super) history: History,
    pub(super) hub: Hub,
    stats: Stats,
    pub(super) nodes: usize,
    /// About the memory that the nodes take.
    pub(super) weight: usize,
    pub(super) limits: Limits,
    /// Where it is kept on disk.
    pub(super) keeping: Option<Keeping>,
    /// Large parts that were taken out of the tree, and still count.
    pub(super) buried: Vec<Buried>,
    /// Counts how often the tree was replaced by another.
    pub(super) generation: u64,
}

/// What a request is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    Event(Arc<Event>),
    /// What a directory has in it, which may be very much.
    Listing(Listing),
    Watch(Watch),
}

impl Store {
    /// As a fresh etcd.
    pub(crate) fn new(limits: Limits) -> Self {
        Store::with_own(limits, 1..=FIRST_INDEX)
    }

    /// At a later index, where all before counts as cleared.
    pub(crate) fn starting_at(limits: Limits, index: u64) -> Self {
        Store::with_own(limits, index..=index)
    }

    /// After events of its own, which nobody is told of.
    fn with_own(limits: Limits, indices: RangeInclusive<u64>) -> Self {
        let mut history = History::new(limits.history);
        let last = *indices.end();
        for index in indices {
            let own = View { modified: index, ..View::default() };
            history.add(Event::new(Action::Set, own, None).refreshing(true).into());
        }
        Store {
            root: Node::new(0, None, Content::empty_dir()),
            index: last,
            raft_index: last,
            ends: BTreeSet::new(),
            history,
            hub: Hub::default(),
            stats: Stats::default(),
            nodes: 0,
            weight: 0,
            limits,
            keeping: None,
            buried: Vec::new(),
            generation: 0,
        }
    }

    /// The index of the last change.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn raft_index(&self) -> u64 {
        self.raft_index
    }

    /// How many files and directories there are, the root not counted.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// About the bytes of memory that they take.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Whether not even a small value is taken in.
    pub(crate) fn is_full(&self) -> bool {
        const SMALL: usize = 1024;
        self.room_for(SMALL).is_err()
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Ends the watches: the server stops.
    pub(crate) fn close(&mut self) {
        self.hub.close();
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// When the next node ends. [`Store::expire`] is due then.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Ends a watch whose client is gone.
    pub(crate) fn unwatch(&mut self, place: &WatcherId) {
        self.hub.remove(place);
    }

    /// Takes away what has ended.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some((end, path)) = self.ends.first().cloned() {
            if end > now {
                return;
            }
            // What was taken away with a large directory may not be forgotten yet.
            if self.root.find(&path).ok().and_then(|node| node.expires) != Some(end) {
                self.ends.remove(&(end, path));
                continue;
            }
            self.remove(now, &path, Action::Expire);
            self.stats.count(Action::Expire, true);
        }
    }

    /// Carries out a request.
    pub(crate) fn apply(&mut self, now: Time, path: &Path, op: Op) -> Result<Answer> {
        self.expire(now);
        let (action, result) = match op {
            Op::Watch { recursive, stream, since } => {
                return self.watch(path, recursive, stream, since).map(Answer::Watch);
            }
            Op::Get { recursive } => {
                let found =
                    self.find(path).map(|node| Listing::new(path.clone(), node.clone(), now, recursive));
                self.stats.count(Action::Get, found.is_ok());
                return found.map(Answer::Listing);
            }
            Op::Set(put) => (Action::Set, self.set(now, path, put)),
            Op::Create(put) => (Action::Create, self.place(now, path, Action::Create, put, None)),
            Op::Append(put) => (Action::Create, self.append(now, path, put)),
            Op::Update(put) => (Action::Update, self.update(now, path, put)),
            Op::CompareAndSwap(compare, put) => {
                (Action::CompareAndSwap, self.compare_and_swap(now, path, &compare, put))
            }
            Op::Delete { dir, recursive } => (Action::Delete, self.delete(now, path, dir, recursive)),
            Op::CompareAndDelete(compare) => {
                (Action::CompareAndDelete, self.compare_and_delete(now, path, &compare))
            }
        };
        self.raft_index += 1;
        if result.is_err() {
            self.note(|| Change::Counted);
        }
        self.stats.count(action, result.is_ok());
        result.map(Answer::Event)
    }

    fn set(&mut self, now: Time, path: &Path, mut put: Put) -> Result<Arc<Event>> {
        let prev = match self.root.find(path) {
            Ok(node) => Some(node),
            Err(PathError::Missing(_)) if !put.refresh => None,
            Err(error) => return Err(self.path_error(error)),
        };
        let Some(node) = prev else { return self.place(now, path, Action::Set, put, None) };
        self.refuse_root(path)?;
        if node.is_dir() {
            return Err(self.error(Code::NotFile, path.as_bytes()));
        }
        if put.refresh {
            put.value = node.value().cloned().unwrap_or_default();
        }
        let prev = node.view(path.clone(), now);
        self.place(now, path, Action::Set, put, Some(prev))
    }

    fn append(&mut self, now: Time, directory: &Path, put: Put) -> Result<Arc<Event>> {
        let name = format!("{:020}", self.index + 1);
        self.place(now, &directory.child(name.as_bytes()), Action::Create, put, None)
    }

    /// Puts a new node at `path`, in the place of the file `replaced` if there is one.
    fn place(
        &mut self,
        now: Time,
        path: &Path,
        action: Action,
        put: Put,
        replaced: Option<View>,
    ) -> Result<Arc<Event>> {
        self.refuse_root(path)?;
        match self.root.find(path) {
            Ok(_) if replaced.is_none() => return Err(self.error(Code::KeyExists, path.as_bytes())),
            Ok(_) | Err(PathError::Missing(_)) => {}
            Err(error) => return Err(self.path_error(error)),
        }
        let old = replaced.as_ref().and_then(|file| file.value.as_ref());
        self.room_for(match old {
            Some(old) => put.value.len().saturating_sub(old.len()),
            // At most: some of the directories may be there.
            None => path.depth() * Node::weight_of(path, 0) + put.value.len(),
        })?;
        if replaced.is_some() {
            self.take(path);
        }
        self.index += 1;
        let content = if put.dir { Content::empty_dir() } else { Content::File(put.value) };
        let node = Node::new(self.index, put.ttl.and_then(|ttl| now.after(ttl)), content);
        let event = Event::new(action, node.view(path.clone(), now), replaced).refreshing(put.refresh);
        self.insert(path, node);
        Ok(self.record(event, None))
    }

    fn update(&mut self, now: Time, path: &Path, put: Put) -> Result<Arc<Event>> {
        self.refuse_root(path)?;
        if self.find(path)?.is_dir() && !put.value.is_empty() {
            return Err(self.error(Code::NotFile, path.as_bytes()));
        }
        self.change(now, path, Action::Update, put)
    }

    fn compare_and_swap(
        &mut self,
        now: Time,
        path: &Path,
        compare: &Compare,
        put: Put,
    ) -> Result<Arc<Event>> {
        self.refuse_root(path)?;
        self.compare(path, compare)?;
        self.change(now, path, Action::CompareAndSwap, put)
    }

    /// Gives the node at `path` a new value and a new end.
    fn change(&mut self, now: Time, path: &Path, action: Action, put: Put) -> Result<Arc<Event>> {
        let old = self.find(path)?.value().map_or(0, Bytes::len);
        self.room_for(put.value.len().saturating_sub(old))?;
        self.index += 1;
        let node = self.root.find_mut(path).expect("it was found just now");
        let prev = node.view(path.clone(), now);
        let weight = node.weight(path);
        // etcd says that a directory was modified, and shows its old index ever after.
        if let Content::File(value) = &mut node.content {
            node.modified = self.index;
            if !put.refresh {
                *value = put.value;
            }
        }
        if let Some(end) = node.expires {
            self.ends.remove(&(end, path.clone()));
        }
        node.expires = put.ttl.and_then(|ttl| now.after(ttl));
        self.ends.extend(node.expires.map(|end| (end, path.clone())));
        self.weight = self.weight - weight + node.weight(path);
        let now_is = View { modified: self.index, ..node.view(path.clone(), now) };
        if let Some(keeping) = &mut self.keeping {
            keeping.journal.push(Change::Put(path.clone(), node.bare()));
        }
        Ok(self.record(Event::new(action, now_is, Some(prev)).refreshing(put.refresh), None))
    }

    fn delete(&mut self, now: Time, path: &Path, dir: bool, recursive: bool) -> Result<Arc<Event>> {
        self.refuse_root(path)?;
        let node = self.find(path)?;
        if node.is_dir() && !dir && !recursive {
            return Err(self.error(Code::NotFile, path.as_bytes()));
        }
        if node.is_dir() && !node.is_empty_dir() && !recursive {
            return Err(self.error(Code::DirectoryNotEmpty, path.as_bytes()));
        }
        Ok(self.remove(now, path, Action::Delete))
    }

    fn compare_and_delete(&mut self, now: Time, path: &Path, compare: &Compare) -> Result<Arc<Event>> {
        self.compare(path, compare)?;
        Ok(self.remove(now, path, Action::CompareAndDelete))
    }

    fn watch(&mut self, path: &Path, recursive: bool, stream: bool, since: u64) -> Result<Watch> {
        self.stats.watches += 1;
        let since = if since == 0 { self.index + 1 } else { since };
        let past = self.history.since(since, path, recursive).map_err(|oldest| {
            let cause = format!("the requested history has been cleared [{oldest}/{since}]");
            self.error(Code::EventIndexCleared, cause)
        })?;
        // etcd gives a stream only the first event of the past and then nothing more, ever. Nobody can want
        // that: here it gets them all.
        let past: Vec<_> = past.take(if stream { usize::MAX } else { 1 }).cloned().collect();
        let waits = stream || past.is_empty();
        if waits && self.hub.count() >= self.limits.watchers {
            let cause = format!("too many watchers: the limit is {}", self.limits.watchers);
            return Err(self.error(Code::Internal, cause));
        }
        // It has been told of all that has happened, also of what is not on disk yet.
        let next = since.max(self.index + 1);
        Ok(self.hub.watch(path.clone(), recursive, stream, next, past))
    }

    /// Takes the node at `path`, which is there, away, and tells everybody whom it concerns.
    fn remove(&mut self, now: Time, path: &Path, action: Action) -> Arc<Event> {
        self.index += 1;
        let node = self.take(path).expect("the caller has found it");
        let prev = node.view(path.clone(), now);
        let gone = View {
            path: path.clone(),
            dir: prev.dir,
            modified: self.index,
            created: prev.created,
            ..View::default()
        };
        self.note(|| Change::Removed(path.clone()));
        // The watchers of the node itself are told once; etcd tells streams twice.
        self.record(Event::new(action, gone, Some(prev)), Some(&node))
    }

    /// Keeps the event for later watchers and tells those of now, also those of what went with the node.
    fn record(&mut self, event: Event, gone: Option<&Node>) -> Arc<Event> {
        let event = Arc::new(event);
        self.history.add(Arc::clone(&event));
        if !event.refresh {
            self.tell(&event, gone);
        }
        event
    }

    /// Puts a node at a free path; missing directories above it come with it.
    pub(crate) fn insert(&mut self, path: &Path, node: Node) {
        self.note(|| Change::Put(path.clone(), node.bare()));
        let keeping = &mut self.keeping;
        self.ends.extend(node.expires.map(|end| (end, path.clone())));
        self.weight += node.weight(path);
        self.nodes += 1;
        let (parent, name) = path.split().expect("nobody replaces the root");
        let mut directory = &mut self.root;
        for (above, name) in parent.lineage().skip(1).zip(parent.names()) {
            // There is no file on the way, unless somebody has written to a cluster behind a gateway's back.
            let Content::Dir(children) = &mut directory.content else { return };
            if !children.contains_key(name) {
                let missing = Node::new(self.index, None, Content::empty_dir());
                self.weight += missing.weight(&above);
                self.nodes += 1;
                if let Some(keeping) = keeping {
                    keeping.journal.push(Change::Put(above.clone(), missing.bare()));
                }
                children.insert_mut(Bytes::copy_from_slice(name), missing);
            }
            directory = children.get_mut(name).expect("it is there, or was just made");
        }
        if let Content::Dir(children) = &mut directory.content {
            children.insert_mut(Bytes::copy_from_slice(name), node);
        }
    }

    /// Takes the node at `path` out of the tree with all that is in it.
    fn take(&mut self, path: &Path) -> Option<Node> {
        let (parent, name) = path.split()?;
        let Content::Dir(children) = &mut self.root.find_mut(&parent)?.content else { return None };
        let node = children.get(name)?.clone();
        children.remove_mut(name);
        if !node.has_at_most(FORGET_AT_ONCE) {
            self.buried.push(Buried::new(path.clone(), node.clone(), self.generation));
            return Some(node);
        }
        let mut forget = |path: &Path, node: &Node| {
            self.weight -= node.weight(path);
            self.nodes -= 1;
            if let Some(end) = node.expires {
                self.ends.remove(&(end, path.clone()));
            }
        };
        node.for_each_below(path, &mut forget);
        forget(path, &node);
        Some(node)
    }

    fn find(&self, path: &Path) -> Result<&Node> {
        self.root.find(path).map_err(|error| self.path_error(error))
    }

    /// Whether the file at `path` is as it must be.
    fn compare(&self, path: &Path, compare: &Compare) -> Result<()> {
        let node = self.find(path)?;
        let Some(value) = node.value() else { return Err(self.error(Code::NotFile, path.as_bytes())) };
        let mut failed: Vec<Bytes> = Vec::new();
        if let Some(wanted) = compare.value.as_ref().filter(|&wanted| wanted != value) {
            failed.push([b"[", wanted.as_ref(), b" != ", value, b"]"].concat().into());
        }
        if compare.index.is_some_and(|wanted| wanted.get() != node.modified) {
            failed.push(format!("[{} != {}]", compare.index.map_or(0, u64::from), node.modified).into());
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(self.error(Code::CompareFailed, failed.join(&b' '))),
        }
    }

    fn refuse_root(&self, path: &Path) -> Result<()> {
        if path.is_root() { Err(self.error(Code::RootReadOnly, "/")) } else { Ok(()) }
    }

    /// Whether so many bytes more may be taken in. What does not grow always may: a full store must not end
    /// the TTLs of its users.
    fn room_for(&self, more: usize) -> Result<()> {
        let is_full = self.keeping.as_ref().is_some_and(|keeping| keeping.journal.is_full());
        match more > 0 && (is_full || self.weight + more > self.limits.nodes) {
            true => Err(self.error(Code::Internal, "etcdserver: mvcc: database space exceeded")),
            false => Ok(()),
        }
    }

    fn path_error(&self, error: PathError) -> Error {
        match error {
            PathError::Missing(path) => self.error(Code::KeyNotFound, path.as_bytes()),
            PathError::File(path) => self.error(Code::NotDirectory, path.as_bytes()),
        }
    }

    fn error(&self, code: Code, cause: impl Into<Vec<u8>>) -> Error {
        Error::new(code, cause, self.index)
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
