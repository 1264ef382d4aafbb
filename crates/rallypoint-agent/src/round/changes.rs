//! What becomes of the group of a round, as this node hears of it: who is gone, what was behind that, and who had finished.

use std::collections::BTreeSet;

use rallypoint_core::round::What;
use rallypoint_rendezvous::{GroupChange, RendezvousHandler, Standing};
use tracing::info;

use super::{ASK_AGAIN, FAILURE_TO_BE_TAKEN, LOSS_IS_TOLD, Round};
use crate::decision::{Event, Stage};
use crate::fence::Fence;
use crate::finish::here;
use crate::preemption::Saving;
use crate::stop::StopListener;
use crate::timeline::Keep;
use crate::words;

/// A round of more nodes does not go on without those who had finished: each node would read all others again and again.
const MOST_WITHOUT: usize = 64;

impl Round<'_> {
    /// The next change of the group that is not the last one again.
    pub(super) async fn change(&mut self) -> GroupChange {
        next_change(self.agent.handler(), &self.gone, &mut self.heard, &mut self.put_off, None).await
    }

    /// The same while it is settled what came first, or the loss of somebody besides those with these ranks.
    pub(super) async fn change_besides(&mut self, ranks: &BTreeSet<usize>) -> GroupChange {
        let handler = self.agent.handler();
        tokio::select! {
            biased;
            change = next_change(handler, &self.gone, &mut self.heard, &mut self.put_off, None) => change,
            loss = handler.lost_besides(ranks), if !ranks.is_empty() => loss,
        }
    }

    /// The round's store has failed. Where etcd has lost it with the rest of the round, the group is told.
    pub(super) async fn loss(&self) -> Option<GroupChange> {
        tokio::time::timeout(LOSS_IS_TOLD, self.handler().changed()).await.ok()
    }

    /// A change of the group, or what was behind it or before it: whoever leaves or meets again has said why before, which may
    /// be heard of later, and so may a failure that was told before a death.
    pub(super) async fn with_reason(
        &mut self,
        change: GroupChange,
        fence: &Fence,
        stop: &mut StopListener,
    ) -> Event {
        let said = async {
            match &change {
                GroupChange::Left { .. } => self.board.said().await.map(Event::Notice),
                // A failure before that can be told only directly.
                GroupChange::StateLost => {
                    let told = tokio::time::timeout(FAILURE_TO_BE_TAKEN, fence.told(None)).await.ok();
                    told.map(Event::Notice)
                }
                change => self.died_after(change).await,
            }
        };
        let said = tokio::select! {
            biased;
            _ = stop.asked() => None,
            said = said => said,
        };
        if change == GroupChange::StateLost && said.is_some() {
            self.told_by_etcd = false;
        }
        said.unwrap_or(Event::Changed(change))
    }

    /// Whether that is the end of a node whose workers had succeeded, as it has said through etcd or directly. It has done
    /// its part, and this round goes on without it.
    pub(super) async fn had_finished(&mut self, change: &GroupChange, fence: &Fence) -> bool {
        let finished = self.has_finished(change, fence).await;
        if finished
            && let Some(rank) = gone(change)
            && self.gone.insert(rank)
            && rank != self.rank
        {
            info!("{}", words::had_finished(change));
            self.tell_of(change, rank);
        }
        finished
    }

    /// The same, where it may be missed all the same.
    pub(super) async fn has_finished(&self, change: &GroupChange, fence: &Fence) -> bool {
        let Some(rank) = gone(change).filter(|_| self.nodes <= MOST_WITHOUT) else { return false };
        (rank == self.rank && *self.decision.stage() == Stage::Finishing)
            || fence.has_finished(rank)
            || self.board.has(&here(rank)).await
    }

    /// Writes down that the round goes on without a member. One of those who are left does so for the run.
    fn tell_of(&self, change: &GroupChange, rank: usize) {
        let first = (0..self.nodes).find(|rank| !self.gone.contains(rank));
        let keep = if first == Some(self.rank) { Keep::Run } else { Keep::Log };
        if let GroupChange::Died { node, .. } | GroupChange::Left { node, .. } = change {
            self.agent.timeline().note(keep, self.number, What::Without { node: node.clone(), rank });
        }
    }

    /// Where that is the death of a node that had answered a failure.
    pub(super) async fn died_after(&self, change: &GroupChange) -> Option<Event> {
        let GroupChange::Died { rank: Some(rank), .. } = change else { return None };
        self.board.answered_by(*rank).await.map(Event::DiedAfter)
    }
}

/// The next change of the group that is not `heard`, the last one, again. Some wait until workers have saved: `put_off`, once
/// that was said.
pub(super) async fn next_change(
    handler: &dyn RendezvousHandler,
    gone: &BTreeSet<usize>,
    heard: &mut Option<GroupChange>,
    put_off: &mut Option<GroupChange>,
    saving: Option<Saving>,
) -> GroupChange {
    loop {
        let Some(change) = besides(handler, gone, handler.changed().await).await else {
            tokio::time::sleep(ASK_AGAIN).await;
            continue;
        };
        let later = saving.is_some_and(|saving| saving.puts_off(&change));
        if !later && heard.as_ref() != Some(&change) {
            *heard = Some(change.clone());
            return change;
        }
        let news = later && change.is_a_loss() && put_off.as_ref() != Some(&change);
        if news {
            info!("{}; the workers of this node go on saving", words::change(&change));
            *put_off = Some(change);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Whose end that is, for good or for now.
pub(super) fn gone(change: &GroupChange) -> Option<usize> {
    match change {
        GroupChange::Died { rank, .. } | GroupChange::Left { rank, .. } => *rank,
        _ => None,
    }
}

/// A change of the group, or another one where it is the loss of those who had finished.
async fn besides(
    handler: &dyn RendezvousHandler,
    gone: &BTreeSet<usize>,
    change: GroupChange,
) -> Option<GroupChange> {
    let is_known = |change: &GroupChange| self::gone(change).is_some_and(|rank| gone.contains(&rank));
    if !is_known(&change) {
        return Some(change);
    }
    let Standing { lost, over, .. } = handler.standing().await.ok()?;
    let other = lost.into_iter().find(|change| !is_known(change));
    // A member that asks for another round waits for the others there.
    other.or_else(|| over.then_some(GroupChange::Waiting { count: 1 }))
}
