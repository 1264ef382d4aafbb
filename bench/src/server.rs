//! The embedded server beside a real etcd that does not wait for its disk, each a process of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, WatchOptions};
use futures::future::join_all;
use rallypoint_testkit::{Etcd, Version};

use crate::measure::{Samples, parallel_rate};
use crate::report::{Comparison, Promise};
use crate::{Options, Report};

const VALUE: [u8; 64] = [b'x'; 64];
const MANY: usize = 10_000;
/// Operations of one measurement, by how many are in flight.
const IN_FLIGHT: [(usize, usize); 3] = [(1, 2_000), (64, 20_000), (1024, 40_000)];

/// A server to measure.
enum Server {
    Ours(Ours),
    Etcd(Etcd),
}

/// The `rallypoint-server` command, killed when dropped.
struct Ours {
    child: Child,
    endpoint: String,
    ready: Duration,
}

impl Ours {
    fn start() -> Self {
        let began = Instant::now();
        let mut child = Command::new(program())
            .args(["--listen-client-urls", "http://127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("rallypoint-server is built beside this program");
        let log = BufReader::new(child.stderr.take().expect("its log is a pipe"));
        let endpoint = log
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("address=")?.1.split_whitespace().next()?.to_owned()))
            .expect("it says where it listens");
        std::net::TcpStream::connect(&endpoint).expect("it listens");
        Ours { child, endpoint, ready: began.elapsed() }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let here = std::env::current_exe().expect("this program has a path");
    here.with_file_name("rallypoint-server")
}

impl Server {
    fn ours() -> Self {
        Server::Ours(Ours::start())
    }

    fn etcd() -> Self {
        Server::Etcd(Etcd::builder(Version::V35).unsafe_no_fsync().start())
    }

    async fn client(&self) -> Client {
        let endpoint = match self {
            Server::Ours(ours) => ours.endpoint.clone(),
            Server::Etcd(etcd) => etcd.endpoint(),
        };
        Client::connect([endpoint], None).await.expect("the server answers")
    }

    /// Resident memory, in MB.
    fn memory(&self) -> f64 {
        let process = match self {
            Server::Ours(ours) => ours.child.id(),
            Server::Etcd(etcd) => etcd.pid(),
        };
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kilobytes.expect("it has memory") / 1024.0
    }
}

pub(crate) async fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "etcd 3.5 with --unsafe-no-fsync, one client process with one connection, {cores} cores, {} rounds in turn",
        options.rounds
    ));
    report.comparisons.extend(rates(options.rounds).await);
    report.comparisons.push(fan_out(options.rounds).await);
    report.comparisons.push(memory().await);
    report.comparisons.push(start(options.rounds));
    report
}

async fn rates(rounds: u32) -> Vec<Comparison> {
    let (ours, etcd) = (Server::ours(), Server::etcd());
    let (our_client, etcd_client) = (ours.client().await, etcd.client().await);
    let mut comparisons = Vec::new();
    for (in_flight, operations) in IN_FLIGHT {
        for kind in ["put", "get", "txn"] {
            eprintln!("{kind}, {in_flight} in flight ...");
            let [mut mine, mut theirs] = [(); 2].map(|()| Samples::default());
            for _ in 0..rounds {
                mine.push(operate(&our_client, kind, in_flight, operations).await);
                theirs.push(operate(&etcd_client, kind, in_flight, operations).await);
            }
            let name: &'static str = match (kind, in_flight) {
                ("put", 1) => "put, 1 in flight",
                ("put", 64) => "put, 64 in flight",
                ("put", _) => "put, 1,024 in flight",
                ("get", 1) => "get, 1 in flight",
                ("get", 64) => "get, 64 in flight",
                ("get", _) => "get, 1,024 in flight",
                (_, 1) => "txn, 1 in flight",
                (_, 64) => "txn, 64 in flight",
                _ => "txn, 1,024 in flight",
            };
            let promise = Some(Promise::AtLeast(2.0));
            comparisons.push(Comparison { name, unit: "/s", ours: mine, rival: "etcd", theirs, promise });
        }
    }
    comparisons
}

