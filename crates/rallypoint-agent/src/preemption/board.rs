//! How the nodes of a round tell each other who goes, and that they have saved, through the round's store.
//!
//! Who goes takes the next number and writes its record under it; all nodes wait for one number after the other. When all
//! workers of a node have saved, it says so, counts itself, and the last one says that all have.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_store::{Store, StoreError};
use tracing::debug;

use super::record::Preempted;
use crate::patience;

/// So many are told of by name in a round. Where more go, all know by then that it is time to save; a whole group that was
/// warned at once must not read each other's records one by one.
const MOST: usize = 16;
const COUNT: &[u8] = b"rallypoint/preemption/count";
const SAVED: &[u8] = b"rallypoint/preemption/saved";
const ALL_SAVED: &[u8] = b"rallypoint/preemption/all_saved";
/// Between tries where the store fails.
const AGAIN: Duration = Duration::from_secs(1);

/// Where the nodes of one round tell each other.
#[derive(Debug, Clone)]
pub(crate) struct SavedBoard {
    store: Arc<dyn Store>,
    nodes: usize,
}

impl SavedBoard {
    pub(crate) fn new(store: Arc<dyn Store>, nodes: usize) -> Self {
        SavedBoard { store, nodes }
    }

    /// Tells that this node goes; `now` is its record at the moment when it is told. Tries until that is done.
    pub(crate) async fn tell(&self, now: impl Fn() -> Preempted + Send) {
        let number = self.count(COUNT).await;
        let Some(number) = usize::try_from(number).ok().filter(|number| *number <= MOST) else { return };
        loop {
            let text = serde_json::to_vec(&now()).unwrap_or_default();
            match self.store.set(&entry(number), &text).await {
                Ok(()) => return,
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Waits for those who go, one after the other, until no more are told of.
    pub(crate) async fn listen(&self, mut heard: impl FnMut(Preempted) + Send) {
        for number in 1..=MOST {
            let key = entry(number);
            let text = loop {
                self.there(&key).await;
                match self.store.get(&key).await {
                    Ok(text) => break text,
                    Err(error) => pause(&error).await,
                }
            };
            // One that cannot be read is passed over.
            if let Ok(who) = serde_json::from_slice(&text) {
                heard(who);
            }
        }
    }

    /// Says that the workers of this node have saved. Whether all have by that: the others are told so.
    pub(crate) async fn saved(&self, node: usize) -> bool {
        while let Err(error) = self.store.set(&saved_by(node), b"1").await {
            pause(&error).await;
        }
        let saved = self.count(SAVED).await;
        let all = usize::try_from(saved).is_ok_and(|saved| saved >= self.nodes);
        while all && let Err(error) = self.store.set(ALL_SAVED, b"1").await {
            pause(&error).await;
        }
        all
    }

    /// The nodes whose workers have not, as far as it is known.
    pub(crate) async fn unsaved(&self) -> Result<Vec<usize>, StoreError> {
        let known: HashSet<Vec<u8>> = self.store.list_keys().await?.into_iter().collect();
        Ok((0..self.nodes).filter(|node| !known.contains(&saved_by(*node))).collect())
    }

    /// Waits until those of all nodes have.
    pub(crate) async fn all_saved(&self) {
        self.there(ALL_SAVED).await;
    }

    async fn count(&self, key: &[u8]) -> i64 {
        loop {
            match self.store.add(key, 1).await {
                Ok(count) => return count,
                Err(error) => pause(&error).await,
            }
        }
    }

    async fn there(&self, key: &[u8]) {
        while let Err(error) = patience::wait(&*self.store, key).await {
            pause(&error).await;
        }
    }
}

fn entry(number: usize) -> Vec<u8> {
    format!("rallypoint/preemption/{number}").into_bytes()
}

fn saved_by(node: usize) -> Vec<u8> {
    format!("rallypoint/preemption/saved/{node}").into_bytes()
}

/// After a store that failed: an etcd that is away may come back before the deadline.
async fn pause(error: &StoreError) {
    debug!(%error, "the other nodes cannot be told, or heard, of a preemption");
    tokio::time::sleep(AGAIN).await;
}

#[cfg(test)]
mod tests {
    use rallypoint_store::MemoryStore;

    use super::*;

    fn who(node: usize) -> Preempted {
        let (host, name) = (String::new(), String::new());
        Preempted { node, host, name, ranks: vec![node], signal: "SIGTERM".into(), left_ms: None }
    }

    #[tokio::test]
    async fn all_hear_of_the_first_ones_that_go_each_once() {
        let board = SavedBoard::new(Arc::new(MemoryStore::new()), 40);
        for node in 0..MOST + 2 {
            board.tell(|| who(node)).await;
        }
        let mut heard = Vec::new();
        board.listen(|who| heard.push(who.node)).await;
        assert_eq!(heard, (0..MOST).collect::<Vec<_>>(), "and no others are waited for");
    }

    #[tokio::test]
    async fn all_have_saved_when_every_node_has() {
        let board = SavedBoard::new(Arc::new(MemoryStore::new()), 2);
        assert!(!board.saved(1).await);
        assert_eq!(board.unsaved().await.unwrap(), [0]);
        let all = tokio::time::timeout(Duration::from_millis(50), board.all_saved());
        assert!(all.await.is_err());
        assert!(board.saved(0).await);
        board.all_saved().await;
    }
}
