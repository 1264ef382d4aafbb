//! One round on one node: from the moment the nodes have met until they meet again, or never.

mod changes;
mod crew;
mod directly;
mod entrance;
mod finish;
mod fit;
mod settle;
mod start;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rallypoint_core::endpoint::host_and_port;
use rallypoint_core::round::What;
use rallypoint_rendezvous::{GroupChange, Rendezvous, RendezvousHandler, Whom};
use rallypoint_store::Store;
use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{info, warn};

use self::changes::next_change;
use crate::agent::Agent;
use crate::decision::{Cause, Decision, Event, Rules, Stage, Verdict};
use crate::descendants::Reaper;
use crate::environment::WorkerRanks;
use crate::error::AgentError;
use crate::failure::{Exit, Failure};
use crate::fence::Fence;
use crate::finish::server_gone;
use crate::group::Group;
use crate::hang::HangWatch;
use crate::notice::{Board, Notice};
use crate::phase::Phase;
use crate::preemption::{Deadline, Limit, Saving, Watch};
use crate::ranks::{IDENTICAL_VARIABLE, NodeWorkers};
use crate::server::{self, ServerNode};
use crate::serving::Serving;
use crate::stop::StopListener;
use crate::store_proxy::Entrance;
use crate::timeline::Keep;
use crate::words;
use crate::worker_store::ServedStore;

