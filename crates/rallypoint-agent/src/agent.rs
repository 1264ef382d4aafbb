//! The loop: meet, start the workers, watch them and the group, and meet again.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::{GroupChange, Rendezvous, RendezvousError, RendezvousHandler};
use rallypoint_store::{Store, StoreError};
use rustix::process::Signal;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::descendants;
use crate::environment::{Common, DEFAULT_SIGNALS, NoGpu, Place, environment};
use crate::failure::{Failure, FailureReport};
use crate::group::{Finish, Group, Start};
use crate::guard::GUARD_VARIABLE;
use crate::logs::{LogError, Logs};
use crate::output::{Console, Prefix};
use crate::ranks::{IDENTICAL_VARIABLE, NodeWorkers, RankError, agree};
use crate::stop::StopListener;

/// How long workers have between SIGTERM and SIGKILL, as under torchrun.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Where the nodes of a round wait for each other's success, by torchrun's names: how many have come...
const ARRIVED: &[u8] = b"torchelastic/agent/terminal_state/num_members";
/// ...and that all have.
const PASSED: &[u8] = b"torchelastic/agent/terminal_state/last_member";
/// The reason of a run that ended well.
pub const FINISHED: &str = "all workers have finished";
/// A wait without end is made of waits of this length, since a store's waits have one.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// While this node has finished and others wait to get in, nothing tells of other changes but asking again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A store that was lost is told of as a change of the group, but not always at once.
const LOSS_IS_TOLD: Duration = Duration::from_secs(5);
/// For telling the others that this node leaves, when nothing depends on it any more.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What to run on this node, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerSpec {
    /// The program.
    pub program: OsString,
    /// Its arguments; `${local_rank}` in them is replaced.
    pub args: Vec<OsString>,
    /// The role of this node's workers.
    pub role: String,
    /// The number of workers on this node.
    pub local_world_size: usize,
    /// How often the workers may be started again after a failure.
    pub max_restarts: u32,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// The signals that workers are told about; see [`DEFAULT_SIGNALS`](crate::DEFAULT_SIGNALS).
    pub signals: String,
    /// Each worker sees one GPU, as the first.
    pub virtual_local_rank: bool,
    /// Set for workers beside what torchrun sets.
    pub environment: Vec<(&'static str, OsString)>,
    /// What stands before each of their lines.
    pub prefix: Prefix,
}

impl WorkerSpec {
    /// So many workers of a program, with torchrun's defaults.
    #[must_use]
    pub fn new(program: impl Into<OsString>, local_world_size: usize) -> Self {
        WorkerSpec {
            program: program.into(),
            args: Vec::new(),
            role: "default".to_owned(),
            local_world_size,
            max_restarts: 0,
            grace: DEFAULT_GRACE,
            signals: DEFAULT_SIGNALS.to_owned(),
            virtual_local_rank: false,
            environment: Vec::new(),
            prefix: Prefix::default(),
        }
    }
}

/// How a run ended on this node.
#[derive(Debug)]
pub enum Outcome {
    /// The workers of all nodes have succeeded.
    Succeeded(Success),
    /// This node's workers have failed too often.
    Failed(FailureReport),
    /// The run was closed while the workers ran.
    Closed {
        /// Why, in the words of who closed it.
        reason: String,
    },
    /// The end was asked for.
    Stopped(Signal),
}

/// The figures of a run that went well.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Success {
    /// The number of workers in the last round.
    pub workers: usize,
    /// The number of nodes in the last round.
    pub nodes: usize,
    /// How often this node's workers were started again after a failure.
    pub restarts: u32,
    /// The number of rounds this node was in.
    pub rounds: u32,
}

/// What the agent is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for others.
    Meeting,
    /// They have met; the workers are about to be started.
    Starting,
    /// Workers run.
    Running,
    /// Its workers have finished; those of others have not.
    Finishing,
    /// It is done.
    Ended,
}

