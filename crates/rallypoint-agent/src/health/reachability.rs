//! Whether the nodes of a round can reach each other, before their workers try to.
//!
//! Each node asks the store where the workers meet, as they will, and calls the node before it in rank, which listens for that
//! on a port of its own. Who could not be reached, and by whom, is written to the round's store. When all are done, all read
//! the same and come to the same conclusion.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rallypoint_core::endpoint::host_and_port;
use rallypoint_rendezvous::{Master, Rendezvous};
use rallypoint_store::{Store, StoreError, TcpStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::patience;
use crate::serving::Serving;

const AT: &str = "rallypoint/reach/at/";
const DONE: &[u8] = b"rallypoint/reach/done";
const ALL: &[u8] = b"rallypoint/reach/all";
const FAILURES: &[u8] = b"rallypoint/reach/failures";
const FAILURE: &str = "rallypoint/reach/failure/";
const HEARD: &[u8] = b"rallypoint/reach/heard";
/// So many failures are read; of a network that is down nobody needs to know them all.
const MOST: usize = 256;
/// Of the time that there is, how much each step of a call may take, of which there are two at most: to learn where, and to
/// call. The rest is for the answers of all.
const OF_A_STEP: f64 = 0.3;
/// For who is to blame to hear of it, before the others go.
const TO_HEAR: Duration = Duration::from_secs(2);

/// What is said where there is nobody else to ask.
const OF_TWO: &str = "whether that is its fault or the other node's, two nodes cannot tell";

/// What was called in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Called {
    /// The store where the workers meet, on the node with rank 0.
    Store,
    /// The node before in rank.
    Node,
}

/// A node that could not be reached by another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Failure {
    by: usize,
    of: usize,
    called: Called,
    /// Where, and what came of it.
    why: String,
}

/// A node that keeps the round from working.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// Its rank.
    pub node: usize,
    /// In words.
    pub why: String,
}

/// The nodes of a round, as one of them sees them.
#[derive(Debug, Clone, Copy)]
pub struct Nodes<'a> {
    /// What they share.
    pub store: &'a dyn Store,
    /// This one's rank.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
    /// Where their workers meet.
    pub master: &'a Master,
    /// Who serves their store there; none if this node has not been told.
    pub served: Option<Serving>,
}

impl<'a> Nodes<'a> {
    /// Those of a round that is complete.
    #[must_use]
    pub fn of(met: &'a Rendezvous, served: Option<Serving>) -> Self {
        Nodes { store: &*met.store, rank: met.rank, world_size: met.world_size, master: &met.master, served }
    }
}

/// Finds out with the other nodes of a round whether they can reach each other. The first that is to blame, if they cannot.
/// `address` is where others reach this node. What this node serves must be served by now.
pub async fn unreachable(
    all: Nodes<'_>,
    address: &str,
    limit: Duration,
) -> Result<Option<Unreachable>, StoreError> {
    let (store, rank, nodes) = (all.store, all.rank, all.world_size);
    if nodes < 2 {
        return Ok(None);
    }
    let asked = async {
        let nonce = format!("{:032x}", fastrand::u128(..));
        let listener = listen().await;
        match &listener {
            Ok(listener) => {
                let port = listener.local_addr().map_or(0, |at| at.port());
                let at = format!("{} {nonce}", host_and_port(address, port));
                store.set(key(AT, rank).as_bytes(), at.as_bytes()).await?;
            }
            // Nobody will reach it, and that is told by who tries.
            Err(error) => warn!("no port for the check of this node's port: {error}"),
        }
        let answering = async {
            match listener {
                Ok(listener) => answer(listener, &nonce).await,
                Err(_) => std::future::pending().await,
            }
        };
        let calling = async {
            let failures = call(all, limit.mul_f64(OF_A_STEP)).await;
            for failure in &failures {
                warn!("node {} cannot reach node {}: {}", failure.by, failure.of, failure.why);
                let number = store.add(FAILURES, 1).await?;
                let text = serde_json::to_vec(failure).unwrap_or_default();
                store.set(format!("{FAILURE}{}", number - 1).as_bytes(), &text).await?;
            }
            let done = store.add(DONE, 1).await?;
            if usize::try_from(done).is_ok_and(|done| done >= nodes) {
                store.set(ALL, b"1").await?;
            }
            patience::wait(store, ALL).await
        };
        tokio::select! {
            done = calling => done,
            never = answering => match never {},
        }
    };
    match tokio::time::timeout(limit, asked).await {
        Ok(done) => done?,
        Err(_) => warn!(
            "not all nodes have taken part in the check of their ports within {} s: give --health-check port to all of them",
            limit.as_secs_f64()
        ),
    }
    let blamed = blame(&failures(store).await?, nodes);
    if let Some(blamed) = &blamed {
        if blamed.node == rank {
            store.set(HEARD, b"1").await?;
        } else {
            // The round ends with the first that goes, and who hears of that first would come to the next one.
            let _ = tokio::time::timeout(TO_HEAR, patience::wait(store, HEARD)).await;
        }
    }
    Ok(blamed)
}

