//! The wait for all nodes of a round to finish, and what is said meanwhile of a server that is gone.

use std::convert::Infallible;
use std::time::Duration;

use rallypoint_core::time::bounded;
use rallypoint_rendezvous::RendezvousHandler;
use rallypoint_store::{Store, StoreError};
use tokio::time::Instant;
use tracing::warn;

use crate::agent::Agent;
use crate::patience;

/// Where the nodes of a round wait for each other's success, by torchrun's names: how many have come...
const ARRIVED: &[u8] = b"torchelastic/agent/terminal_state/num_members";
/// ...and that all have.
pub(crate) const PASSED: &[u8] = b"torchelastic/agent/terminal_state/last_member";

/// The barrier of c10d, without a limit: work takes as long as it takes, and a node that dies is known.
pub(crate) async fn finished(store: &dyn Store, nodes: usize, timeout: Duration) -> Result<(), StoreError> {
    let writes = store.clone_store();
    writes.set_timeout(timeout);
    let deadline = Instant::now() + bounded(timeout);
    let arrived = patience::until(deadline, async || writes.add(ARRIVED, 1).await).await?;
    if usize::try_from(arrived).is_ok_and(|arrived| arrived >= nodes) {
        patience::until(deadline, async || writes.set(PASSED, b"1").await).await?;
    }
    patience::until(deadline, async || patience::wait(store, PASSED).await).await
}

/// Waits until etcd has not answered for so long, counted from now at the earliest. Never where that is not known.
pub(crate) async fn silent_for(handler: &dyn RendezvousHandler, time: Duration) {
    let mut since = Instant::now();
    loop {
        let Some(contact) = handler.contact() else { return std::future::pending().await };
        since = since.max(contact.at);
        // It answers only now and then: a short time without a word is no silence.
        let at = contact.silent_at().max(since + bounded(time));
        if at <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(at).await;
    }
}

/// Says that the node with the server is gone, when it is silent.
pub(crate) async fn server_gone(agent: &Agent) -> Infallible {
    if agent.server().borrow().is_some() {
        silent_for(agent.handler(), Duration::ZERO).await;
        if let Some(server) = agent.silent_server() {
            warn!(
                "the server that the nodes have met on is on {server}, and does not answer: that node has died, or cannot be reached"
            );
        }
    }
    std::future::pending().await
}
