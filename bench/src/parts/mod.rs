//! What is measured, part by part. What each part means and how to read it is in `bench/notes`.

pub(crate) mod again;
pub(crate) mod agents;
mod at_work;
pub(crate) mod contender;
pub(crate) mod formation;
pub(crate) mod gateway;
pub(crate) mod health;
pub(crate) mod launcher;
pub(crate) mod restarts;
pub(crate) mod scale;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod worker_store;

/// A part, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// Forming a group, from 2 to 256 processes
    Formation,
    /// Forming a group, from 10 to 10,000 nodes as tasks, beside the floor of etcd; at rest; half of it dead
    Scale,
    /// Meeting again after a node has left or was killed
    Again,
    /// Agents of torchrun, with our backend and PyTorch's own
    Agents,
    /// The Store: set, get, add and wait
    Store,
    /// The embedded server beside a real etcd
    Server,
    /// A gateway beside the v2 API of etcd 3.4
    Gateway,
    /// `rallypoint run` beside torchrun: start and memory
    Launcher,
    /// The store that workers meet at, beside PyTorch's own
    WorkerStore,
    /// Workers that fail once, under `rallypoint run` and under torchrun
    Restarts,
    /// Heartbeats, and the checks of a node when it starts
    Health,
}

impl Which {
    pub(crate) const ALL: [Which; 11] = [
        Which::Formation,
        Which::Scale,
        Which::Again,
        Which::Agents,
        Which::Store,
        Which::Server,
        Which::Gateway,
        Which::Launcher,
        Which::WorkerStore,
        Which::Restarts,
        Which::Health,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Which::Formation => "formation",
            Which::Scale => "scale",
            Which::Again => "again",
            Which::Agents => "agents",
            Which::Store => "store",
            Which::Server => "server",
            Which::Gateway => "gateway",
            Which::Launcher => "launcher",
            Which::WorkerStore => "worker-store",
            Which::Restarts => "restarts",
            Which::Health => "health",
        }
    }
}
