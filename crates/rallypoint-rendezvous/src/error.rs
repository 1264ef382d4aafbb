//! What can go wrong, by kind, with the causes.

use std::error::Error as StdError;
use std::time::{Duration, SystemTime};

use rallypoint_core::Endpoints;
use rallypoint_core::text::{are, plain};
use rallypoint_core::time::millis;
use thiserror::Error;

use crate::parameters::ParameterError;

/// Result of a rendezvous operation.
pub type Result<T, E = RendezvousError> = std::result::Result<T, E>;

type Cause = Box<dyn StdError + Send + Sync>;

/// A rendezvous operation that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The run is over.
    #[error("run {run_id:?} is closed{}", because(.reason))]
    Closed {
        /// The run.
        run_id: String,
        /// Why, in the words of who closed it; empty where that is not known.
        reason: String,
    },
    /// No round was completed in time.
    #[error("run {run_id:?}: {}{}", not_met(*needed, *here, *after), and(.kept_out.as_deref()))]
    NotMet {
        /// The run.
        run_id: String,
        /// The least nodes of a round.
        needed: usize,
        /// Those that were there, as far as this node knows.
        here: usize,
        /// How long it waited.
        after: Duration,
        /// Who is excluded from the run, in words, if anybody is.
        kept_out: Option<String>,
    },
    /// Something else did not happen in time.
    #[error("run {run_id:?}: {what} did not happen within {after:?}")]
    Timeout {
        /// The run.
        run_id: String,
        /// What was waited for.
        what: String,
        /// For how long.
        after: Duration,
    },
    /// The etcd cannot be reached, or does not let us in.
    #[error("the connection to etcd at {endpoint} has failed: {source}")]
    Connection {
        /// The endpoints that were tried.
        endpoint: String,
        /// What became of it.
        source: Cause,
    },
    /// What stands in etcd is not what a rendezvous writes.
    #[error("run {run_id:?}: the state in etcd is corrupt: {problem}")]
    State {
        /// The run.
        run_id: String,
        /// What is wrong with it.
        problem: String,
        /// How that was found out.
        source: Option<Cause>,
    },
    /// This node's settings are not those of the run.
    #[error(
        "run {run_id:?} has {setting} {theirs}, this node has {ours}: start all nodes with the same settings"
    )]
    Mismatch {
        /// The run.
        run_id: String,
        /// The setting.
        setting: &'static str,
        /// This node's value.
        ours: String,
        /// The run's value.
        theirs: String,
    },
    /// Another process has taken this node's name, and with it its place.
    #[error(
        "run {run_id:?}: another process, at {by}, runs as node {node:?} now: give each process a name of its own"
    )]
    Replaced {
        /// The run.
        run_id: String,
        /// The name.
        node: String,
        /// Where the other process is.
        by: String,
    },
    /// This node is excluded from the run.
    #[error("run {run_id:?}: this node is excluded from the run, {}{}", until_then(*.until), because(.reason))]
    Excluded {
        /// The run.
        run_id: String,
        /// Why, in the words of who excluded it.
        reason: String,
        /// Until about when; none for as long as the run lives.
        until: Option<SystemTime>,
    },
    /// This node was told to leave while it waited.
    #[error("run {run_id:?}: this node leaves the rendezvous")]
    GracefulExit {
        /// The run.
        run_id: String,
    },
    /// This node has failed its health checks.
    #[error("run {run_id:?}: this node is not fit: {}", problems.join("; "))]
    Unhealthy {
        /// The run.
        run_id: String,
        /// What is wrong with it.
        problems: Vec<String>,
    },
    /// There is no port for the master on this node.
    #[error("{}", no_port(*port))]
    Port {
        /// The one that was asked for; 0 for any.
        port: u16,
        /// Why not.
        source: std::io::Error,
    },
    /// Settings that cannot work.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
}

fn no_port(wanted: u16) -> String {
    match wanted {
        0 => "no free port for the master".to_owned(),
        wanted => format!("the master port {wanted} cannot be had on this node"),
    }
}

impl RendezvousError {
    /// A failure of the connection to these servers.
    pub(crate) fn connection(endpoints: &Endpoints, source: impl Into<Cause>) -> Self {
        RendezvousError::Connection { endpoint: endpoints.to_string(), source: source.into() }
    }
}

fn not_met(needed: usize, here: usize, after: Duration) -> String {
    let (there, after) = (are(here, "node", "here"), after.as_secs_f64());
    if here < needed {
        format!("too few nodes: {}, and {there} after {after} s", are(needed, "node", "needed"))
    } else {
        format!("no round within {after} s, though {there} and that is enough")
    }
}

fn and(kept_out: Option<&str>) -> String {
    kept_out.map_or_else(String::new, |kept_out| format!("; {kept_out}"))
}

fn until_then(until: Option<SystemTime>) -> String {
    rallypoint_core::round::until(until.map(millis))
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {}", plain(reason)) }
}
