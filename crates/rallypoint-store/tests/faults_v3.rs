//! The store on etcd v3 while servers stop, die and lose replies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use rallypoint_core::EtcdSettings;
use rallypoint_store::{EtcdStore, Store, StoreError};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Version, refused_endpoint};

fn settings(endpoints: &str) -> EtcdSettings {
    let mut settings = EtcdSettings::new(endpoints).unwrap();
    settings.request_timeout = Duration::from_secs(1);
    settings
}

async fn open(endpoints: &str) -> EtcdStore {
    EtcdStore::connect(settings(endpoints), "/store").await.unwrap().with_timeout(Duration::from_secs(60))
}

/// Adds 1 to `c` again and again until `stop`; the sums.
async fn adding(store: EtcdStore, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut sums = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        sums.push(store.add(b"c", 1).await.unwrap());
    }
    sums
}

/// Nothing lost, nothing counted twice: as many sums as the counter says, and each of them once.
async fn assert_counted_once(store: &EtcdStore, sums: &[i64]) {
    let total: i64 = String::from_utf8(store.get(b"c").await.unwrap()).unwrap().parse().unwrap();
    assert_eq!(total, i64::try_from(sums.len()).unwrap());
    let distinct: HashSet<i64> = sums.iter().copied().collect();
    assert_eq!(distinct, (1..=total).collect());
}

/// Waits until the counter has come so far.
async fn counted(store: &EtcdStore, least: i64) {
    let began = Instant::now();
    loop {
        let count: i64 = String::from_utf8(store.get(b"c").await.unwrap()).unwrap().parse().unwrap();
        if count >= least {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it stays at {count}, below {least}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_when_the_server_does() {
    for version in Version::all() {
        let mut etcd = Etcd::start(version);
        let store = open(&etcd.endpoint()).await;
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.get(b"late").await }
        });
        let waiting_too = tokio::spawn({
            let store = store.clone();
            async move { store.wait(&[b"late", b"later"], None).await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        etcd.pause();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!waiting.is_finished());
        etcd.resume();
        store.set(b"late", b"come").await.unwrap();
        store.set(b"later", b"come").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), b"come");
        waiting_too.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_while_the_server_is_killed_and_restarted_are_counted_once() {
    for version in Version::all() {
        let mut etcd = Etcd::start(version);
        let stop = Arc::new(AtomicBool::new(false));
        let mut adders = Vec::new();
        for _ in 0..8 {
            adders.push(tokio::spawn(adding(open(&etcd.endpoint()).await, Arc::clone(&stop))));
        }
        // Between two kills they get on, however long that takes.
        let reader = open(&etcd.endpoint()).await;
        for kill in 1..=3 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            counted(&reader, kill * 40).await;
            etcd.kill();
            etcd.restart();
        }
        counted(&reader, 4 * 40).await;
        stop.store(true, Ordering::Relaxed);
        let sums: Vec<i64> = join_all(adders).await.into_iter().flat_map(Result::unwrap).collect();
        assert!(sums.len() > 100, "it went on in between: {}", sums.len());
        assert_counted_once(&open(&etcd.endpoint()).await, &sums).await;
    }
}

/// Loses the replies of whatever is under way, three times, while `work` runs.
async fn losing_replies<T>(proxy: &Proxy, work: impl Future<Output = T>) -> T {
    let trouble = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            proxy.drop_replies(true);
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.cut();
            proxy.drop_replies(false);
        }
    };
    tokio::join!(work, trouble).0
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_whose_replies_are_lost_are_counted_once() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let stop = Arc::new(AtomicBool::new(false));
    let mut adders = Vec::new();
    for _ in 0..8 {
        adders.push(tokio::spawn(adding(open(&proxy.endpoint()).await, Arc::clone(&stop))));
    }
    losing_replies(&proxy, tokio::time::sleep(Duration::from_millis(1500))).await;
    stop.store(true, Ordering::Relaxed);
    let sums: Vec<i64> = join_all(adders).await.into_iter().flat_map(Result::unwrap).collect();
    assert_counted_once(&open(&etcd.endpoint()).await, &sums).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_whose_reply_is_lost_is_carried_out_once() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let store = open(&proxy.endpoint()).await;
    let direct = open(&etcd.endpoint()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let running = |what: u8| {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        async move {
            let mut done = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let n = done.to_be_bytes();
                match what {
                    b'a' => store.append(b"log", &n).await.unwrap(),
                    b'q' => store.queue_push(b"queue", &n).await.unwrap(),
                    b's' => store.set(b"seen", &n).await.unwrap(),
                    b'c' => {
                        let before = if done == 0 { vec![] } else { (done - 1).to_be_bytes().to_vec() };
                        assert_eq!(store.compare_set(b"chain", &before, &n).await.unwrap(), n);
                    }
                    _ => {
                        let key = [b"gone", &n[..]].concat();
                        store.multi_set(&[&key], &[b""]).await.unwrap();
                        assert!(store.delete_key(&key).await.unwrap(), "deleted by this call");
                    }
                }
                done += 1;
            }
            done
        }
    };
    let work = join_all(b"aqscd".map(running).map(tokio::spawn));
    let timer = async {
        losing_replies(&proxy, tokio::time::sleep(Duration::from_millis(1500))).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (done, ()) = tokio::join!(work, timer);
    let done: Vec<u32> = done.into_iter().map(Result::unwrap).collect();
    let numbers = |upto: u32| (0..upto).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>();

    assert_eq!(direct.get(b"log").await.unwrap(), numbers(done[0]).concat());
    let mut popped = Vec::new();
    while direct.queue_len(b"queue").await.unwrap() > 0 {
        popped.push(direct.queue_pop(b"queue", false).await.unwrap());
    }
    assert_eq!(popped, numbers(done[1]));
    assert_eq!(direct.get(b"seen").await.unwrap(), (done[2] - 1).to_be_bytes());
    assert_eq!(direct.get(b"chain").await.unwrap(), (done[3] - 1).to_be_bytes());
    assert!(direct.list_keys().await.unwrap().iter().all(|key| !key.starts_with(b"gone")));
}

