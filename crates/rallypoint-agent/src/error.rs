//! Why an agent cannot go on.

use std::ffi::OsString;
use std::time::Duration;

use rallypoint_core::text::are;
use rallypoint_rendezvous::RendezvousError;
use thiserror::Error;

use crate::environment::NoGpu;
use crate::logs::LogError;
use crate::ranks::RankError;
use crate::server::ServerNode;
use crate::store_proxy::StoreProxyError;

/// Why an agent cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The nodes could not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// They had met, and too few came back.
    #[error("run {run_id:?}: {why}, and too few nodes are here to go on: {}, and {} after {} s{}",
        are(*needed, "node", "needed"), are(*here, "node", "here"), after.as_secs_f64(),
        kept_out.as_ref().map_or_else(String::new, |kept_out| format!("; {kept_out}")))]
    NotAgain {
        /// The run.
        run_id: String,
        /// Why they had to meet again.
        why: String,
        /// The least nodes of a round.
        needed: usize,
        /// Those that are there.
        here: usize,
        /// How long this node waited.
        after: Duration,
        /// Who is kept out of the run, in words, if anybody is.
        kept_out: Option<String>,
    },
    /// The node that ran the server is gone, and the server with it.
    #[error(
        "run {run_id:?}: {}the server that the nodes had met on ran on {server}, and does not answer any more: that node has died, or cannot be reached ({source})",
        cause.as_ref().map_or_else(String::new, |cause| format!("{cause}, and after that "))
    )]
    ServerGone {
        /// The run.
        run_id: String,
        /// What had failed before, if something had.
        cause: Option<String>,
        /// The node.
        server: ServerNode,
        /// What was found at the endpoint.
        source: Box<RendezvousError>,
    },
    /// They had met, and etcd does not answer any more.
    #[error("run {run_id:?}: {why}, and the nodes cannot meet again: {source}")]
    Unreachable {
        /// The run.
        run_id: String,
        /// Why they had to meet again.
        why: String,
        /// What was found at the endpoint.
        source: Box<RendezvousError>,
    },
    /// The ranks of the workers could not be agreed upon.
    #[error("the ranks of the workers could not be agreed upon")]
    Ranks(#[from] RankError),
    /// A log file cannot be written.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// A worker would have no GPU.
    #[error(transparent)]
    Gpu(#[from] NoGpu),
    /// The program cannot be started.
    #[error("cannot start {program:?}: check that it exists, is executable, and is on PATH")]
    Start {
        /// The program.
        program: OsString,
        /// Why not.
        source: std::io::Error,
    },
    /// There is no port where other nodes could ask.
    #[error("no port for the questions of other nodes: check --local-addr, and that ports are free")]
    Port(#[source] std::io::Error),
    /// The store that the workers meet at cannot be served.
    #[error("cannot serve the store that the workers meet at, on port {port}")]
    WorkerStore {
        /// The port.
        port: u16,
        /// Why not.
        source: std::io::Error,
    },
    /// This node's workers would not get to the store that they meet at.
    #[error(transparent)]
    StoreProxy(#[from] StoreProxyError),
    /// The system refuses something that every process may do.
    #[error("cannot watch for ended processes")]
    Signals(#[source] std::io::Error),
}

impl AgentError {
    /// Whether another process has this node's place now.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        matches!(self, AgentError::Rendezvous(RendezvousError::Replaced { .. }))
    }
}
