//! The multi-version store: every change has a revision, and the past can be read back to the compaction.
//!
//! - [`Store`]: the data and its history; [`compaction`]: what is forgotten of it.
//! - [`Span`]: the keys a request is about.
//! - [`check`]: what can be said of a request without looking at the data.
//! - [`range`] and [`txn`]: requests carried out. They are given the protocol's own messages, which are plain data, and
//!   answer with records that they share with the store: an answer is copied when it is sent, and not before.
//! - [`survey`]: all of it, and [`stored`]: as etcd would keep it. For hashes and snapshots.

mod check;
mod compaction;
mod error;
mod range;
mod record;
mod span;
mod store;
mod stored;
mod survey;
mod txn;

pub(crate) use check::{check_delete, check_put, check_range, check_txn, has_put, is_read_only};
pub(crate) use error::Error;
pub(crate) use range::{Found, Reading};
pub(crate) use record::Record;
pub(crate) use span::Span;
pub(crate) use store::{RecordKey, Retention, Store};
pub(crate) use stored::stored_revision;
pub(crate) use survey::{Survey, Surveyed};
pub(crate) use txn::{DeleteDone, Done, PutDone, TxnDone, delete, put, txn};
