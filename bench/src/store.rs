//! The Store beside the raw etcd client, and beside PyTorch's.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd_client::{Client as RawClient, WatchOptions};
use futures::FutureExt;
use futures::future::join_all;
use rallypoint::{EtcdSettings, EtcdStore, EtcdV2Store, Store};
use rallypoint_testkit::{Etcd, Version};

use crate::measure::{Samples, parallel_rate, rates};
use crate::report::{Comparison, Promise};
use crate::{Options, Report, torch};

/// Of a tenth of a second each, in each round.
const TURNS: u32 = 10;
const KEYS: usize = 10_000;
const CLIENTS: usize = 64;
const ADDS_EACH: usize = 100;
const WAITERS: usize = 1_000;
const VALUE: [u8; 64] = [b'x'; 64];

pub(crate) async fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "etcd 3.5 with fsync, {cores} cores, {} rounds in turn, values of 64 bytes",
        options.rounds
    ));
    let server = Etcd::builder(Version::V35).v2().start();
    let bench = Bench { server, rounds: options.rounds };
    eprintln!("set and get ...");
    report.comparisons.extend(bench.set_and_get().await);
    eprintln!("add, {CLIENTS} clients ...");
    report.comparisons.extend(bench.add().await);
    eprintln!("wait, {WAITERS} waiters ...");
    report.comparisons.push(bench.wait().await);
    if !options.no_torch {
        eprintln!("get on the v2 wire, beside PyTorch ...");
        let (version, comparison) = bench.get_v2().await;
        report.setting.push(format!("PyTorch {version} on the same etcd, with --enable-v2"));
        report.comparisons.push(comparison);
    }
    report
}

struct Bench {
    server: Etcd,
    rounds: u32,
}

impl Bench {
    async fn raw(&self) -> RawClient {
        RawClient::connect([self.server.endpoint()], None).await.expect("the server answers")
    }

    async fn store(&self, prefix: &str) -> EtcdStore {
        let settings = EtcdSettings::new(&self.server.endpoint()).expect("the endpoint is one");
        EtcdStore::connect(settings, prefix).await.expect("the server answers")
    }

    async fn set_and_get(&self) -> Vec<Comparison> {
        let raw = self.raw().await;
        let one = self.store("/bench/one").await;
        let many = self.store("/bench/many").await;
        one.set(b"k0", &VALUE).await.expect("set");
        fill(&many).await;
        raw.kv_client().put("raw", VALUE, None).await.expect("put");

        let [mut set, mut put, mut get_one, mut get_many, mut get_raw] = [(); 5].map(|()| Samples::default());
        for _ in 0..self.rounds {
            let [a, b, c, d, e] = rates(
                TURNS,
                [
                    Box::new(|_| {
                        async { drop(raw.kv_client().put("raw", VALUE, None).await.expect("put")) }.boxed()
                    }),
                    Box::new(|_| async { one.set(b"k0", &VALUE).await.expect("set") }.boxed()),
                    Box::new(|_| {
                        async { drop(raw.kv_client().get("raw", None).await.expect("get")) }.boxed()
                    }),
                    Box::new(|_| async { drop(one.get(b"k0").await.expect("get")) }.boxed()),
                    Box::new(|i| get(&many, i).boxed()),
                ],
            )
            .await;
            put.push(a);
            set.push(b);
            get_raw.push(c);
            get_one.push(d);
            get_many.push(e);
        }
        let per_second = |name, ours, rival, theirs| Comparison {
            name,
            unit: "/s",
            ours,
            rival,
            theirs,
            promise: Some(Promise::AtLeast(0.8)),
        };
        vec![
            per_second("set", set, "raw put", put),
            per_second("get, 10,000 keys", get_many.clone(), "raw get", get_raw),
            per_second("get, 10,000 keys", get_many, "get, 1 key", get_one),
        ]
    }

    /// Every client has a connection of its own, on both sides.
    async fn add(&self) -> Vec<Comparison> {
        let raw = join_all((0..CLIENTS).map(|_| self.raw())).await;
        let [mut adds, mut puts] = [(); 2].map(|()| Samples::default());
        // Twice as many rounds, half as long: it is the noisiest.
        for round in 0..self.rounds * 2 {
            let prefix = format!("/bench/add/{round}");
            let stores = join_all((0..CLIENTS).map(|_| self.store(&prefix))).await;
            puts.push(
                parallel_rate(CLIENTS, ADDS_EACH, |task| {
                    let mut raw = raw[task].kv_client();
                    async move {
                        for _ in 0..ADDS_EACH {
                            raw.put(format!("raw/{task}"), VALUE, None).await.expect("put");
                        }
                    }
                })
                .await,
            );
            // The first add of a store also brings it its lease.
            join_all(stores.iter().map(|store| store.add(b"warm", 1))).await;
            let seen = Arc::new(Mutex::new(HashSet::new()));
            adds.push(
                parallel_rate(CLIENTS, ADDS_EACH, |task| {
                    let (store, seen) = (stores[task].clone(), Arc::clone(&seen));
                    async move {
                        let mut sums = Vec::with_capacity(ADDS_EACH);
                        for _ in 0..ADDS_EACH {
                            sums.push(store.add(b"counter", 1).await.expect("add"));
                        }
                        seen.lock().expect("no holder panics").extend(sums);
                    }
                })
                .await,
            );
            let all: HashSet<i64> = (1..).take(CLIENTS * ADDS_EACH).collect();
            assert_eq!(*seen.lock().expect("no holder panics"), all, "every sum is seen once");
        }
        let promise = Some(Promise::AtLeast(0.7));
        let name = "add, 64 clients, one counter";
        vec![Comparison { name, unit: "/s", ours: adds, rival: "raw put, 64 clients", theirs: puts, promise }]
    }

