//! The data and its history.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::{Record, Span};

/// How much of the past is kept when nobody asks for a compaction.
///
/// Without a bound, a job of weeks that keeps writing would fill the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retention {
    /// The number of changes.
    pub(crate) changes: usize,
    /// Roughly their memory, in bytes.
    pub(crate) bytes: usize,
}

/// All keys at all revisions since the compaction.
///
/// Writes between two [`Store::commit`] belong to one revision. Nothing is visible at an older revision than
/// its own, so readers of the past need no copies.
#[derive(Debug)]
pub(crate) struct Store {
    /// Every version of every key since the compaction, and the one that was valid at it.
    pub(super) index: BTreeMap<Bytes, VecDeque<Arc<Record>>>,
    /// Every change since the compaction, in order. Those made after `revision` are not committed yet.
    pub(super) log: VecDeque<Arc<Record>>,
    /// What the log weighs.
    pub(super) log_weight: usize,
    /// Of the changes at its front, how many the compaction has passed, and what they weigh. They stay for watches.
    pub(super) passed: usize,
    pub(super) passed_weight: usize,
    /// How many keys there are now.
    pub(super) live: usize,
    /// What the index weighs, which is more: it has the keys that were not changed since the compaction.
    pub(super) weight: usize,
    /// How many of them that are.
    open: u32,
    /// Of the last committed change.
    pub(super) revision: i64,
    /// Up to here readers see. It is the revision, but where that has yet to reach the disk.
    pub(super) visible: i64,
    /// What was forgotten and is still on disk, where the store is kept there.
    pub(super) forgotten: Option<Vec<RecordKey>>,
    /// Nothing before it can be read. Negative until the first compaction.
    pub(super) compacted: i64,
    pub(super) retention: Retention,
}

/// Where a change is among all: its revision, and its place there.
pub(crate) type RecordKey = (i64, u32);

/// How far [`Store::scan`] came.
#[derive(Debug)]
pub(crate) struct Scan {
    /// How many keys it has looked at.
    pub(crate) visited: usize,
    /// The last of them; it goes on after it.
    pub(crate) last: Option<Bytes>,
    pub(crate) is_done: bool,
}

/// An empty store is at revision 1, as etcd's.
const FIRST_REVISION: i64 = 1;
const NEVER_COMPACTED: i64 = -1;

impl Store {
    pub(crate) fn new(retention: Retention) -> Self {
        Store {
            index: BTreeMap::new(),
            log: VecDeque::new(),
            log_weight: 0,
            passed: 0,
            passed_weight: 0,
            live: 0,
            weight: 0,
            open: 0,
            revision: FIRST_REVISION,
            visible: FIRST_REVISION,
            forgotten: None,
            compacted: NEVER_COMPACTED,
            retention,
        }
    }

    /// An empty store at a later revision, where all before counts as compacted.
    pub(crate) fn starting_at(retention: Retention, revision: i64) -> Self {
        Store { revision, visible: revision, compacted: revision, ..Store::new(retention) }
    }

    /// A store as it was, from the changes that [`Store::settle`] was told of and that were not forgotten, in order. It
    /// may have ended in the middle of a compaction: what that had left to forget is forgotten now.
    pub(crate) fn restored(
        retention: Retention,
        revision: i64,
        compacted: i64,
        changes: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut store = Store { revision, visible: revision, compacted, ..Store::new(retention) };
        let mut forgotten = Vec::new();
        for change in changes {
            let change = Arc::new(change);
            if change.mod_revision >= compacted {
                store.log_weight += change.weight();
                store.log.push_back(Arc::clone(&change));
            }
            let versions = store.index.entry(change.key.clone()).or_default();
            // Of those up to the compaction only the last is of interest, and a deletion is not.
            if change.mod_revision <= compacted {
                for version in versions.drain(..) {
                    store.weight -= version.weight();
                    forgotten.push(version.at());
                }
                if change.is_deletion() {
                    store.index.remove(&change.key);
                    forgotten.push(change.at());
                    continue;
                }
            }
            store.weight += change.weight();
            versions.push_back(change);
        }
        let is_live =
            |versions: &&VecDeque<Arc<Record>>| versions.back().is_some_and(|last| !last.is_deletion());
        store.live = store.index.values().filter(is_live).count();
        // What watches can ask for stays.
        forgotten.retain(|(revision, _)| *revision < compacted);
        store.forgotten = Some(forgotten);
        store
    }

