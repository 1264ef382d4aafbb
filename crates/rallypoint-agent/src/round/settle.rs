//! When a round is over on this node: what came first, with the other nodes, and what that leads to.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rallypoint_core::round::What;
use rallypoint_core::time::bounded;
use rallypoint_rendezvous::{GroupChange, Whom};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::changes::gone;
use super::directly::{pass_on_answers, say, say_within};
use super::{ASK_AGAIN, FAILURE_TO_BE_TAKEN, LOSS_IS_TOLD, Round};
use crate::agent::Agent;
use crate::decision::{Cause, Event, ServerIs, Stage, Verdict, WhenExhausted, may_leave};
use crate::error::AgentError;
use crate::exclude::{exclude, without};
use crate::failure::Failure;
use crate::fence::Fence;
use crate::notice::{Leaving, Notice, Restarts};
use crate::stop::StopListener;
use crate::timeline::Keep;
use crate::words;

/// How many nodes have left the run because their restarts were used up.
const DEPARTURES: &[u8] = b"departures";
/// The node that serves the store that the workers meet at.
const STORE: usize = 0;
/// For nodes whose leases have ended while etcd was away to come back.
const TO_COME_BACK: Duration = Duration::from_secs(8);
/// Whoever waits for longer for the others is told so.
const LONG: Duration = Duration::from_secs(3);
/// For a node that etcd has given up to answer directly.
const TO_ANSWER: Duration = Duration::from_millis(1500);

