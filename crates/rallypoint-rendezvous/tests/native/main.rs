//! The native backend on real etcd servers, as its callers see it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod cut_off;
mod data_loss;
mod exclusions;
mod faults;
mod garbage;
mod grpc_proxy;
mod leftovers;
mod meeting;
mod members;
mod outages;
mod passwords;
mod processes;
mod refusals;
mod world;

use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_rendezvous::{GroupChange, Rendezvous, RendezvousError, RendezvousHandler};
use tokio::task::JoinHandle;

/// Far beyond what anything here takes; what is waited for does not come if it takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// A run of its own, on the etcd at `endpoint`.
fn settings(endpoint: &str, min: usize, max: usize) -> NativeSettings {
    let mut settings =
        NativeSettings::new(endpoint, &format!("run-{}", fastrand::u64(..)), min, max).unwrap();
    // So long that nobody misses it who only has to wait for a processor or a disk.
    settings.lease = Duration::from_secs(3);
    settings.last_call = Duration::from_secs(3);
    settings.etcd.request_timeout = Duration::from_secs(1);
    settings
}

async fn node(settings: &NativeSettings, name: &str) -> Arc<NativeHandler> {
    let mut settings = settings.clone();
    settings.node_id = Some(name.to_owned());
    Arc::new(NativeHandler::connect(settings).await.unwrap())
}

async fn nodes(settings: &NativeSettings, names: impl IntoIterator<Item = &str>) -> Vec<Arc<NativeHandler>> {
    let mut nodes = Vec::new();
    for name in names {
        nodes.push(node(settings, name).await);
    }
    nodes
}

type Meeting = JoinHandle<Result<Rendezvous, RendezvousError>>;

/// Begins to meet.
fn meet(node: &Arc<NativeHandler>) -> Meeting {
    let node = Arc::clone(node);
    tokio::spawn(async move { node.next_rendezvous().await })
}

/// A round of all of `nodes`, checked: ranks once each, one size, one master, one round.
async fn round_of(nodes: &[Arc<NativeHandler>]) -> Vec<Rendezvous> {
    let meetings: Vec<Meeting> = nodes.iter().map(meet).collect();
    completed(meetings).await
}

async fn completed(meetings: Vec<Meeting>) -> Vec<Rendezvous> {
    let mut rounds = Vec::new();
    for meeting in meetings {
        rounds.push(within(meeting).await.unwrap().unwrap());
    }
    let mut ranks: Vec<usize> = rounds.iter().map(|round| round.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..rounds.len()).collect::<Vec<_>>());
    for round in &rounds {
        assert_eq!(round.world_size, rounds.len());
        assert_eq!((round.round, &round.master), (rounds[0].round, &rounds[0].master));
        assert_eq!(round.rank == 0, round.held_port.is_some());
        if let Some(port) = &round.held_port {
            assert_eq!(port.port(), round.master.port);
        }
    }
    rounds
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it does not come")
}

async fn change(node: &Arc<NativeHandler>) -> GroupChange {
    within(node.changed()).await
}
