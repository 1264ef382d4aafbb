//! What the nodes of a round tell each other of failures and of their end, for a node whose workers another launcher
//! starts: under torchrun. They say it where nodes with this crate's launcher do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_rendezvous::{FINISHED, GroupChange, NODE_FINISHED, Rendezvous, RendezvousHandler, Standing};
use rallypoint_store::{Store, StoreError};
use tracing::debug;

use crate::failure::Failure;
use crate::finish::{ARRIVED, HERE, PASSED, silent_for};
use crate::notice::{Board, Notice};
use crate::{patience, timeline, words};

/// How long the others are waited for. A launcher may stop its workers first, for which torchrun has 30 s.
const TO_ANSWER: Duration = Duration::from_secs(35);
/// An etcd that is silent for so long is not waited for.
const SILENCE: Duration = Duration::from_secs(3);
/// How often a node looks how its round stands, once somebody is missed; more seldom in larger groups.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_PER_NODE: Duration = Duration::from_millis(2);

/// One node's side of what the nodes of a round tell each other.
#[derive(Debug)]
pub struct RoundBoard {
    handler: Arc<dyn RendezvousHandler>,
    store: Arc<dyn Store>,
    board: Board,
    round: u64,
    rank: usize,
    nodes: usize,
    answered: AtomicBool,
}

/// How a wait for all nodes to finish ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// All have.
    All,
    /// Those who have not are not waited for.
    Without {
        /// Why.
        words: String,
        /// The run is not this node's to close: others go on with it or wait for more nodes, or it is closed already, for
        /// want of nodes.
        goes_on: bool,
    },
}

impl RoundBoard {
    /// For the round that this handler has just completed.
    #[must_use]
    pub fn new(handler: Arc<dyn RendezvousHandler>, round: &Rendezvous) -> Self {
        let (store, nodes) = (Arc::clone(&round.store), round.world_size);
        let board = Board::new(Arc::clone(&store), (round.rank, nodes));
        RoundBoard {
            handler,
            store,
            board,
            round: round.round,
            rank: round.rank,
            nodes,
            answered: AtomicBool::new(false),
        }
    }

    /// Waits until a node tells of a failure.
    pub async fn told(&self) {
        self.board.told().await;
    }

    /// Says that this node is there, and that no failure of its own came before what was told.
    pub async fn answer(&self) {
        if !self.answered.swap(true, Ordering::Relaxed)
            && let Err(error) = self.board.answer().await
        {
            debug!(%error, "the other nodes cannot be answered");
        }
    }

    /// Tells of a failure here, unless an earlier one was told.
    pub async fn tell(&self, failure: Failure) {
        let told = self.say(Notice::failed(self.rank, failure.clone(), None)).await;
        // What stands there is what was told first.
        if told.is_some_and(|stands| stands.node == self.rank && stands.is_failure()) {
            timeline::record_failure(&*self.handler, self.round, &failure).await;
        }
    }

    /// What stands there then, if that is known.
    async fn say(&self, notice: Notice) -> Option<Notice> {
        let stands = self.board.tell(&notice).await;
        self.answer().await;
        stands.inspect_err(|error| debug!(%error, "the other nodes cannot be told of the failure")).ok()
    }

    /// Says that this node is about to stop its workers, where the group has changed: those of others may fail with them. A
    /// death, or the end of the run, they are told of anyway.
    pub async fn stops(&self, host: &str) {
        let change = tokio::time::timeout(Duration::ZERO, self.handler.changed()).await;
        let Ok(change @ (GroupChange::Waiting { .. } | GroupChange::Left { .. })) = change else { return };
        // Nobody waits for another answer than this.
        if !self.answered.swap(true, Ordering::Relaxed) {
            let told = self.board.tell(&Notice::regroups(self.rank, host, words::change(&change))).await;
            debug!(?told, "the other nodes were told");
        }
    }

    /// Tells of a failure here, and finds out with the other nodes what came first; in their words.
    pub async fn first(&self, failure: Failure) -> String {
        let first = if self.nodes == 1 { failure.in_short() } else { self.agree(failure.clone()).await };
        if first == failure.in_short() {
            timeline::record_failure(&*self.handler, self.round, &failure).await;
        }
        first
    }

    async fn agree(&self, failure: Failure) -> String {
        let own = failure.in_short();
        // In a run of the other backend there may be nodes of PyTorch's, which never answer.
        let native = self.handler.backend() == "rallypoint";
        let patience = if native { TO_ANSWER } else { self.handler.time_to_notice() };
        let telling = async {
            match self.say(Notice::failed(self.rank, failure, None)).await {
                // Who goes gives no other answer.
                Some(stands) if !stands.is_failure() => stands.in_short(),
                _ => self.board.all_answered().await.in_short(),
            }
        };
        tokio::select! {
            biased;
            first = telling => first,
            loss = self.loss() => loss.unwrap_or(own),
            () = silent_for(&*self.handler, SILENCE) => own,
            () = tokio::time::sleep(patience) => self.board.said().await.map_or(own, |notice| notice.in_short()),
        }
    }

