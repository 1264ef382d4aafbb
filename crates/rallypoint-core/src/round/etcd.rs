//! The few words of etcd that the machine speaks. Whoever drives it carries them out; so does the simulator.

use std::time::Duration;

/// What the machine asks of etcd. The reply goes to [`Node::handle_reply`](super::Node::handle_reply).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Grants a lease, which the driver does not keep alive by itself.
    Grant(Duration),
    /// Refreshes a lease once.
    Renew(i64),
    /// Ends a lease and deletes its keys. One that is gone already is no failure.
    Revoke(i64),
    /// Carries out a transaction.
    Txn(Txn),
    /// Reads all keys that begin with this, as of one revision.
    Range(String),
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The lease's id.
    Granted(i64),
    /// The lease lives on.
    Renewed,
    /// The lease is gone.
    Revoked,
    /// The transaction was carried out, one way or the other.
    Txn(TxnReply),
    /// What is there.
    Range {
        /// As of when.
        revision: i64,
        /// The keys, sorted.
        entries: Vec<Entry>,
    },
}

impl Reply {
    /// The revision that it was given at, where it tells.
    #[must_use]
    pub fn revision(&self) -> Option<i64> {
        match self {
            Reply::Txn(TxnReply { revision, .. }) | Reply::Range { revision, .. } => Some(*revision),
            Reply::Granted(_) | Reply::Renewed | Reply::Revoked => None,
        }
    }
}

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It may have been carried out, or still will be, or not.
    Unknown,
    /// It was not carried out, because a lease it names is gone.
    LeaseGone,
    /// It was not carried out, because etcd refuses it, as one without space does. That may pass.
    Refused,
    /// It was not carried out, because this node may not do that: its user's role is gone, or its password. That may
    /// pass, and others may be served meanwhile.
    Denied,
}

/// Carries out `then` if all of `when` hold, and `otherwise` if not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub when: Vec<Condition>,
    /// Up to 128 operations.
    pub then: Vec<Op>,
    /// Up to 128 operations.
    pub otherwise: Vec<Op>,
}

/// What a transaction asks of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It is not there.
    Missing(String),
    /// It is there since this revision.
    CreatedAt(String, i64),
    /// It was last written at this revision.
    ModifiedAt(String, i64),
    /// This is its value.
    Holds(String, String),
    /// Every key that begins with this is there since this revision: there is no other.
    OnlyCreatedAt(String, i64),
}

impl Condition {
    /// The key is as it was written at that revision, in those words, which no other history has at the same revision.
    pub(super) fn stands(key: String, modified: i64, text: &str) -> [Self; 2] {
        [Condition::ModifiedAt(key.clone(), modified), Condition::Holds(key, text.to_owned())]
    }

    /// Nobody has written the key since this revision, which is 0 if it was not there.
    pub(super) fn unchanged_since(key: String, modified: i64) -> Self {
        match modified {
            0 => Condition::Missing(key),
            modified => Condition::ModifiedAt(key, modified),
        }
    }
}

/// What a transaction does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a key that hangs on a lease.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Its lease.
        lease: i64,
    },
    /// Reads a key.
    Get(String),
    /// Reads all keys that begin with this. For those of which there are few.
    Range(String),
    /// Deletes a key.
    Delete(String),
    /// Deletes all keys that begin with this.
    DeletePrefix(String),
    /// A transaction within.
    Txn(Txn),
}

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether the conditions held.
    pub held: bool,
    /// The revision after it.
    pub revision: i64,
    /// One for each operation that was carried out, in order.
    pub results: Vec<OpReply>,
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpReply {
    /// Written or deleted.
    Done,
    /// What [`Op::Get`] found.
    Got(Option<Entry>),
    /// What [`Op::Range`] found, sorted.
    Found(Vec<Entry>),
    /// What became of the transaction within.
    Txn(TxnReply),
}

/// A key as etcd has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// When it was made.
    pub create_revision: i64,
    /// When it was last written.
    pub mod_revision: i64,
    /// The lease it hangs on.
    pub lease: i64,
}

/// What happened to the keys of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Events in order, none left out.
    Events(Vec<Event>),
    /// What is there, where events can no longer be had.
    Snapshot {
        /// As of when.
        revision: i64,
        /// All keys of the watch.
        entries: Vec<Entry>,
    },
}

impl Update {
    /// The last revision that it tells of; 0 if it tells of none.
    #[must_use]
    pub fn revision(&self) -> i64 {
        match self {
            Update::Events(events) => events.last().map_or(0, Event::revision),
            Update::Snapshot { revision, .. } => *revision,
        }
    }
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was written.
    Put(Entry),
    /// It was deleted, or its lease ended.
    Delete {
        /// The key.
        key: String,
        /// When.
        revision: i64,
    },
}

impl Event {
    /// When it happened.
    #[must_use]
    pub fn revision(&self) -> i64 {
        match self {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { revision, .. } => *revision,
        }
    }
}

/// The keys that a watch covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// One key.
    Key(String),
    /// All keys that begin with this.
    Prefix(String),
}
