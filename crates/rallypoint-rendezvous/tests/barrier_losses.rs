//! A group on the v2 wire whose server loses its data: it is killed, and started again empty.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use rallypoint_core::EtcdSettings;
use rallypoint_core::barrier::KEEP_ALIVE_TTL;
use rallypoint_etcd::v2::{Client, Get};
use rallypoint_rendezvous::{EtcdBarrier, RendezvousHandler, RendezvousParameters};
use rallypoint_server::{Config, Server};
use tokio::time::Instant;

const RDZV: &str = "/torchelastic/p2p/run_job/rdzv";

/// One that listens there, as soon as the one before it has let go.
async fn server(listen: SocketAddr) -> Server {
    loop {
        if let Ok(server) = Server::bind(Config::on(listen)) {
            return server;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn node(endpoint: &str) -> EtcdBarrier {
    let mut parameters = RendezvousParameters::new("etcd", endpoint, "job", 2, 2).unwrap();
    parameters.local_addr = Some("127.0.0.1".to_owned());
    EtcdBarrier::connect(&parameters).await.unwrap()
}

/// The record, the ranks whose keep-alives are there, and the server's index.
async fn state(client: &Client) -> (Option<String>, Vec<String>, u64) {
    let record = client.find(&format!("{RDZV}/active_version"), Get::new()).await.unwrap();
    let folder = client.find(&format!("{RDZV}/v_1"), Get::new().sorted()).await.unwrap().node;
    let names = folder.map(|node| node.nodes.iter().map(|node| node.name().to_owned()).collect());
    let ranks = |names: Vec<String>| names.into_iter().filter(|name| name.starts_with("rank_")).collect();
    (record.node.and_then(|node| node.value), names.map(ranks).unwrap_or_default(), record.etcd_index)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_goes_on_when_its_server_is_started_again_empty() {
    let embedded = server(SocketAddr::from(([127, 0, 0, 1], 0))).await;
    let (address, endpoint) = (embedded.address(), embedded.endpoint());
    let nodes = [node(&endpoint).await, node(&endpoint).await];
    let met = join_all(nodes.iter().map(RendezvousHandler::next_rendezvous)).await;
    assert!(met.iter().all(|met| met.as_ref().unwrap().world_size == 2));
    let client = Client::connect(EtcdSettings::new(&endpoint).unwrap()).await.unwrap();
    let (before, ranks, _) = state(&client).await;
    assert_eq!(ranks, ["rank_0", "rank_1"]);

    drop(embedded);
    let _again = server(address).await;
    let lost = Instant::now();
    let (record, index) = loop {
        if let (record @ Some(_), ranks, index) = state(&client).await
            && ranks == ["rank_0", "rank_1"]
        {
            break (record, index);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(lost.elapsed() < KEEP_ALIVE_TTL + Duration::from_secs(5), "{:?}", lost.elapsed());
    assert_eq!(record, before, "it goes on");
    for node in &nodes {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
        let told = tokio::time::timeout(Duration::from_secs(3), node.changed()).await;
        assert!(told.is_err(), "{told:?}");
    }
    // Nobody spins: in six seconds, each renews its keep-alive twice.
    let writes = state(&client).await.2 - index;
    assert!(writes <= 10, "{writes} writes");
    // And a death is seen by who is left.
    let [one, other] = nodes;
    drop(one);
    other.changed().await;
}
