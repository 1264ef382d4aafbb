//! When a round is over on this node: what came first, with the other nodes, and what that leads to.

use std::sync::atomic::{AtomicBool, Ordering};

use rallypoint_core::text::count;
use rallypoint_rendezvous::GroupChange;
use rustix::process::Signal;
use tracing::{debug, warn};

use super::{ASK_AGAIN, LOSS_IS_TOLD, Round};
use crate::decision::{Cause, Event, Stage, Verdict, WhenExhausted};
use crate::failure::{Exit, Failure};
use crate::fence::Fence;
use crate::health::exclude;
use crate::notice::{Leaving, Notice, Restarts};
use crate::stop::StopListener;
use crate::words;

/// How many nodes have left the run because their restarts were used up.
const DEPARTURES: &[u8] = b"departures";

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
            Stage::Over(Verdict::Stop(signal)) => Some(self.leave(*signal)),
            _ => None,
        };
        own.cloned().into_iter().chain(told).collect()
    }

    /// What failed, where that is why the round is over and it is not known yet what the workers do; `own` failed here.
    pub(super) fn failure(&self, own: Option<&Notice>) -> Option<String> {
        let failures = self.news(own).into_iter().filter_map(Notice::failure);
        let first = failures.min_by_key(Failure::moment)?;
        let seen = matches!(first.exit, Exit::Hung(_));
        (!seen).then(|| format!("when {}", first.in_short()))
    }

    /// This node as the others know it: several may be on one machine.
    pub(super) fn name(&self) -> &str {
        self.handler().node_name().unwrap_or(self.agent.host())
    }

    fn leave(&self, signal: Signal) -> Notice {
        let why = match signal {
            Signal::KILL => Leaving::Killed,
            _ if self.preemption.is_own() => Leaving::Preempted,
            _ => Leaving::Asked,
        };
        Notice::leaves(self.decision.rules().node, self.name(), why)
    }

    /// What this node tells the others before it stops its workers, where none of them failed: theirs may fail with those.
    /// Of a death they are told anyway, and who left has said why.
    fn goes(&self) -> Option<Notice> {
        match self.decision.verdict()? {
            Verdict::Stop(signal) => Some(self.leave(*signal)),
            Verdict::Regroup { cause: Cause::Group(change @ GroupChange::Waiting { .. }), .. } => {
                let node = self.decision.rules().node;
                Some(Notice::regroups(node, self.name(), words::change(change)))
            }
            _ => None,
        }
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

    async fn find_out(
        &mut self,
        own: Option<&Notice>,
        own_is_told: &AtomicBool,
        fence: &mut Fence,
        stop: &mut StopListener,
    ) -> Verdict {
        let board = self.board.clone();
        if let Some(notice) = self.goes() {
            let told = tokio::time::timeout(LOSS_IS_TOLD, board.tell(&notice)).await;
            debug!(?told, "the others were told");
        }
        let answered = AtomicBool::new(false);
        let telling = async {
            if let Some(own) = own {
                let mut is_said = false;
                let stands = loop {
                    match board.tell(own).await {
                        Ok(stands) => break stands,
                        Err(error) if is_said => debug!(%error, "the other nodes cannot be told yet"),
                        Err(error) => warn!(%error, "the other nodes cannot be told of the failure"),
                    }
                    is_said = true;
                    tokio::time::sleep(ASK_AGAIN).await;
                };
                own_is_told.store(true, Ordering::Relaxed);
                // It gives no other answer.
                if !stands.is_failure() {
                    return stands;
                }
            }
            answered.store(true, Ordering::Relaxed);
            if let Err(error) = board.answer().await {
                debug!(%error, "the other nodes cannot be answered");
            }
            board.all_answered().await
        };
        let time = tokio::time::sleep(self.handler().time_to_notice());
        tokio::pin!(telling, time);
        let mut all_answered = false;
        loop {
            let first = match self.decision.stage() {
                Stage::Over(verdict) => return verdict.clone(),
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
                Stage::Working | Stage::Finishing => None,
            };
            let event = tokio::select! {
                biased;
                signal = stop.asked() => {
                    // Who goes while others wait for its answer gives it by that.
                    if !answered.load(Ordering::Relaxed) {
                        let leaves = self.leave(signal);
                        let told = tokio::time::timeout(LOSS_IS_TOLD, board.tell(&leaves)).await;
                        debug!(?told, "the others were told");
                    }
                    Event::Asked(signal)
                }
                notice = fence.closed() => self.closed_by(notice),
                notice = fence.told(first.as_ref()) => Event::Notice(notice),
                why = fence.cut_off() => {
                    warn!("{why}");
                    Event::CutOff(why)
                }
                notice = &mut telling, if !all_answered => {
                    all_answered = true;
                    fence.tell(notice.clone());
                    self.decision.handle(Event::Notice(notice));
                    Event::AllAnswered
                }
                change = self.change() => {
                    // Whoever closed it because of a failure has heard from all what came first, and so can this node.
                    if matches!(change, GroupChange::Closed { .. })
                        && !all_answered
                        && let Ok(notice) = tokio::time::timeout(LOSS_IS_TOLD, &mut telling).await
                    {
                        self.decision.handle(Event::Notice(notice));
                    }
                    Event::Changed(change)
                }
                () = &mut time => Event::TimeUp,
            };
            self.decision.handle(event);
        }
    }

    /// Whether the others can go on without this node, whose restarts are used up. If so it is counted, and gone.
    async fn can_be_spared(&self) -> bool {
        let spared = tokio::time::timeout(self.handler().time_to_notice(), self.departs()).await;
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
        let reason = format!("its workers failed first {} times", u64::from(spec.max_restarts) + 1);
        exclude(self.handler(), &reason, spec.exclude_for).await;
    }

    async fn departs(&self) -> Result<(), String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let Some(run_store) = &self.run_store else {
            return Err(format!(
                "the backend {:?} does not keep count of those who left",
                self.handler().backend()
            ));
        };
        let min_nodes = self.handler().progress().borrow().min_nodes;
        let spares = self.handler().spares().await.map_err(|error| words(&error))?;
        let remain = self.nodes - 1 + spares;
        if remain < min_nodes {
            return Err(format!("the group needs {}, and would have {remain}", count(min_nodes, "node")));
        }
        let departures = run_store.add(DEPARTURES, 1).await.map_err(|error| words(&error))?;
        let most = self.agent.spec().max_departures;
        if departures > i64::from(most) {
            return Err(format!("{} may leave a run, and as many have", count(most as usize, "node")));
        }
        Ok(())
    }
}