/// A change that was heard of is told again at once; nothing tells of the next one but asking again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A store that was lost is told of as a change of the group, but not always at once.
const LOSS_IS_TOLD: Duration = Duration::from_secs(5);
/// For etcd to take a failure before the others are told directly, too. No death is told so soon.
const FAILURE_TO_BE_TAKEN: Duration = Duration::from_millis(1500);
/// Workers that take longer to end are waited for with a word.
const LONG_STOP: Duration = Duration::from_secs(2);
/// For etcd to take it that this node leaves, when its workers are gone.
const TO_BE_TOLD: Duration = Duration::from_secs(1);

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
    /// This node is taken away.
    pub(crate) preempted: bool,
    /// When it has to be gone then, if that is known.
    pub(crate) deadline: Option<Deadline>,
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
    let mut served = ServedStore::open(&agent.spec().worker_store, &mut met)
        .map_err(|source| AgentError::WorkerStore { port, source })?;
    let board = Board::new(Arc::clone(&met.store), (met.rank, met.world_size));
    let rules = Rules {
        node: met.rank,
        restarts_left: agent.restarts_left_after(Duration::ZERO),
        when_exhausted: agent.spec().when_exhausted,
    };
    let mut round = Round {
        agent,
        number,
        board,
        rank: met.rank,
        nodes: met.world_size,
        run_store: met.run_store.take(),
        decision: Decision::new(rules),
        stop: stop.clone(),
        preemption: Watch::new(agent),
        heard: None,
        put_off: None,
        gone: BTreeSet::new(),
        goes_finished: false,
        told_by_etcd: true,
        serving: served.as_ref().map_or(Serving::Rank0, ServedStore::serving),
        entrance: Entrance::Master,
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
        preempted: false,
        deadline: None,
        board,
        fence,
        served,
    };
    if round.decision.verdict().is_none() {
        round.reach_each_other(&met, stop).await?;
    }
    if round.decision.verdict().is_none()
        && let Err(error) = round.enter_store(&met, served.as_ref(), stop).await
    {
        return Err(round.cannot_start(error, &fence).await);
    }
    if let Some(verdict) = round.decision.verdict() {
        fence.over(round.decision.is_known_to_be_over());
        return Ok(over(verdict.clone(), round.board, fence, served));
    }
    fence.ready(met.world_size).await;
    let Some(attempt) = round.files(places.len(), stop).await? else {
        let verdict = round.decision.verdict().cloned().unwrap_or(Verdict::Stop(Signal::TERM));
        fence.over(round.decision.is_known_to_be_over());
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
    match (&served, &round.entrance) {
        (Some(_), _) => ServedStore::make_room(workers, places.len()),
        (None, Entrance::Proxy(_)) => ServedStore::make_room(places.len(), places.len()),
        (None, _) => {}
    }
    round.crew(&met, &places);
    let mut group = match round.start(&met, &places, attempt, stop) {
        Ok(group) => group,
        Err(error) => return Err(round.cannot_start(error, &fence).await),
    };
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
        (met.rank, met.world_size, agent.name()),
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
    let failure = round.failure(first.as_ref());
    let signal =
        if let Some(Verdict::Stop(signal)) = round.decision.verdict() { *signal } else { Signal::TERM };
    let (signal, grace) = round.preemption.stops_by(signal, agent.spec().grace);
    let limit = Limit::new(agent.spec(), round.preemption.deadline(), stop);
    let why = failure.as_ref().map(Failure::in_short).or_else(|| round.why());
    let stops = if let Some(Verdict::Stop(signal)) = round.decision.verdict() { Some(*signal) } else { None };
    let (stopping, are_gone) = oneshot::channel::<()>();
    // The others are told while the workers end, not after. Who goes does not wait for long for an etcd that does not take it.
    let settle = async {
        let in_vain = async {
            let Some(signal) = stops else { return std::future::pending().await };
            let _ = are_gone.await;
            tokio::time::sleep(TO_BE_TOLD).await;
            signal
        };
        let reason = first.as_ref().map(Notice::in_short);
        let (verdict, untold) = tokio::select! {
            biased;
            settled = round.settle(first, &mut fence, stop) => settled,
            signal = limit.gone() => (Verdict::Stop(signal), None),
            signal = in_vain => (Verdict::Stop(signal), None),
        };
        if let (Verdict::Close, Some(reason)) = (&verdict, reason) {
            round.close(&reason, untold.is_some(), &fence).await;
        }
        (verdict, untold)
    };
    let ((verdict, untold), ()) = tokio::join!(settle, async {
        let before_stop = async {
            match failure {
                // Of that it is known what they do.
                Some(Failure { exit: Exit::Hung(_), .. }) => hangs.is_told().await,
                Some(failure) => hangs.before_stop(&format!("when {}", failure.in_short())).await,
                None => {}
            }
        };
        tokio::select! {
            () = before_stop => {}
            () = limit.kills() => {}
        }
        drop(hangs);
        let takes_long = async {
            tokio::time::sleep(LONG_STOP).await;
            let left = limit.until_kill(grace.saturating_sub(LONG_STOP));
            if !left.is_zero() && signal != Signal::KILL {
                info!("{}", words::stopping(why.as_deref(), left));
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            () = group.stop(signal, grace, limit.kills(), limit.gone()) => {}
            never = takes_long => match never {},
        }
        drop(stopping);
    },);
    let (preempted, deadline) = (round.preemption.is_own(), limit.now());
    round.preemption.over();
    let failures = round.failures(&group);
    agent.record(&group.ended(agent.restarts(), &failures));
    if let Some(served) = &mut served {
        served.retire().await;
    }
    let (nodes, board) = (met.world_size, round.board);
    Ok(Over {
        verdict,
        round: number,
        rank,
        nodes,
        workers,
        ran,
        failures,
        untold,
        preempted,
        deadline,
        board,
        fence,
        served,
    })
}

/// What is the same on all nodes of a round, one of them tells the run.
pub(crate) fn one_of_all(rank: usize) -> Keep {
    if rank == 0 { Keep::Run } else { Keep::Log }
}

struct Round<'a> {
    agent: &'a Agent,
    number: u64,
    board: Board,
    /// This node's place among so many.
    rank: usize,
    nodes: usize,
    run_store: Option<Arc<dyn Store>>,
    decision: Decision,
    /// For why the end was asked for.
    stop: StopListener,
    preemption: Watch<'a>,
    /// The last change of the group.
    heard: Option<GroupChange>,
    /// One that waits while workers save.
    put_off: Option<GroupChange>,
    /// Who is gone after it had finished: nobody misses them.
    gone: BTreeSet<usize>,
    /// This node's workers had finished when its end was asked for: nobody need know that it goes.
    goes_finished: bool,
    /// What other nodes told came through etcd, and not from themselves.
    told_by_etcd: bool,
    /// Who serves the store that the workers meet at: this node, or as the one with rank 0 says.
    serving: Serving,
    /// Where this node's workers find it.
    entrance: Entrance,
}

