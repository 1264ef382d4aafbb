//! A delete of very many keys: one revision, carried out in steps, so that others get at the state in between.
//!
//! Until it is committed readers see the revision before it, and nobody else may change keys: whoever wants to waits until
//! it is over, as in etcd. First it finds the keys, which changes nothing and can be given up; then it marks them as deleted
//! and commits; then it tells the leases and the watchers.

use std::sync::Arc;

use bytes::Bytes;

use crate::lease::Lease;
use crate::mvcc::{Record, Span};

/// Keys of one step. That takes about a millisecond. What has no more than these is deleted at once.
pub(crate) const STEP: usize = 2_000;

/// What is deleted.
#[derive(Debug)]
pub(crate) enum What {
    Keys(Span),
    /// A lease and its keys.
    Lease(i64),
}

/// A delete under way.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) what: What,
    pub(crate) stage: Stage,
    /// The keys as they were.
    pub(crate) found: Vec<Arc<Record>>,
    /// Roughly what they take in an answer.
    pub(crate) bytes: usize,
    /// The deletions, for the disk.
    pub(crate) deletions: Vec<Arc<Record>>,
    pub(crate) lease: Option<Lease>,
    /// Keys that are to be deleted once it is over.
    then: Vec<Bytes>,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// It has found all keys up to this one.
    Find(Option<Bytes>),
    /// So many are marked.
    Mark(usize),
    /// The leases of so many know of it.
    Tell(usize),
}

/// How far it has come.
#[derive(Debug)]
pub(crate) enum Progress {
    Again,
    /// All keys are found; what they take in an answer. Nothing has changed yet.
    Found(usize),
    Done(Removed),
}

/// What was deleted.
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) revision: i64,
    pub(crate) found: Vec<Arc<Record>>,
    /// Much to drop, where nobody waits for it.
    pub(crate) _lease: Option<Lease>,
}

impl Removed {
    /// The revision alone. The rest is dropped where nobody waits for it.
    pub(crate) fn into_revision(self) -> i64 {
        let revision = self.revision;
        tokio::task::spawn_blocking(move || drop(self));
        revision
    }
}

impl Removal {
    pub(crate) fn new(what: What) -> Self {
        let (found, deletions, then) = (Vec::new(), Vec::new(), Vec::new());
        Removal { what, stage: Stage::Find(None), found, bytes: 0, deletions, lease: None, then }
    }

    /// Has a key deleted once it is over.
    pub(crate) fn then_delete(&mut self, key: Bytes) {
        self.then.push(key);
    }

    /// Whether it can no longer be taken back.
    pub(crate) fn is_committed(&self) -> bool {
        matches!(self.stage, Stage::Tell(_))
    }

    /// The keys that are to be deleted once it is over.
    pub(crate) fn into_rest(self) -> Vec<Bytes> {
        self.then
    }
}
