//! How the nodes of a run find each other.
//!
//! A node meets the others, works, and meets again when somebody came, left or died:
//!
//! ```no_run
//! use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
//! use rallypoint_rendezvous::{FINISHED, Rendezvous, RendezvousHandler};
//!
//! # async fn work(_: &Rendezvous) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = NativeSettings::new("etcd1:2379,etcd2:2379,etcd3:2379", "job42", 2, 4)?;
//! let node = NativeHandler::connect(settings).await?;
//! loop {
//!     let round = node.next_rendezvous().await?; // waits for at least 2 nodes, and for up to 4
//!     println!("rank {} of {}, meet at {:?}", round.rank, round.world_size, round.master);
//!     tokio::select! {
//!         () = work(&round) => break,
//!         change = node.changed() => println!("{change:?}"), // stop, and meet again
//!     }
//! }
//! node.set_closed(FINISHED).await?; // for all nodes; leave() goes alone
//! # Ok(())
//! # }
//! ```
//!
//! `examples/rendezvous.rs` is a whole program of this kind.
//!
//! - [`RendezvousHandler`]: what every backend does; [`Rendezvous`] is what a node gets from it.
//! - [`native`]: the backend `rallypoint`, on etcd v3.
//! - [`RendezvousParameters`]: what a backend is told, by name, as torchrun hands it over.
//! - [`Registry`]: the backends by name, open to those of other crates.
//! - [`EtcdBarrier`]: the backend `etcd`, which meets nodes that run PyTorch's code.
//! - [`backend`]: a record of state with a fencing token, for PyTorch's dynamic rendezvous.
//! - [`serve_metrics`]: what is counted, for Prometheus, and [`send_traces`]: rounds as traces, for OpenTelemetry. The
//!   [`Registry`] has every handler watched whose parameters ask for one of them.
//! - [`RendezvousError`]: what can go wrong, by kind.

pub mod backend;
mod barrier;
mod connecting;
mod error;
mod handler;
pub mod native;
mod observe;
mod parameters;
mod port;
mod progress;
mod registry;

pub use barrier::EtcdBarrier;
pub use connecting::connect_within;
pub use error::{RendezvousError, Result};
pub use handler::{
    Census, CloseOutcome, Contact, Exclusion, ExclusionOutcome, FINISHED, GroupChange, Master, Member,
    NODE_FINISHED, Rendezvous, RendezvousHandler, Standing, Whom, is_finish,
};
pub use observe::{observed, send_traces, serve_metrics};
pub use parameters::{HEALTH_OPTIONS, ParameterError, RendezvousParameters, seconds};
pub use port::HeldPort;
pub use progress::Progress;
pub use registry::{Creator, Registry};
/// What [`EtcdBarrier::store_extra_data`] takes.
pub use serde_json::Value;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
