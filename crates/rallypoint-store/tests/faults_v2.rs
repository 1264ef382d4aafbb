//! The store on the v2 wire while servers stop, die and lose replies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::join_all;
use rallypoint_core::EtcdSettings;
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v2::{Client, Code, Get, Put};
use rallypoint_store::{EtcdV2Store, Store, StoreError};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Version, refused_endpoint};

fn settings(endpoints: &str) -> EtcdSettings {
    let mut settings = EtcdSettings::new(endpoints).unwrap();
    settings.request_timeout = Duration::from_secs(1);
    settings
}

async fn open(endpoints: &str) -> EtcdV2Store {
    EtcdV2Store::connect(settings(endpoints), "/store").await.unwrap().with_timeout(Duration::from_secs(60))
}

fn start(version: Version) -> Etcd {
    Etcd::builder(version).v2().start()
}

/// Adds 1 to `c` again and again until `stop`; the sums.
async fn adding(store: EtcdV2Store, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut sums = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        sums.push(store.add(b"c", 1).await.unwrap());
    }
    sums
}

/// The same as PyTorch does it: by comparing the value, and with nothing that tells its writes from others.
async fn adding_as_pytorch(client: Client, stop: Arc<AtomicBool>) -> Vec<i64> {
    let path = format!("/store/{}", STANDARD.encode("c"));
    let mut sums = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Some(node) = client.find(&path, Get::new()).await.unwrap().node else { continue };
        let old = node.value.unwrap();
        let sum: i64 = String::from_utf8(STANDARD.decode(&old).unwrap()).unwrap().parse::<i64>().unwrap() + 1;
        let new = STANDARD.encode(sum.to_string());
        match client.put(&path, Put::value(&new).prev_value(&old)).await {
            Ok(_) => sums.push(sum),
            Err(error) => assert_eq!(error.kind(), ErrorKind::V2(Code::TestFailed), "{error}"),
        }
    }
    sums
}

/// Nothing lost, nothing counted twice: as many sums as the counter says, and each of them once.
async fn assert_counted_once(store: &EtcdV2Store, sums: &[i64]) {
    let total: i64 = String::from_utf8(store.get(b"c").await.unwrap()).unwrap().parse().unwrap();
    assert_eq!(total, i64::try_from(sums.len()).unwrap());
    let distinct: HashSet<i64> = sums.iter().copied().collect();
    assert_eq!(distinct, (1..=total).collect());
}

