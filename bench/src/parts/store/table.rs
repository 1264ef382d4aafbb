//! The same asked of every store there is, one a column.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client as RawClient, WatchOptions};
use futures::FutureExt as _;
use futures::future::join_all;
use rallypoint::{EtcdSettings, EtcdStore, EtcdV2Store, Store};
use rallypoint_testkit::{Etcd, Program, torch_python};

use super::{CLIENTS, VALUE, fill, get};
use crate::measure::{Operation, Samples, in_turn, rates};
use crate::parts::formation::grouped;
use crate::parts::server::process::Ours;
use crate::plan::Plan;
use crate::python;
use crate::results::{Outcome, Row, Table};

const SIZES: [usize; 4] = [1, 100, 1_000, 10_000];
const WAITERS: usize = 64;
/// Until all that wait do, on every side alike.
const SETTLED: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
enum What {
    Set,
    Get(usize),
    Add,
    AddOfMany,
    Wait,
}

impl What {
    fn name(self) -> String {
        match self {
            What::Set => "set".to_owned(),
            What::Get(1) => "get, 1 key in the store".to_owned(),
            What::Get(keys) => format!("get, {} keys in the store", grouped(keys)),
            What::Add => "add".to_owned(),
            What::AddOfMany => format!("add, {CLIENTS} clients on one counter"),
            What::Wait => format!("one set to {WAITERS} waiting clients"),
        }
    }
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Raw,
    V3,
    V2,
    Embedded,
    TorchEtcd,
    TorchTcp,
}

impl Side {
    const ALL: [Side; 6] = [Side::Raw, Side::V3, Side::V2, Side::Embedded, Side::TorchEtcd, Side::TorchTcp];

    fn column(self) -> &'static str {
        match self {
            Side::Raw => "raw client",
            Side::V3 => "rallypoint on v3",
            Side::V2 => "rallypoint on v2",
            Side::Embedded => "rallypoint on its own server",
            Side::TorchEtcd => "torch EtcdStore",
            Side::TorchTcp => "torch TCPStore",
        }
    }

    fn torch_name(self) -> Option<&'static str> {
        match self {
            Side::TorchEtcd => Some("etcd"),
            Side::TorchTcp => Some("tcp"),
            _ => None,
        }
    }
}

pub(super) async fn measure(plan: &Plan, etcd: &Etcd, rounds: u32) -> Table {
    let sizes = plan.pick(&SIZES[..], &SIZES[..3]);
    let mut rows: Vec<What> = vec![What::Set];
    rows.extend(sizes.iter().map(|keys| What::Get(*keys)));
    rows.extend([What::Add, What::AddOfMany, What::Wait]);
    let sides: Vec<Side> =
        Side::ALL.into_iter().filter(|side| plan.torch || side.torch_name().is_none()).collect();
    let seconds = plan.pick(1.0, 0.3);
    let mut bench = Bench { etcd, own: Ours::start(), torch: None, seconds };
    if plan.torch {
        let mut torch = python::start(&torch_python(), "stores", &[&etcd.endpoint()]);
        assert_eq!(torch.read_line(), "ready");
        bench.torch = Some(torch);
    }
    plan.say("every store is filled");
    for side in &sides {
        for keys in sizes {
            bench.fill(*side, *keys).await;
        }
    }
    let mut table = Table {
        id: "store".to_owned(),
        title: "Every store side by side".to_owned(),
        rows_are: "what".to_owned(),
        columns: sides.iter().map(|side| side.column().to_owned()).collect(),
        rows: Vec::new(),
    };
    for what in rows {
        plan.say(&format!("{}, every round of {rounds}", what.name()));
        let mut samples: Vec<Samples> = sides.iter().map(|_| Samples::default()).collect();
        for round in 0..rounds {
            for at in in_turn(sides.len(), round) {
                samples[at].push(bench.figure(sides[at], what).await);
            }
        }
        table.rows.push(Row {
            name: what.name(),
            x: if let What::Get(keys) = what { Some(keys as f64) } else { None },
            unit: if matches!(what, What::Wait) { "ms" } else { "/s" }.to_owned(),
            cells: samples.into_iter().map(Outcome::Measured).collect(),
        });
    }
    table
}

struct Bench<'a> {
    etcd: &'a Etcd,
    own: Ours,
    torch: Option<Program>,
    /// Of one turn.
    seconds: f64,
}