    /// Waits until a node is known to be dead that had not answered, or the run to be closed, and says so. None: those who
    /// closed it are done.
    async fn loss(&self) -> Option<String> {
        loop {
            match self.handler.changed().await {
                GroupChange::Closed { reason } if [FINISHED, NODE_FINISHED, ""].contains(&&*reason) => {
                    return None;
                }
                GroupChange::Closed { reason } => return Some(reason),
                change @ (GroupChange::Died { .. } | GroupChange::MemberReplaced { .. })
                    if !self.has_answered(&change).await =>
                {
                    return Some(words::change(&change));
                }
                // Who left has answered before; another may die after it.
                _ => {}
            }
            tokio::time::sleep(self.pace()).await;
            let standing = self.handler.standing().await.unwrap_or_default();
            for change in standing.lost {
                if !matches!(change, GroupChange::Left { .. }) && !self.has_answered(&change).await {
                    return Some(words::change(&change));
                }
            }
        }
    }

    /// Whether that is the death of a node that was there after the failure.
    async fn has_answered(&self, change: &GroupChange) -> bool {
        match change {
            GroupChange::Died { rank: Some(rank), .. } => self.board.answered_by(*rank).await.is_some(),
            _ => false,
        }
    }

    /// Says that this node's workers have finished; before it is counted.
    pub async fn finishes(&self) -> Result<(), StoreError> {
        self.store.set(&self.here(self.rank), b"1").await
    }

    /// Waits until the workers of all nodes have finished, and does not wait for those that are gone.
    pub async fn all_finished(&self) -> Result<Finish, StoreError> {
        let answering = async {
            self.board.told().await;
            // What is done has not failed.
            self.answer().await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            passed = patience::wait(&*self.store, PASSED) => passed.map(|()| Finish::All),
            finish = self.missing() => Ok(finish),
            () = answering => Ok(Finish::All),
        }
    }

    /// Waits until all who have not finished are gone, or in another round.
    async fn missing(&self) -> Finish {
        loop {
            let change = self.handler.changed().await;
            if let GroupChange::Closed { reason } = &change {
                // Who has passed the barrier closes the run, which may be heard of first.
                let passed = reason == FINISHED || self.store.check(&[PASSED]).await.unwrap_or(false);
                let words = words::change(&change);
                return if passed { Finish::All } else { Finish::Without { words, goes_on: false } };
            }
            if let (Ok(standing), Ok(arrived)) = (self.handler.standing().await, self.arrived().await)
                && let Some(finish) = self.judge(&standing, arrived, &change).await
            {
                return finish;
            }
            tokio::time::sleep(self.pace()).await;
        }
    }

    async fn judge(&self, standing: &Standing, arrived: usize, change: &GroupChange) -> Option<Finish> {
        let mut missed = 0;
        for lost in &standing.lost {
            // Who finished and went then is counted already.
            let (GroupChange::Died { rank, .. }
            | GroupChange::Left { rank, .. }
            | GroupChange::MemberKeptOut { rank, .. }
            | GroupChange::MemberReplaced { rank, .. }) = lost
            else {
                continue;
            };
            let here = self.here((*rank)?);
            missed += usize::from(!self.store.check(&[&here]).await.ok()?);
        }
        let work = self.nodes.saturating_sub(arrived + missed);
        let lost = words::gone(&standing.lost);
        if standing.over {
            // Others may come for those who are gone, and none for this node, which has finished.
            let spares = self.handler.spares().await.unwrap_or(0);
            let enough = work + spares + missed >= self.handler.progress().borrow().min_nodes;
            let goes_on = work > 0 && (enough || self.close(lost.as_deref()).await);
            let again = "another node asks for another round".to_owned();
            let words = lost.map_or(again.clone(), |lost| format!("{lost}, {again}"));
            return Some(Finish::Without { words, goes_on });
        }
        (work == 0)
            .then(|| Finish::Without { words: lost.unwrap_or_else(|| words::change(change)), goes_on: false })
    }

    /// Closes the run: those who ask for another round would wait in vain. They are told why.
    async fn close(&self, lost: Option<&str>) -> bool {
        let few = format!("too few nodes are left for another round, as node {} has finished", self.rank);
        let reason = lost.map_or(few.clone(), |lost| format!("{lost}, and {few}"));
        let closed = self.handler.set_closed(&reason).await;
        closed.inspect_err(|error| debug!(%error, "the run cannot be closed")).is_ok()
    }

    /// How many nodes have finished.
    async fn arrived(&self) -> Result<usize, StoreError> {
        let reads = self.store.clone_store();
        // It is gone with the round, also between the two: then nobody writes it any more.
        reads.set_timeout(self.pace());
        let count = if reads.check(&[ARRIVED]).await? { reads.get(ARRIVED).await? } else { Vec::new() };
        Ok(std::str::from_utf8(&count).ok().and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    fn here(&self, rank: usize) -> Vec<u8> {
        format!("{HERE}{rank}").into_bytes()
    }

    fn pace(&self) -> Duration {
        let nodes = u32::try_from(self.nodes).unwrap_or(u32::MAX);
        LOOK_AGAIN.max(LOOK_AGAIN_PER_NODE.saturating_mul(nodes))
    }
}

#[cfg(test)]
mod tests;
