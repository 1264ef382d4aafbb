//! What Rallypoint counts and measures, for Prometheus.
//!
//! - [`Metrics`]: all of it, for one process. [`Etcd`], [`Rendezvous`], [`Workers`], [`WorkerStore`] and [`Store`] are its
//!   parts, each for the crate that counts there. A clone counts with the one it was cloned from. One that nobody exports
//!   costs an addition.
//! - [`Labelled`]: the values of one label, all there from the start, so that a rate has a zero to begin with.
//! - [`text`]: a registry in Prometheus' text format. [`process`]: what every process tells of itself.
//! - [`Listener`]: a small server that answers `GET /metrics` (feature `listen`).
//!
//! Names are `rallypoint_*`, in seconds and bytes. `docs/monitoring.md` lists them.

mod etcd;
mod labelled;
#[cfg(feature = "listen")]
mod listen;
#[cfg(feature = "listen")]
mod listen_address;
pub mod process;
mod rendezvous;
mod store;
pub mod text;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use etcd::Etcd;
pub use labelled::Labelled;
#[cfg(feature = "listen")]
pub use listen::{CannotListen, Listener};
#[cfg(feature = "listen")]
pub use listen_address::{BadListenAddress, ListenAddress};
/// The library, for those who have metrics of their own.
pub use prometheus_client;
use prometheus_client::registry::Registry;
pub use rendezvous::{Phase, Rendezvous};
pub use store::{Store, WorkerStore};
pub use workers::Workers;

/// What one process counts. Clones count together, and are equal.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Requests to etcd, leases and watches.
    pub etcd: Etcd,
    /// The run as this node sees it.
    pub rendezvous: Rendezvous,
    /// Operations on the stores of rounds, which are in etcd.
    pub store: Store,
    /// The store that the workers of a round meet at.
    pub worker_store: WorkerStore,
    /// This node's workers.
    pub workers: Workers,
    /// Whether this process has workers: under torchrun they are torchrun's.
    has_workers: Arc<AtomicBool>,
}

impl PartialEq for Metrics {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.has_workers, &other.has_workers)
    }
}

impl Eq for Metrics {}

impl Metrics {
    /// Says that this process starts workers, and so tells of them.
    pub fn tell_of_workers(&self) {
        self.has_workers.store(true, Ordering::Relaxed);
    }

    /// All that is counted, in Prometheus' text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut registry = Registry::default();
        process::register(&mut registry);
        self.rendezvous.register(&mut registry);
        if self.has_workers.load(Ordering::Relaxed) {
            self.workers.register(&mut registry);
        }
        self.etcd.register(&mut registry);
        self.store.register(&mut registry);
        self.worker_store.register(&mut registry);
        text::of(&registry)
    }
}

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
