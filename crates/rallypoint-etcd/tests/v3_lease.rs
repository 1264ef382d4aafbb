//! Leases: kept alive through outages, and a clear signal when one is truly lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use rallypoint_core::{Credentials, EtcdSettings};
use rallypoint_etcd::v3::api::PutOptions;
use rallypoint_etcd::v3::{Client, KeyRange, Lease, LeaseState, WatchUpdate};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Version};

const TTL: Duration = Duration::from_secs(2);
/// Of what is known with the next refresh, on a machine that has other things to do.
const KNOWN: Duration = Duration::from_secs(20);

async fn connect(endpoint: &str) -> Client {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.request_timeout = Duration::from_secs(1);
    Client::connect(settings).await.unwrap()
}

async fn put(client: &Client, key: &str, lease: &Lease) {
    client.put(key, "v", Some(PutOptions::new().with_lease(lease.id()))).await.unwrap();
}

async fn is_there(client: &Client, key: &str) -> bool {
    client.get(key, None).await.unwrap().count() == 1
}

/// Waits for the deletion of `key`, and says how long that took.
async fn deleted(client: &Client, key: &str) -> Duration {
    let began = Instant::now();
    let from = client.get(key, None).await.unwrap().header().unwrap().revision() + 1;
    let mut watch = client.watch(KeyRange::key(key), from);
    match tokio::time::timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap() {
        WatchUpdate::Events(_) => began.elapsed(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lease_lives_on_while_it_is_held_and_ends_when_it_is_not() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let client = connect(&etcd.endpoint()).await;
        let held = client.lease(TTL).await.unwrap();
        assert_eq!(held.ttl(), TTL);
        let revoked = client.lease(TTL).await.unwrap();
        let dropped = client.lease(TTL).await.unwrap();
        for (key, lease) in [("held", &held), ("revoked", &revoked), ("dropped", &dropped)] {
            put(&client, key, lease).await;
        }
        revoked.revoke().await.unwrap();
        assert!(!is_there(&client, "revoked").await, "at once");
        drop(dropped);
        assert!(is_there(&client, "dropped").await, "not at once");
        deleted(&client, "dropped").await;
        tokio::time::sleep(TTL * 2).await;
        assert!(is_there(&client, "held").await);
        assert_eq!(held.state(), LeaseState::Alive);
    }
}

#[tokio::test]
async fn the_shortest_lease_is_what_etcd_grants() {
    let etcd = Etcd::start(Version::V35);
    let client = connect(&etcd.endpoint()).await;
    assert_eq!(client.lease(Duration::from_millis(10)).await.unwrap().ttl(), TTL);
    assert_eq!(client.lease(Duration::from_millis(4200)).await.unwrap().ttl(), Duration::from_secs(5));
    let (id, _) = client.lease_grant(TTL).await.unwrap();
    client.lease_revoke(id).await.unwrap();
    client.lease_revoke(id).await.unwrap();
}

#[tokio::test]
async fn a_lease_that_somebody_revokes_is_lost() {
    let etcd = Etcd::start(Version::V35);
    let client = connect(&etcd.endpoint()).await;
    let mut lease = client.lease(TTL).await.unwrap();
    let _ = etcd.etcdctl(&["lease", "revoke", &format!("{:x}", lease.id())]);
    tokio::time::timeout(KNOWN, lease.lost()).await.expect("known with the next refresh");
    assert_eq!(lease.changed().await, LeaseState::Lost);
}

#[tokio::test]
async fn one_failed_refresh_is_no_death() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let client = connect(&proxy.endpoint()).await;
    let lease = client.lease(Duration::from_secs(5)).await.unwrap();
    put(&client, "key", &lease).await;
    for _ in 0..8 {
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(800)).await;
    }
    assert!(is_there(&client, "key").await, "longer than the lease's time, with a cut for each refresh");
    assert_ne!(lease.state(), LeaseState::Lost);
}

#[tokio::test]
async fn a_lease_outlives_a_server_that_was_away_for_longer() {
    let mut etcd = Etcd::start(Version::V35);
    let client = connect(&etcd.endpoint()).await;
    // It has its whole time again when the server is back, which is enough for a client on a busy machine.
    let mut lease = client.lease(TTL * 2).await.unwrap();
    put(&client, "key", &lease).await;
    etcd.kill();
    let unsure = tokio::time::timeout(KNOWN, lease.changed()).await.unwrap();
    assert!(matches!(unsure, LeaseState::Unsure { .. }), "{unsure:?}");
    tokio::time::sleep(TTL * 3).await;
    assert!(matches!(lease.state(), LeaseState::Unsure { .. }), "it may live on");
    etcd.restart();
    let alive = tokio::time::timeout(KNOWN, lease.changed()).await.unwrap();
    assert_eq!(alive, LeaseState::Alive);
    assert!(is_there(&client, "key").await);
}

