//! A node's agent: it meets the other nodes, starts this node's workers, watches them, and starts them again.
//!
//! What torchrun's agent does, for any program. Calls go down:
//!
//! - [`Agent`]: the loop. It is told to end through a [`Stopper`] and returns an [`Outcome`].
//! - `group`: the workers of one round, started and stopped together; each is a process group of its own.
//! - `output`, [`Logs`]: where their lines go. [`Console`] is the terminal, as the program above has it.
//! - [`FailureReport`]: what went wrong first.
//! - [`environment`] and [`StreamChoice`], `ranks`: what torchrun promises its workers, without IO but the store.
//! - [`guard`]: nothing outlives the launcher, even if it is killed; `descendants` finds what is left.

mod agent;
mod descendants;
mod environment;
mod failure;
mod group;
mod guard;
mod logs;
mod output;
mod ranks;
mod stop;
mod streams;
mod time;

pub use agent::{Agent, AgentError, FINISHED, Outcome, Phase, Success, WorkerSpec};
pub use environment::{Common, DEFAULT_SIGNALS, NoGpu, Place, environment};
pub use failure::{Ending, ErrorRecord, Failure, FailureReport};
pub use guard::{GUARD_VARIABLE, Guarded, Part, guard};
pub use logs::{LogDir, LogError, LogSettings, Logs};
pub use output::{Console, Prefix, Stream};
pub use ranks::{Assigned, IDENTICAL_VARIABLE, NodeWorkers, RankError, agree, assign};
pub use stop::{Stop, StopListener, Stopper};
pub use streams::{StreamChoice, StreamChoiceError, Streams};
