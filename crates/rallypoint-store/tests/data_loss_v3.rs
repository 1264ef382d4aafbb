//! A server that comes back without what it held, or with what it held earlier: nobody waits for what is there, and
//! writes go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v3::{Client, KeyRange, LeaseState, Watch, WatchUpdate};
use rallypoint_server::{Config, Server};
use rallypoint_store::{EtcdStore, Store, StoreError};
use rallypoint_testkit::{Etcd, Proxy, Version, http_get};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::error::Elapsed;

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
            .chain(Version::all().into_iter().map(|version| Forgetful::Etcd(Etcd::start(version))))
    }

    fn bind(listen: SocketAddr) -> Forgetful {
        let server = Server::bind(Config::on(listen)).unwrap();
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
async fn a_watch_tells_what_is_there_after_a_restore_to_an_earlier_state_that_others_have_written_past() {
    for version in Version::all() {
        let mut etcd = Etcd::start(version);
        let proxy = Proxy::start(&etcd.endpoint());
        let client = connect(&proxy.endpoint()).await;
        let writer = connect(&etcd.endpoint()).await;
        writer.put("key", "early", None).await.unwrap();
        let snapshot = etcd.dir().join("snapshot");
        etcd.save(&snapshot);
        let mut watch = client.watch(KeyRange::prefix("key"), 1);
        writer.put("key", "late", None).await.unwrap();
        let old = writer.put("key2", "gone", None).await.unwrap().header().unwrap().revision();
        let mut told_of = 0;
        while told_of < 3 {
            match told(&mut watch).await {
                WatchUpdate::Events(events) => told_of += events.len(),
                other => panic!("{other:?}"),
            }
        }

        proxy.refuse(true);
        proxy.cut();
        etcd.restore(&snapshot);
        overtake(&connect(&etcd.endpoint()).await, old + 10).await;
        proxy.refuse(false);
        let WatchUpdate::Snapshot { entries, .. } = told(&mut watch).await else { panic!("a fresh read") };
        let found: Vec<_> = entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
        assert_eq!(found, [(&b"key"[..], &b"early"[..])]);
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

/// One write of each kind, twice, and what must be there after it.
async fn write_everything(store: &EtcdStore) {
    for n in 1..=2_u8 {
        store.set(b"set", &[n]).await.unwrap();
        assert_eq!(store.get(b"set").await.unwrap(), [n]);
        assert_eq!(store.add(b"add", 1).await.unwrap(), i64::from(n));
        store.append(b"append", b"x").await.unwrap();
        assert_eq!(store.get(b"append").await.unwrap(), vec![b'x'; n.into()]);
        let before = if n == 1 { vec![] } else { vec![n - 1] };
        assert_eq!(store.compare_set(b"chain", &before, &[n]).await.unwrap(), [n]);
        store.multi_set(&[b"a", b"b"], &[&[n], &[n]]).await.unwrap();
        assert!(store.delete_key(b"a").await.unwrap());
        store.queue_push(b"queue", &[n]).await.unwrap();
        assert_eq!(store.queue_pop(b"queue", true).await.unwrap(), [n]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_with_a_server_that_lost_its_data() {
    for mut server in Forgetful::all() {
        let client = connect(&server.endpoint()).await;
        let store = EtcdStore::new(client.clone(), "/store").with_timeout(LIMIT);
        write_everything(&store).await;
        for _ in 0..2 {
            server.restart_empty().await;
            // No write is under way on the connection that ended.
            client.status().await.unwrap();
            tokio::time::timeout(LIMIT, write_everything(&store)).await.expect("nothing hangs");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_with_a_server_restored_to_an_earlier_state() {
    for version in Version::all() {
        let mut etcd = Etcd::start(version);
        let client = connect(&etcd.endpoint()).await;
        let store = EtcdStore::new(client.clone(), "/store").with_timeout(LIMIT);
        store.add(b"kept", 1).await.unwrap();
        let snapshot = etcd.dir().join("snapshot");
        etcd.save(&snapshot);
        write_everything(&store).await;
        store.add(b"kept", 1).await.unwrap();

        etcd.restore(&snapshot);
        client.status().await.unwrap();
        tokio::time::timeout(LIMIT, write_everything(&store)).await.expect("nothing hangs");
        assert_eq!(store.add(b"kept", 1).await.unwrap(), 2, "the second add is not of this history");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_under_way_while_data_was_lost_is_there_or_not_known_to_be() {
    for mut server in Forgetful::all() {
        let proxy = Proxy::start(&server.endpoint());
        let store = open(&proxy.endpoint()).await;
        store.add(b"c", 1).await.unwrap();
        proxy.drop_replies(true);
        let adding = tokio::spawn({
            let store = store.clone();
            async move { store.add(b"c", 1).await }
        });
        let direct = open(&server.endpoint()).await;
        while direct.get(b"c").await.unwrap() != b"2" {}
        server.restart_empty().await;
        proxy.drop_replies(false);
        proxy.cut();
        let added = tokio::time::timeout(LIMIT, adding).await.expect("nothing hangs").unwrap();
        let there = direct.check(&[b"c"]).await.unwrap();
        match added {
            Ok(sum) => assert_eq!((sum, there), (1, true), "carried out in the new history"),
            Err(StoreError::OutcomeUnknown { .. }) => assert!(!there, "and never carried out late"),
            Err(error) => panic!("{error}"),
        }
        store.set(b"after", b"").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_on_a_lease_that_is_gone_fails_and_names_it() {
    for mut server in Forgetful::all() {
        let client = connect(&server.endpoint()).await;
        let (lease, _) = client.lease_grant(Duration::from_secs(600)).await.unwrap();
        let store =
            EtcdStore::on_lease(client.clone(), "/store", lease).with_timeout(Duration::from_secs(300));
        store.set(b"key", b"").await.unwrap();
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.get(b"never").await.map(|_| ()) }
        });
        let waiting_too = tokio::spawn({
            let store = store.clone();
            async move { store.wait(&[b"key", b"never"], None).await }
        });
        let popping = tokio::spawn({
            let store = store.clone();
            async move { store.queue_pop(b"never", true).await.map(|_| ()) }
        });
        server.has_watches(4);
        server.restart_empty().await;
        client.status().await.unwrap();
        let name = format!("{lease:016x}");
        let written = store.set(b"key", b"").await;
        for failed in [Ok(Ok(written)), timed(waiting).await, timed(waiting_too).await, timed(popping).await]
        {
            let error = failed.expect("nothing hangs").unwrap().unwrap_err();
            assert!(matches!(error, StoreError::LeaseGone { .. }), "{error}");
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
}

async fn timed<T>(task: JoinHandle<T>) -> Result<Result<T, JoinError>, Elapsed> {
    tokio::time::timeout(LIMIT, task).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_lease_learns_that_it_went_with_the_data() {
    for mut server in Forgetful::all() {
        let client = connect(&server.endpoint()).await;
        let lease = client.lease(Duration::from_secs(3)).await.unwrap();
        server.restart_empty().await;
        tokio::time::timeout(LIMIT, lease.lost()).await.expect("it is told");
        let again = client.lease(Duration::from_secs(3)).await.unwrap();
        assert_eq!(again.state(), LeaseState::Alive);
    }
}
