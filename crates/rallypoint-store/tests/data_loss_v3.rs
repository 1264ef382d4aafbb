//! A server that comes back without what it held, or with what it held earlier: nobody waits for what is there, and
//! writes go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v3::{Client, KeyRange, Watch, WatchUpdate};
use rallypoint_server::{Config, Server};
use rallypoint_store::{EtcdStore, Store};
use rallypoint_testkit::{Etcd, Proxy, Version, http_get};

const LIMIT: Duration = Duration::from_secs(20);

async fn connect(endpoint: &str) -> Client {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.request_timeout = Duration::from_secs(1);
    Client::connect(settings).await.unwrap()
}

async fn open(endpoint: &str) -> EtcdStore {
    EtcdStore::new(connect(endpoint).await, "/store").with_timeout(LIMIT)
}

/// A server that can be brought back without its data.
enum Forgetful {
    Embedded(SocketAddr, Option<Server>),
    Etcd(Etcd),
}

impl Forgetful {
    fn all() -> impl Iterator<Item = Forgetful> {
        let embedded = || Forgetful::bind("127.0.0.1:0".parse().unwrap());
        std::iter::once_with(embedded)
            .chain(Version::ALL.into_iter().map(|version| Forgetful::Etcd(Etcd::start(version))))
    }

    fn bind(listen: SocketAddr) -> Forgetful {
        let server = Server::bind(Config { listen, ..Config::default() }).unwrap();
        Forgetful::Embedded(server.address(), Some(server))
    }

    fn endpoint(&self) -> String {
        match self {
            Forgetful::Embedded(address, _) => address.to_string(),
            Forgetful::Etcd(etcd) => etcd.endpoint(),
        }
    }

    /// Waits until it has this many watches.
    fn has_watches(&self, number: u32) {
        let port = self.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
        let line = format!("etcd_debugging_mvcc_watcher_total {number}");
        let began = Instant::now();
        while !http_get(port, "/metrics", LIMIT).unwrap().lines().any(|found| found == line) {
            assert!(began.elapsed() < LIMIT, "there are not {number} watches");
        }
    }

    async fn restart_empty(&mut self) {
        match self {
            Forgetful::Embedded(address, server) => {
                server.take().unwrap().stop().await.unwrap();
                *self = Forgetful::bind(*address);
            }
            Forgetful::Etcd(etcd) => etcd.restart_empty(),
        }
    }
}

/// Writes until the server's revision is at least `revision`.
async fn overtake(client: &Client, revision: i64) {
    while client.put("/other", "", None).await.unwrap().header().unwrap().revision() < revision {}
}

/// What a watch tells next.
async fn told(watch: &mut Watch) -> WatchUpdate {
    tokio::time::timeout(LIMIT, watch.next()).await.expect("an update in time").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_what_a_server_holds_that_lost_its_data_and_is_further_than_before() {
    for mut server in Forgetful::all() {
        let proxy = Proxy::start(&server.endpoint());
        let client = connect(&proxy.endpoint()).await;
        let writer = connect(&server.endpoint()).await;
        let old = writer.put("/other", "", None).await.unwrap().header().unwrap().revision();
        let mut watch = client.watch(KeyRange::key("awaited"), old + 1);
        let mut idle = client.watch_from_now(KeyRange::key("awaited"));
        assert!(matches!(told(&mut idle).await, WatchUpdate::Events(events) if events.is_empty()));

        proxy.refuse(true);
        proxy.cut();
        server.restart_empty().await;
        let writer = connect(&server.endpoint()).await;
        writer.put("awaited", "there", None).await.unwrap();
        overtake(&writer, old + 10).await;
        proxy.refuse(false);

        for watch in [&mut watch, &mut idle] {
            let WatchUpdate::Snapshot { entries, revision } = told(watch).await else {
                panic!("what happened in another history is not told as if it were this one's")
            };
            assert_eq!(entries[0].value, b"there");
            assert!(revision >= old + 10);
        }
        writer.put("awaited", "again", None).await.unwrap();
        for watch in [&mut watch, &mut idle] {
            assert!(matches!(told(watch).await, WatchUpdate::Events(events) if events.len() == 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_key_finds_it_on_a_server_that_lost_its_data() {
    for mut server in Forgetful::all() {
        let proxy = Proxy::start(&server.endpoint());
        let store = open(&proxy.endpoint()).await;
        let before = open(&server.endpoint()).await;
        let writer = connect(&server.endpoint()).await;
        let old = writer.put("/other", "", None).await.unwrap().header().unwrap().revision();
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
        before.set(b"here", b"").await.unwrap();
        let waiting = b"gwmq".map(spawn);
        // A wait looks for values and for queue items.
        server.has_watches(5);

        proxy.refuse(true);
        proxy.cut();
        server.restart_empty().await;
        let after = open(&server.endpoint()).await;
        after.multi_set(&[b"key", b"here"], &[b"value", b""]).await.unwrap();
        after.queue_push(b"queue", b"value").await.unwrap();
        overtake(&connect(&server.endpoint()).await, old + 30).await;
        proxy.refuse(false);
        for task in waiting {
            let value = tokio::time::timeout(LIMIT, task).await.expect("it is there").unwrap().unwrap();
            assert_eq!(value, b"value");
        }
    }
}
