//! One round on one node: from the moment the nodes have met until they meet again, or never.

mod crew;
mod fit;
mod settle;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rallypoint_core::endpoint::host_and_port;
use rallypoint_core::round::What;
use rallypoint_core::time::bounded;
use rallypoint_rendezvous::{FINISHED, GroupChange, Rendezvous, RendezvousHandler};
use rallypoint_store::{Store, StoreError};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::agent::{Agent, Phase};
use crate::decision::{Decision, Event, Rules, Stage, Verdict};
use crate::descendants;
use crate::environment::{Common, WorkerRanks, environment};
use crate::error::AgentError;
use crate::failure::Failure;
use crate::fence::Fence;
use crate::finish::{PASSED, finished, server_gone, silent_for};
use crate::group::{Group, Start};
use crate::guard::GUARD_VARIABLE;
use crate::hang::HangWatch;
use crate::logs::Attempt;
use crate::notice::{Board, Notice};
use crate::preemption::{PREEMPTION_FILE, Watch};
use crate::progress::HEARTBEAT_VARIABLE;
use crate::ranks::{IDENTICAL_VARIABLE, NodeWorkers, RankError, agree};
use crate::server::{self, ServerNode};
use crate::stop::StopListener;
use crate::timeline::Keep;
use crate::words;
use crate::worker_store::{ServedStore, WorkerStore};

/// A change that was heard of is told again at once; nothing tells of the next one but asking again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A store that was lost is told of as a change of the group, but not always at once.
const LOSS_IS_TOLD: Duration = Duration::from_secs(5);
/// For a disk to open the workers' files before it is said that they are waited for.
const DISK_IS_SILENT: Duration = Duration::from_secs(10);

/// A round that is over on this node. Its workers are gone.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) verdict: Verdict,
    /// Its number, and this node's place in it.
    pub(crate) round: u64,
    pub(crate) rank: usize,
    pub(crate) nodes: usize,
    pub(crate) workers: usize,
    /// How long its workers ran.
    pub(crate) ran: Duration,
    /// What failed by itself on this node.
    pub(crate) failures: Vec<Failure>,
    /// What failed here first, where the others could not be told.
    pub(crate) untold: Option<Notice>,
    /// Where its nodes tell each other of failures.
    pub(crate) board: Board,
    /// And where they do while etcd is silent.
    pub(crate) fence: Fence,
    /// The store that its workers met at, where this node serves it.
    pub(crate) served: Option<ServedStore>,
}

