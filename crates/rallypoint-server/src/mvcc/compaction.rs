//! Compactions: what can no longer be asked for is refused at once, and forgotten in steps, so that others get at the store
//! in between.

use std::collections::VecDeque;
use std::sync::Arc;

use super::store::Retention;
use super::{Error, Record, Store};

impl Store {
    /// What was overwritten or deleted up to a revision can no longer be asked for. [`Store::clean`] forgets it.
    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Error> {
        if revision <= self.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.visible {
            return Err(Error::FutureRevision);
        }
        self.compacted = revision;
        Ok(())
    }

    /// Whether all is forgotten that can no longer be asked for.
    pub(crate) fn is_clean(&self) -> bool {
        let is_past = |change: &Arc<Record>| change.mod_revision < self.compacted;
        let is_left = |change: &Arc<Record>| change.mod_revision <= self.compacted;
        !self.log.front().is_some_and(is_past) && !self.log.get(self.passed).is_some_and(is_left)
    }

    /// Forgets what can no longer be asked for, so many changes of it at most.
    pub(crate) fn clean(&mut self, most: usize) {
        for _ in 0..most {
            if self.is_clean() {
                return;
            }
            if self.passed == 0 {
                self.pass();
            }
            // A watch may start at the compaction itself, so the changes of that revision stay.
            match self.log.front() {
                Some(first) if first.mod_revision < self.compacted => self.drop_first(),
                _ => self.pass(),
            }
        }
    }

    /// Forgets the versions of a key before the next change that was not passed, and the change if it is a deletion.
    fn pass(&mut self) {
        let Some(change) = self.log.get(self.passed).filter(|next| next.mod_revision <= self.compacted)
        else {
            return;
        };
        self.passed += 1;
        self.passed_weight += change.weight();
        let Some(versions) = self.index.get_mut(&change.key) else { return };
        let first_told = self.log.front().map_or(change.at(), |first| first.at());
        while let Some(first) = versions.front()
            && (first.at() < change.at() || (change.is_deletion() && first.at() == change.at()))
        {
            self.weight -= first.weight();
            // What is still to be told stays, until the log drops it.
            if let Some(forgotten) = self.forgotten.as_mut().filter(|_| first.at() < first_told) {
                forgotten.push(first.at());
            }
            versions.pop_front();
        }
        if versions.is_empty() {
            self.index.remove(&change.key);
        } else if versions.capacity() > 64 && versions.len() < versions.capacity() / 4 {
            // A key with a long past gives its memory back.
            versions.shrink_to(versions.len() * 2);
        }
    }

    /// Drops the first change of the log, which was passed.
    fn drop_first(&mut self) {
        let Some(change) = self.log.pop_front() else { return };
        self.log_weight -= change.weight();
        self.passed -= 1;
        self.passed_weight -= change.weight();
        if let Some(forgotten) = &mut self.forgotten {
            // The first of a key that is left is the one that is valid at the compaction.
            let first = self.index.get(&change.key).and_then(VecDeque::front);
            if first.is_none_or(|first| first.at() > change.at()) {
                forgotten.push(change.at());
            }
        }
    }

    /// Compacts if there is more of the past than the retention asks for. Called after each commit.
    pub(crate) fn enforce_retention(&mut self) {
        let Retention { changes, bytes } = self.retention;
        // What was compacted is being forgotten.
        if (self.log.len() <= changes && self.log_weight <= bytes) || !self.is_clean() {
            return;
        }
        // Somewhat more than needed, so that it is not needed again at once.
        let (changes, bytes) = (changes - changes / 8, bytes - bytes / 8);
        let mut at = self.log.len().saturating_sub(changes).max(self.passed);
        if self.log_weight > bytes {
            let mut weight = self.log_weight - self.passed_weight;
            let heavy = self.log.range(self.passed..).take_while(|change| {
                let is_too_much = weight > bytes;
                weight -= change.weight();
                is_too_much
            });
            at = at.max(self.passed + heavy.count());
        }
        let first_kept = self.log.get(at).map_or(self.revision, |change| change.mod_revision);
        // It fails when the newest revision alone is too much.
        let _ = self.compact(first_kept.min(self.revision - 1).min(self.visible));
    }
}
