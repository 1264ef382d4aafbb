//! All versions of all keys, gathered in steps, so that others get at the store in between.

use std::sync::Arc;

use bytes::Bytes;

use super::{Error, Record, Store};

/// How often it begins again because a compaction has overtaken it.
const RESTARTS: usize = 8;

/// All versions up to a revision, as far as they were gathered.
#[derive(Debug)]
pub(crate) struct Survey {
    /// What was asked for; 0 is the last one when it begins.
    asked: i64,
    at: i64,
    /// Versions in the order of their keys, those of one key in theirs.
    records: Vec<Arc<Record>>,
    after: Option<Bytes>,
    is_done: bool,
    restarts_left: usize,
}

/// The versions that are not forgotten at a compaction, in the order in which they were made.
#[derive(Debug)]
pub(crate) struct Surveyed {
    pub(crate) compacted: i64,
    pub(crate) records: Vec<Arc<Record>>,
}

impl Survey {
    pub(crate) fn new(store: &Store, asked: i64) -> Result<Self, Error> {
        let at = match asked {
            ..=0 => store.visible(),
            asked if asked > store.visible() => return Err(Error::FutureRevision),
            asked => asked,
        };
        if at < store.compacted() {
            return Err(Error::Compacted);
        }
        let records = Vec::new();
        Ok(Survey { asked, at, records, after: None, is_done: false, restarts_left: RESTARTS })
    }

    /// How many versions it has found.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Looks at so many keys; what it was compacted at, once it has seen all.
    pub(crate) fn step(&mut self, store: &Store, most: usize) -> Result<Option<i64>, Error> {
        if self.at < store.compacted() {
            let restarts_left = self.restarts_left.checked_sub(1).ok_or(Error::TooManyRequests)?;
            *self = Survey { restarts_left, ..Survey::new(store, self.asked)? };
        }
        let Survey { at, records, .. } = self;
        let scan = store.versions(self.after.as_ref(), most, |versions| {
            records.extend(versions.iter().filter(|version| version.mod_revision <= *at).cloned());
        });
        (self.after, self.is_done) = (scan.last, scan.is_done);
        if !self.is_done {
            return Ok(None);
        }
        let compacted = store.compacted();
        // What was deleted at the compaction itself is still to be told to watchers, and is in no key's past.
        let deleted = store.changes_from(compacted).take_while(|change| change.mod_revision == compacted);
        self.records.extend(deleted.filter(|change| change.is_deletion()).cloned());
        Ok(Some(compacted))
    }

    /// What it has found, without what was forgotten while it looked. Much to sort, and needs no store.
    pub(crate) fn finish(self, compacted: i64) -> Surveyed {
        let mut records = self.by_key(compacted);
        records.sort_unstable_by_key(|record| record.at());
        Surveyed { compacted, records }
    }

    /// The versions that etcd's hash is made of: those after the compaction, and of those before it the ones that are valid
    /// at the revision that was asked for.
    pub(crate) fn hashed(self, compacted: i64) -> Vec<Arc<Record>> {
        let mut records = self.by_key(compacted);
        let is_valid: Vec<bool> = (0..records.len())
            .map(|at| {
                let is_last = records.get(at + 1).is_none_or(|next| next.key != records[at].key);
                is_last && !records[at].is_deletion()
            })
            .collect();
        // Where nothing is valid, etcd leaves nothing out.
        let takes_all = !is_valid.contains(&true);
        let mut is_valid = is_valid.into_iter();
        records.retain(|record| {
            let is_valid = is_valid.next().unwrap_or(false);
            takes_all || is_valid || record.mod_revision > compacted
        });
        records.sort_unstable_by_key(|record| record.at());
        records
    }

    /// All versions in the order of their keys. Of those up to the compaction the last of each key is left, and a deletion
    /// only if it was at the compaction itself.
    fn by_key(self, compacted: i64) -> Vec<Arc<Record>> {
        let Survey { mut records, .. } = self;
        records.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(a.at().cmp(&b.at())));
        // What was deleted at the compaction may have been found twice.
        records.dedup_by_key(|record| record.at());
        let is_left: Vec<bool> = (0..records.len())
            .map(|at| {
                let record = &records[at];
                let next = records.get(at + 1).filter(|next| next.key == record.key);
                let is_past = next.is_some_and(|next| next.mod_revision <= compacted)
                    || (record.is_deletion() && record.mod_revision < compacted);
                !is_past
            })
            .collect();
        let mut is_left = is_left.into_iter();
        records.retain(|_| is_left.next().unwrap_or(false));
        records
    }
}
