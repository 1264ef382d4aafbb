//! A node that is going to be taken away: its workers, and those of all others, get time to save.
//!
//! ```text
//!   a signal ─▶ [Watch] ─▶ its workers' files, and theirs on other nodes, by way of the round's store ([Board])
//!                  │
//!                  └─▶ the node leaves when all workers have said that they have saved, or at the deadline
//! ```
//!
//! It ends nothing by itself: the round goes on until the node leaves. A program that does not listen sees what it sees
//! without all this: the signal, at once.
//!
//! - `plan`: until when. Pure. `deadline`: the same by the clock, for all that the node does at its end.
//! - `saving`: what of the other nodes can wait for it. Pure.
//! - `record`: what nodes tell each other, and what a worker reads.
//! - `files`: the files by which this node and its workers tell each other.
//! - `board`: how the nodes of a round tell each other.
//! - `watch`: what a node does about all that in a round.

mod board;
mod deadline;
mod files;
mod plan;
mod record;
mod saving;
mod watch;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

pub(crate) use self::board::SavedBoard;
pub(crate) use self::deadline::{Deadline, Limit};
pub(crate) use self::files::Files;
pub(crate) use self::saving::Saving;
pub(crate) use self::watch::{Crew, Watch};

/// Names the file that tells a worker of preemptions, in its environment.
pub const PREEMPTION_FILE: &str = "RALLYPOINT_PREEMPTION_FILE";

/// What a node does when it, or another one, is going to be taken away.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PreemptionSettings {
    /// Where the files are kept by which workers are told. None: they are not.
    pub folder: Option<PathBuf>,
    /// The time from the signal until this node has to be gone. None: that from SIGTERM to SIGKILL, and only where a worker
    /// listens; a signal that does not ask for the end has [`job_end`](Self::job_end).
    pub grace: Option<Duration>,
    /// A signal for the workers that have a handler for it, when they are told.
    pub notify: Option<Signal>,
    /// When the scheduler takes this node away, where it says so.
    pub job_end: Option<SystemTime>,
}
