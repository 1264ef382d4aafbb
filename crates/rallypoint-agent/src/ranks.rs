//! Which ranks a node's workers get, agreed upon through the store of the round.
//!
//! The keys and their values are torchrun's, so that nodes under torchrun and nodes under `rallypoint run` can
//! be in one round. A node writes one key and reads one; only rank 0 reads and writes for all.

use std::collections::BTreeMap;

use rallypoint_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::environment::WorkerRanks;

const ROLE_INFO: &str = "torchelastic/role_info/";
const ASSIGNED_RANKS: &str = "torchelastic/assigned_ranks/";
/// Set to 1, it says that all nodes have one role and the same number of workers; nothing needs to be asked.
pub const IDENTICAL_VARIABLE: &str = "TORCH_ELASTIC_WORKER_IDENTICAL";

/// What a node says of its workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWorkers {
    /// Their role.
    pub role: String,
    /// The node's place.
    pub rank: usize,
    /// Their number.
    pub local_world_size: usize,
}

/// Where a node's workers begin, and how many there are in all: torchrun's list of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned(usize, usize, usize, usize);

/// Why ranks could not be agreed upon.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RankError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What another node wrote is not understood.
    #[error(
        "the store's {key:?} is not what a launcher writes: are all nodes started with the same launcher?"
    )]
    Value {
        /// The key.
        key: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The ranks of all nodes: of each role and overall they follow the order of the nodes.
#[must_use]
pub fn assign(nodes: &[NodeWorkers]) -> Vec<Assigned> {
    let mut role_sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        *role_sizes.entry(&node.role).or_default() += node.local_world_size;
    }
    let world_size = nodes.iter().map(|node| node.local_world_size).sum();
    let mut next = 0;
    let mut next_of_role: BTreeMap<&str, usize> = BTreeMap::new();
    let mut assigned = Vec::with_capacity(nodes.len());
    for NodeWorkers { role, local_world_size, .. } in nodes {
        let of_role = next_of_role.entry(role).or_default();
        assigned.push(Assigned(next, world_size, *of_role, role_sizes[role.as_str()]));
        next += local_world_size;
        *of_role += local_world_size;
    }
    assigned
}

/// The places of this node's workers. `identical` is [`IDENTICAL_VARIABLE`].
pub async fn agree(
    store: &dyn Store,
    ours: &NodeWorkers,
    nodes: usize,
    identical: bool,
) -> Result<Vec<WorkerRanks>, RankError> {
    let local = ours.local_world_size;
    let assigned = if identical {
        Assigned(ours.rank * local, nodes * local, ours.rank * local, nodes * local)
    } else {
        exchange(store, ours, nodes).await?
    };
    let Assigned(first, world_size, first_of_role, role_world_size) = assigned;
    let place = |local_rank| WorkerRanks {
        rank: first + local_rank,
        local_rank,
        role_rank: first_of_role + local_rank,
        world_size,
        local_world_size: local,
        role_world_size,
        group_rank: ours.rank,
        group_world_size: nodes,
    };
    Ok((0..local).map(place).collect())
}

async fn exchange(store: &dyn Store, ours: &NodeWorkers, nodes: usize) -> Result<Assigned, RankError> {
    let key = format!("{ROLE_INFO}{}", ours.rank);
    let text = serde_json::to_vec(ours).map_err(|source| RankError::Value { key: key.clone(), source })?;
    store.set(key.as_bytes(), &text).await?;
    if ours.rank == 0 {
        let keys: Vec<String> = (0..nodes).map(|rank| format!("{ROLE_INFO}{rank}")).collect();
        let values = store.multi_get(&bytes(&keys)).await?;
        let read = |(key, value): (&String, &Vec<u8>)| {
            serde_json::from_slice(value).map_err(|source| RankError::Value { key: key.clone(), source })
        };
        let all: Vec<NodeWorkers> = keys.iter().zip(&values).map(read).collect::<Result<_, _>>()?;
        let keys: Vec<String> = (0..nodes).map(|rank| format!("{ASSIGNED_RANKS}{rank}")).collect();
        let texts: Vec<String> =
            assign(&all).iter().map(|Assigned(a, b, c, d)| format!("[{a}, {b}, {c}, {d}]")).collect();
        store.multi_set(&bytes(&keys), &bytes(&texts)).await?;
    }
    let key = format!("{ASSIGNED_RANKS}{}", ours.rank);
    let value = store.get(key.as_bytes()).await?;
    serde_json::from_slice(&value).map_err(|source| RankError::Value { key, source })
}

fn bytes(texts: &[String]) -> Vec<&[u8]> {
    texts.iter().map(String::as_bytes).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_store::MemoryStore;

    use super::*;

    fn node(role: &str, rank: usize, local_world_size: usize) -> NodeWorkers {
        NodeWorkers { role: role.to_owned(), rank, local_world_size }
    }

    #[test]
    fn ranks_follow_the_nodes_and_each_role_has_its_own() {
        let nodes = [node("trainer", 0, 2), node("reader", 1, 3), node("trainer", 2, 1)];
        let assigned = assign(&nodes);
        assert_eq!(assigned, [Assigned(0, 6, 0, 3), Assigned(2, 6, 0, 3), Assigned(5, 6, 2, 3)]);
    }

    #[tokio::test]
    async fn nodes_of_different_sizes_agree_through_the_store() {
        let store = MemoryStore::new();
        let nodes = [node("default", 0, 1), node("default", 1, 4), node("default", 2, 2)];
        let agreed = nodes.iter().map(|node| agree(&store, node, 3, false));
        let (a, b, c) = {
            let mut agreed = agreed;
            tokio::join!(agreed.next().unwrap(), agreed.next().unwrap(), agreed.next().unwrap())
        };
        let ranks: Vec<usize> =
            [a, b, c].into_iter().flat_map(Result::unwrap).map(|place| place.rank).collect();
        assert_eq!(ranks, (0..7).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn identical_nodes_ask_nobody() {
        let store = MemoryStore::new();
        let places = agree(&store, &node("default", 3, 2), 5, true).await.unwrap();
        assert_eq!((places[1].rank, places[1].world_size, places[1].role_rank), (7, 10, 7));
        assert_eq!(store.num_keys().await.unwrap(), 0);
    }
}