#[tokio::test(flavor = "multi_thread")]
async fn pops_whose_replies_are_lost_take_each_item_once() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let store = open(&proxy.endpoint()).await;
    let direct = open(&etcd.endpoint()).await;
    let pushing = tokio::spawn({
        let direct = direct.clone();
        async move {
            for n in 0..400u32 {
                direct.queue_push(b"q", &n.to_be_bytes()).await.unwrap();
            }
        }
    });
    let popping = async {
        let mut popped = Vec::new();
        for _ in 0..400 {
            popped.push(store.queue_pop(b"q", true).await.unwrap());
        }
        popped
    };
    let popped = losing_replies(&proxy, popping).await;
    pushing.await.unwrap();
    assert_eq!(popped, (0..400u32).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_comes_late_comes_too_late() {
    // The server stands still while the request is on its way, for longer than the client waits for one try:
    // then it finds the first try and the repeats before it, in whatever order.
    let mut etcd = Etcd::start(Version::V35);
    let store = open(&etcd.endpoint()).await;
    for round in 1..=4 {
        etcd.pause();
        let adds = join_all((0..8).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.add(b"c", 1).await.unwrap() })
        }));
        tokio::time::sleep(Duration::from_millis(2500)).await;
        etcd.resume();
        let mut sums: Vec<i64> = adds.await.into_iter().map(Result::unwrap).collect();
        sums.sort_unstable();
        assert_eq!(sums, ((round - 1) * 8 + 1..=round * 8).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_dead_endpoint_and_one_dying_server_do_no_harm() {
    let mut cluster = Cluster::start(Version::V35, 3);
    let endpoints = format!("{},{}", refused_endpoint(), cluster.endpoints());
    let store = open(&endpoints).await;
    let stop = Arc::new(AtomicBool::new(false));
    let adder = tokio::spawn(adding(store.clone(), Arc::clone(&stop)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let leader = cluster.leader();
    cluster.node(leader).kill();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let sums = adder.await.unwrap();
    assert_counted_once(&store, &sums).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_away_is_an_error_at_the_timeout() {
    let mut etcd = Etcd::start(Version::V35);
    let store = open(&etcd.endpoint()).await.with_timeout(Duration::from_secs(2));
    store.set(b"key", b"value").await.unwrap();
    etcd.kill();
    let began = Instant::now();
    let error = store.get(b"key").await.unwrap_err();
    assert!(matches!(error, StoreError::Etcd(_)), "{error:?}");
    assert!(error.to_string().contains(&etcd.endpoint()), "{error}");
    let error = store.set(b"key", b"other").await.unwrap_err();
    assert!(
        error.to_string().contains(&etcd.endpoint()) || matches!(error, StoreError::OutcomeUnknown { .. })
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_leaves_nothing_but_its_data() {
    let etcd = Etcd::start(Version::V35);
    let store = open(&etcd.endpoint()).await;
    join_all((0..10).map(|_| store.add(b"c", 1))).await;
    let keys = || etcd.etcdctl(&["get", "/store/", "--prefix", "--keys-only"]).matches("/store/").count();
    assert!(keys() > 1, "there are records of writes");
    drop(store);
    let gone = async {
        while keys() > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("the records go with their store");
    assert_eq!(keys(), 1, "the data stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_went_with_its_lease_is_no_reason_to_count_twice() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let store = open(&proxy.endpoint()).await;
    assert_eq!(store.add(b"c", 1).await.unwrap(), 1);
    proxy.drop_replies(true);
    let adding = tokio::spawn({
        let store = store.clone();
        async move { store.add(b"c", 1).await }
    });
    // The add has arrived; its reply has not, and the lease of its record ends.
    let direct = open(&etcd.endpoint()).await;
    while direct.get(b"c").await.unwrap() != b"2" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let leases = etcd.etcdctl(&["lease", "list"]);
    for lease in leases.lines().skip(1) {
        let _ = etcd.etcdctl(&["lease", "revoke", lease]);
    }
    proxy.drop_replies(false);
    proxy.cut();
    let error = adding.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown { .. }), "{error:?}");
    assert_eq!(direct.get(b"c").await.unwrap(), b"2");
    assert_eq!(store.add(b"c", 1).await.unwrap(), 3, "the store goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_longer_than_his_own_timeout_because_of_others() {
    let mut etcd = Etcd::start(Version::V35);
    let store = open(&etcd.endpoint()).await;
    etcd.pause();
    let patient = tokio::spawn({
        let store = store.clone();
        async move { store.set(b"a", b"").await }
    });
    let began = Instant::now();
    let hasty = join_all((0..16).map(|_| {
        let store = store.clone().with_timeout(Duration::from_secs(1));
        async move { store.set(b"b", b"").await.unwrap_err() }
    }));
    hasty.await;
    let barrier = store.barrier(b"gate", 2, Some(Duration::from_secs(1))).await;
    assert!(barrier.is_err());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    etcd.resume();
    patient.await.unwrap().unwrap();
}
