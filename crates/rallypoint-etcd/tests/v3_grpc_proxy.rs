//! Through `etcd grpc-proxy`, which numbers watches itself, says nothing of its progress, and refreshes leases when it
//! sees fit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v3::api::PutOptions;
use rallypoint_etcd::v3::{Client, Event, KeyRange, LeaseState, Watch, WatchUpdate};
use rallypoint_testkit::{Etcd, GrpcProxy, Version};

const TTL: Duration = Duration::from_secs(5);

/// A proxy in front of an etcd. Dropped, both are gone.
fn behind_a_proxy() -> (GrpcProxy, Etcd) {
    let etcd = Etcd::start(Version::V35);
    (GrpcProxy::start(&etcd), etcd)
}

/// The values of the next events.
async fn values(watch: &mut Watch) -> Vec<String> {
    let update =
        tokio::time::timeout(Duration::from_secs(30), watch.next()).await.expect("an update in time");
    let WatchUpdate::Events(events) = update.unwrap() else { panic!("events are not lost here") };
    let value = |event: &Event| match event {
        Event::Put(entry) => entry.value.escape_ascii().to_string(),
        Event::Delete { .. } => "deleted".to_owned(),
    };
    events.iter().map(value).collect()
}

#[tokio::test]
async fn each_watch_is_told_of_its_own_keys() {
    let (proxy, _etcd) = behind_a_proxy();
    let client = Client::connect(EtcdSettings::new(&proxy.endpoint()).unwrap()).await.unwrap();
    let first = client.put("a", "0", None).await.unwrap().header().unwrap().revision();
    let mut from_then = client.watch(KeyRange::key("a"), first);
    let mut now: Vec<Watch> =
        ["a", "b", "c"].map(|key| client.watch_from_now(KeyRange::key(key))).into_iter().collect();
    for watch in &mut now {
        assert!(values(watch).await.is_empty(), "it has begun");
    }
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        client.put(key, value, None).await.unwrap();
    }
    for (watch, value) in now.iter_mut().zip(["1", "2", "3"]) {
        assert_eq!(values(watch).await, [value]);
    }
    let mut seen = values(&mut from_then).await;
    while seen.len() < 2 {
        seen.extend(values(&mut from_then).await);
    }
    assert_eq!(seen, ["0", "1"]);

    // One ends, the others go on, and what begins after it is another.
    drop(now.remove(1));
    let mut later = client.watch_from_now(KeyRange::key("b"));
    assert!(values(&mut later).await.is_empty());
    for (key, value) in [("b", "4"), ("c", "5"), ("a", "6")] {
        client.put(key, value, None).await.unwrap();
    }
    assert_eq!(values(&mut later).await, ["4"]);
    assert_eq!(values(&mut now[1]).await, ["5"]);
    assert_eq!(values(&mut now[0]).await, ["6"]);
}

#[tokio::test]
async fn a_lease_is_kept_and_the_watches_stay_though_its_answers_are_late() {
    let (proxy, _etcd) = behind_a_proxy();
    let client = Client::connect(EtcdSettings::new(&proxy.endpoint()).unwrap()).await.unwrap();
    let mut lease = client.lease(TTL).await.unwrap();
    client.put("held", "1", Some(PutOptions::new().with_lease(lease.id()))).await.unwrap();
    let mut watch = client.watch_from_now(KeyRange::key("held"));
    assert!(values(&mut watch).await.is_empty());
    let lost = async { while lease.next().await != LeaseState::Lost {} };
    let told = tokio::time::timeout(TTL * 3, async {
        tokio::select! {
            () = lost => "the lease is lost".to_owned(),
            told = watch.next() => format!("the watch tells: {told:?}"),
        }
    });
    assert_eq!(told.await.ok(), None, "nothing happens to a lease that is kept");
    client.put("held", "2", Some(PutOptions::new().with_lease(lease.id()))).await.unwrap();
    assert_eq!(values(&mut watch).await, ["2"]);
}

#[tokio::test]
async fn what_etcd_refuses_is_known_though_the_proxy_drops_the_code_of_it() {
    let (proxy, _etcd) = behind_a_proxy();
    let client = Client::connect(EtcdSettings::new(&proxy.endpoint()).unwrap()).await.unwrap();
    let (lease, _) = client.lease_grant(TTL).await.unwrap();
    client.lease_revoke(lease).await.unwrap();
    let refused = client.put("held", "1", Some(PutOptions::new().with_lease(lease))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseNotFound, "{refused}");
    assert!(!refused.may_have_applied());
}
