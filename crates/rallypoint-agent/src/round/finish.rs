//! The end of a round whose workers on this node have succeeded: it waits for those of the other nodes.

use std::convert::Infallible;
use std::time::Duration;

use rallypoint_core::time::bounded;
use rallypoint_rendezvous::{FINISHED, GroupChange, RendezvousHandler};
use rallypoint_store::{Store, StoreError};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::changes::next_change;
use super::{ASK_AGAIN, LOSS_IS_TOLD, Round};
use crate::decision::{Event, Stage, Verdict};
use crate::fence::Fence;
use crate::finish::{PASSED, finished, finished_without, silent_for};
use crate::stop::StopListener;

impl Round<'_> {
    /// Waits until all nodes of the round have finished, so that nobody who still works misses anybody.
    pub(super) async fn finish(&mut self, store: &dyn Store, fence: &Fence, stop: &mut StopListener) {
        let (board, nodes, agent, rank) = (self.board.clone(), self.nodes, self.agent, self.rank);
        let timeout = agent.spec().exit_barrier_timeout;
        let place = (self.rank, nodes);
        let (done, silent) = (finished(store, place, timeout), silent_for(agent.handler(), timeout));
        let told = board.told();
        let saying = say_finished(agent.handler(), fence, rank);
        tokio::pin!(done, silent, told, saying);
        let began = Instant::now();
        // Once this node cannot tell its end: until then a change of the group may say why.
        let mut gives_up: Option<Instant> = None;
        let mut refusal: Option<StoreError> = None;
        while *self.decision.stage() == Stage::Finishing {
            let saving = self.preemption.saving();
            let event = tokio::select! {
                biased;
                told = &mut done, if gives_up.is_none() => match told {
                    Ok(()) => Event::AllSucceeded,
                    Err(error) => {
                        debug!(%error, "the end cannot be told");
                        if error.is_silence() && agent.handler().contact().is_some() {
                            // Whether that has lasted for long enough is found out by the other wait.
                            done.set(finished(store, place, timeout));
                            continue;
                        }
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
                () = finished_without(store, nodes, &self.gone) => Event::AllSucceeded,
                never = &mut saying => match never {},
                () = &mut silent => self.no_word(None, fence, stop).await,
                () = tokio::time::sleep_until(gives_up.unwrap_or(began)), if gives_up.is_some() => {
                    self.no_word(refusal.as_ref(), fence, stop).await
                }
                ends = self.preemption.turn(stop) => match ends {
                    Some(signal) => Event::Asked(signal),
                    None => continue,
                },
                notice = &mut told => Event::Notice(notice),
                notice = fence.told(None) => {
                    self.told_by_etcd = false;
                    Event::Notice(notice)
                }
                notice = fence.closed() => self.closed_by(notice),
                change = next_change(agent.handler(), &self.gone, &mut self.heard, &mut self.put_off, saving) => match change {
                    // Whoever closed it so had passed the barrier, which needs all. torchrun gives no reason, and
                    // what it closed may be heard of before the end of the barrier is.
                    GroupChange::Closed { reason }
                        if reason == FINISHED || store.check(&[PASSED]).await.unwrap_or(false) =>
                    {
                        Event::AllSucceeded
                    }
                    change if self.had_finished(&change, fence).await => continue,
                    change => self.with_reason(change, fence, stop).await,
                },
            };
            self.decision.handle(event);
        }
        self.goes_finished = matches!(self.decision.verdict(), Some(Verdict::Stop(_)));
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
        let telling = async {
            fence.say_finished(self.rank).await;
            fence.done().await;
        };
        tokio::select! {
            () = telling => {}
            _ = stop.asked() => {}
        }
        Event::NoWord
    }
}

/// Tells the others directly that this node has finished, while etcd is silent for it: its lease may end, and they would miss it.
async fn say_finished(handler: &dyn RendezvousHandler, fence: &Fence, rank: usize) -> Infallible {
    loop {
        silent_for(handler, Duration::ZERO).await;
        fence.say_finished(rank).await;
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