/// Waits until the counter has come so far.
async fn counted(store: &EtcdV2Store, least: i64) {
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
    for version in Version::WITH_V2 {
        let mut etcd = start(version);
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
        etcd.restart();
        store.set(b"later", b"come").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), b"come");
        waiting_too.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_outlives_the_history_of_the_server() {
    let etcd = start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let store = open(&proxy.endpoint()).await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.get(b"late").await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let direct = open(&etcd.endpoint()).await;
    // The server keeps a thousand events; meanwhile the waiter hears nothing.
    proxy.refuse(true);
    proxy.cut();
    direct.set(b"late", b"come").await.unwrap();
    let keys: Vec<Vec<u8>> = (0..1200u32).map(|n| n.to_be_bytes().to_vec()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    direct.multi_set(&keys, &keys).await.unwrap();
    proxy.refuse(false);
    assert_eq!(waiting.await.unwrap().unwrap(), b"come");
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_while_the_server_is_killed_and_restarted_are_counted_once() {
    for version in Version::WITH_V2 {
        let mut etcd = start(version);
        let stop = Arc::new(AtomicBool::new(false));
        let mut adders = Vec::new();
        for _ in 0..4 {
            adders.push(tokio::spawn(adding(open(&etcd.endpoint()).await, Arc::clone(&stop))));
        }
        // Between two kills they get on, however long that takes.
        let reader = open(&etcd.endpoint()).await;
        for kill in 1..=3 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            counted(&reader, kill * 20).await;
            etcd.kill();
            etcd.restart();
        }
        counted(&reader, 4 * 20).await;
        stop.store(true, Ordering::Relaxed);
        let sums: Vec<i64> = join_all(adders).await.into_iter().flat_map(Result::unwrap).collect();
        assert!(sums.len() > 50, "it went on in between: {}", sums.len());
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
async fn adds_whose_replies_are_lost_are_counted_once_among_others() {
    for version in Version::WITH_V2 {
        let etcd = start(version);
        let proxy = Proxy::start(&etcd.endpoint());
        let stop = Arc::new(AtomicBool::new(false));
        let mut adders = Vec::new();
        for _ in 0..4 {
            adders.push(tokio::spawn(adding(open(&proxy.endpoint()).await, Arc::clone(&stop))));
        }
        for _ in 0..2 {
            // What it writes is not repeated.
            let mut patient = settings(&etcd.endpoint());
            patient.request_timeout = Duration::from_secs(30);
            let client = Client::connect(patient).await.unwrap();
            adders.push(tokio::spawn(adding_as_pytorch(client, Arc::clone(&stop))));
        }
        losing_replies(&proxy, tokio::time::sleep(Duration::from_secs(4))).await;
        stop.store(true, Ordering::Relaxed);
        let sums: Vec<Vec<i64>> = join_all(adders).await.into_iter().map(Result::unwrap).collect();
        assert!(sums.iter().all(|sums| !sums.is_empty()), "both kinds took part");
        assert_counted_once(&open(&etcd.endpoint()).await, &sums.concat()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_whose_reply_is_lost_is_carried_out_once() {
    let etcd = start(Version::V35);
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
async fn a_set_that_was_overwritten_before_its_reply_was_lost_is_not_set_again() {
    let etcd = start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let (store, direct) = (open(&proxy.endpoint()).await, open(&etcd.endpoint()).await);
    for (round, then) in [&b"set"[..], b"delete", b"nothing"].into_iter().enumerate() {
        let key = format!("key{round}").into_bytes();
        store.set(b"other", b"").await.unwrap();
        proxy.drop_replies(true);
        let setting = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move { store.set(&key, b"mine").await }
        });
        assert_eq!(direct.get(&key).await.unwrap(), b"mine", "it was carried out");
        match then {
            b"set" => direct.set(&key, b"theirs").await.unwrap(),
            b"delete" => assert!(direct.delete_key(&key).await.unwrap()),
            _ => {}
        }
        proxy.cut();
        proxy.drop_replies(false);
        setting.await.unwrap().unwrap();
        match then {
            b"set" => assert_eq!(direct.get(&key).await.unwrap(), b"theirs"),
            b"delete" => assert!(!direct.check(&[&key]).await.unwrap()),
            _ => assert_eq!(direct.get(&key).await.unwrap(), b"mine"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_was_popped_before_the_reply_of_its_push_was_lost_is_not_pushed_again() {
    let etcd = start(Version::V34);
    let proxy = Proxy::start(&etcd.endpoint());
    let (store, direct) = (open(&proxy.endpoint()).await, open(&etcd.endpoint()).await);
    store.set(b"other", b"").await.unwrap();
    proxy.drop_replies(true);
    let pushing = tokio::spawn(async move { store.queue_push(b"q", b"item").await });
    assert_eq!(direct.queue_pop(b"q", true).await.unwrap(), b"item");
    proxy.cut();
    proxy.drop_replies(false);
    pushing.await.unwrap().unwrap();
    assert_eq!(direct.queue_len(b"q").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_know_any_more_is_said_to_be_unknown() {
    let etcd = start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let (store, direct) = (open(&proxy.endpoint()).await, open(&etcd.endpoint()).await);
    store.add(b"c", 1).await.unwrap();
    proxy.drop_replies(true);
    let adding = tokio::spawn(async move { store.add(b"c", 1).await });
    while direct.get(b"c").await.unwrap() != b"2" {}
    // Nothing passes from here on, until the history has forgotten the add and the counter has gone on.
    proxy.refuse(true);
    proxy.cut();
    direct.add(b"c", 1).await.unwrap();
    let keys: Vec<Vec<u8>> = (0..1200u32).map(|n| n.to_be_bytes().to_vec()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    direct.multi_set(&keys, &keys).await.unwrap();
    proxy.drop_replies(false);
    proxy.refuse(false);
    let error = adding.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown { what: "add", .. }), "{error:?}");
    assert_eq!(direct.get(b"c").await.unwrap(), b"3");
}

#[tokio::test(flavor = "multi_thread")]
async fn pops_whose_replies_are_lost_take_each_item_once() {
    let etcd = start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let store = open(&proxy.endpoint()).await;
    let direct = open(&etcd.endpoint()).await;
    let pushing = tokio::spawn({
        let direct = direct.clone();
        async move {
            for n in 0..200u32 {
                direct.queue_push(b"q", &n.to_be_bytes()).await.unwrap();
            }
        }
    });
    let popping = join_all((0..2).map(|_| {
        let store = store.clone();
        async move {
            let mut popped = Vec::new();
            for _ in 0..100 {
                popped.push(store.queue_pop(b"q", true).await.unwrap());
            }
            popped
        }
    }));
    let popped = losing_replies(&proxy, popping).await;
    pushing.await.unwrap();
    assert!(popped.iter().all(|popped| popped.is_sorted()));
    let mut popped = popped.concat();
    popped.sort();
    assert_eq!(popped, (0..200u32).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
    assert_eq!(direct.queue_len(b"q").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_add_that_comes_late_comes_too_late() {
    // The server stands still while the request is on its way, for longer than the client waits for one try:
    // then it finds the first try and the repeats before it, in whatever order.
    let mut etcd = start(Version::V35);
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&etcd.endpoint()).await);
    }
    for round in 1..=3 {
        etcd.pause();
        let adds = join_all(stores.iter().map(|store| {
            let store = store.clone();
            tokio::spawn(async move { store.add(b"c", 1).await.unwrap() })
        }));
        tokio::time::sleep(Duration::from_millis(2500)).await;
        etcd.resume();
        let mut sums: Vec<i64> = adds.await.into_iter().map(Result::unwrap).collect();
        sums.sort_unstable();
        assert_eq!(sums, ((round - 1) * 4 + 1..=round * 4).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_dead_endpoint_and_one_dying_server_do_no_harm() {
    let mut cluster = Cluster::start_with(&Etcd::builder(Version::V35).v2(), 3);
    let endpoints = format!("{},{}", refused_endpoint(), cluster.endpoints());
    let store = open(&endpoints).await;
    let stop = Arc::new(AtomicBool::new(false));
    let adder = tokio::spawn(adding(store.clone(), Arc::clone(&stop)));
    let other = tokio::spawn(adding(open(&endpoints).await, Arc::clone(&stop)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let leader = cluster.leader();
    cluster.node(leader).kill();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let sums = [adder.await.unwrap(), other.await.unwrap()].concat();
    assert_counted_once(&store, &sums).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_away_is_an_error_at_the_timeout() {
    let mut etcd = start(Version::V35);
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
