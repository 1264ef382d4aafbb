//! The client of etcd's v3 API, over gRPC (the `etcd-client` crate).
//!
//! - [`Client`]: requests, tried at one endpoint after the other until their deadline, and repeated only where
//!   a repeat is safe.
//! - [`Watch`]: every event of a range of keys, or a fresh read; never a silent gap.
//! - [`Lease`]: kept alive through outages, and a clear signal when it is truly lost.
//!
//! Requests and answers are `etcd-client`'s own types, re-exported in [`api`].

mod changes;
mod classify;
mod client;
mod clusters;
mod connections;
mod dial;
mod entry;
mod lease;
mod lease_hub;
mod lease_state;
mod link;
mod login;
mod mailbox;
mod range;
mod refresh;
mod requests;
mod watch;
mod watch_hub;
mod watch_ids;

pub use changes::Changes;
pub use classify::raw_failure;
pub use client::Client;
pub use clusters::TwoClusters;
pub use entry::{Change, Entry, Event};
pub use lease::Lease;
pub use lease_state::LeaseState;
pub use range::KeyRange;
pub use requests::revision_of;
pub use watch::{Watch, WatchUpdate};

pub use crate::Repeat;

/// The requests and answers of the v3 API.
pub mod api {
    pub use etcd_client::{
        Compare, CompareOp, DeleteOptions, DeleteResponse, GetOptions, GetResponse, KeyValue, PutOptions,
        PutResponse, ResponseHeader, SortOrder, SortTarget, StatusResponse, Txn, TxnOp, TxnOpResponse,
        TxnResponse,
    };
}
