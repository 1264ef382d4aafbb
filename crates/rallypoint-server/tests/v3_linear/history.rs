//! What clients asked for and were told, and what a watch has told.

use std::time::Instant;

use etcd_client::proto::{PbEvent, PbKeyValue};

/// All keys of a history are between these.
pub(crate) const KEYS: (&str, &str) = ("k/", "k0");

/// How a key stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) value: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

impl From<&PbKeyValue> for Seen {
    fn from(kv: &PbKeyValue) -> Self {
        Seen {
            value: kv.value.clone(),
            created: kv.create_revision,
            modified: kv.mod_revision,
            version: kv.version,
            lease: kv.lease,
        }
    }
}

/// A request and its answer.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// As the answer's header has it.
    pub(crate) revision: i64,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    /// These keys stood so.
    Read(Vec<(String, Option<Seen>)>),
    /// The key was written or deleted, and had stood so before.
    Wrote { key: String, value: Option<Vec<u8>>, before: Option<Seen> },
    /// The key was written since it had been modified last at that revision.
    Swapped { key: String, value: Vec<u8>, expected: i64 },
    /// It was not, since it stood so.
    NotSwapped { key: String, expected: i64, found: Option<Seen> },
    /// The lease is gone, and all keys that hung on it.
    Revoked { lease: i64 },
}

impl What {
    /// Whether a revision is this request's own.
    pub(crate) fn changes(&self) -> bool {
        matches!(self, What::Wrote { .. } | What::Swapped { .. })
    }
}

/// One change, as a watch tells it.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) revision: i64,
    pub(crate) key: String,
    /// None: it was deleted.
    pub(crate) now: Option<Seen>,
}

impl From<PbEvent> for Event {
    fn from(event: PbEvent) -> Self {
        const PUT: i32 = 0;
        let kv = event.kv.unwrap();
        let now = (event.r#type == PUT).then(|| Seen::from(&kv));
        Event { revision: kv.mod_revision, key: String::from_utf8(kv.key).unwrap(), now }
    }
}