#[tokio::test]
async fn a_lease_outlives_its_servers_leader() {
    let mut cluster = Cluster::start(Version::V35, 3);
    let client = connect(&cluster.endpoints()).await;
    let mut leases = Vec::new();
    for n in 0..5 {
        let lease = client.lease(TTL * 2).await.unwrap();
        put(&client, &format!("key{n}"), &lease).await;
        leases.push(lease);
    }
    let leader = cluster.leader();
    cluster.node(leader).kill();
    // Each is refreshed by somebody else, and none was lost in between.
    for lease in &mut leases {
        let since = tokio::time::Instant::now();
        let again = async {
            while since.elapsed() < TTL * 2 || lease.state() != LeaseState::Alive {
                assert_ne!(lease.next().await, LeaseState::Lost);
            }
        };
        tokio::time::timeout(Duration::from_secs(20), again).await.expect("refreshed again");
    }
    for n in 0..5 {
        assert!(is_there(&client, &format!("key{n}")).await);
    }
}

/// It takes connections, as its kernel does that, and answers on none of them.
#[tokio::test]
async fn a_lease_outlives_a_server_that_hangs() {
    let mut cluster = Cluster::start(Version::V35, 3);
    let (leader, endpoints) = (cluster.leader(), cluster.endpoints());
    let follower = (leader + 1) % 3;
    // The first that a client is given is the one that it uses.
    let mut endpoints: Vec<&str> = endpoints.split(',').collect();
    endpoints.swap(0, follower);
    let mut held = Vec::new();
    for n in 0..10 {
        let client = connect(&endpoints.join(",")).await;
        let lease = client.lease(TTL * 2).await.unwrap();
        put(&client, &format!("key{n}"), &lease).await;
        held.push((client, lease));
        // Each at another point between two refreshes.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.node(follower).pause();
    // Far longer than a lease.
    tokio::time::sleep(TTL * 5).await;
    let witness = connect(&cluster.nodes()[leader].endpoint()).await;
    for (n, (_, lease)) in held.iter().enumerate() {
        assert!(is_there(&witness, &format!("key{n}")).await, "key{n}");
        assert_ne!(lease.state(), LeaseState::Lost);
    }
    cluster.node(follower).resume();
}

#[tokio::test]
async fn a_client_cut_off_for_longer_than_its_lease_learns_of_the_loss() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let client = connect(&proxy.endpoint()).await;
    let witness = connect(&etcd.endpoint()).await;
    let lease = client.lease(TTL).await.unwrap();
    put(&client, "key", &lease).await;
    proxy.refuse(true);
    proxy.cut();
    deleted(&witness, "key").await;
    assert_ne!(lease.state(), LeaseState::Lost, "nobody has told it yet");
    proxy.refuse(false);
    tokio::time::timeout(Duration::from_secs(10), lease.lost()).await.expect("it is told");
}

/// What etcd counts of streams that refresh leases.
const STREAMS: &str = "grpc_server_started_total{grpc_method=\"LeaseKeepAlive\",\
                       grpc_service=\"etcdserverpb.Lease\",grpc_type=\"bidi_stream\"}";

#[tokio::test]
async fn the_leases_of_a_client_share_a_stream_and_nothing_else() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let client = connect(&etcd.endpoint()).await;
        let mut leases = Vec::new();
        for _ in 0..100 {
            leases.push(client.lease(TTL * 2).await.unwrap());
        }
        let revoked = leases.pop().unwrap();
        let _ = etcd.etcdctl(&["lease", "revoke", &format!("{:x}", revoked.id())]);
        tokio::time::timeout(KNOWN, revoked.lost()).await.expect("known with the next refresh");
        let dropped = leases.pop().unwrap();
        put(&client, "dropped", &dropped).await;
        drop(dropped);
        deleted(&client, "dropped").await;
        tokio::time::sleep(TTL * 3).await;
        assert!(leases.iter().all(|lease| lease.state() == LeaseState::Alive));
        assert_eq!(etcd.metric(STREAMS), 1.0);
    }
}

#[tokio::test]
async fn a_lease_is_kept_where_a_password_is_asked_for() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        for args in [
            &["user", "add", "root:secret"][..],
            &["user", "grant-role", "root", "root"],
            &["auth", "enable"],
        ] {
            let _ = etcd.etcdctl(args);
        }
        let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
        settings.credentials = Some(Credentials::new("root", "secret"));
        let client = Client::connect(settings).await.unwrap();
        let lease = client.lease(TTL).await.unwrap();
        put(&client, "key", &lease).await;
        tokio::time::sleep(TTL * 2).await;
        assert!(is_there(&client, "key").await);
        assert_eq!(lease.state(), LeaseState::Alive);
    }
}
