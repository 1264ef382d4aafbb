//! A node's agent: it meets the other nodes, starts this node's workers, watches them, and starts them again.
//!
//! What torchrun's agent does, for any program.
//!
//! ```no_run
//! # async fn example(console: std::sync::Arc<dyn rallypoint_agent::Console>) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use rallypoint_agent::{Agent, LogDir, LogSettings, Logs, Outcome, Stopper, WorkerSpec};
//! use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
//!
//! let node = NativeHandler::connect(NativeSettings::new("etcd1:2379", "job42", 2, 4)?).await?;
//! let logs = Logs::open(LogSettings::console(LogDir::temporary()), "job42")?;
//! let stopper = Stopper::default();
//! let spec = WorkerSpec::new("./train", 8);
//! match Agent::new(spec, Arc::new(node), logs, console).run(stopper.listen()).await? {
//!     Outcome::Succeeded(figures) => println!("{} workers have finished", figures.workers),
//!     outcome => println!("{outcome:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Calls go down:
//!
//! - [`Agent`]: the loop. It is told to end through a [`Stopper`] and returns an [`Outcome`].
//! - `decision`: what to do when something happens, and what it costs. `round`: what happens in one round, and how that
//!   is done. `notice`: how nodes tell each other of failures. `fence`: how a node that is cut off from etcd learns
//!   that its round is over. `preemption`: a node that is taken away, and the time to save. `budget`: the restarts that are left. `words`: what is said of it.
//! - [`Health`]: a node that is not fit does not meet the others; `reachability`: nor do those that cannot reach each other.
//! - `hang`: who stopped first, where none makes progress, and what workers do. `progress`: their signs of it.
//! - `group`: the workers of one round, started and stopped together; each is a process group of its own.
//! - [`ServedStore`]: where the workers meet, served by the agent with rank 0 or by rank 0's worker. [`Serving`]: how workers get there.
//! - [`Workers`]: those that run, for who passes signals on.
//! - `output`, `log_file`, [`Logs`]: where their lines go. [`Console`] is the terminal, as the program above has it.
//! - [`FailureReport`]: what went wrong first. [`Events`]: a record of what became of each worker.
//!   `timeline`: what the run and this node's own log ([`EventFile`]) keep of what happened.
//! - [`environment`] and [`StreamChoice`], `ranks`: what torchrun promises its workers, without IO but the store.
//! - [`guard()`]: nothing outlives the launcher, even if it is killed; `descendants` finds what is left.

mod affinity;
mod agent;
mod budget;
mod decision;
mod descendants;
pub mod disk;
mod drain;
mod environment;
mod error;
mod event_file;
mod events;
mod exclude;
mod failure;
mod fence;
mod finish;
mod group;
mod guard;
mod hang;
mod health;
mod log_file;
mod logs;
mod memory;
mod notice;
mod output;
mod patience;
mod phase;
mod preemption;
mod prefix;
mod progress;
mod ranks;
mod round;
mod round_board;
mod server;
mod serving;
mod signals;
mod spec;
mod stop;
mod store_proxy;
mod streams;
pub mod temporary;
mod time;
mod timeline;
mod words;
mod worker_store;
mod workers;

pub use affinity::allowed_cpus;
pub use agent::{Agent, Outcome, Success};
pub use decision::{DEFAULT_HUNG_ROUNDS, FailedRounds, WhenExhausted};
pub use environment::{Common, DEFAULT_SIGNALS, NoGpu, WorkerRanks, environment};
pub use error::AgentError;
pub use event_file::EventFile;
pub use events::{Events, WorkerEvent, WorkerState};
pub use failure::{ErrorRecord, Exit, Failure, FailureReport};
pub use group::Interactive;
pub use guard::{GUARD_VARIABLE, Guarded, Orders, Part, announce, arguments, guard};
pub use hang::{Answer, HangSpec, Hanging, LookBefore, Worker, WorkerState as InquiredState, ask_stacks};
pub use health::reachability::{Nodes, Unreachable, unreachable};
pub use health::settings::{HealthSettings, list as list_of_checks};
pub use health::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, Health, WhenUnhealthy};
pub use logs::{LogDir, LogError, LogSettings, Logs};
pub use output::{Console, Stream};
pub use phase::Phase;
pub use preemption::{PREEMPTION_FILE, PreemptionSettings};
pub use prefix::{Prefix, UnknownMacro};
pub use progress::{HEARTBEAT_VARIABLE, Heartbeats, Sign};
/// The checks of a node's health.
pub use rallypoint_health as checks;
/// The reason of a run that ended well.
pub use rallypoint_rendezvous::FINISHED;
/// For what agents of one round say to each other on behalf of their workers.
pub use rallypoint_tcpstore::{ProxyError, StoreProxy, StoreTls, TlsError};
pub use ranks::{Assigned, IDENTICAL_VARIABLE, NodeWorkers, RankError, agree, assign};
pub use round_board::{Finish, RoundBoard};
/// What [`Stopper::ask`] takes, and [`Outcome::Stopped`] tells.
pub use rustix::process::Signal;
pub use server::{SERVER_ENDED, ServerNode, server_node};
pub use serving::{Invitation, Serving};
pub use signals::{AT_ONCE, KNOWN_SIGNALS, UnknownSignal, is_ignored, outlive_file_limit, parse_signals};
pub use spec::{DEFAULT_EXIT_BARRIER_TIMEOUT, DEFAULT_GRACE, DEFAULT_MAX_DEPARTURES, WorkerSpec};
pub use stop::{Stop, StopListener, Stopper, Stuck, Warning};
pub use store_proxy::StoreProxyError;
pub use streams::{StreamChoice, StreamChoiceError, Streams};
pub use time::rfc3339;
pub use words::{change as describe_change, gone};
pub use worker_store::{ServedStore, WorkerStore};
pub use workers::Workers;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