/// Why an agent cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The nodes could not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The ranks of the workers could not be agreed upon.
    #[error("the ranks of the workers could not be agreed upon")]
    Ranks(#[from] RankError),
    /// The store failed where nodes wait for each other.
    #[error("the nodes could not wait for each other's success")]
    Store(#[from] StoreError),
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
    /// The system refuses something that every process may do.
    #[error("cannot watch for ended processes")]
    Signals(#[source] std::io::Error),
}

/// One node of a run.
#[derive(Debug)]
pub struct Agent {
    spec: WorkerSpec,
    handler: Arc<dyn RendezvousHandler>,
    logs: Logs,
    console: Arc<dyn Console>,
    host: String,
    phase: watch::Sender<Phase>,
    adopts: bool,
    restarts: u32,
    rounds: u32,
}

/// Why a round is over.
enum End {
    Succeeded,
    Failed,
    Changed(GroupChange),
    Asked(Signal),
}

/// A round that is over.
struct Round {
    end: End,
    nodes: usize,
    workers: usize,
    failures: Vec<Failure>,
}

impl Agent {
    /// An agent that meets the others through `handler`.
    #[must_use]
    pub fn new(
        spec: WorkerSpec,
        handler: Arc<dyn RendezvousHandler>,
        logs: Logs,
        console: Arc<dyn Console>,
    ) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let phase = watch::Sender::new(Phase::Meeting);
        Agent { spec, handler, logs, console, host, phase, adopts: false, restarts: 0, rounds: 0 }
    }

    /// Also waits for processes that workers left behind and that became children of this one. Only for a program
    /// that starts no others: it would take their ends for itself.
    #[must_use]
    pub fn adopting_orphans(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// What it is doing.
    #[must_use]
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Runs until all is done, or `stop` asks for the end. The workers are gone when it returns; so is this node
    /// from the run.
    pub async fn run(mut self, mut stop: StopListener) -> Result<Outcome, AgentError> {
        let ended = self.rounds(&mut stop).await;
        self.phase.send_replace(Phase::Ended);
        match &ended {
            Ok(Outcome::Succeeded(_)) => self.part(self.handler.shutdown(FINISHED), &mut stop).await,
            Ok(Outcome::Failed(report)) => {
                self.part(self.handler.shutdown(&report.in_short()), &mut stop).await;
            }
            // The run goes on without this node.
            Ok(Outcome::Closed { .. } | Outcome::Stopped(_)) | Err(_) => {
                self.part(self.handler.leave(), &mut stop).await;
            }
        }
        ended
    }

    /// Tells the others, which nothing depends on any more.
    async fn part<T: std::fmt::Debug>(&self, telling: impl Future<Output = T>, stop: &mut StopListener) {
        tokio::select! {
            told = tokio::time::timeout(LEAVE_TIMEOUT, telling) => debug!(?told, "the others were told"),
            () = stop.asked_again() => {}
        }
    }

    async fn rounds(&mut self, stop: &mut StopListener) -> Result<Outcome, AgentError> {
        loop {
            self.phase.send_replace(Phase::Meeting);
            let met = tokio::select! {
                biased;
                signal = stop.asked() => return Ok(Outcome::Stopped(signal)),
                met = self.handler.next_rendezvous() => met?,
            };
            self.rounds += 1;
            self.phase.send_replace(Phase::Starting);
            let Round { end, nodes, workers, failures } = self.round(met, stop).await?;
            match end {
                End::Succeeded => {
                    let (restarts, rounds) = (self.restarts, self.rounds);
                    return Ok(Outcome::Succeeded(Success { workers, nodes, restarts, rounds }));
                }
                End::Failed => {
                    let report = FailureReport::new(self.handler.run_id(), self.restarts, failures);
                    if self.restarts == self.spec.max_restarts {
                        return Ok(Outcome::Failed(report));
                    }
                    self.restarts += 1;
                    let left = self.spec.max_restarts - self.restarts;
                    warn!(restarts = self.restarts, left, "{}; starting again", report.in_short());
                }
                End::Changed(GroupChange::Closed { reason }) => return Ok(Outcome::Closed { reason }),
                End::Changed(change) => info!("{}; meeting again", describe(&change)),
                End::Asked(signal) => return Ok(Outcome::Stopped(signal)),
            }
        }
    }

    /// From the moment the nodes have met until they have to meet again, or never.
    async fn round(&self, mut met: Rendezvous, stop: &mut StopListener) -> Result<Round, AgentError> {
        let ours = NodeWorkers {
            role: self.spec.role.clone(),
            rank: met.rank,
            local_world_size: self.spec.local_world_size,
        };
        let identical = std::env::var(IDENTICAL_VARIABLE).is_ok_and(|value| value == "1");
        let over = |end| Round { end, nodes: met.world_size, workers: 0, failures: Vec::new() };
        let places = tokio::select! {
            places = agree(&*met.store, &ours, met.world_size, identical) => match places {
                Ok(places) => places,
                Err(error) => return self.or_change(error).await.map(over),
            },
            // A node that is gone says nothing any more.
            change = self.handler.changed() => return Ok(over(End::Changed(change))),
            signal = stop.asked() => return Ok(over(End::Asked(signal))),
        };
        let workers = places.first().map_or(0, |place| place.world_size);
        info!(
            round = met.round,
            node = met.rank,
            nodes = met.world_size,
            workers,
            master = format!("{}:{}", met.master.address, met.master.port),
            restarts = self.restarts,
            "starting workers"
        );
        // The worker with rank 0 listens there.
        drop(met.held_port.take());
        let mut group = self.start(&met, &places)?;
        self.phase.send_replace(Phase::Running);
        let mut end = self.watch(&mut group, stop).await?;
        if let End::Succeeded = end {
            self.phase.send_replace(Phase::Finishing);
            end = self.finish(&*met.store, met.world_size, stop).await?;
        }
        let signal = if let End::Asked(signal) = &end { *signal } else { Signal::TERM };
        group.stop(signal, self.spec.grace, stop.asked_again()).await;
        let failures = group.failures(self.logs.kept().is_some());
        Ok(Round { end, nodes: met.world_size, workers, failures })
    }

    fn start(&self, met: &Rendezvous, places: &[Place]) -> Result<Group, AgentError> {
        let spec = &self.spec;
        let attempt = self.logs.attempt(self.restarts, places.len())?;
        let common = Common {
            role: &spec.role,
            run_id: self.handler.run_id(),
            master_addr: &met.master.address,
            master_port: met.master.port,
            restart_count: self.restarts,
            max_restarts: spec.max_restarts,
            signals: &spec.signals,
            virtual_local_rank: spec.virtual_local_rank,
        };
        let mut starts = Vec::new();
        for (place, plan) in places.iter().zip(&attempt.plans) {
            let mut environment =
                environment(&common, place, &plan.error_file, |name| std::env::var_os(name))?;
            environment.extend(spec.environment.iter().cloned());
            let local_rank = place.local_rank.to_string();
            let args = spec.args.iter().map(|arg| match arg.to_str() {
                // Nothing else is: `$$` and the like belong to the program.
                Some(text) => text.replace("${local_rank}", &local_rank).into(),
                None => arg.clone(),
            });
            starts.push(Start {
                program: &spec.program,
                args: args.collect(),
                environment,
                without: &[GUARD_VARIABLE],
                place: place.clone(),
                prefix: spec.prefix.of(place, &spec.role, &self.host),
            });
        }
        Group::start(starts, attempt, self.logs.settings(), &self.console, &self.host)
            .map_err(|error| AgentError::Start { program: spec.program.clone(), source: error.source })
    }

    /// Waits for the first thing that ends the round.
    async fn watch(&self, group: &mut Group, stop: &mut StopListener) -> Result<End, AgentError> {
        let mut child_ended = signal(SignalKind::child()).map_err(AgentError::Signals)?;
        let known = group.pids();
        loop {
            tokio::select! {
                biased;
                signal = stop.asked() => return Ok(End::Asked(signal)),
                finish = group.finished() => return Ok(match finish {
                    Finish::Succeeded => End::Succeeded,
                    Finish::Failed => End::Failed,
                }),
                change = self.handler.changed() => return Ok(End::Changed(change)),
                _ = child_ended.recv(), if self.adopts => descendants::reap(&known),
            }
        }
    }

    /// The round's store has failed. Where etcd has lost it with the rest of the round, the nodes meet again.
    async fn or_change<E: Into<AgentError>>(&self, error: E) -> Result<End, AgentError> {
        match tokio::time::timeout(LOSS_IS_TOLD, self.handler.changed()).await {
            Ok(change) => Ok(End::Changed(change)),
            Err(_) => Err(error.into()),
        }
    }

    /// Waits until all nodes of the round have finished, so that nobody who still works misses anybody.
    async fn finish(
        &self,
        store: &dyn Store,
        nodes: usize,
        stop: &mut StopListener,
    ) -> Result<End, AgentError> {
        let barrier = barrier(store, nodes);
        tokio::pin!(barrier);
        loop {
            tokio::select! {
                biased;
                done = &mut barrier => return match done {
                    Ok(()) => Ok(End::Succeeded),
                    Err(error) => self.or_change(error).await,
                },
                signal = stop.asked() => return Ok(End::Asked(signal)),
                change = self.handler.changed() => match change {
                    // Whoever closed it so had passed the barrier, which needs all. torchrun gives no reason, and
                    // what it closed may be heard of before the end of the barrier is.
                    GroupChange::Closed { reason }
                        if reason == FINISHED || store.check(&[PASSED]).await.unwrap_or(false) =>
                    {
                        return Ok(End::Succeeded);
                    }
                    // They are in time for nothing, unless somebody who still works meets again.
                    GroupChange::Waiting { .. } => tokio::select! {
                        done = &mut barrier => return match done {
                            Ok(()) => Ok(End::Succeeded),
                            Err(error) => self.or_change(error).await,
                        },
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                    },
                    change => return Ok(End::Changed(change)),
                },
            }
        }
    }
}

/// The barrier of c10d, without a limit: work takes as long as it takes, and a node that dies is known.
async fn barrier(store: &dyn Store, nodes: usize) -> Result<(), StoreError> {
    let arrived = store.add(ARRIVED, 1).await?;
    if usize::try_from(arrived).is_ok_and(|arrived| arrived >= nodes) {
        store.set(PASSED, b"1").await?;
    }
    loop {
        match store.wait(&[PASSED], Some(LONG)).await {
            Err(StoreError::Timeout { .. }) => {}
            done => return done,
        }
    }
}

fn describe(change: &GroupChange) -> String {
    let who = |node: &str, rank: Option<usize>| match rank {
        Some(rank) => format!("node {rank} ({node})"),
        None => format!("node {node}"),
    };
    match change {
        GroupChange::Waiting { count } => format!("{count} more nodes wait to get in"),
        GroupChange::Died { node, rank } => format!("{} died", who(node, *rank)),
        GroupChange::Left { node, rank } => format!("{} left or meets again", who(node, *rank)),
        GroupChange::Closed { reason } => format!("the run is closed: {reason}"),
        GroupChange::Excluded => "this node lost its place".to_owned(),
        GroupChange::Replaced { by } => format!("another process, at {by}, has this node's name now"),
        GroupChange::StateLost => "etcd has lost what it had of this round".to_owned(),
        GroupChange::Corrupt { problem } => format!("the run's record cannot be read ({problem})"),
        other => format!("{other:?}"),
    }
}
