//! Who serves the store that workers meet at.

use rallypoint_agent::WorkerStore;

/// Who serves the workers' store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreServer {
    /// This launcher: the store is there before the first worker, empty in every round, and outlives rank 0.
    Agent,
    /// The worker with rank 0.
    Rank0,
}

/// torchrun's switch for the same: with 1, its workers do not meet at its own store.
const NOT_SHARED: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

impl StoreServer {
    pub(crate) fn choose(given: Option<Self>) -> WorkerStore {
        match given {
            Some(StoreServer::Agent) => WorkerStore::Agent,
            Some(StoreServer::Rank0) => WorkerStore::Rank0,
            None if std::env::var(NOT_SHARED).is_ok_and(|value| value == "1") => WorkerStore::Rank0,
            None => WorkerStore::Agent,
        }
    }
}
