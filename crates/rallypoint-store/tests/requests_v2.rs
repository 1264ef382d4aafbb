//! How often the store on the v2 wire asks the server. Each request to it is a proposal to the cluster, reads
//! included, and the server counts those.

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_store::{EtcdV2Store, Store};
use rallypoint_testkit::{Etcd, Version};

const TIMES: u32 = 100;

/// What the server proposes on its own account: twice a second the time, while a key has a TTL.
const OF_ITS_OWN: f64 = 30.0;

async fn open(etcd: &Etcd) -> EtcdV2Store {
    let settings = EtcdSettings::new(&etcd.endpoint()).expect("an endpoint");
    EtcdV2Store::connect(settings, "/store").await.expect("it runs").with_timeout(Duration::from_secs(30))
}

/// Runs `operation` a hundred times; the requests each took.
async fn requests<F: Future>(etcd: &Etcd, mut operation: impl FnMut() -> F) -> u32 {
    let proposals = || etcd.metric("etcd_server_proposals_applied_total");
    let before = proposals();
    for _ in 0..TIMES {
        operation().await;
    }
    let all = proposals() - before;
    assert!(all >= f64::from(TIMES), "the server counts: {all}");
    let each = (all - OF_ITS_OWN).max(0.0) / f64::from(TIMES);
    each.ceil() as u32
}

#[tokio::test]
async fn an_operation_that_nobody_interferes_with_takes_no_more_requests_than_it_must() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let store = open(&etcd).await;
    store.set(b"key", b"value").await.unwrap();
    store.add(b"counter", 1).await.unwrap();

    assert_eq!(requests(&etcd, || async { store.get(b"key").await.unwrap() }).await, 1, "get");
    assert_eq!(requests(&etcd, || async { store.set(b"key", b"value").await.unwrap() }).await, 1, "set");
    assert_eq!(requests(&etcd, || async { store.check(&[b"key"]).await.unwrap() }).await, 1, "check");
    assert_eq!(requests(&etcd, || async { store.wait(&[b"key"], None).await.unwrap() }).await, 1, "wait");
    assert_eq!(requests(&etcd, || async { store.add(b"counter", 1).await.unwrap() }).await, 1, "add");
    let swap = || async { store.compare_set(b"key", b"value", b"value").await.unwrap() };
    assert_eq!(requests(&etcd, swap).await, 2, "compare_set");
    assert_eq!(requests(&etcd, || async { store.append(b"log", b"x").await.unwrap() }).await, 2, "append");
}

#[tokio::test]
async fn an_add_after_somebody_elses_takes_one_request_more() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let (ours, theirs) = (open(&etcd).await, open(&etcd).await);
    ours.add(b"counter", 1).await.unwrap();
    theirs.add(b"counter", 1).await.unwrap();
    let both = || async {
        ours.add(b"counter", 1).await.unwrap();
        theirs.add(b"counter", 1).await.unwrap();
    };
    assert_eq!(requests(&etcd, both).await, 4, "a refusal that tells what is there, and the add, for each");
    assert_eq!(ours.get(b"counter").await.unwrap(), b"202");
}