/// Runs the workers of a round.
pub(crate) async fn run(
    agent: &Agent,
    mut met: Rendezvous,
    mut fence: Fence,
    stop: &mut StopListener,
) -> Result<Over, AgentError> {
    let (number, rank) = (met.round, met.rank);
    let entered = SystemTime::now();
    // Before the others know that this node is ready, and so before any worker of the round is started.
    let port = met.master.port;
    let mut served = ServedStore::open(agent.spec().worker_store, &mut met)
        .map_err(|source| AgentError::WorkerStore { port, source })?;
    let board = Board::new(Arc::clone(&met.store), met.world_size);
    let rules = Rules {
        node: met.rank,
        restarts_left: agent.restarts_left_after(Duration::ZERO),
        when_exhausted: agent.spec().when_exhausted,
    };
    let mut round = Round {
        agent,
        board,
        rank: met.rank,
        nodes: met.world_size,
        run_store: met.run_store.take(),
        decision: Decision::new(rules),
        preemption: Watch::new(agent),
        heard: None,
        told_by_etcd: true,
        agent_store: served.is_some(),
    };
    let places = round.places(&met, stop).await?;
    let workers = places.first().map_or(0, |place| place.world_size);
    // Before its workers are started.
    let over = |verdict, board, fence, served| Over {
        verdict,
        round: number,
        rank,
        nodes: met.world_size,
        workers,
        ran: Duration::ZERO,
        failures: Vec::new(),
        untold: None,
        board,
        fence,
        served,
    };
    if let Some(verdict) = round.decision.verdict() {
        return Ok(over(verdict.clone(), round.board, fence, served));
    }
    round.reach_each_other(&met, stop).await?;
    if let Some(verdict) = round.decision.verdict() {
        return Ok(over(verdict.clone(), round.board, fence, served));
    }
    fence.ready(met.world_size).await;
    let Some(attempt) = round.files(places.len(), stop).await? else {
        let verdict = round.decision.verdict().cloned().unwrap_or(Verdict::Stop(Signal::TERM));
        return Ok(over(verdict, round.board, fence, served));
    };
    info!(
        round = met.round,
        node = met.rank,
        nodes = met.world_size,
        workers,
        master = host_and_port(&met.master.address, met.master.port),
        restarts = agent.restarts(),
        "starting workers"
    );
    // If the agent does not, the worker with rank 0 listens there.
    drop(met.held_port.take());
    if served.is_some() {
        ServedStore::make_room(workers, places.len());
    }
    round.crew(&met, &places);
    let mut group = round.start(&met, &places, attempt, stop)?;
    round.preemption.started();
    agent.enter(Phase::Running);
    agent.record(&group.started(agent.restarts()));
    agent.timeline().note(one_of_all(met.rank), met.round, What::Working);
    let about = [("rallypoint.rank", met.rank.to_string()), ("rallypoint.workers", places.len().to_string())];
    met.trace.span("start workers", None, entered, SystemTime::now(), &about);
    let began = Instant::now();
    let mut hangs = HangWatch::start(
        &agent.spec().hang,
        group.subjects(agent.keeps_logs()),
        &*met.store,
        (met.rank, met.world_size, agent.host()),
        agent.workers(),
    );
    round.work(&mut group, &*met.store, &mut fence, &mut hangs, stop).await?;
    if matches!(round.decision.verdict(), Some(Verdict::Succeed { .. })) {
        agent.enter(Phase::Writing);
    }
    let ran = began.elapsed();
    round.decision.restarts_left(agent.restarts_left_after(ran));
    let first = round.failures(&group).into_iter().min_by_key(Failure::moment);
    let first = first.map(|failure| round.notice(failure));
    // Who asks whether the round is over is told why at once.
    round.news(first.as_ref()).into_iter().for_each(|notice| fence.tell(notice));
    fence.over(round.told_by_etcd && round.decision.is_known_to_be_over());
    let looks = round.failure(first.as_ref());
    let signal =
        if let Some(Verdict::Stop(signal)) = round.decision.verdict() { *signal } else { Signal::TERM };
    let (signal, grace) = round.preemption.stops_by(signal, agent.spec().grace);
    let mut asked_again = stop.clone();
    // The others are told while the workers end, not after.
    let ((verdict, untold), ()) = tokio::join!(round.settle(first, &mut fence, stop), async {
        // Of a hang it is known what they do.
        if let Some(why) = looks {
            hangs.before_stop(&why).await;
        }
        drop(hangs);
        group.stop(signal, grace, asked_again.asked_again()).await;
    },);
    round.preemption.over();
    let failures = round.failures(&group);
    agent.record(&group.ended(agent.restarts(), &failures));
    if let Some(served) = &mut served {
        served.retire().await;
    }
    let (nodes, board) = (met.world_size, round.board);
    Ok(Over { verdict, round: number, rank, nodes, workers, ran, failures, untold, board, fence, served })
}

/// What is the same on all nodes of a round, one of them tells the run.
pub(crate) fn one_of_all(rank: usize) -> Keep {
    if rank == 0 { Keep::Run } else { Keep::Log }
}

/// Files that are opened on another thread; dropped, they are not wanted any more.
#[derive(Debug, Default)]
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Round<'a> {
    agent: &'a Agent,
    board: Board,
    /// This node's place among so many.
    rank: usize,
    nodes: usize,
    run_store: Option<Arc<dyn Store>>,
    decision: Decision,
    preemption: Watch<'a>,
    /// The last change of the group.
    heard: Option<GroupChange>,
    /// What other nodes told came through etcd, and not from themselves.
    told_by_etcd: bool,
    /// An agent serves the store that the workers meet at: this one, or as the one with rank 0 says.
    agent_store: bool,
}

