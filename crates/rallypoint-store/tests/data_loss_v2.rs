//! A server of the v2 wire that comes back without what it held: nobody waits for what is there, and writes go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v2::Client;
use rallypoint_store::{EtcdV2Store, Store};
use rallypoint_testkit::{Etcd, Proxy, Version, http_get};

const LIMIT: Duration = Duration::from_secs(60);

fn settings(endpoint: &str) -> EtcdSettings {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.request_timeout = Duration::from_secs(1);
    settings
}

async fn open(endpoint: &str) -> EtcdV2Store {
    EtcdV2Store::connect(settings(endpoint), "/store").await.unwrap().with_timeout(LIMIT)
}

/// Writes until the server's index is at least `index`.
async fn overtake(client: &Client, index: u64) {
    while client.set("/other", "").await.unwrap().node.modified_index < index {}
}

/// Waits until it has this many watches.
fn has_watches(etcd: &Etcd, number: u32) {
    let port = etcd.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let line = format!("etcd_debugging_store_watchers {number}");
    let began = Instant::now();
    while !http_get(port, "/metrics", LIMIT).unwrap().lines().any(|found| found == line) {
        assert!(began.elapsed() < LIMIT, "there are not {number} watches");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_key_finds_it_on_a_server_that_lost_its_data_and_is_further_than_before() {
    for version in Version::WITH_V2 {
        let mut etcd = Etcd::builder(version).v2().start();
        let proxy = Proxy::start(&etcd.endpoint());
        let store = open(&proxy.endpoint()).await;
        open(&etcd.endpoint()).await.set(b"here", b"").await.unwrap();
        let writer = Client::connect_lazily(settings(&etcd.endpoint())).unwrap();
        let old = writer.set("/other", "").await.unwrap().node.modified_index;
        let spawn = |what: u8| {
            let store = store.clone();
            tokio::spawn(async move {
                match what {
                    b'g' => store.get(b"key").await,
                    b'w' => store.wait(&[b"key", b"here"], None).await.map(|()| b"value".to_vec()),
                    b'm' => store.multi_get(&[b"here", b"key"]).await.map(|mut values| values.pop().unwrap()),
                    _ => store.queue_pop(b"queue", true).await,
                }
            })
        };
        let waiting = b"gwmq".map(spawn);
        // A wait looks for values and for queue items.
        has_watches(&etcd, 5);

        proxy.refuse(true);
        proxy.cut();
        tokio::task::block_in_place(|| etcd.restart_empty());
        let after = open(&etcd.endpoint()).await;
        after.multi_set(&[b"key", b"here"], &[b"value", b""]).await.unwrap();
        after.queue_push(b"queue", b"value").await.unwrap();
        overtake(&Client::connect_lazily(settings(&etcd.endpoint())).unwrap(), old + 30).await;
        proxy.refuse(false);
        for task in waiting {
            // Nobody waits out the time that a wait has.
            let value = tokio::time::timeout(LIMIT / 2, task).await.expect("it is there").unwrap().unwrap();
            assert_eq!(value, b"value");
        }
        store.set(b"after", b"").await.unwrap();
    }
}
