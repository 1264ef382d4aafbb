//! One node of a run: what it is made of, and what its parts may know of it.

mod run;

use std::sync::Arc;
use std::time::Duration;

use rallypoint_metrics::Workers as Metrics;
use rallypoint_rendezvous::RendezvousHandler;
use rustix::process::Signal;
use tokio::sync::watch;

use crate::budget::Budget;
use crate::decision::CrashLoop;
use crate::events::{Events, WorkerEvent, WorkerState};
use crate::failure::FailureReport;
use crate::fence::Witness;
use crate::health::Health;
use crate::logs::Logs;
use crate::notice::{Board, Notice};
use crate::output::Console;
use crate::phase::Phase;
use crate::preemption::Deadline;
use crate::server::ServerNode;
use crate::spec::WorkerSpec;
use crate::timeline::Timeline;
use crate::workers::Workers;

/// How a run ended on this node.
#[derive(Debug)]
pub enum Outcome {
    /// The workers of all nodes have succeeded.
    Succeeded(Success),
    /// Workers have failed, here or on another node, and may not be started again.
    Failed(Box<FailureReport>),
    /// Workers of this node have failed and may not be started again. The others go on without it.
    Left(Box<FailureReport>),
    /// The run has ended well, and this node stood by as a spare.
    NotNeeded,
    /// The run has ended well, and this node did not pass its health checks meanwhile.
    StayedAway,
    /// The run was closed while the workers ran.
    Closed {
        /// Why, in the words of who closed it.
        reason: String,
    },
    /// The end was asked for.
    Stopped {
        /// By this signal.
        signal: Signal,
        /// What had failed on this node before, if something had.
        failure: Option<Box<FailureReport>>,
    },
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
    /// etcd did not say whether the other nodes have finished.
    pub without_word: bool,
}

/// One node of a run.
#[derive(Debug)]
pub struct Agent {
    spec: WorkerSpec,
    handler: Arc<dyn RendezvousHandler>,
    logs: Arc<Logs>,
    console: Arc<dyn Console>,
    host: String,
    phase: watch::Sender<Phase>,
    workers: Workers,
    timeline: Timeline,
    adopts: bool,
    hosts_server: bool,
    asks_for_server: bool,
    /// The node with the server, where it is another one.
    server: watch::Sender<Option<ServerNode>>,
    budget: Budget,
    restarts: u32,
    rounds: u32,
    /// The number of the last of them.
    last_round: u64,
    /// Answers other nodes' questions, from the first round with others on.
    witness: Option<Witness>,
    /// What failed here that the others could not be told of, and where it is told.
    untold: Option<(Board, Notice)>,
    /// As the handler has them.
    metrics: Metrics,
    health: Option<Health>,
    crash_loop: CrashLoop,
    /// When it has to be gone, if it is taken away.
    deadline: Option<Deadline>,
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
        let timeline = Timeline::new(Arc::clone(&handler), &host);
        let budget = Budget::new(spec.max_restarts, spec.restarts_return_after);
        Agent {
            spec,
            handler,
            logs: Arc::new(logs),
            console,
            host,
            phase,
            workers: Workers::default(),
            timeline,
            adopts: false,
            hosts_server: false,
            asks_for_server: false,
            server: watch::Sender::new(None),
            budget,
            restarts: 0,
            rounds: 0,
            last_round: 0,
            witness: None,
            untold: None,
            metrics: Metrics::default(),
            health: None,
            crash_loop: CrashLoop::default(),
            deadline: None,
        }
    }

    /// The nodes meet on a server that ends with this agent: nobody can go on without it, so when it ends the run is
    /// closed for all.
    #[must_use]
    pub fn hosting_server(mut self) -> Self {
        self.hosts_server = true;
        self
    }

    /// Also waits for processes that workers left behind and that became children of this one. Only for a program
    /// that starts no others: it would take their ends for itself.
    #[must_use]
    pub fn adopting_orphans(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// The server may be on another node: then that one says so, and it is asked for.
    #[must_use]
    pub fn asking_for_server(mut self) -> Self {
        self.asks_for_server = true;
        self
    }

    /// The other node that runs the server, once that is known.
    #[must_use]
    pub fn server(&self) -> watch::Receiver<Option<ServerNode>> {
        self.server.subscribe()
    }

    /// What it is doing.
    #[must_use]
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Its workers are to be found there, for those who pass signals on.
    #[must_use]
    pub fn with_workers(mut self, workers: Workers) -> Self {
        self.workers = workers;
        self
    }

    /// What becomes of its workers, and of this node, is told there.
    #[must_use]
    pub fn with_events(mut self, events: impl IntoIterator<Item = Arc<dyn Events>>) -> Self {
        events.into_iter().for_each(|log| self.timeline.also_to(log));
        self
    }

    /// Meets the others only while it passes these checks.
    #[must_use]
    pub fn with_health(mut self, health: Option<Health>) -> Self {
        self.health = health;
        self
    }

    pub(crate) fn health(&self) -> Option<&Health> {
        self.health.as_ref()
    }

    pub(crate) fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    pub(crate) fn handler(&self) -> &dyn RendezvousHandler {
        &*self.handler
    }

    pub(crate) fn logs(&self) -> &Arc<Logs> {
        &self.logs
    }

    pub(crate) fn console(&self) -> &Arc<dyn Console> {
        &self.console
    }

    /// The machine, as `hostname` says it.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// This node, as the others know it: several may be on one machine.
    pub(crate) fn name(&self) -> &str {
        self.handler.node_name().unwrap_or(&self.host)
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn record(&self, events: &[WorkerEvent]) {
        self.count(events);
        for log in self.timeline.logs() {
            events.iter().for_each(|event| log.worker(event));
        }
    }

    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    fn count(&self, events: &[WorkerEvent]) {
        let started = events.iter().filter(|event| event.state == WorkerState::Started).count();
        if started > 0 {
            self.metrics.started(started);
        }
        for event in events {
            match event.state {
                WorkerState::Started => {}
                WorkerState::Succeeded => self.metrics.ended("succeeded"),
                WorkerState::Failed => self.metrics.ended("failed"),
                WorkerState::Terminated => self.metrics.ended("terminated"),
            }
        }
    }

    pub(crate) fn adopts(&self) -> bool {
        self.adopts
    }

    pub(crate) fn hosts_server(&self) -> bool {
        self.hosts_server
    }

    pub(crate) fn asks_for_server(&self) -> bool {
        self.asks_for_server && !self.hosts_server
    }

    /// That the server is on this node, from now on.
    pub(crate) fn server_is_on(&self, node: Option<ServerNode>) {
        self.server.send_replace(node);
    }

    /// The other node that runs the server, if that is silent.
    pub(crate) fn silent_server(&self) -> Option<ServerNode> {
        let silent = self.handler.contact().is_some_and(|contact| contact.is_silent());
        self.server.borrow().clone().filter(|_| silent)
    }

    pub(crate) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// When restarts that were used are there again, if the workers of this round run for so long.
    pub(crate) fn restarts_return_in(&self) -> Option<Duration> {
        self.budget.returns_in()
    }

    /// Once the workers of this round have run for so long.
    pub(crate) fn restarts_left_after(&self, ran: Duration) -> u32 {
        self.budget.left_after(ran)
    }

    pub(crate) fn keeps_logs(&self) -> bool {
        self.logs.kept().is_some()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }
}
