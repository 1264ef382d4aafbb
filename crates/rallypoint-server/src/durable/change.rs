//! What must survive, as plain values: what a commit has changed, and what a start finds.

use std::sync::Arc;

use crate::auth::Auth;
use crate::mvcc::{Record, RecordKey};
use crate::v2;

/// One change of the v3 half.
#[derive(Debug)]
pub(crate) enum Change {
    /// A version of a key, or its deletion. The lease that it hangs on is in it.
    Record(Arc<Record>),
    /// Very many of them.
    Records(Vec<Arc<Record>>),
    Granted {
        id: i64,
        ttl: i64,
    },
    Revoked {
        id: i64,
    },
    /// A row of users and roles, or its end.
    Auth {
        name: String,
        value: Option<Vec<u8>>,
    },
    /// Versions that nobody can ask for any more.
    Forgotten(Vec<RecordKey>),
}

/// What is to be on disk together. A half that has not changed is left out.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) v3: Option<V3Batch>,
    pub(crate) v2: Option<V2Batch>,
}

#[derive(Debug)]
pub(crate) struct V3Batch {
    pub(crate) changes: Vec<Change>,
    /// After them.
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
}

#[derive(Debug)]
pub(crate) struct V2Batch {
    pub(crate) changes: Vec<v2::Change>,
    /// After them.
    pub(crate) index: u64,
    pub(crate) raft_index: u64,
}

/// Who the server is, for as long as its folder lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) cluster: u64,
    pub(crate) member: u64,
}

/// All that is on disk.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) ids: Ids,
    /// How many batches were written, ever.
    pub(crate) batches: u64,
    pub(crate) v3: LoadedV3,
    pub(crate) v2: v2::Kept,
}

#[derive(Debug)]
pub(crate) struct LoadedV3 {
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// In the order of their places.
    pub(crate) records: Vec<Record>,
    /// Each with its TTL.
    pub(crate) leases: Vec<(i64, i64)>,
    pub(crate) auth: Auth,
}
