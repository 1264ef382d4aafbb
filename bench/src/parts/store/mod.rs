//! The Store beside the raw etcd client, which promises are about; and every store side by side.

mod table;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd_client::{Client as RawClient, WatchOptions};
use futures::FutureExt;
use futures::future::join_all;
use rallypoint::{EtcdSettings, EtcdStore, Store};
use rallypoint_testkit::{Etcd, Version};

use crate::measure::{Samples, parallel_rate, rates};
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Part, Promise, Table};

/// Of a tenth of a second each, in each round.
const TURNS: u32 = 10;
const KEYS: usize = 10_000;
const CLIENTS: usize = 64;
const ADDS_EACH: usize = 50;
const WAITERS: usize = 1_000;
const VALUE: [u8; 64] = [b'x'; 64];

pub(crate) async fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let rounds = plan.rounds(5, 2);
    part.setting.push(format!("etcd 3.5 with fsync and --enable-v2 for all but TCPStore and our own server, rounds in turn: {rounds}, values of 64 bytes"));
    let server = Etcd::builder(Version::V35).v2().start();
    let table = table::measure(plan, &server, plan.rounds(5, 1)).await;
    part.comparisons.extend(beside_torch(&table));
    part.tables.push(table);
    let bench = Bench { server, rounds };
    plan.say("set and get, beside the raw client");
    part.comparisons.extend(bench.set_and_get().await);
    plan.say(&format!("add, {CLIENTS} clients"));
    part.comparisons.extend(bench.add().await);
    plan.say(&format!("wait, {WAITERS} waiters"));
    part.comparisons.push(bench.wait().await);
    part
}

/// The get of the largest store on the v2 wire.
fn beside_torch(table: &Table) -> Option<Comparison> {
    let column = |name: &str| table.columns.iter().position(|column| column == name);
    let (ours, theirs) = (column("rallypoint on v2")?, column("torch EtcdStore")?);
    let row = table.rows.iter().rfind(|row| row.x.is_some())?;
    let (Outcome::Measured(ours), theirs) = (row.cells[ours].clone(), row.cells[theirs].clone()) else {
        return None;
    };
    Some(Comparison {
        name: format!("{}, on the v2 wire", row.name),
        unit: row.unit.clone(),
        ours,
        rival: "torch EtcdStore".to_owned(),
        theirs,
        // Of so many keys; it reads all of them for each get.
        promise: (row.x >= Some(KEYS as f64)).then_some(Promise::AtLeast(50.0)),
    })
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
        fill(&many, KEYS).await;
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
                    Box::new(|i| get(&many, i, KEYS).boxed()),
                ],
            )
            .await;
            put.push(a);
            set.push(b);
            get_raw.push(c);
            get_one.push(d);
            get_many.push(e);
        }
        let per_second = |name, ours, rival, theirs| {
            Comparison::new(name, "/s", (ours, rival, theirs), Some(Promise::AtLeast(0.8)))
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
        let stores = join_all((0..CLIENTS).map(|_| self.store("/bench/add"))).await;
        // The first add of a store also brings it its lease; and somebody has to make the counter.
        join_all(stores.iter().map(|store| store.add(b"counter", 1))).await;
        let [mut adds, mut puts] = [(); 2].map(|()| Samples::default());
        // Many short rounds: it is the noisiest.
        for round in 0..self.rounds * 6 {
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
            let before = CLIENTS + round as usize * CLIENTS * ADDS_EACH;
            let all: HashSet<i64> = (before as i64 + 1..).take(CLIENTS * ADDS_EACH).collect();
            assert_eq!(*seen.lock().expect("no holder panics"), all, "every sum is seen once");
        }
        let promise = Some(Promise::AtLeast(0.7));
        let name = "add, 64 clients, one counter";
        vec![Comparison::new(name, "/s", (adds, "raw put, 64 clients", puts), promise)]
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
        Comparison::new("get, 1,000 waiters on one key", "ms", (ours, "raw watches", theirs), promise)
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
}

/// Puts the keys `k0`, `k1`, ... there.
async fn fill(store: &dyn Store, keys: usize) {
    let keys: Vec<String> = (0..keys).map(|i| format!("k{i}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    for keys in keys.chunks(1_000) {
        store.multi_set(keys, &vec![&VALUE[..]; keys.len()]).await.expect("multi_set");
    }
}

async fn get(store: &dyn Store, i: usize, keys: usize) {
    store.get(format!("k{}", i % keys).as_bytes()).await.expect("get");
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