async fn operate(client: &Client, kind: &'static str, in_flight: usize, operations: usize) -> f64 {
    let each = operations / in_flight;
    parallel_rate(in_flight, each, |task| {
        let mut kv = client.kv_client();
        async move {
            let key = format!("bench/{task}");
            for _ in 0..each {
                match kind {
                    "put" => drop(kv.put(key.clone(), VALUE, None).await.expect("put")),
                    "get" => drop(kv.get(key.clone(), None).await.expect("get")),
                    _ => {
                        let txn = Txn::new()
                            .when([Compare::version(key.clone(), CompareOp::Greater, 0)])
                            .and_then([TxnOp::put(key.clone(), VALUE, None), TxnOp::get(key.clone(), None)])
                            .or_else([TxnOp::put(key.clone(), VALUE, None)]);
                        drop(kv.txn(txn).await.expect("txn"));
                    }
                }
            }
        }
    })
    .await
}

/// So many watches on one key, on one stream.
async fn watches(client: &Client, key: &str, number: usize) -> etcd_client::WatchStream {
    let mut client = client.watch_client();
    let options = |id: usize| Some(WatchOptions::new().with_watch_id(id as i64));
    let mut stream = client.watch(key, options(1)).await.expect("watch");
    let mut created = 0;
    for id in 2..=number {
        stream.watch(key, options(id)).await.expect("watch");
        // Answers are taken as they come: neither side may have to wait for the other.
        while id - created > 50 {
            created += usize::from(stream.message().await.expect("it lasts").expect("it lasts").created());
        }
    }
    while created < number {
        created += usize::from(stream.message().await.expect("it lasts").expect("it lasts").created());
    }
    stream
}

async fn fan_out(rounds: u32) -> Comparison {
    eprintln!("one put to {MANY} watchers ...");
    let [mut ours, mut theirs] = [(); 2].map(|()| Samples::default());
    let servers = [Server::ours(), Server::etcd()];
    for round in 0..rounds {
        for (server, samples) in servers.iter().zip([&mut ours, &mut theirs]) {
            let client = server.client().await;
            let key = format!("fan/{round}");
            let mut stream = watches(&client, &key, MANY).await;
            let began = Instant::now();
            client.kv_client().put(key, VALUE, None).await.expect("put");
            let mut told = 0;
            while told < MANY {
                let answer = stream.message().await.expect("it lasts").expect("it lasts");
                told += usize::from(!answer.events().is_empty());
            }
            samples.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let promise = Some(Promise::AtMost(0.5));
    Comparison { name: "one put to 10,000 watchers", unit: "ms", ours, rival: "etcd", theirs, promise }
}

async fn memory() -> Comparison {
    eprintln!("memory at {MANY} leases and {MANY} watches ...");
    let [mut ours, mut theirs] = [(); 2].map(|()| Samples::default());
    for (server, samples) in [(Server::ours(), &mut ours), (Server::etcd(), &mut theirs)] {
        let client = server.client().await;
        let grants = (0..64).map(|_| {
            let mut leases = client.lease_client();
            async move {
                for _ in 0..MANY / 64 + 1 {
                    leases.grant(3600, None).await.expect("grant");
                }
            }
        });
        join_all(grants).await;
        let _stream = watches(&client, "memory", MANY).await;
        samples.push(server.memory());
    }
    let promise = Some(Promise::AtMost(0.5));
    let name = "memory at 10,000 leases and 10,000 watches";
    Comparison { name, unit: "MB", ours, rival: "etcd", theirs, promise }
}

/// Beside a fixed 50 ms, which is what is promised.
fn start(rounds: u32) -> Comparison {
    eprintln!("start to ready ...");
    let [mut ours, mut limit] = [(); 2].map(|()| Samples::default());
    for _ in 0..rounds {
        ours.push(Ours::start().ready.as_secs_f64() * 1e3);
        limit.push(50.0);
    }
    let promise = Some(Promise::AtMost(1.0));
    Comparison { name: "start to ready", unit: "ms", ours, rival: "the promise", theirs: limit, promise }
}
