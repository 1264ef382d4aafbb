//! Gateways while etcd's answers are lost and its servers die.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_server::{Config, GatewayConfig, Server};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Version};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::v2_support::{TIMEOUT, Target};

async fn gateway(endpoints: &str) -> Server {
    let mut settings = EtcdSettings::new(endpoints).unwrap();
    settings.prefix = "/v2/".to_owned();
    settings.request_timeout = Duration::from_secs(1);
    Server::gateway(Config::on(([127, 0, 0, 1], 0).into()), GatewayConfig::to(settings)).await.unwrap()
}

/// Adds a value to a queue; whether that is known to be done.
async fn push(client: &reqwest::Client, server: &str, value: usize) -> bool {
    let url = format!("{server}/v2/keys/queue?value={value}");
    let sent = tokio::time::timeout(TIMEOUT * 2, client.post(url).send()).await.expect("an answer in time");
    let answer = sent.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status == 201 || text.contains("\"errorCode\":300"), "{status} {text}");
    status == 201
}

/// The values of the queue, in order.
async fn queue(target: &Target) -> Vec<usize> {
    let body: Value = serde_json::from_str(&target.get("/queue", "sorted=true").await.body).unwrap();
    let value = |node: &Value| node["value"].as_str().unwrap().parse().unwrap();
    body["node"]["nodes"].as_array().unwrap().iter().map(value).collect()
}

/// Pushes one value after the other until told to stop; those that are known to be done, and how many were asked for.
async fn pushing(url: String, of: usize, stop: Arc<AtomicBool>) -> (BTreeSet<usize>, usize) {
    let client = super::v2_support::client();
    let (mut done, mut asked) = (BTreeSet::new(), 0);
    while !stop.load(Ordering::Relaxed) || asked < 20 {
        let value = of * 1_000_000 + asked;
        asked += 1;
        if push(&client, &url, value).await {
            done.insert(value);
        }
    }
    (done, asked)
}

/// What all of them did is in the queue, once.
async fn check(target: &Target, pushers: Vec<JoinHandle<(BTreeSet<usize>, usize)>>) -> usize {
    let (mut all, mut asked) = (BTreeSet::new(), 0);
    for pusher in pushers {
        let (done, of) = pusher.await.unwrap();
        asked += of;
        all.extend(done);
    }
    let queue = queue(target).await;
    let distinct: BTreeSet<usize> = queue.iter().copied().collect();
    assert_eq!(distinct.len(), queue.len(), "none is there twice");
    assert!(distinct.is_superset(&all) && queue.len() <= asked, "all that was answered is there");
    assert!(all.len() * 10 > asked * 9, "most were answered: {} of {asked}", all.len());
    queue.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_done_once() {
    let etcd = super::etcd(Version::V35).await;
    let proxy = Proxy::start(&etcd.endpoint());
    let server = gateway(&proxy.endpoint()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let pushers =
        (0..6).map(|of| tokio::spawn(pushing(server.url().to_owned(), of, Arc::clone(&stop)))).collect();
    let fenced = async || {
        let list = super::etcdctl(&etcd, &["get", "/v2/fenced/", "--prefix", "--keys-only"]).await;
        list.split_whitespace().count()
    };
    // Until some writes were among what was lost. What is sent still arrives.
    let losing = async {
        while fenced().await < 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.drop_replies(true);
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.cut();
            proxy.drop_replies(false);
        }
    };
    tokio::time::timeout(TIMEOUT, losing).await.expect("some writes are lost");
    stop.store(true, Ordering::Relaxed);
    check(&Target::gateway_to(&etcd.endpoint()).await, pushers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_go_on_when_the_leader_is_killed() {
    let mut cluster = tokio::task::spawn_blocking(|| Cluster::start(Version::V35, 3)).await.unwrap();
    let servers = [gateway(&cluster.endpoints()).await, gateway(&cluster.endpoints()).await];
    let stop = Arc::new(AtomicBool::new(false));
    let pushers = (0..4)
        .map(|of: usize| tokio::spawn(pushing(servers[of % 2].url().to_owned(), of, Arc::clone(&stop))))
        .collect();
    let target = Target::gateway_to(&cluster.endpoints()).await;
    let mut watch = target.watch("/queue", "recursive=true&stream=true&waitIndex=1").await;
    let seen = super::lines(&mut watch, 20).await;
    tokio::task::block_in_place(|| {
        let leader = cluster.leader();
        cluster.node(leader).kill();
        // Another one leads, so all can go on.
        let _ = cluster.leader_but(leader);
    });
    let at = target.get("", "").await.index.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    let count = check(&target, pushers).await;
    // The stream that was open when the leader died has told of each, once.
    let rest = super::lines(&mut watch, count - seen.len()).await;
    let indices: Vec<u64> =
        seen.iter().chain(&rest).map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert!(
        indices.is_sorted_by(|one, other| one < other) && indices.last() >= Some(&at),
        "{at}: {indices:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_is_told_as_that_until_there_is_room() {
    let start = || Etcd::builder(Version::V35).unsafe_no_fsync().arg("--quota-backend-bytes=1048576").start();
    let etcd = tokio::task::spawn_blocking(start).await.unwrap();
    let target = Target::gateway_to(&etcd.endpoint()).await;
    target.put("/a", "value=1").await;
    // It is there yet when etcd is full.
    target.put("/d", "dir=true&ttl=10").await;
    let health = async || target.client.get(target.url("/health")).send().await.unwrap();
    assert_eq!(health().await.status(), 200);
    tokio::task::block_in_place(|| etcd.exhaust_space());
    let ill = health().await;
    assert_eq!(ill.status(), 503);
    assert!(ill.text().await.unwrap().contains("NOSPACE"));
    assert_eq!(target.get("/a", "").await.status, 200);
    for refused in [target.put("/a", "value=2").await, target.delete("/a", "").await] {
        assert!(refused.status == 500 && refused.body.contains("\"errorCode\":300"), "{}", refused.body);
        assert!(refused.body.contains("space"), "{}", refused.body);
    }
    // Its time is up, and it cannot be taken away.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(target.get("/d", "").await.status, 200);
    tokio::task::block_in_place(|| etcd.free_space());
    assert_eq!(health().await.status(), 200);
    target.until_gone("/d").await;
    assert_eq!(target.put("/a", "value=2").await.status, 200);
}
