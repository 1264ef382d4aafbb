//! What can go wrong with a store.

use std::io;
use std::time::Duration;

use rallypoint_core::text::Key;
use thiserror::Error;

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A store operation that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// What was waited for did not come in time.
    #[error("{what} timeout after {:.3} s, waiting for {}", after.as_secs_f64(), names(keys))]
    Timeout {
        /// The operation.
        what: &'static str,
        /// The keys that were still missing.
        keys: Vec<Vec<u8>>,
        /// How long it waited.
        after: Duration,
    },
    /// A pop that does not wait found nothing.
    #[error("the queue {} is empty", Key(key))]
    QueueEmpty {
        /// The queue.
        key: Vec<u8>,
    },
    /// `add` on a value that does not begin with a number.
    #[error("cannot add to {}: its value is not a number: {}", Key(key), Key(&value[..value.len().min(40)]))]
    NotANumber {
        /// The key.
        key: Vec<u8>,
        /// What it holds.
        value: Vec<u8>,
    },
    /// `multi_set` with lists of different lengths.
    #[error("multi_set got {keys} keys and {values} values: give one value for each key")]
    LengthMismatch {
        /// Number of keys.
        keys: usize,
        /// Number of values.
        values: usize,
    },
    /// Larger than the server takes.
    #[error(
        "cannot store {size} bytes under {}: the server's limit is about {limit} bytes for key and value together; \
         raise it there, or store less: {source}",
        Key(key)
    )]
    TooLarge {
        /// The key.
        key: Vec<u8>,
        /// Bytes of key and value.
        size: usize,
        /// What the server takes by default.
        limit: usize,
        /// What the server said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The reply to a write was lost, and whether it was carried out can no longer be found out.
    #[error("cannot tell whether {what} {} was carried out: {source}", Key(key))]
    OutcomeUnknown {
        /// The operation.
        what: &'static str,
        /// The key.
        key: Vec<u8>,
        /// Why the reply was lost.
        source: rallypoint_etcd::Error,
    },
    /// The lease that this store's keys hang on has ended, and took them with it.
    #[error(
        "cannot {what} {}: lease {lease:016x}, which all keys of this store hang on, is gone: {source}",
        Key(key)
    )]
    LeaseGone {
        /// The operation.
        what: &'static str,
        /// The key.
        key: Vec<u8>,
        /// The lease, as `etcdctl lease list` shows it in hexadecimal.
        lease: i64,
        /// What etcd said.
        source: rallypoint_etcd::Error,
    },
    /// What is stored was not written by a store of this kind.
    #[error("the value of {} is damaged: {problem}", Key(key))]
    Corrupt {
        /// The key.
        key: Vec<u8>,
        /// What does not fit.
        problem: String,
    },
    /// The blocking face was used on a thread that runs async tasks, which it would have stopped.
    #[error("a blocking store call on a thread of an async runtime: use the async Store there")]
    BlockingInAsync,
    /// A store that was opened before the process was forked, used after.
    #[error("a store that was opened in another process, before a fork: open one in this process")]
    Forked,
    /// The server of a `TcpStore` cannot be reached, has ended the connection, or does not answer.
    #[error("{what} failed on the store at {address}: {source}")]
    Server {
        /// Where the server is, or was.
        address: String,
        /// The operation.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// etcd failed.
    #[error(transparent)]
    Etcd(#[from] rallypoint_etcd::Error),
}

impl StoreError {
    /// Whether etcd has refused it, for want of a permission or of space, and it was not carried out. That may pass.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        use rallypoint_etcd::ErrorKind::{Auth, NoSpace, PermissionDenied};
        matches!(self, StoreError::Etcd(error) if matches!(error.kind(), Auth | NoSpace | PermissionDenied))
    }

    /// Whether no answer came, or none that says what became of it.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        match self {
            StoreError::Timeout { .. } | StoreError::Server { .. } => true,
            StoreError::Etcd(source) | StoreError::OutcomeUnknown { source, .. } => source.is_transient(),
            _ => false,
        }
    }
}

fn names(keys: &[Vec<u8>]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = keys.iter().take(SHOWN).map(|key| Key(key).to_string()).collect();
    if keys.len() > SHOWN {
        text.push(format!("and {} more", keys.len() - SHOWN));
    }
    text.join(", ")
}
