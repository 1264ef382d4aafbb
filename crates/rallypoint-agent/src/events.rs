//! What becomes of workers, for those who keep a record of it.

use rallypoint_core::round::EventRecord;

use crate::environment::WorkerRanks;
use crate::failure::Failure;

/// Keeps a record of what becomes of workers. It is called from where they are started and stopped, and must not wait.
pub trait Events: Send + Sync + std::fmt::Debug {
    /// A worker was started, or has ended.
    fn worker(&self, event: &WorkerEvent);

    /// Something happened to this node's part of the run.
    fn event(&self, event: &EventRecord) {
        let _ = event;
    }

    /// Nothing more comes: what is not written yet is waited for, for a moment.
    fn flush(&self) {}
}

/// What became of a worker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerEvent {
    /// Its state from now on.
    pub state: WorkerState,
    /// Which worker.
    pub place: WorkerRanks,
    /// Its process.
    pub pid: u32,
    /// How often this node's workers had been started again after a failure.
    pub restarts: u32,
    /// What went wrong, if it failed.
    pub failure: Option<Failure>,
}

/// The states of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// It runs.
    Started,
    /// It has ended well.
    Succeeded,
    /// It has ended by itself, and not well.
    Failed,
    /// It was told to end.
    Terminated,
}
