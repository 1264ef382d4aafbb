//! The data, its history and its compaction.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::{Error, Record, Span};

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
    index: BTreeMap<Bytes, VecDeque<Arc<Record>>>,
    /// Every change since the compaction, in order. Those made after `revision` are not committed yet.
    log: VecDeque<Arc<Record>>,
    /// What the log weighs.
    log_weight: usize,
    /// What the index weighs, which is more: it has the keys that were not changed since the compaction.
    weight: usize,
    /// How many of them that are.
    open: u32,
    /// Of the last committed change.
    revision: i64,
    /// Up to here readers see. It is the revision, but where that has yet to reach the disk.
    visible: i64,
    /// What was forgotten and is still on disk, where the store is kept there.
    forgotten: Option<Vec<RecordKey>>,
    /// Nothing before it can be read. Negative until the first compaction.
    compacted: i64,
    retention: Retention,
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

    /// A store as it was, from the changes that [`Store::settle`] was told of and that were not forgotten, in order.
    pub(crate) fn restored(
        retention: Retention,
        revision: i64,
        compacted: i64,
        changes: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut store = Store { revision, visible: revision, compacted, ..Store::new(retention) };
        for change in changes {
            let change = Arc::new(change);
            if change.mod_revision >= compacted {
                store.log_weight += change.weight();
                store.log.push_back(Arc::clone(&change));
            }
            let versions = store.index.entry(change.key.clone()).or_default();
            // Of those up to the compaction only the last is of interest, and a deletion is not.
            if change.mod_revision <= compacted {
                store.weight -= versions.drain(..).map(|version| version.weight()).sum::<usize>();
                if change.is_deletion() {
                    store.index.remove(&change.key);
                    continue;
                }
            }
            store.weight += change.weight();
            versions.push_back(change);
        }
        store
    }

    /// From now on readers see a commit only when it has settled.
    pub(crate) fn hold(&mut self) {
        self.forgotten = Some(Vec::new());
    }

    /// Readers see what was committed up to this revision; those changes.
    pub(crate) fn settle(&mut self, revision: i64) -> impl Iterator<Item = &Arc<Record>> {
        let was = std::mem::replace(&mut self.visible, revision);
        self.changes_from(was + 1)
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

    /// Every version of every key, and what else watchers can ask for. No order.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<RecordKey> {
        let mut all: Vec<_> = self.index.values().flatten().chain(&self.log).map(|it| it.at()).collect();
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

    /// Whether a compaction would find something to forget.
    pub(crate) fn has_past(&self) -> bool {
        self.compacted < self.visible
    }

    /// The number of keys in the index, deleted ones included until the compaction.
    pub(crate) fn key_count(&self) -> usize {
        self.index.len()
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

    /// The changes from a revision on that readers see, in order.
    pub(crate) fn changes_from(&self, revision: i64) -> impl Iterator<Item = &Arc<Record>> {
        let first = self.log.partition_point(|change| change.mod_revision < revision);
        self.log.range(first..).take_while(|change| change.mod_revision <= self.visible)
    }

    /// Writes a key at the next revision; its revision.
    pub(crate) fn put(&mut self, key: Bytes, value: Bytes, lease: i64) -> i64 {
        let mod_revision = self.revision + 1;
        let versions = self.index.entry(key.clone()).or_default();
        let (create_revision, version) = match versions.back() {
            Some(last) if !last.is_deletion() => (last.create_revision, last.version + 1),
            _ => (mod_revision, 1),
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
        let mod_revision = self.revision + 1;
        for last in &deleted {
            let record = Arc::new(Record {
                key: last.key.clone(),
                value: Bytes::new(),
                create_revision: 0,
                mod_revision,
                version: 0,
                lease: 0,
                place: self.open,
            });
            let versions = self.index.get_mut(&last.key).expect("a key just found is in the index");
            versions.push_back(Arc::clone(&record));
            self.record(record);
        }
        deleted
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

    /// Takes the changes since the last commit back.
    pub(crate) fn rollback(&mut self) {
        self.open = 0;
        while self.view_revision() > self.revision {
            let change = self.log.pop_back().expect("only a change is newer than the last commit");
            self.log_weight -= change.weight();
            self.weight -= change.weight();
            let versions = self.index.get_mut(&change.key).expect("a change of the log is in the index");
            versions.pop_back();
            if versions.is_empty() {
                self.index.remove(&change.key);
            }
        }
    }

    /// Forgets what was overwritten or deleted up to a revision.
    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Error> {
        if revision <= self.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.visible {
            return Err(Error::FutureRevision);
        }
        let was = std::mem::replace(&mut self.compacted, revision);
        let past = self.log.partition_point(|change| change.mod_revision <= revision);
        for change in self.log.range(..past).filter(|change| change.mod_revision > was) {
            let forgotten = |version: &Record| {
                // What is still to be told stays.
                if let Some(forgotten) = self.forgotten.as_mut().filter(|_| version.mod_revision < revision) {
                    forgotten.push(version.at());
                }
            };
            self.weight -= forget_before(&mut self.index, change, forgotten);
        }
        // A watch may start at the compaction itself, so the changes of that revision stay.
        let older = self.log.partition_point(|change| change.mod_revision < revision);
        for change in self.log.drain(..older) {
            self.log_weight -= change.weight();
            // It stayed at the compaction before, though its key may have forgotten it then.
            if let Some(forgotten) = self.forgotten.as_mut().filter(|_| change.mod_revision <= was) {
                let versions = self.index.get(&change.key);
                if !versions.is_some_and(|versions| versions.iter().any(|it| Arc::ptr_eq(it, &change))) {
                    forgotten.push(change.at());
                }
            }
        }
        Ok(())
    }

    /// Compacts if there is more of the past than the retention asks for. Called after each commit.
    pub(crate) fn enforce_retention(&mut self) {
        let Retention { changes, bytes } = self.retention;
        if self.log.len() <= changes && self.log_weight <= bytes {
            return;
        }
        // Somewhat more than needed, so that it is not needed again at once.
        let (changes, bytes) = (changes - changes / 8, bytes - bytes / 8);
        let mut weight = self.log_weight;
        let surplus = self.log.iter().enumerate().find(|(at, change)| {
            let is_enough = self.log.len() - at <= changes && weight <= bytes;
            weight -= change.weight();
            is_enough
        });
        let first_kept = surplus.map_or(self.revision, |(_, change)| change.mod_revision);
        // It fails when the newest revision alone is too much.
        let _ = self.compact(first_kept.min(self.revision - 1).min(self.visible));
    }
}

/// Drops the versions of a key before a change, and the change too when it is a deletion; what they weighed.
fn forget_before(
    index: &mut BTreeMap<Bytes, VecDeque<Arc<Record>>>,
    change: &Arc<Record>,
    mut forgotten: impl FnMut(&Record),
) -> usize {
    let versions = index.get_mut(&change.key).expect("a change of the log is in the index");
    let mut weight = 0;
    while let Some(first) = versions.front()
        && (change.is_deletion() || !Arc::ptr_eq(first, change))
    {
        let is_last = Arc::ptr_eq(first, change);
        weight += first.weight();
        forgotten(first);
        versions.pop_front();
        if is_last {
            break;
        }
    }
    if versions.is_empty() {
        index.remove(&change.key);
    } else if versions.capacity() > 64 && versions.len() < versions.capacity() / 4 {
        // A key with a long past gives its memory back.
        versions.shrink_to(versions.len() * 2);
    }
    weight
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