impl Bench<'_> {
    async fn raw(&self) -> RawClient {
        RawClient::connect([self.etcd.endpoint()], None).await.expect("the server answers")
    }

    /// A new client of one of our stores.
    async fn ours(&self, side: Side, name: &str) -> Arc<dyn Store> {
        let endpoint = if side == Side::Embedded { self.own.endpoint() } else { self.etcd.endpoint() };
        let settings = EtcdSettings::new(&endpoint).expect("the endpoint is one");
        let prefix = format!("/bench/side/{name}");
        match side {
            Side::V2 => Arc::new(EtcdV2Store::connect(settings, &prefix).await.expect("the server answers")),
            _ => Arc::new(EtcdStore::connect(settings, &prefix).await.expect("the server answers")),
        }
    }

    fn ask_torch(&mut self, line: &str) -> f64 {
        let torch = self.torch.as_mut().expect("it takes part");
        torch.write_line(line);
        torch.read_line().parse().expect("stores.py answers with a number")
    }

    async fn fill(&mut self, side: Side, keys: usize) {
        if let Some(name) = side.torch_name() {
            self.ask_torch(&format!("fill {name} {keys}"));
        } else {
            // The raw client reads what the Store on v3 has written.
            fill(&*self.ours(side, &keys.to_string()).await, keys).await;
        }
    }

    async fn figure(&mut self, side: Side, what: What) -> f64 {
        let seconds = self.seconds;
        if let Some(name) = side.torch_name() {
            return self.ask_torch(&match what {
                What::Set => format!("set {name} {seconds}"),
                What::Get(keys) => format!("get {name} {keys} {seconds}"),
                What::Add => format!("add {name} {seconds}"),
                What::AddOfMany => format!("adds {name} {CLIENTS} {seconds}"),
                What::Wait => format!("wait {name} {WAITERS}"),
            });
        }
        if side == Side::Raw {
            return self.raw_figure(what).await;
        }
        match what {
            What::Wait => self.wait(side).await,
            What::AddOfMany => {
                let name = format!("adds{:x}", fastrand::u64(..));
                let stores = join_all((0..CLIENTS).map(|_| self.ours(side, &name))).await;
                // The first add of a store also brings it its lease.
                join_all(stores.iter().map(|store| store.add(b"warm", 1))).await;
                self.rate_of_many(|task| {
                    let store = Arc::clone(&stores[task]);
                    async move {
                        store.add(b"counter", 1).await.expect("add");
                    }
                })
                .await
            }
            What::Set => {
                let store = self.ours(side, "one").await;
                self.rate(Box::new(|_| async { store.set(b"k0", &VALUE).await.expect("set") }.boxed())).await
            }
            What::Add => {
                let store = self.ours(side, "one").await;
                store.add(b"counter", 1).await.expect("add");
                let add = || async {
                    store.add(b"counter", 1).await.expect("add");
                };
                self.rate(Box::new(|_| add().boxed())).await
            }
            What::Get(keys) => {
                let store = self.ours(side, &keys.to_string()).await;
                self.rate(Box::new(|i| get(&*store, i, keys).boxed())).await
            }
        }
    }

    async fn rate(&self, operation: Operation<'_>) -> f64 {
        let [rate] = rates((self.seconds * 10.0) as u32, [operation]).await;
        rate
    }

    /// Of so many clients, side by side.
    async fn rate_of_many<F: Future<Output = ()>>(&self, operation: impl Fn(usize) -> F) -> f64 {
        let began = Instant::now();
        let end = began + Duration::from_secs_f64(self.seconds);
        let clients = (0..CLIENTS).map(async |client| {
            let mut done = 0;
            while Instant::now() < end {
                operation(client).await;
                done += 1;
            }
            done
        });
        let done: usize = join_all(clients).await.into_iter().sum();
        done as f64 / began.elapsed().as_secs_f64()
    }

    /// The floor: a put for what writes, a get for a get, a watch for what waits.
    async fn raw_figure(&self, what: What) -> f64 {
        let raw = self.raw().await;
        match what {
            What::Set | What::Add => {
                let put = |_| async { drop(raw.kv_client().put("raw", VALUE, None).await.expect("put")) };
                self.rate(Box::new(move |i| put(i).boxed())).await
            }
            What::Get(_) => {
                raw.kv_client().put("raw", VALUE, None).await.expect("put");
                let get = |_| async { drop(raw.kv_client().get("raw", None).await.expect("get")) };
                self.rate(Box::new(move |i| get(i).boxed())).await
            }
            What::AddOfMany => {
                let clients = join_all((0..CLIENTS).map(|_| self.raw())).await;
                self.rate_of_many(|task| {
                    let mut raw = clients[task].kv_client();
                    async move { drop(raw.put("raw/counter", VALUE, None).await.expect("put")) }
                })
                .await
            }
            What::Wait => {
                let key = format!("raw/fan/{:x}", fastrand::u64(..));
                let mut streams = Vec::new();
                for _ in 0..WAITERS {
                    let mut client = self.raw().await;
                    streams.push(client.watch(key.clone(), None::<WatchOptions>).await.expect("watch"));
                }
                let waiting: Vec<_> = streams
                    .into_iter()
                    .map(|mut stream| {
                        tokio::spawn(async move {
                            while stream
                                .message()
                                .await
                                .expect("it lasts")
                                .expect("it lasts")
                                .events()
                                .is_empty()
                            {}
                        })
                    })
                    .collect();
                tokio::time::sleep(SETTLED).await;
                let began = Instant::now();
                raw.kv_client().put(key, VALUE, None).await.expect("put");
                for told in join_all(waiting).await {
                    told.expect("no waiter panics");
                }
                began.elapsed().as_secs_f64() * 1e3
            }
        }
    }

    async fn wait(&self, side: Side) -> f64 {
        let name = format!("wait{:x}", fastrand::u64(..));
        let setter = self.ours(side, &name).await;
        setter.set(b"before", &VALUE).await.expect("set");
        let stores = join_all((0..WAITERS).map(|_| self.ours(side, &name))).await;
        let waiting = stores
            .into_iter()
            .map(|store| tokio::spawn(async move { store.get(b"go").await.expect("get") }))
            .collect::<Vec<_>>();
        tokio::time::sleep(SETTLED).await;
        let began = Instant::now();
        setter.set(b"go", &VALUE).await.expect("set");
        for woken in join_all(waiting).await {
            woken.expect("no waiter panics");
        }
        began.elapsed().as_secs_f64() * 1e3
    }
}
