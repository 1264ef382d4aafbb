//! The loop: meet, start the workers, watch them and the group, and meet again.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::{FINISHED, GroupChange, Rendezvous, RendezvousError, RendezvousHandler};
use rustix::process::Signal;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::budget::Budget;
use crate::decision::{Cause, Verdict};
use crate::error::AgentError;
use crate::events::{Events, WorkerEvent};
use crate::failure::{Failure, FailureReport};
use crate::fence::{Fence, Limits, Witness};
use crate::logs::Logs;
use crate::notice::{Board, Notice};
use crate::output::Console;
use crate::round;
use crate::server::ServerNode;
use crate::spec::WorkerSpec;
use crate::stop::StopListener;
use crate::words::{self, Reason};
use crate::workers::Workers;

/// For telling the others that this node leaves, when nothing depends on it any more.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// etcd did not say whether the other nodes have finished.
    pub without_word: bool,
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
    /// Its workers have finished; those of others may not have.
    Finishing {
        /// The nodes of the round.
        nodes: usize,
    },
    /// The workers of all nodes have finished. What those of this node have said last is on its way to where it goes.
    Writing,
    /// It is done.
    Ended,
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
    events: Option<Arc<dyn Events>>,
    adopts: bool,
    hosts_server: bool,
    asks_for_server: bool,
    /// The node with the server, where it is another one.
    server: watch::Sender<Option<ServerNode>>,
    budget: Budget,
    restarts: u32,
    rounds: u32,
    /// Answers other nodes' questions, from the first round with others on.
    witness: Option<Witness>,
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
        let budget = Budget::new(spec.max_restarts, spec.restarts_return_after);
        Agent {
            spec,
            handler,
            logs: Arc::new(logs),
            console,
            host,
            phase,
            workers: Workers::default(),
            events: None,
            adopts: false,
            hosts_server: false,
            asks_for_server: false,
            server: watch::Sender::new(None),
            budget,
            restarts: 0,
            rounds: 0,
            witness: None,
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

    /// What becomes of its workers is told there.
    #[must_use]
    pub fn with_events(mut self, events: Option<Arc<dyn Events>>) -> Self {
        self.events = events;
        self
    }

    /// Runs until all is done, or `stop` asks for the end. The workers are gone when it returns; so is this node
    /// from the run.
    pub async fn run(mut self, mut stop: StopListener) -> Result<Outcome, AgentError> {
        let ended = self.rounds(&mut stop).await;
        self.phase.send_replace(Phase::Ended);
        match &ended {
            // An etcd that does not answer cannot be told either. What this node has there ends with its lease.
            Ok(Outcome::Succeeded(success)) if success.without_word => {}
            Ok(Outcome::Succeeded(_)) => self.part(self.handler.shutdown(FINISHED), &mut stop).await,
            Ok(Outcome::Failed(report)) => {
                self.part(self.handler.shutdown(&report.in_short()), &mut stop).await;
            }
            Ok(Outcome::Left(_) | Outcome::Stopped(_)) | Err(_) if self.hosts_server => {
                let reason = format!("{} ended, and with it the server that the nodes had met on", self.host);
                self.part(self.handler.shutdown(&reason), &mut stop).await;
            }
            // The run goes on without this node.
            Ok(Outcome::Left(_) | Outcome::NotNeeded | Outcome::Closed { .. } | Outcome::Stopped(_))
            | Err(_) => {
                self.part(self.handler.leave(), &mut stop).await;
            }
        }
        ended
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

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    pub(crate) fn record(&self, events: &[WorkerEvent]) {
        if let Some(record) = &self.events {
            events.iter().for_each(|event| record.worker(event));
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

    /// What watches over a round of this node while etcd does not answer it.
    async fn fence(&mut self, met: &Rendezvous) -> Result<Fence, AgentError> {
        let timeout = self.spec.fence_timeout.unwrap_or_else(|| self.handler.time_to_notice());
        let limits = Limits { timeout, outage: self.spec.max_etcd_outage };
        let nobody_to_ask = met.world_size == 1 && limits.outage.is_none();
        if nobody_to_ask || timeout.is_zero() || self.handler.contact().is_none() {
            return Ok(Fence::none());
        }
        if self.witness.is_none() {
            self.witness = Witness::open(Arc::clone(&self.handler)).await.map_err(AgentError::Port)?;
        }
        let witness = self.witness.as_ref();
        Ok(witness.map_or_else(Fence::none, |witness| {
            Fence::start(witness, Arc::clone(&self.handler), met, limits)
        }))
    }

    /// Tells the others, which nothing depends on any more.
    async fn part<T: std::fmt::Debug>(&self, telling: impl Future<Output = T>, stop: &mut StopListener) {
        tokio::select! {
            told = tokio::time::timeout(LEAVE_TIMEOUT, telling) => debug!(?told, "the others were told"),
            () = stop.asked_again() => {}
        }
    }

    async fn rounds(&mut self, stop: &mut StopListener) -> Result<Outcome, AgentError> {
        // What failed first in the last round, for when somebody closes the run because of it.
        let mut cause = None;
        // Why that round is over.
        let mut why: Option<Reason> = None;
        // Where its nodes tell of failures.
        let mut board: Option<Board> = None;
        loop {
            self.phase.send_replace(Phase::Meeting);
            let progress = self.handler.progress();
            let met = tokio::select! {
                biased;
                signal = stop.asked() => return Ok(Outcome::Stopped(signal)),
                met = self.handler.next_rendezvous() => met,
            };
            let met = match met {
                Err(RendezvousError::Closed { reason, .. })
                    if reason == FINISHED && progress.borrow().spare =>
                {
                    return Ok(Outcome::NotNeeded);
                }
                Err(RendezvousError::Closed { reason, .. }) if cause.is_some() => {
                    return Ok(self.closed(reason, cause));
                }
                Err(error @ RendezvousError::Closed { .. }) => {
                    return self.closed_unheard(error, board).await;
                }
                Err(RendezvousError::NotMet { run_id, needed, here, after }) if here < needed => {
                    return Err(match why {
                        Some(why) => {
                            let why = why.with(&self.handler.lost(), here);
                            AgentError::NotAgain { run_id, why, needed, here, after }
                        }
                        None => RendezvousError::NotMet { run_id, needed, here, after }.into(),
                    });
                }
                Err(error @ RendezvousError::Connection { .. }) => {
                    let run_id = self.handler.run_id().to_owned();
                    return Err(match self.silent_server() {
                        Some(server) => AgentError::ServerGone { run_id, server, source: Box::new(error) },
                        None => error.into(),
                    });
                }
                met => met?,
            };
            self.rounds += 1;
            self.phase.send_replace(Phase::Starting);
            let fence = self.fence(&met).await?;
            let over = round::run(self, met, fence, stop).await?;
            board = Some(over.board);
            match over.verdict {
                Verdict::Succeed { without_word } => {
                    let (restarts, rounds) = (self.restarts, self.rounds);
                    let (workers, nodes) = (over.workers, over.nodes);
                    let success = Success { workers, nodes, restarts, rounds, without_word };
                    return Ok(Outcome::Succeeded(success));
                }
                Verdict::Regroup { cost, cause: regroup } => {
                    self.budget.charge(over.ran, cost);
                    self.restarts += cost;
                    let of_group =
                        matches!(regroup, Cause::Group(GroupChange::Died { .. } | GroupChange::Left { .. }));
                    let (words, report) = self.regroups(regroup, over.failures);
                    why = Some(Reason { words, of_group, nodes: over.nodes });
                    cause = report;
                }
                Verdict::Close => {
                    if let Some(report) = self.report(None, over.failures) {
                        return Ok(Outcome::Failed(Box::new(report.used_up(Some(self.spec.max_restarts)))));
                    }
                }
                Verdict::Leave => {
                    if let Some(report) = self.report(None, over.failures) {
                        return Ok(Outcome::Left(Box::new(report.used_up(Some(self.spec.max_restarts)))));
                    }
                }
                Verdict::Closed { reason, first } => {
                    return Ok(self.closed(reason, self.report(first, over.failures)));
                }
                Verdict::Stop(signal) => return Ok(Outcome::Stopped(signal)),
            }
        }
    }

    /// Says why the nodes meet again; that, and the report of the failure that is the cause, if it is one.
    fn regroups(&self, why: Cause, failures: Vec<Failure>) -> (String, Option<FailureReport>) {
        let words = match &why {
            Cause::Own => {
                let first = failures.iter().min_by_key(|failure| failure.moment());
                let words = first.map(Failure::in_short).unwrap_or_default();
                warn!(restarts = self.restarts, left = self.budget.left(), "{words}; starting again");
                let report = self.report(None, failures);
                return (words, report);
            }
            Cause::Other(notice) => {
                let words = notice.in_short();
                info!("{words}; {}", words::after(notice));
                words
            }
            Cause::Group(change) => {
                let words = words::change(change);
                info!("{words}; meeting again");
                words
            }
            Cause::CutOff(why) => {
                // Why was said when the workers were stopped.
                info!("the workers are stopped; this node meets the others again when etcd answers it");
                why.to_string()
            }
        };
        for failure in &failures {
            info!("{}, which followed from that", failure.in_short());
        }
        let report = match why {
            Cause::Other(notice) => self.report(Some(notice), failures),
            _ => None,
        };
        (words, report)
    }

    /// What failed first, on this node unless another told of it, and what followed here.
    fn report(&self, told: Option<Notice>, ours: Vec<Failure>) -> Option<FailureReport> {
        let used_up = told.as_ref().and_then(Notice::used_up);
        let own = || ours.iter().min_by_key(|failure| failure.moment()).cloned();
        let first = told.and_then(Notice::failure).or_else(own)?;
        Some(FailureReport::new(self.handler.run_id(), self.restarts, first, ours).used_up(used_up))
    }

    /// The run was closed before this node could meet the others again. One that was cut off has not been told of the
    /// failure that was the reason.
    async fn closed_unheard(
        &self,
        error: RendezvousError,
        board: Option<Board>,
    ) -> Result<Outcome, AgentError> {
        if let (Some(board), RendezvousError::Closed { reason, .. }) = (board, &error)
            && let Some(report) = board.said().await.and_then(|notice| self.report(Some(notice), Vec::new()))
            && report.in_short() == *reason
        {
            return Ok(Outcome::Failed(Box::new(report)));
        }
        Err(error.into())
    }

    /// The run was closed, because of that failure or for another reason.
    fn closed(&self, reason: String, cause: Option<FailureReport>) -> Outcome {
        match cause.filter(|report| report.in_short() == reason) {
            Some(report) => Outcome::Failed(Box::new(report)),
            None => Outcome::Closed { reason },
        }
    }
}
