//! One version of one key.

use bytes::Bytes;

use super::RecordKey;

/// One version of one key, or its deletion. Shared by the index, the log and whoever is being told of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
    pub(crate) create_revision: i64,
    pub(crate) mod_revision: i64,
    /// Counts the changes since the key was made; 0 marks a deletion.
    pub(crate) version: i64,
    pub(crate) lease: i64,
    /// Counts the changes of its revision, from 0.
    pub(crate) place: u32,
}

impl Record {
    /// Where it is among all changes.
    pub(crate) fn at(&self) -> RecordKey {
        (self.mod_revision, self.place)
    }

    pub(crate) fn is_deletion(&self) -> bool {
        self.version == 0
    }

    /// The first version of a key that was not there, or was deleted.
    pub(crate) fn is_creation(&self) -> bool {
        self.version == 1
    }

    /// Roughly what it holds in memory, the indices included.
    pub(crate) fn weight(&self) -> usize {
        /// The record itself, its counters and its places in the index and the log.
        const FIXED: usize = size_of::<Record>() + 64;
        FIXED + self.key.len() + self.value.len()
    }
}