fn key(prefix: &str, rank: usize) -> String {
    format!("{prefix}{rank}")
}

async fn listen() -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await {
        Ok(listener) => Ok(listener),
        // A machine without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await,
    }
}

/// Tells whoever calls that it has come to the right place.
async fn answer(listener: TcpListener, nonce: &str) -> std::convert::Infallible {
    loop {
        match listener.accept().await {
            Ok((mut caller, _)) => {
                // Who does not read it has its own problems.
                let _ = caller.write_all(nonce.as_bytes()).await;
            }
            Err(error) => {
                debug!(%error, "a call was not taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Calls those whom this node has to reach, at once: one that does not answer must not keep the other call waiting.
async fn call(all: Nodes<'_>, limit: Duration) -> Vec<Failure> {
    let (rank, nodes) = (all.rank, all.world_size);
    let asking = async {
        let place = host_and_port(&all.master.address, all.master.port);
        let error = match serving(all, limit).await {
            _ if rank == 0 => return None,
            Serving::Rank0 => return None,
            Serving::Agent => TcpStore::connect(&place, limit).await.err()?.to_string(),
            // It lets agents in, and this is only to be reached.
            Serving::Proxies(_) => match tokio::time::timeout(limit, TcpStream::connect(&place)).await {
                Ok(connected) => connected.err()?.to_string(),
                Err(_) => format!("no answer within {} s", limit.as_secs_f64()),
            },
        };
        let why = format!("the workers' store at {place}: {error}");
        Some(Failure { by: rank, of: 0, called: Called::Store, why })
    };
    let before = (rank + nodes - 1) % nodes;
    let calling = async {
        let why = call_node(all.store, before, limit).await.err()?;
        Some(Failure { by: rank, of: before, called: Called::Node, why })
    };
    let (store, node) = tokio::join!(asking, calling);
    store.into_iter().chain(node).collect()
}

/// Whether there is a store to ask. The node with rank 0 has said so before it says where it listens.
async fn serving(all: Nodes<'_>, limit: Duration) -> Serving {
    let asks = async {
        patience::wait(all.store, key(AT, 0).as_bytes()).await?;
        Serving::read(all.store).await
    };
    match all.served {
        Some(serving) => serving,
        None => {
            let said = tokio::time::timeout(limit, asks).await;
            said.map_or(Serving::Rank0, |said| said.unwrap_or(Serving::Rank0))
        }
    }
}

async fn call_node(store: &dyn Store, node: usize, limit: Duration) -> Result<(), String> {
    let place = tokio::time::timeout(limit, async {
        let at = key(AT, node);
        patience::wait(store, at.as_bytes()).await?;
        store.get(at.as_bytes()).await
    });
    // It has not said where it listens: it does not take part, or etcd is silent. Neither is its port's fault.
    let Ok(Ok(place)) = place.await else { return Ok(()) };
    let place = String::from_utf8_lossy(&place).into_owned();
    let Some((place, nonce)) = place.split_once(' ') else { return Ok(()) };
    let called = tokio::time::timeout(limit, async {
        let mut stream = TcpStream::connect(place).await?;
        let mut heard = vec![0; nonce.len()];
        stream.read_exact(&mut heard).await?;
        Ok::<_, std::io::Error>(heard)
    });
    match called.await {
        Ok(Ok(heard)) if heard == nonce.as_bytes() => Ok(()),
        Ok(Ok(_)) => Err(format!("at {place} somebody else answers")),
        Ok(Err(error)) => Err(format!("at {place}: {error}")),
        Err(_) => Err(format!("at {place}: no answer within {} s", limit.as_secs_f64())),
    }
}

async fn failures(store: &dyn Store) -> Result<Vec<Failure>, StoreError> {
    if !store.check(&[FAILURES]).await? {
        return Ok(Vec::new());
    }
    let count = store.add(FAILURES, 0).await?;
    let count = usize::try_from(count).unwrap_or(0).min(MOST);
    let mut failures = Vec::new();
    for number in 0..count {
        let at = format!("{FAILURE}{number}");
        // Who wrote the number may not have written the rest.
        if store.check(&[at.as_bytes()]).await? {
            failures.extend(serde_json::from_slice::<Failure>(&store.get(at.as_bytes()).await?).ok());
        }
    }
    Ok(failures)
}

/// Who is to blame. All nodes say the same.
fn blame(failures: &[Failure], nodes: usize) -> Option<Unreachable> {
    let mut lost: Vec<&Failure> = failures.iter().filter(|failure| failure.called == Called::Store).collect();
    lost.sort_by_key(|failure| failure.by);
    if let [first, ..] = lost[..] {
        return Some(if lost.len() + 1 >= nodes && nodes > 2 {
            let why = format!("no node can reach it: node {} cannot reach {}", first.by, first.why);
            Unreachable { node: 0, why }
        } else if nodes == 2 {
            Unreachable { node: first.by, why: format!("it cannot reach {}; {OF_TWO}", first.why) }
        } else {
            Unreachable { node: first.by, why: format!("it cannot reach {}, which others can", first.why) }
        });
    }
    // Who calls has reached the store, so its own way out is open.
    let silent =
        failures.iter().filter(|failure| failure.called == Called::Node).min_by_key(|failure| failure.of)?;
    let which = if nodes == 2 { format!("; {OF_TWO}") } else { String::new() };
    Some(Unreachable {
        node: silent.of,
        why: format!("node {} cannot reach it {}{which}", silent.by, silent.why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(by: usize) -> Failure {
        Failure { by, of: 0, called: Called::Store, why: "the workers' store at h:1: refused".to_owned() }
    }

    fn node(of: usize, by: usize) -> Failure {
        Failure { by, of, called: Called::Node, why: "at h:2: refused".to_owned() }
    }

    #[test]
    fn who_is_to_blame_is_the_same_for_all_whatever_the_order() {
        let who = |failures: &[Failure], nodes| blame(failures, nodes).map(|unreachable| unreachable.node);
        assert_eq!(who(&[], 4), None);
        // One cannot reach what others can.
        assert_eq!(who(&[store(2)], 4), Some(2));
        assert_eq!(who(&[node(1, 2), store(2)], 4), Some(2), "nor can it reach its neighbour");
        // Nobody can reach the node with rank 0.
        assert_eq!(who(&[store(3), store(1), store(2), node(0, 1)], 4), Some(0));
        // One that nobody can reach is no help, though it reaches others.
        assert_eq!(who(&[node(3, 0)], 4), Some(3));
        assert_eq!(who(&[node(3, 0), node(1, 2)], 4), Some(1), "the first, then the next");
        assert_eq!(who(&[store(1)], 2), Some(1));
    }
}