    /// From the write until the last waiter has the value.
    async fn wait(&self) -> Comparison {
        let store = self.store("/bench/wait").await;
        let [mut ours, mut theirs] = [(); 2].map(|()| Samples::default());
        for round in 0..self.rounds {
            theirs.push(self.raw_fan_out(&format!("raw/fan/{round}")).await * 1e3);
            ours.push(fan_out(&store, &format!("go/{round}"), &self.server).await * 1e3);
        }
        let promise = Some(Promise::AtMost(3.0));
        Comparison {
            name: "get, 1,000 waiters on one key",
            unit: "ms",
            ours,
            rival: "raw watches",
            theirs,
            promise,
        }
    }

    async fn raw_fan_out(&self, key: &str) -> f64 {
        let mut raw = self.raw().await;
        let options = |id| Some(WatchOptions::new().with_watch_id(id));
        let mut stream = raw.watch(key, options(1)).await.expect("watch");
        for id in 2..=WAITERS as i64 {
            stream.watch(key, options(id)).await.expect("watch");
        }
        let mut created = 0;
        while created < WAITERS {
            let answer = stream.message().await.expect("the stream lasts").expect("the stream lasts");
            created += usize::from(answer.created());
        }
        let began = Instant::now();
        raw.put(key, VALUE, None).await.expect("put");
        let mut told = 0;
        while told < WAITERS {
            let answer = stream.message().await.expect("the stream lasts").expect("the stream lasts");
            told += usize::from(!answer.events().is_empty());
        }
        began.elapsed().as_secs_f64()
    }

    async fn get_v2(&self) -> (String, Comparison) {
        let settings = EtcdSettings::new(&self.server.endpoint()).expect("the endpoint is one");
        let store = EtcdV2Store::connect(settings, "/bench/v2").await.expect("the server answers");
        fill(&store).await;
        // Half of ours before PyTorch's, which are in another process, and half after.
        let mut ours = Samples::default();
        for _ in 0..self.rounds.div_ceil(2) {
            ours.extend(rates(TURNS, [Box::new(|i| get(&store, i).boxed())]).await);
        }
        let (endpoint, rounds) = (self.server.endpoint(), self.rounds);
        let torch = tokio::task::spawn_blocking(move || torch::store_get(&endpoint, KEYS, rounds));
        let (version, theirs) = torch.await.expect("PyTorch's side runs");
        for _ in 0..self.rounds.div_ceil(2) {
            ours.extend(rates(TURNS, [Box::new(|i| get(&store, i).boxed())]).await);
        }
        let promise = Some(Promise::AtLeast(50.0));
        let name = "get on the v2 wire, 10,000 keys";
        (version, Comparison { name, unit: "/s", ours, rival: "PyTorch EtcdStore.get", theirs, promise })
    }
}

/// Puts the keys `k0`, `k1`, ... there.
async fn fill(store: &dyn Store) {
    let keys: Vec<String> = (0..KEYS).map(|i| format!("k{i}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    for keys in keys.chunks(1_000) {
        store.multi_set(keys, &vec![&VALUE[..]; keys.len()]).await.expect("multi_set");
    }
}

async fn get(store: &dyn Store, i: usize) {
    store.get(format!("k{}", i % KEYS).as_bytes()).await.expect("get");
}

async fn fan_out(store: &EtcdStore, key: &str, server: &Etcd) -> f64 {
    // Those of the round before may still be on their way out.
    watchers_become(server, 0).await;
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (store, key) = (store.clone(), key.to_owned());
            tokio::spawn(async move { store.get(key.as_bytes()).await.expect("get") })
        })
        .collect();
    // The clock starts when all of them wait, as on the other side.
    watchers_become(server, WAITERS).await;
    let began = Instant::now();
    store.set(key.as_bytes(), &VALUE).await.expect("set");
    for woken in join_all(waiters).await {
        woken.expect("no waiter panics");
    }
    began.elapsed().as_secs_f64()
}

/// Waits until the server has so many watches.
async fn watchers_become(server: &Etcd, number: usize) {
    while server.metric("etcd_debugging_mvcc_watcher_total") as usize != number {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
