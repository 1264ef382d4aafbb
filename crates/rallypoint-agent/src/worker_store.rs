//! The store that the workers of a round meet at: the agent's of the node with rank 0, or that of rank 0's worker.
//!
//! Whoever is not rank 0 is a client of it either way. So only the node with rank 0 decides, and the others learn from it
//! what to tell their workers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rallypoint_rendezvous::{HeldPort, Rendezvous};
use rallypoint_tcpstore::{StoreTls, TcpStoreServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;
use crate::serving::{Invitation, Serving};

/// Open files beside those of the workers' connections: the launcher's own, and its workers' streams and files.
const OTHER_FILES: u64 = 128;
const FILES_PER_WORKER: u64 = 4;
/// A worker has one connection, and more where its program opens or clones stores of its own.
const CONNECTIONS_PER_WORKER: u64 = 4;

/// As many GPUs as nodes have.
const MOST_WORKERS_PER_NODE: usize = 16;

/// The open files that it takes to serve so many workers, of which these are this node's.
fn files(workers: usize, local: usize) -> u64 {
    (workers as u64)
        .saturating_mul(CONNECTIONS_PER_WORKER)
        .saturating_add((local as u64).saturating_mul(FILES_PER_WORKER))
        .saturating_add(OTHER_FILES)
}

/// Who serves the store that workers meet at, where this node has rank 0.
#[derive(Debug, Clone)]
pub enum WorkerStore {
    /// The agent: it is there before the first worker and outlives the last.
    Agent,
    /// The agent, and only agents connect to it from other nodes, each for its own workers; with TLS, or in the clear.
    Proxies(Option<StoreTls>),
    /// The worker with rank 0.
    Rank0,
}

/// The workers' store of a round, served by this node. Dropped, it is gone.
#[derive(Debug)]
pub struct ServedStore {
    server: TcpStoreServer,
    /// The port at this machine's other addresses.
    held: Option<HeldPort>,
    serving: Serving,
}

impl ServedStore {
    /// Serves the store of a round, where that is this node's part: at the master's address, on the port that the rendezvous
    /// has held until now. To be called in a tokio runtime.
    pub fn open(choice: &WorkerStore, met: &mut Rendezvous) -> io::Result<Option<Self>> {
        if met.rank != 0 || matches!(choice, WorkerStore::Rank0) {
            return Ok(None);
        }
        let held = met.held_port.take().map_or_else(|| HeldPort::bind(met.master.port), Ok)?;
        let listener = held.listen(&met.master.address)?;
        let metrics = met.metrics.worker_store.clone();
        let (server, serving) = if let WorkerStore::Proxies(tls) = choice {
            let invitation = Invitation::random(tls.as_ref())?;
            let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let server = TcpStoreServer::for_round_of_proxies(
                own,
                listener,
                invitation.secret,
                tls.as_ref(),
                metrics,
            )?;
            (server, Serving::Proxies(invitation))
        } else {
            (TcpStoreServer::for_round_counting(listener, metrics)?, Serving::Agent)
        };
        Ok(Some(ServedStore { server, held: Some(held), serving }))
    }

    /// What the other nodes are to be told of it, before they know that this one is ready.
    #[must_use]
    pub fn serving(&self) -> Serving {
        self.serving
    }

    /// Where workers of this node find it, if that is not where the others do.
    #[must_use]
    pub fn own_entrance(&self) -> Option<SocketAddr> {
        matches!(self.serving, Serving::Proxies(_)).then(|| self.server.local_addr())
    }

    /// Sees to it that so many workers can be connected, of which these are this node's, as far as this process may.
    pub(crate) fn make_room(workers: usize, local: usize) {
        let limit = getrlimit(Resource::Nofile);
        let wanted = files(workers, local).min(limit.maximum.unwrap_or(u64::MAX));
        if limit.current.is_some_and(|now| now < wanted) {
            // Where it fails, the workers may still be few enough.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
        }
    }

    /// The same for the workers of so many nodes, where nobody has said how many each has.
    pub fn make_room_for_nodes(nodes: usize) {
        ServedStore::make_room(nodes.saturating_mul(MOST_WORKERS_PER_NODE), MOST_WORKERS_PER_NODE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_workers_and_their_files() {
        assert_eq!(files(8, 8), 8 * 4 + 8 * 4 + 128);
        assert_eq!(files(10_000, 8), 40_160);
        assert_eq!(files(usize::MAX, 1), u64::MAX);
    }
}
