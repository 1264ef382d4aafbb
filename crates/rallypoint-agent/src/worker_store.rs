//! The store that the workers of a round meet at: the agent's of the node with rank 0, or that of rank 0's worker.
//!
//! Whoever is not rank 0 is a client of it either way. So only the node with rank 0 decides, and the others learn from it
//! what to tell their workers.

use std::io;

use rallypoint_rendezvous::{HeldPort, Rendezvous};
use rallypoint_store::{Store, StoreError};
use rallypoint_tcpstore::TcpStoreServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// In the round's store, where the agent with rank 0 serves the workers' store.
const SERVED: &[u8] = b"rallypoint/worker_store";
/// Open files beside those of the workers' connections: the launcher's own, and its workers' streams and files.
const OTHER_FILES: u64 = 128;
const FILES_PER_WORKER: u64 = 4;
/// A worker has one connection, and more where its program opens or clones stores of its own.
const CONNECTIONS_PER_WORKER: u64 = 4;

/// Who serves the store that workers meet at, where this node has rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStore {
    /// The agent: it is there before the first worker and outlives the last.
    Agent,
    /// The worker with rank 0.
    Rank0,
}

/// The workers' store of a round, served by this node. Dropped, it is gone.
#[derive(Debug)]
pub struct ServedStore {
    server: TcpStoreServer,
    /// The port at this machine's other addresses.
    held: Option<HeldPort>,
}

impl ServedStore {
    /// Serves the store of a round, where that is this node's part: at the master's address, on the port that the rendezvous
    /// has held until now. To be called in a tokio runtime.
    pub fn open(choice: WorkerStore, met: &mut Rendezvous) -> io::Result<Option<Self>> {
        if met.rank != 0 || choice == WorkerStore::Rank0 {
            return Ok(None);
        }
        let held = met.held_port.take().map_or_else(|| HeldPort::bind(met.master.port), Ok)?;
        let server = {
            let listener = held.listen(&met.master.address)?;
            TcpStoreServer::for_round_counting(listener, met.metrics.worker_store.clone())?
        };
        Ok(Some(ServedStore { server, held: Some(held) }))
    }

    /// Says in the round's store that this node serves. To be called before the others know that it is ready.
    pub async fn announce(store: &dyn Store) -> Result<(), StoreError> {
        store.set(SERVED, b"agent").await
    }

    /// Whether the node with rank 0 has said that it serves. To be called when that is known to be ready.
    pub async fn is_announced(store: &dyn Store) -> Result<bool, StoreError> {
        store.check(&[SERVED]).await
    }

    /// Sees to it that so many workers can be connected, of which these are this node's, as far as this process may.
    pub(crate) fn make_room(workers: usize, local: usize) {
        let needed = (workers as u64).saturating_mul(CONNECTIONS_PER_WORKER)
            + (local as u64).saturating_mul(FILES_PER_WORKER)
            + OTHER_FILES;
        let limit = getrlimit(Resource::Nofile);
        let wanted = needed.min(limit.maximum.unwrap_or(u64::MAX));
        if limit.current.is_some_and(|now| now < wanted) {
            // Where it fails, the workers may still be few enough.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
        }
    }

    /// What may be behind a failure: a program that does not use PyTorch finds its port taken.
    pub(crate) fn hint(failure: &Failure) -> Option<String> {
        let error = failure.error.iter().map(|error| error.message.as_str());
        let taken = |line: &str| {
            ["address already in use", "eaddrinuse"].iter().any(|words| line.to_lowercase().contains(words))
        };
        let is_taken = error.chain(failure.stderr.iter().map(String::as_str)).any(taken);
        (failure.rank == 0 && is_taken).then(|| {
            "the launcher serves the workers' store at MASTER_PORT; a program that listens there itself needs --worker-store rank0"
                .to_owned()
        })
    }

    /// The round is over on this node: nobody comes any more, and the port can be had again. Workers of other nodes, which
    /// may not have ended yet, can still read what is there, until this is dropped.
    pub async fn retire(&mut self) {
        self.held = None;
        self.server.close_port().await;
    }

    /// Ends it, and waits until it is gone.
    pub async fn stop(self) {
        drop(self.held);
        self.server.stop().await;
    }
}