impl Round<'_> {
    /// What this node tells the others of a failure of its own.
    pub(super) fn notice(&self, failure: Failure) -> Notice {
        let rules = self.decision.rules();
        let restarts = Restarts {
            left: rules.restarts_left,
            max: self.agent.spec().max_restarts,
            leaves: rules.when_exhausted != WhenExhausted::Close,
        };
        Notice::failed(rules.node, failure, Some(restarts))
    }

    /// All that this node knows of the reason why its round is over; `own` happened here.
    pub(super) fn news(&self, own: Option<&Notice>) -> Vec<Notice> {
        let told = match self.decision.stage() {
            Stage::Settling { first } => first.clone(),
            Stage::Over(Verdict::Regroup { cause: Cause::Other(notice), .. }) => Some(notice.clone()),
            Stage::Over(Verdict::Stop(signal)) if !self.goes_finished => Some(self.leave(*signal)),
            _ => None,
        };
        own.cloned().into_iter().chain(told).collect()
    }

    /// What failed first, where that is why the round is over; `own` failed here.
    pub(super) fn failure(&self, own: Option<&Notice>) -> Option<Failure> {
        self.news(own).into_iter().filter_map(Notice::failure).min_by_key(Failure::moment)
    }

    fn leave(&self, signal: Signal) -> Notice {
        let why = match self.stop.stuck() {
            Some(stuck) => Leaving::Stuck(stuck),
            None if signal == Signal::KILL => Leaving::Killed,
            None if self.preemption.is_own() => Leaving::Preempted,
            None => Leaving::Asked,
        };
        Notice::leaves(self.decision.rules().node, self.agent.name(), why)
    }

    /// What this node tells the others before its workers are gone, where none of them failed: theirs may fail with those.
    /// Of a death they are told anyway, and who left has said why.
    fn goes(&self) -> Option<Notice> {
        if self.goes_finished {
            return None;
        }
        let regroups = |why| Some(Notice::regroups(self.decision.rules().node, self.agent.name(), why));
        match self.decision.stage() {
            Stage::Over(Verdict::Stop(signal)) => Some(self.leave(*signal)),
            Stage::Over(Verdict::Regroup {
                cause: Cause::Group(change @ GroupChange::Waiting { .. }),
                ..
            }) => regroups(words::change(change)),
            Stage::Unable { why } => regroups(format!("this node ends: {why}")),
            _ => None,
        }
    }

    /// Tells the others why this node goes, if that is so.
    async fn say_goodbye(&self, fence: &Fence) {
        if let Some(notice) = self.goes() {
            self.tell_all(&notice, fence).await;
        }
    }

    /// Why this node cannot start its workers, which it has told the others before it leaves them.
    pub(super) async fn cannot_start(&mut self, error: AgentError, fence: &Fence) -> AgentError {
        let why = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        self.decision.handle(Event::CannotStart(why));
        self.say_goodbye(fence).await;
        error
    }

    /// Whether etcd has answered this node since that failed here.
    fn has_answered_since(&self, own: &Notice) -> bool {
        let answered =
            self.handler().contact().and_then(|contact| SystemTime::now().checked_sub(contact.at.elapsed()));
        answered.is_some_and(|answered| answered >= own.at)
    }

    /// Another node has closed the run, because of that, and could not say so through etcd.
    pub(super) fn closed_by(&mut self, notice: Notice) -> Event {
        let reason = notice.in_short();
        self.decision.handle(Event::Notice(notice));
        Event::Changed(GroupChange::Closed { reason })
    }

    /// Finds out, with the other nodes, what came first; `own` did here. And gives that back, if they could not be told.
    pub(super) async fn settle(
        &mut self,
        own: Option<Notice>,
        fence: &mut Fence,
        stop: &mut StopListener,
    ) -> (Verdict, Option<Notice>) {
        let told = AtomicBool::new(false);
        let verdict = self.find_out(own.as_ref(), &told, fence, stop).await;
        (verdict, own.filter(|_| !told.load(Ordering::Relaxed)))
    }

    /// Closes the run, for this reason, while the workers of this node may take long to end: the others could meet again
    /// without it, and go on. Where etcd has not taken the reason itself, they are told directly.
    pub(super) async fn close(&self, reason: &str, is_untold: bool, fence: &Fence) {
        if is_untold {
            fence.spread_close().await;
            return;
        }
        let closed = tokio::time::timeout(LOSS_IS_TOLD, self.handler().set_closed(reason)).await;
        debug!(?closed, "the run is closed");
    }

    async fn find_out(
        &mut self,
        own: Option<&Notice>,
        own_is_told: &AtomicBool,
        fence: &mut Fence,
        stop: &mut StopListener,
    ) -> Verdict {
        let (agent, board, fence) = (self.agent, self.board.clone(), &*fence);
        // What fails after that node is gone may fail because of that, though it had finished: it served the workers' store.
        let without_store = self.gone.remove(&STORE);
        if without_store {
            self.heard = None;
        }
        let had_finished = self.gone.clone();
        if let Some(Verdict::Stop(Signal::KILL)) = self.decision.verdict()
            && self.stop.stuck().is_none()
        {
            // The others see that it leaves in good order. Nobody else can tell the run why.
            self.agent.timeline().note(Keep::Run, self.number, What::Killed { rank: self.rank });
        }
        self.say_goodbye(fence).await;
        // What another told through etcd was told while that was there.
        let was_there =
            self.told_by_etcd && matches!(self.decision.stage(), Stage::Settling { first: Some(_) });
        let contact = self.handler().contact();
        let (answered, is_taken, rank) = (AtomicBool::new(false), AtomicBool::new(false), self.rank);
        // What another could tell only directly.
        let told_directly = match self.decision.stage() {
            Stage::Settling { first: Some(notice) } if !self.told_by_etcd => Some(notice.clone()),
            _ => None,
        };
        // Others may wait for the answer of this node.
        let (answers, has_answered) = watch::channel(false);
        let answer_directly = async || {
            fence.answer(rank).await;
            answers.send_replace(true);
        };
        let telling = async {
            if let Some(own) = own {
                let mut is_said = false;
                let stands = loop {
                    // It gives no other answer to those whom it has to tell directly.
                    match say_within(FAILURE_TO_BE_TAKEN, agent, board.tell(own), answer_directly()).await {
                        Ok(stands) => break stands,
                        Err(error) if is_said => debug!(%error, "the other nodes cannot be told yet"),
                        Err(error) => warn!(%error, "the other nodes cannot be told through etcd"),
                    }
                    is_said = true;
                    tokio::time::sleep(ASK_AGAIN).await;
                };
                own_is_told.store(true, Ordering::Relaxed);
                // It gives no other answer.
                if !stands.is_failure() {
                    return Ok(stands);
                }
            }
            answered.store(true, Ordering::Relaxed);
            if let Some(notice) = &told_directly {
                // Who told it hears of no answer that goes through etcd.
                answer_directly().await;
                let told = tokio::time::timeout(FAILURE_TO_BE_TAKEN, board.tell(notice)).await;
                debug!(?told, "what another node could tell only directly is passed on");
            }
            // They may not have heard of it either.
            while let Err(error) = say(agent, board.answer(), answer_directly()).await {
                debug!(%error, "the other nodes cannot be answered");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            answers.send_replace(true);
            is_taken.store(true, Ordering::Relaxed);
            // Where nobody had heard from it before its lease could end, the others may have settled that it died.
            if let Some(lease_ends) = contact.map(|contact| contact.at + contact.lease)
                && lease_ends < Instant::now()
                && !fence.has_answered_before(lease_ends)
                && let Some(given_up) = is_given_up(agent, rank).await
            {
                return Err(given_up);
            }
            for node in had_finished {
                let answered = board.answer_for(node).await;
                debug!(?answered, node, "a node that had finished and is gone has nothing to say");
            }
            Ok(board.all_answered().await)
        };
        // Of those it is known what their loss means.
        let mut lost = BTreeSet::new();
        let long = tokio::time::sleep(LONG);
        let time = a_death_is_told(agent, &is_taken);
        let passing_on = pass_on_answers(&board, fence);
        tokio::pin!(telling, long, time, passing_on);
        let (mut all_answered, mut directly, mut is_long) = (false, !self.told_by_etcd, false);
        let mut state_lost = self.heard == Some(GroupChange::StateLost);
        loop {
            let first = match self.decision.stage() {
                Stage::Over(verdict) => {
                    let verdict = verdict.clone();
                    if directly {
                        self.tell_on(fence).await;
                    }
                    return verdict;
                }
                Stage::Settling { first } => first.clone(),
                Stage::Exhausted => {
                    let event = tokio::select! {
                        biased;
                        signal = stop.asked() => Event::Asked(signal),
                        spared = self.can_be_spared() => Event::CanBeSpared(spared),
                    };
                    self.decision.handle(event);
                    continue;
                }
                Stage::Working | Stage::Finishing | Stage::Unable { .. } => None,
            };
            if std::mem::take(&mut state_lost) {
                // Nothing can be said through etcd any more, nor is a death told.
                is_taken.store(true, Ordering::Relaxed);
                answer_directly().await;
            }
            let event = tokio::select! {
                biased;
                signal = stop.asked() => {
                    // Who goes while others wait for its answer gives it by that.
                    if !answered.load(Ordering::Relaxed) {
                        let leaves = self.leave(signal);
                        let last_words = async {
                            if let Some(own) = own.filter(|_| !own_is_told.load(Ordering::Relaxed)) {
                                board.tell(own).await?;
                            }
                            board.tell(&leaves).await
                        };
                        let last_words = say(agent, last_words, fence.answer(rank));
                        let told = tokio::time::timeout(LOSS_IS_TOLD, last_words).await;
                        debug!(?told, "the others were told");
                    }
                    Event::Asked(signal)
                }
                notice = fence.closed() => self.closed_by(notice),
                notice = fence.told(first.as_ref()) => {
                    directly = true;
                    // Who told it may hear of no answer that goes through etcd, as this node's own failure did.
                    if Some(&notice) != own {
                        answer_directly().await;
                    }
                    Event::Notice(notice)
                }
                why = fence.cut_off() => {
                    warn!("{why}");
                    let is_told = own_is_told.load(Ordering::Relaxed);
                    if was_there || own.is_some_and(|own| is_told || self.has_answered_since(own)) {
                        Event::CutOffAfter(why)
                    } else {
                        Event::CutOff(why)
                    }
                }
                () = all_answer_directly(fence, &has_answered, (rank, self.nodes), first.as_ref()), if !all_answered => {
                    all_answered = true;
                    Event::AllAnswered
                }
                told = &mut telling, if !all_answered => {
                    all_answered = true;
                    match told {
                        Ok(notice) => {
                            self.hear(Event::Notice(notice), fence);
                            Event::AllAnswered
                        }
                        Err(given_up) => Event::Changed(given_up),
                    }
                }
                change = self.change_besides(&lost) => {
                    lost.extend(gone(&change));
                    state_lost = change == GroupChange::StateLost;
                    if gone(&change) == Some(STORE)
                        && (without_store || self.has_finished(&change, fence).await)
                    {
                        self.decision.handle(Event::Without(change));
                        continue;
                    }
                    if gone(&change) != Some(STORE) && self.had_finished(&change, fence).await {
                        if let Some(node) = gone(&change) {
                            let answered = tokio::time::timeout(FAILURE_TO_BE_TAKEN, board.answer_for(node)).await;
                            debug!(?answered, node, "a node that had finished and is gone has nothing to say");
                        }
                        continue;
                    }
                    // Whoever closed it because of a failure has heard from all what came first, and so can this node.
                    if matches!(change, GroupChange::Closed { .. })
                        && !all_answered
                        && let Ok(Ok(notice)) = tokio::time::timeout(LOSS_IS_TOLD, &mut telling).await
                    {
                        self.hear(Event::Notice(notice), fence);
                    }
                    let died_after = self.died_after(&change).await;
                    match died_after {
                        Some(died_after) => died_after,
                        None => answers_directly(&change, fence).await.unwrap_or(Event::Changed(change)),
                    }
                }
                () = &mut long, if !is_long => {
                    is_long = true;
                    info!("waiting for the other nodes: what came first is known when all have answered, or one of them is known to be gone");
                    continue;
                }
                () = &mut time => Event::TimeUp,
                never = &mut passing_on => match never {},
            };
            self.hear(event, fence);
        }
    }

    /// Takes note of what another node tells, through etcd or directly: what came first stays so.
    fn hear(&mut self, event: Event, fence: &Fence) {
        let first = |notice: Notice| {
            fence.tell(notice.clone());
            fence.first().unwrap_or(notice)
        };
        self.decision.handle(match event {
            Event::Notice(notice) => Event::Notice(first(notice)),
            Event::DiedAfter(notice) => Event::DiedAfter(first(notice)),
            event => event,
        });
    }

    /// Whether the others can go on without this node, whose restarts are used up. If so it is counted, and gone.
    async fn can_be_spared(&self) -> bool {
        // Those are waited for who may come back, and etcd after that.
        let time = TO_COME_BACK + self.handler().time_to_notice();
        let spared = tokio::time::timeout(time, self.departs()).await;
        match spared.unwrap_or_else(|_| Err("etcd does not answer".to_owned())) {
            Ok(()) => {
                warn!("this node's restarts are used up: it leaves, and the others go on");
                if self.agent.spec().when_exhausted == WhenExhausted::Exclude {
                    self.exclude_itself().await;
                }
                // They need not wait until its workers have stopped.
                let left = self.handler().leave().await;
                debug!(?left, "the others were told");
                true
            }
            Err(why) => {
                warn!("this node's restarts are used up, and it cannot leave: {why}");
                false
            }
        }
    }

    /// Keeps this node out of the run, so that it does not come again when somebody starts it again.
    async fn exclude_itself(&self) {
        let spec = self.agent.spec();
        let reason = match spec.max_restarts {
            0 => "its workers failed first".to_owned(),
            max => format!("its workers failed first {} times", u64::from(max) + 1),
        };
        // That the others can go on without all whom that means is known.
        if let Some(itself) = self.handler().itself() {
            exclude(self.handler(), itself, &reason, spec.exclude_for).await;
        }
    }

    async fn departs(&self) -> Result<(), String> {
        let Some(run_store) = &self.run_store else {
            return Err(format!(
                "the backend {:?} does not keep count of those who left",
                self.handler().backend()
            ));
        };
        let goes = match self.agent.spec().when_exhausted {
            WhenExhausted::Exclude => self.handler().itself(),
            WhenExhausted::Leave | WhenExhausted::Close => None,
        };
        let goes = goes.unwrap_or_else(|| Whom::Node(self.agent.name().to_owned()));
        let until = Instant::now() + TO_COME_BACK;
        loop {
            // Looked at before: who comes back meanwhile is not counted.
            let are_all_here = self.are_all_here().await;
            let mut spared = without(self.handler(), &goes, &**run_store).await?;
            if self.agent.hosts_server() {
                spared.server = ServerIs::Here;
            }
            match spared.check() {
                Ok(()) => break,
                Err(why) if are_all_here || Instant::now() >= until => return Err(why),
                Err(why) => debug!(why, "the others are waited for"),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        // Only who could leave is counted.
        let departures = run_store.add(DEPARTURES, 1).await.map_err(|error| error.to_string())?;
        may_leave(departures, self.agent.spec().max_departures)
    }

    /// Whether no other node of the round is missing. An etcd that was away has ended leases, and those nodes come back.
    async fn are_all_here(&self) -> bool {
        let itself = Whom::Node(self.agent.name().to_owned());
        let others = self.handler().others_than(&itself).await;
        others.is_ok_and(|others| others.is_none_or(|others| others >= self.nodes - 1))
    }
}

/// Waits until the death of a node would have been told. That takes an etcd that answers: one that is back after a silence
/// gives its leases time again, and so do those who look after them. And one that takes what it is told, as it has by then
/// what this node had to say: deaths are written, too. Nobody waits for it without end.
async fn a_death_is_told(agent: &Agent, is_taken: &AtomicBool) {
    let (handler, time) = (agent.handler(), agent.handler().time_to_notice());
    let (began, most) = (Instant::now(), time + bounded(agent.spec().exit_barrier_timeout));
    let (mut since, mut last) = (began, handler.contact());
    loop {
        let contact = handler.contact();
        if let (Some(before), Some(contact)) = (last, contact) {
            // It is refreshed more often than that.
            let silence = contact.lease / 2;
            if contact.at.saturating_duration_since(before.at) > silence {
                since = since.max(contact.at);
            } else if contact.at.elapsed() > silence {
                since = Instant::now();
            }
        }
        last = contact;
        if !is_taken.load(Ordering::Relaxed) {
            since = Instant::now();
        }
        let left = time.saturating_sub(since.elapsed()).min(most.saturating_sub(began.elapsed()));
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(ASK_AGAIN)).await;
    }
}

/// The death of this node itself, where the group was told of that before etcd has taken this node's answer: it was cut off.
async fn is_given_up(agent: &Agent, rank: usize) -> Option<GroupChange> {
    let told = tokio::time::timeout(LOSS_IS_TOLD, agent.handler().losses_told()).await;
    let mut lost = told.ok().and_then(Result::ok).unwrap_or_default().into_iter();
    lost.find(|change| matches!(change, GroupChange::Died { rank: Some(lost), .. } if *lost == rank))
}

/// Waits until all other nodes have answered directly, and this one has. Who tells of what came first has answered by that.
async fn all_answer_directly(
    fence: &Fence,
    has_answered: &watch::Receiver<bool>,
    (rank, nodes): (usize, usize),
    first: Option<&Notice>,
) {
    let Some(first) = first else { return std::future::pending().await };
    if has_answered.clone().wait_for(|answered| *answered).await.is_err() {
        return std::future::pending().await;
    }
    fence.answered_by_all([rank, first.node], nodes).await;
}

/// Where that is the death of a node that has answered a failure directly, which etcd does not know yet; or does so now, as
/// one that is alive and cut off from etcd can.
async fn answers_directly(change: &GroupChange, fence: &Fence) -> Option<Event> {
    let GroupChange::Died { rank: Some(rank), .. } = change else { return None };
    if fence.answered_by(*rank).is_none() {
        let asked = async {
            fence.spread().await;
            fence.has_answered(*rank).await;
        };
        let _ = tokio::time::timeout(TO_ANSWER, asked).await;
    }
    fence.answered_by(*rank).map(Event::DiedAfter)
}
