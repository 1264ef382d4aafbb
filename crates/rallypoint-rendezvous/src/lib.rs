//! How the nodes of a run find each other.
//!
//! - [`RendezvousHandler`]: what every backend does; [`Rendezvous`] is what a node gets from it.
//! - [`native`]: the backend `rallypoint`, on etcd v3.
//! - [`RendezvousParameters`]: what a backend is told, by name, as torchrun hands it over.
//! - [`Registry`]: the backends by name, open to those of other crates.
//! - [`EtcdBarrier`]: the backend `etcd`, which meets nodes that run PyTorch's code.
//! - [`backend`]: a record of state with a fencing token, for PyTorch's dynamic rendezvous.
//! - [`RendezvousError`]: what can go wrong, by kind.

pub mod backend;
mod barrier;
mod connecting;
mod error;
mod handler;
pub mod native;
mod parameters;
mod port;
mod registry;

pub use barrier::EtcdBarrier;
pub use connecting::connect_within;
pub use error::{RendezvousError, Result};
pub use handler::{
    CloseOutcome, Contact, FINISHED, GroupChange, Master, Member, NODE_FINISHED, Progress, Rendezvous,
    RendezvousHandler, Standing,
};
pub use parameters::{ParameterError, RendezvousParameters};
pub use port::HeldPort;
pub use registry::{Creator, Registry};
/// What [`EtcdBarrier::store_extra_data`] takes.
pub use serde_json::Value;

/// The examples in the documents, as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/rendezvous-etcd.md")]
    mod rendezvous_etcd {}
}