impl Round<'_> {
    fn handler(&self) -> &dyn RendezvousHandler {
        self.agent.handler()
    }

    /// What failed by itself on this node.
    fn failures(&self, group: &Group) -> Vec<Failure> {
        let mut failures = group.failures(self.agent.keeps_logs());
        for failure in failures.iter_mut().filter(|failure| self.agent_store && failure.hint.is_none()) {
            failure.hint = ServedStore::hint(failure);
        }
        failures
    }

    /// The ranks of this node's workers; none if the round is over before they are known.
    async fn places(
        &mut self,
        met: &Rendezvous,
        stop: &mut StopListener,
    ) -> Result<Vec<WorkerRanks>, AgentError> {
        let spec = self.agent.spec();
        let ours =
            NodeWorkers { role: spec.role.clone(), rank: met.rank, local_world_size: spec.local_world_size };
        let (agent, run_store) = (self.agent, self.run_store.clone());
        if let Some(run_store) = run_store.as_deref().filter(|_| agent.hosts_server()) {
            server::tell(run_store, &ServerNode { node: met.rank, host: agent.host().to_owned() }).await;
        }
        let identical = std::env::var(IDENTICAL_VARIABLE).is_ok_and(|value| value == "1");
        let event = tokio::select! {
            agreed = self.agree(met, &ours, identical) => match agreed {
                Ok((places, agent_store)) => {
                    self.agent_store = agent_store;
                    // Who has the server has said so by now.
                    if let Some(run_store) = run_store.as_deref().filter(|_| agent.asks_for_server()) {
                        agent.server_is_on(server::learn(run_store).await);
                    }
                    return Ok(places);
                }
                Err(error) => match self.loss().await {
                    Some(change) => Event::Changed(change),
                    None => return Err(error.into()),
                }
            },
            // A node that is gone says nothing any more.
            change = self.handler().changed() => Event::Changed(change),
            signal = stop.asked() => Event::Asked(signal),
        };
        self.decision.handle(event);
        Ok(Vec::new())
    }

    /// The ranks of this node's workers, and whether an agent serves the store that all workers meet at.
    async fn agree(
        &self,
        met: &Rendezvous,
        ours: &NodeWorkers,
        identical: bool,
    ) -> Result<(Vec<WorkerRanks>, bool), RankError> {
        let (store, alone) = (&*met.store, met.world_size == 1);
        if self.agent_store && !alone && !identical {
            ServedStore::announce(store).await?;
        }
        let places = agree(store, ours, met.world_size, identical).await?;
        let agent_store = if met.rank == 0 {
            self.agent_store
        } else if identical {
            // Nothing is asked, since all nodes are the same.
            self.agent.spec().worker_store == WorkerStore::Agent
        } else {
            ServedStore::is_announced(store).await?
        };
        Ok((places, agent_store))
    }

    /// The next change of the group that is not the last one again.
    async fn change(&mut self) -> GroupChange {
        next_change(self.agent.handler(), &mut self.heard, None).await
    }

    /// The round's store has failed. Where etcd has lost it with the rest of the round, the group is told.
    async fn loss(&self) -> Option<GroupChange> {
        tokio::time::timeout(LOSS_IS_TOLD, self.handler().changed()).await.ok()
    }

    /// Opens the workers' files. None if the round is over before the disk has answered.
    async fn files(
        &mut self,
        workers: usize,
        stop: &mut StopListener,
    ) -> Result<Option<Attempt>, AgentError> {
        let (logs, restarts) = (Arc::clone(self.agent.logs()), self.agent.restarts());
        let wanted = Wanted::default();
        let wants = wanted.0.clone();
        let wants = move || !wants.load(Ordering::Relaxed);
        let opening = tokio::task::spawn_blocking(move || logs.attempt(restarts, workers, wants));
        let silent = tokio::time::sleep(DISK_IS_SILENT);
        tokio::pin!(opening, silent);
        let mut told = false;
        while self.decision.verdict().is_none() {
            let event = tokio::select! {
                biased;
                opened = &mut opening => {
                    let opened = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                    return Ok(Some(opened?));
                }
                signal = stop.asked() => Event::Asked(signal),
                change = self.change() => Event::Changed(change),
                () = &mut silent, if !told => {
                    told = true;
                    warn!("the disk with the workers' log files does not answer; they are started when it does");
                    continue;
                }
            };
            self.decision.handle(event);
        }
        Ok(None)
    }

    /// Starts the workers. There may be many, and the end may be asked for before all are: then the rest is not.
    fn start(
        &self,
        met: &Rendezvous,
        places: &[WorkerRanks],
        attempt: Attempt,
        stop: &StopListener,
    ) -> Result<Group, AgentError> {
        let (agent, spec) = (self.agent, self.agent.spec());
        let common = Common {
            role: &spec.role,
            run_id: self.handler().run_id(),
            master_addr: &met.master.address,
            master_port: met.master.port,
            agent_store: self.agent_store,
            restart_count: agent.restarts(),
            max_restarts: spec.max_restarts,
            signals: &spec.signals,
            virtual_local_rank: spec.virtual_local_rank,
        };
        let mut starts = Vec::new();
        for (place, plan) in places.iter().zip(&attempt.plans).take_while(|_| !stop.is_asked()) {
            let mut environment =
                environment(&common, place, &plan.error_file, |name| std::env::var_os(name))?;
            let heartbeat = spec.hang.heartbeats.as_ref().and_then(|beats| {
                let file = beats.file(place.local_rank);
                let rank = place.rank;
                file.inspect_err(|error| {
                    warn!(
                        "rank {rank} has no place for its heartbeats, and is judged by its output: {error}"
                    );
                })
                .ok()
            });
            environment.extend(heartbeat.iter().map(|file| (HEARTBEAT_VARIABLE, file.into())));
            environment.extend(spec.environment.iter().cloned());
            let file = self.preemption.file(place.local_rank);
            environment.extend(file.map(|file| (PREEMPTION_FILE, file.into())));
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
                without: &[GUARD_VARIABLE, PREEMPTION_FILE],
                place: place.clone(),
                prefix: spec.prefix.of(place, &spec.role, agent.host()),
                cpus: spec.cpus.get(place.local_rank).cloned().unwrap_or_default(),
                interactive: spec.interactive.filter(|worker| worker.local_rank == place.local_rank),
                reads: spec.interactive.is_none(),
                metrics: agent.metrics().clone(),
                heartbeat,
            });
        }
        let (settings, console) = (agent.logs().settings(), agent.console());
        let asked = || stop.is_asked();
        Group::start(starts, attempt, settings, console, agent.host(), agent.workers(), asked)
            .map(|group| group.adopting(agent.adopts()))
            .map_err(|error| AgentError::Start { program: spec.program.clone(), source: error.source })
    }

    /// Waits for the first thing that ends the work.
    async fn work(
        &mut self,
        group: &mut Group,
        store: &dyn Store,
        fence: &mut Fence,
        hangs: &mut HangWatch,
        stop: &mut StopListener,
    ) -> Result<(), AgentError> {
        let mut child_ended = signal(SignalKind::child()).map_err(AgentError::Signals)?;
        let (known, board) = (group.pids(), self.board.clone());
        let told = board.told();
        let (restarts_return, server_gone) = (restarts_return(self.agent), server_gone(self.agent));
        tokio::pin!(told, restarts_return, server_gone);
        while *self.decision.stage() == Stage::Working {
            let saving = self.preemption.saves_until();
            let event = tokio::select! {
                biased;
                ends = self.preemption.turn(stop) => match ends {
                    Some(signal) => Event::Asked(signal),
                    None => continue,
                },
                finished = group.finished() => match self.preemption.ended(group, finished) {
                    Some(event) => event,
                    None => continue,
                },
                notice = &mut told => Event::Notice(notice),
                change = next_change(self.agent.handler(), &mut self.heard, saving) => self.with_reason(change, stop).await,
                notice = fence.told(None) => {
                    self.told_by_etcd = false;
                    warn!("etcd does not answer, and another node says: {}; stopping the workers", notice.in_short());
                    Event::Notice(notice)
                }
                why = fence.cut_off() => Event::CutOff(why),
                hanging = hangs.found() => {
                    group.hang(hanging);
                    continue;
                }
                never = &mut restarts_return => match never {},
                never = &mut server_gone => match never {},
                _ = child_ended.recv(), if self.agent.adopts() => {
                    descendants::reap(&known);
                    continue;
                }
            };
            if let Event::CutOff(why) = event {
                // Said before they are, as that may take a while.
                warn!("{why}; stopping the workers");
            }
            let event = self.preemption.means(event);
            self.decision.handle(event);
        }
        if *self.decision.stage() == Stage::Finishing {
            self.preemption.finished();
            self.agent.enter(Phase::Finishing { nodes: self.nodes });
            self.finish(store, fence, stop).await;
        }
        Ok(())
    }

    /// Waits until all nodes of the round have finished, so that nobody who still works misses anybody.
    async fn finish(&mut self, store: &dyn Store, fence: &Fence, stop: &mut StopListener) {
        let (board, nodes, agent) = (self.board.clone(), self.nodes, self.agent);
        let timeout = agent.spec().exit_barrier_timeout;
        let place = (self.rank, nodes);
        let (done, silent) = (finished(store, place, timeout), silent_for(agent.handler(), timeout));
        let told = board.told();
        tokio::pin!(done, silent, told);
        let began = Instant::now();
        // Once this node cannot tell its end: until then a change of the group may say why.
        let mut gives_up: Option<Instant> = None;
        let mut refusal: Option<StoreError> = None;
        while *self.decision.stage() == Stage::Finishing {
            let saving = self.preemption.saves_until();
            let event = tokio::select! {
                biased;
                done = &mut done, if gives_up.is_none() => match done {
                    Ok(()) => Event::AllSucceeded,
                    Err(error) => {
                        debug!(%error, "the end cannot be told");
                        if error.is_refusal() {
                            // For as long as that; that it renews the lease meanwhile does not help.
                            gives_up = Some(Instant::now());
                            refusal = Some(error);
                            continue;
                        }
                        let since = agent.handler().contact().map_or(began, |contact| contact.at.max(began));
                        let told = if error.is_silence() { Duration::ZERO } else { LOSS_IS_TOLD };
                        gives_up = Some((since + bounded(timeout)).max(Instant::now() + told));
                        continue;
                    }
                },
                () = &mut silent => self.no_word(None, fence, stop).await,
                () = tokio::time::sleep_until(gives_up.unwrap_or(began)), if gives_up.is_some() => {
                    self.no_word(refusal.as_ref(), fence, stop).await
                }
                ends = self.preemption.turn(stop) => match ends {
                    Some(signal) => Event::Asked(signal),
                    None => continue,
                },
                notice = &mut told => Event::Notice(notice),
                notice = fence.closed() => self.closed_by(notice),
                change = next_change(self.agent.handler(), &mut self.heard, saving) => match change {
                    // Whoever closed it so had passed the barrier, which needs all. torchrun gives no reason, and
                    // what it closed may be heard of before the end of the barrier is.
                    GroupChange::Closed { reason }
                        if reason == FINISHED || store.check(&[PASSED]).await.unwrap_or(false) =>
                    {
                        Event::AllSucceeded
                    }
                    change => self.with_reason(change, stop).await,
                },
            };
            self.decision.handle(event);
        }
    }

    /// A change of the group, or what was behind it: whoever leaves or meets again has said why before, which may be heard
    /// of later.
    async fn with_reason(&self, change: GroupChange, stop: &mut StopListener) -> Event {
        let GroupChange::Left { .. } = change else { return Event::Changed(change) };
        let said = tokio::select! {
            biased;
            _ = stop.asked() => None,
            said = self.board.said() => said,
        };
        said.map_or(Event::Changed(change), Event::Notice)
    }

    /// Nobody says whether the other nodes have finished, as etcd does not answer, or refuses to take note of this one's
    /// end. Those who can be reached are told of it.
    async fn no_word(&self, refusal: Option<&StoreError>, fence: &Fence, stop: &mut StopListener) -> Event {
        let seconds = self.agent.spec().exit_barrier_timeout.as_secs_f64();
        if let Some(refusal) = refusal {
            warn!(
                "this node's workers have finished; for {seconds} s etcd has refused to take note of it ({refusal}), and is not waited for any longer (--exit-barrier-timeout)"
            );
        } else if self.nodes == 1 {
            warn!(
                "the workers have finished; etcd has not renewed this node's lease for {seconds} s, and is not waited for any longer (--exit-barrier-timeout)"
            );
        } else {
            warn!(
                "this node's workers have finished; for {seconds} s etcd has not said whether those of other nodes have, and is not waited for any longer (--exit-barrier-timeout)"
            );
        }
        tokio::select! {
            () = fence.done() => {}
            _ = stop.asked() => {}
        }
        Event::NoWord
    }
}

/// The next change of the group that is not `heard`, the last one, again. Until workers have saved, nobody gets in.
async fn next_change(
    handler: &dyn RendezvousHandler,
    heard: &mut Option<GroupChange>,
    saving: Option<SystemTime>,
) -> GroupChange {
    loop {
        let change = handler.changed().await;
        let later = matches!(change, GroupChange::Waiting { .. })
            && saving.is_some_and(|until| SystemTime::now() < until);
        if !later && heard.as_ref() != Some(&change) {
            *heard = Some(change.clone());
            return change;
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Says that restarts are there again, at the moment when they are.
async fn restarts_return(agent: &Agent) -> Infallible {
    if let Some(after) = agent.restarts_return_in() {
        tokio::time::sleep(after).await;
        let seconds = agent.spec().restarts_return_after.unwrap_or_default().as_secs_f64();
        info!("{}", words::came_back(agent.spec().max_restarts, seconds));
    }
    std::future::pending().await
}
