//! What nodes tell each other where etcd does not take it: directly, from agent to agent.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use rallypoint_store::StoreError;
use tracing::debug;

use super::{LOSS_IS_TOLD, Round, is_silent};
use crate::agent::Agent;
use crate::decision::{Cause, Stage, Verdict};
use crate::fence::Fence;
use crate::notice::{Board, Notice};

/// For etcd to take what all are to know soon; after that they are told directly, too.
const TO_BE_TAKEN: Duration = Duration::from_millis(500);

/// Says something through etcd, and directly where etcd refuses it, or takes its time. What etcd says.
pub(super) async fn say<T>(
    agent: &Agent,
    through_etcd: impl Future<Output = Result<T, StoreError>>,
    directly: impl Future<Output = ()>,
) -> Result<T, StoreError> {
    say_within(TO_BE_TAKEN, agent, through_etcd, directly).await
}

/// The same, where etcd may take so much time.
pub(super) async fn say_within<T>(
    time: Duration,
    agent: &Agent,
    through_etcd: impl Future<Output = Result<T, StoreError>>,
    directly: impl Future<Output = ()>,
) -> Result<T, StoreError> {
    // Who knows already that it does not answer loses no time.
    let soon = if is_silent(agent) { Duration::ZERO } else { time };
    tokio::pin!(through_etcd);
    match tokio::time::timeout(soon, &mut through_etcd).await {
        Ok(Ok(taken)) => Ok(taken),
        Ok(Err(error)) => {
            directly.await;
            Err(error)
        }
        Err(_) => tokio::join!(through_etcd, directly).0,
    }
}

/// Passes the answers that this node was told directly on to etcd, for all to know. For as long as etcd takes them. What came
/// first goes before, as it may have been told directly as well: with the last answer nothing else is waited for.
pub(super) async fn pass_on_answers(board: &Board, fence: &Fence) -> Infallible {
    let mut passed_on = BTreeSet::new();
    loop {
        let node = fence.answered_by_other_than(&passed_on).await;
        passed_on.insert(node);
        let passing_on = async {
            if let Some(first) = fence.first() {
                board.tell(&first).await?;
            }
            board.answer_for(node).await
        };
        if let Err(error) = passing_on.await {
            debug!(%error, node, "the answer of a node that etcd does not answer cannot be passed on");
            return std::future::pending().await;
        }
    }
}

impl Round<'_> {
    /// Tells the others that this node leaves or stops its workers, and why.
    pub(super) async fn tell_all(&self, notice: &Notice, fence: &Fence) {
        let telling = say(self.agent, self.board.tell(notice), fence.say(self.rank, notice));
        let told = tokio::time::timeout(LOSS_IS_TOLD, telling).await;
        debug!(?told, "the others were told");
    }

    /// Tells on that another node goes, which could tell this one only directly: that may not have reached all. Who gets no
    /// answer from etcd is told by those who ask, and asks itself.
    pub(super) async fn tell_on(&self, fence: &Fence) {
        let Stage::Over(Verdict::Regroup { cause: Cause::Other(notice), .. }) = self.decision.stage() else {
            return;
        };
        if !notice.is_failure() && !is_silent(self.agent) {
            self.tell_all(notice, fence).await;
        }
    }
}
