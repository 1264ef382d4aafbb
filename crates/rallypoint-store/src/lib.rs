//! The store that the nodes of a job share: PyTorch's c10d `Store`, in Rust.
//!
//! - [`Store`]: the contract.
//! - [`EtcdStore`]: on etcd v3, the one to use.
//! - [`EtcdV2Store`]: on the v2 wire, together with PyTorch's own.
//! - [`TcpStore`]: on a server of PyTorch's `TCPStore`, or ours.
//! - [`MemoryStore`]: in one process.
//! - [`PrefixStore`]: a store within a store.
//! - [`CountedStore`]: one whose operations are counted, for Prometheus.
//! - [`BlockingStore`]: any of them, for threads without an async runtime.

mod blocking;
mod counted;
mod deadline;
mod error;
mod etcd_v2;
mod etcd_v3;
mod memory;
mod prefix;
mod store;
mod tcp;

pub use blocking::{BlockingStore, shared_runtime};
pub use counted::CountedStore;
pub use error::{Result, StoreError};
pub use etcd_v2::EtcdV2Store;
pub use etcd_v3::EtcdStore;
pub use memory::MemoryStore;
pub use prefix::PrefixStore;
pub use store::{DEFAULT_TIMEOUT, Store};
pub use tcp::TcpStore;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