    /// From now on readers see a commit only when it has settled.
    pub(crate) fn hold(&mut self) {
        self.forgotten.get_or_insert_default();
    }

    /// Readers see what was committed up to this revision; up to where they saw before.
    pub(crate) fn settle(&mut self, revision: i64) -> i64 {
        std::mem::replace(&mut self.visible, revision)
    }

    pub(crate) fn retention(&self) -> Retention {
        self.retention
    }

    /// Up to here readers see.
    pub(crate) fn visible(&self) -> i64 {
        self.visible
    }

    /// What was forgotten since the last call, and is still on disk.
    pub(crate) fn take_forgotten(&mut self) -> Vec<RecordKey> {
        self.forgotten.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Every version that can be asked for.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<RecordKey> {
        let valid = |versions: &VecDeque<Arc<Record>>| {
            let past = versions.partition_point(|version| version.mod_revision <= self.compacted);
            let first = past.checked_sub(1).filter(|&last| !versions[last].is_deletion()).unwrap_or(past);
            versions.range(first..).map(|version| version.at()).collect::<Vec<_>>()
        };
        let told = self.log.iter().filter(|change| change.mod_revision >= self.compacted);
        let mut all: Vec<_> = self.index.values().flat_map(valid).chain(told.map(|it| it.at())).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Of the last committed change.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// The oldest revision that can be read; negative until the first compaction.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// What reads see: the last committed revision, or the one being written.
    pub(crate) fn view_revision(&self) -> i64 {
        self.log.back().map_or(self.revision, |last| last.mod_revision.max(self.revision))
    }

    /// Whether there is something to forget, or a compaction would find it.
    pub(crate) fn has_past(&self) -> bool {
        self.compacted < self.visible || !self.is_clean()
    }

    /// The number of keys as they are now.
    pub(crate) fn key_count(&self) -> usize {
        self.live
    }

    /// Roughly its memory.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// The key as it is now.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Arc<Record>> {
        self.index.get(key)?.back().filter(|record| !record.is_deletion())
    }

    /// The key as it was at a revision.
    pub(crate) fn get_at(&self, key: &[u8], revision: i64) -> Option<&Arc<Record>> {
        valid_at(self.index.get(key)?, revision)
    }

    /// The keys of a span as they were at a revision, in order.
    pub(crate) fn iter_at<'a, T: AsRef<[u8]>>(
        &'a self,
        span: &Span<T>,
        revision: i64,
    ) -> impl Iterator<Item = &'a Arc<Record>> {
        let found = if span.is_empty() { None } else { Some(self.index.range::<[u8], _>(span.bounds())) };
        found.into_iter().flatten().filter_map(move |(_, versions)| valid_at(versions, revision))
    }

    /// Calls for the keys of a span as they were at a revision, in order, from after a key on. It looks at so many keys
    /// at most, deleted ones included.
    pub(crate) fn scan<T: AsRef<[u8]>>(
        &self,
        span: &Span<T>,
        after: Option<&Bytes>,
        revision: i64,
        most: usize,
        mut found: impl FnMut(&Arc<Record>),
    ) -> Scan {
        if span.is_empty() {
            return Scan { visited: 0, last: None, is_done: true };
        }
        let (start, end) = span.bounds();
        let start = after.map_or(start, |after| Bound::Excluded(&after[..]));
        let (mut visited, mut last) = (0, None::<&Bytes>);
        for (key, versions) in self.index.range::<[u8], _>((start, end)) {
            if visited == most {
                return Scan { visited, last: last.or(after).cloned(), is_done: false };
            }
            visited += 1;
            last = Some(key);
            valid_at(versions, revision).into_iter().for_each(&mut found);
        }
        Scan { visited, last: last.cloned(), is_done: true }
    }

    /// Calls for the versions of each key, from after a key on. It looks at so many keys at most.
    pub(crate) fn versions(
        &self,
        after: Option<&Bytes>,
        most: usize,
        mut found: impl FnMut(&VecDeque<Arc<Record>>),
    ) -> Scan {
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded(&after[..]));
        let (mut visited, mut last) = (0, None::<&Bytes>);
        for (key, versions) in self.index.range::<[u8], _>((start, Bound::Unbounded)) {
            if visited == most {
                return Scan { visited, last: last.or(after).cloned(), is_done: false };
            }
            visited += 1;
            last = Some(key);
            found(versions);
        }
        Scan { visited, last: last.cloned(), is_done: true }
    }

    /// The changes from a revision on that readers see, in order.
    pub(crate) fn changes_from(&self, revision: i64) -> impl Iterator<Item = &Arc<Record>> {
        self.changes_at((revision, 0))
    }

    /// The same, from a place on.
    pub(crate) fn changes_at(&self, place: RecordKey) -> impl Iterator<Item = &Arc<Record>> {
        let first = self.log.partition_point(|change| change.at() < place);
        self.log.range(first..).take_while(|change| change.mod_revision <= self.visible)
    }

    /// The changes of one key, from a place after the compaction on.
    pub(crate) fn changes_of<'a>(
        &'a self,
        key: &[u8],
        place: RecordKey,
    ) -> impl Iterator<Item = &'a Arc<Record>> + use<'a> {
        let versions = self.index.get(key).into_iter().flat_map(move |versions| {
            let first = versions.partition_point(|change| change.at() < place);
            versions.range(first..)
        });
        versions.take_while(|change| change.mod_revision <= self.visible)
    }

    /// Writes a key at the next revision; its revision.
    pub(crate) fn put(&mut self, key: Bytes, value: Bytes, lease: i64) -> i64 {
        let mod_revision = self.revision + 1;
        let versions = self.index.entry(key.clone()).or_default();
        let (create_revision, version) = match versions.back() {
            Some(last) if !last.is_deletion() => (last.create_revision, last.version + 1),
            _ => {
                self.live += 1;
                (mod_revision, 1)
            }
        };
        let record =
            Arc::new(Record { key, value, create_revision, mod_revision, version, lease, place: self.open });
        versions.push_back(Arc::clone(&record));
        self.record(record);
        mod_revision
    }

    /// Deletes the keys of a span at the next revision; what they were.
    pub(crate) fn delete<T: AsRef<[u8]>>(&mut self, span: &Span<T>) -> Vec<Arc<Record>> {
        let deleted: Vec<_> = match span {
            // The common case, without a walk through the tree.
            Span::One(key) => self.get(key.as_ref()).cloned().into_iter().collect(),
            _ => self.iter_at(span, i64::MAX).cloned().collect(),
        };
        for last in &deleted {
            self.delete_found(last);
        }
        deleted
    }

    /// Deletes a key at the next revision, by its version of now; the deletion.
    pub(crate) fn delete_found(&mut self, last: &Record) -> Arc<Record> {
        let record = Arc::new(Record {
            key: last.key.clone(),
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: self.revision + 1,
            version: 0,
            lease: 0,
            place: self.open,
        });
        let versions = self.index.get_mut(&last.key).expect("a key that was found is in the index");
        versions.push_back(Arc::clone(&record));
        self.live -= 1;
        self.record(Arc::clone(&record));
        record
    }

    fn record(&mut self, change: Arc<Record>) {
        let weight = change.weight();
        self.log_weight += weight;
        self.weight += weight;
        self.log.push_back(change);
        self.open += 1;
    }

    /// Makes the changes since the last commit visible as one revision; those changes.
    pub(crate) fn commit(&mut self) -> impl Iterator<Item = &Arc<Record>> {
        let new = std::mem::take(&mut self.open);
        if new > 0 {
            self.revision += 1;
            if self.forgotten.is_none() {
                self.visible = self.revision;
            }
        }
        self.log.range(self.log.len() - new as usize..)
    }

    /// The same, for changes that are told to others later; the revision.
    pub(crate) fn commit_all(&mut self) -> i64 {
        drop(self.commit());
        self.revision
    }

    /// Takes the changes since the last commit back.
    pub(crate) fn rollback(&mut self) {
        self.open = 0;
        while self.view_revision() > self.revision {
            let change = self.log.pop_back().expect("only a change is newer than the last commit");
            self.log_weight -= change.weight();
            self.weight -= change.weight();
            let versions = self.index.get_mut(&change.key).expect("a change of the log is in the index");
            versions.pop_back();
            if change.is_deletion() {
                self.live += 1;
            } else if versions.back().is_none_or(|before| before.is_deletion()) {
                self.live -= 1;
            }
            if versions.is_empty() {
                self.index.remove(&change.key);
            }
        }
    }
}

/// The version that was valid at a revision, unless that was a deletion.
fn valid_at(versions: &VecDeque<Arc<Record>>, revision: i64) -> Option<&Arc<Record>> {
    let last = versions.back()?;
    let found = if last.mod_revision <= revision {
        last
    } else {
        versions.get(versions.partition_point(|version| version.mod_revision <= revision).checked_sub(1)?)?
    };
    (!found.is_deletion()).then_some(found)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
