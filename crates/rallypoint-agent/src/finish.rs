//! The wait for all nodes of a round to finish, and what is said meanwhile of a server that is gone.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use rallypoint_core::time::bounded;
use rallypoint_rendezvous::RendezvousHandler;
use rallypoint_store::{Store, StoreError};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::agent::Agent;
use crate::patience;

/// Where the nodes of a round wait for each other's success, by torchrun's names: how many have come...
pub(crate) const ARRIVED: &[u8] = b"torchelastic/agent/terminal_state/num_members";
/// ...and that all have.
pub(crate) const PASSED: &[u8] = b"torchelastic/agent/terminal_state/last_member";

/// That this node is among them; its rank follows.
pub(crate) const HERE: &str = "rallypoint/finished/";
/// How often a node that waits makes sure that it is counted, at most; more seldom in larger groups.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN_PER_NODE: Duration = Duration::from_millis(2);
/// Who wakes up so much too late was stopped.
const AWAKE: Duration = Duration::from_millis(500);

/// The barrier of c10d, without a limit: work takes as long as it takes, and a node that dies is known. Where etcd was
/// restored from a time before this node had come, it comes again.
pub(crate) async fn finished(
    store: &dyn Store,
    (rank, nodes): (usize, usize),
    timeout: Duration,
) -> Result<(), StoreError> {
    let writes = store.clone_store();
    writes.set_timeout(timeout);
    let here = here(rank);
    let every = LOOK_AGAIN.max(LOOK_AGAIN_PER_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)));
    let passed = patience::until_taken(timeout, async || patience::wait(store, PASSED).await);
    tokio::pin!(passed);
    loop {
        arrive(&*writes, &here, nodes, timeout).await?;
        loop {
            tokio::select! {
                biased;
                passed = &mut passed => return passed,
                () = tokio::time::sleep(every) => {}
            }
            // What cannot be read now can be later.
            if let Ok(false) = writes.check(&[&here]).await {
                debug!("etcd has lost that this node has finished; saying it again");
                break;
            }
        }
    }
}

/// Counts this node in. That it is counted comes first: twice would be worse than not at all.
async fn arrive(writes: &dyn Store, here: &[u8], nodes: usize, timeout: Duration) -> Result<(), StoreError> {
    patience::until_taken(timeout, async || writes.set(here, b"1").await).await?;
    let arrived = patience::until_taken(timeout, async || writes.add(ARRIVED, 1).await).await?;
    if usize::try_from(arrived).is_ok_and(|arrived| arrived >= nodes) {
        patience::until_taken(timeout, async || writes.set(PASSED, b"1").await).await?;
    }
    Ok(())
}

/// Waits until all have finished, where these are gone and had: they are counted in, and cannot say so themselves.
pub(crate) async fn finished_without(store: &dyn Store, nodes: usize, gone: &BTreeSet<usize>) {
    if gone.is_empty() {
        return std::future::pending().await;
    }
    let all: Vec<Vec<u8>> = (0..nodes).map(here).collect();
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    loop {
        let counting = async {
            for rank in gone {
                store.set(&here(*rank), b"1").await?;
            }
            let there = store.check(&all).await?;
            if there {
                store.set(PASSED, b"1").await?;
            }
            Ok::<bool, StoreError>(there)
        };
        match counting.await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => debug!(%error, "those who had finished and are gone cannot be counted in yet"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Where a node says that it has finished.
pub(crate) fn here(rank: usize) -> Vec<u8> {
    format!("{HERE}{rank}").into_bytes()
}

/// Waits until etcd has not answered for so long, counted from now at the earliest. Never where that is not known. In which
/// this process was stopped, or its machine asleep, nobody could have been heard.
pub(crate) async fn silent_for(handler: &dyn RendezvousHandler, time: Duration) {
    let (mut since, mut asleep) = (Instant::now(), Duration::ZERO);
    loop {
        let Some(contact) = handler.contact() else { return std::future::pending().await };
        if contact.at > since {
            (since, asleep) = (contact.at, Duration::ZERO);
        }
        // It answers only now and then: a short time without a word is no silence.
        let at = contact.silent_at().max(since + bounded(time)) + asleep;
        let now = Instant::now();
        if at <= now {
            return;
        }
        let next = at.min(now + AWAKE);
        tokio::time::sleep_until(next).await;
        asleep += Some(next.elapsed()).filter(|late| *late > AWAKE).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_store::MemoryStore;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn all_are_waited_for_and_each_counts_once() {
        let store = MemoryStore::new();
        let first = finished(&store, (0, 2), LONG);
        tokio::pin!(first);
        assert!(tokio::time::timeout(LOOK_AGAIN * 10, &mut first).await.is_err(), "the other has not come");
        let (first, second) = tokio::join!(first, finished(&store, (1, 2), LONG));
        first.and(second).unwrap();
        assert_eq!(store.add(ARRIVED, 0).await.unwrap(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_forgotten_comes_again() {
        let store = MemoryStore::new();
        let first = finished(&store, (0, 2), LONG);
        tokio::pin!(first);
        assert!(tokio::time::timeout(LOOK_AGAIN / 2, &mut first).await.is_err());
        // As it was before.
        for key in [ARRIVED, b"rallypoint/finished/0"] {
            assert!(store.delete_key(key).await.unwrap());
        }
        assert!(tokio::time::timeout(LOOK_AGAIN, &mut first).await.is_err());
        let (first, second) = tokio::join!(first, finished(&store, (1, 2), LONG));
        first.and(second).unwrap();
    }
}