impl Round<'_> {
    fn handler(&self) -> &dyn RendezvousHandler {
        self.agent.handler()
    }

    /// What failed by itself on this node.
    fn failures(&self, group: &Group) -> Vec<Failure> {
        let mut failures = group.failures(self.agent.keeps_logs());
        for failure in failures.iter_mut().filter(|failure| self.serving.is_agent() && failure.hint.is_none())
        {
            failure.hint = ServedStore::hint(failure).or_else(|| self.entrance.hint());
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
            let machine = match self.handler().itself() {
                Some(Whom::Host(host)) => host,
                _ => agent.host().to_owned(),
            };
            let (node, host) = (met.rank, agent.name().to_owned());
            server::tell(run_store, &ServerNode { node, host, machine: Some(machine) }).await;
        }
        let identical = std::env::var(IDENTICAL_VARIABLE).is_ok_and(|value| value == "1");
        let event = tokio::select! {
            agreed = self.agree(met, &ours, identical) => match agreed {
                Ok((places, serving)) => {
                    self.serving = serving;
                    // Who has the server has said so by now.
                    if let Some(run_store) = run_store.as_deref().filter(|_| agent.asks_for_server()) {
                        agent.server_is_on(server::server_node(run_store).await);
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

    /// Waits for the first thing that ends the work.
    async fn work(
        &mut self,
        group: &mut Group,
        store: &dyn Store,
        fence: &mut Fence,
        hangs: &mut HangWatch,
        stop: &mut StopListener,
    ) -> Result<(), AgentError> {
        let mut orphans = Reaper::new(group.pids()).map_err(AgentError::Signals)?;
        let board = self.board.clone();
        let told = board.told();
        let (restarts_return, server_gone) = (restarts_return(self.agent), server_gone(self.agent));
        tokio::pin!(told, restarts_return, server_gone);
        while *self.decision.stage() == Stage::Working {
            let saving = self.preemption.saving();
            let saves_here = saving.as_ref().is_some_and(Saving::is_here);
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
                notice = &mut told, if !saves_here => Event::Notice(notice),
                change = next_change(self.agent.handler(), &self.gone, &mut self.heard, &mut self.put_off, saving) => {
                    if self.had_finished(&change, fence).await {
                        continue;
                    }
                    if self.preemption.lets_save(&change) {
                        // To be told again when they have.
                        self.heard = None;
                        continue;
                    }
                    self.with_reason(change, fence, stop).await
                }
                notice = fence.told(None), if !saves_here => {
                    self.told_by_etcd = false;
                    let why = if is_silent(self.agent) { "etcd does not answer" } else { "etcd has not taken it" };
                    warn!("{why}, and another node says: {}; stopping the workers", notice.in_short());
                    Event::Notice(notice)
                }
                why = fence.cut_off() => Event::CutOff(why),
                hanging = hangs.found() => {
                    group.hang(hanging);
                    continue;
                }
                never = &mut restarts_return => match never {},
                never = &mut server_gone => match never {},
                () = orphans.turn(), if self.agent.adopts() => continue,
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

    /// Why workers that did not fail are stopped, in words.
    fn why(&self) -> Option<String> {
        match self.decision.verdict() {
            Some(Verdict::Regroup { cause: Cause::Other(notice), .. }) => Some(notice.in_short()),
            _ => self.heard.as_ref().map(words::change),
        }
    }
}

/// Whether etcd does not answer this node.
fn is_silent(agent: &Agent) -> bool {
    agent.handler().contact().is_some_and(|contact| contact.is_silent())
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
