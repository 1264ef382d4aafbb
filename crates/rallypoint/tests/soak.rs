//! A job that goes on for weeks does not fill the server's memory, here in seconds: the server keeps little of
//! the past, and the values are large.
//!
//! `RALLYPOINT_SOAK_MINUTES=15 cargo test --package rallypoint --test soak -- --nocapture` lets it go on for longer,
//! at an easy pace, and prints the memory as it goes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, WatchOptions};
use futures::future::join_all;
use rallypoint::EtcdSettings;
use rallypoint::etcd::v2;

const NODES: usize = 2;
/// Before the memory is taken for what the job needs.
const WARM_UP: usize = 60;
/// Events of v2 that the server keeps.
const V2_WINDOW: usize = 1_000;
/// And after that. What is written then is several times the memory that may be gained.
const ROUNDS: usize = 240;
const VALUE: usize = 16 << 10;
const V2_VALUE: usize = 4 << 10;
/// What an allocator may keep for itself.
const SLACK: u64 = 8 << 20;
/// Leases and v2 TTLs of what nobody takes away.
const TTL: u64 = 2;

/// The server, killed when dropped.
struct Serving {
    child: Child,
    endpoint: String,
}

impl Serving {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rallypoint-server"))
            .args(["--listen-client-urls", "http://127.0.0.1:0"])
            .args(["--auto-compaction-mode", "revision", "--auto-compaction-retention", "200"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let endpoint = log
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("address=")?.1.split_whitespace().next()?.to_owned()))
            .unwrap();
        Serving { child, endpoint }
    }

    /// Resident memory, in bytes.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }

    fn metric(&self, name: &str) -> u64 {
        let port = self.endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
        let text = rallypoint_testkit::http_get(port, "/metrics", Duration::from_secs(10)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Waits until a number of its own is down to this.
    async fn until(&self, name: &str, most: u64) {
        let began = Instant::now();
        while self.metric(name) > most {
            assert!(began.elapsed() < Duration::from_secs(60), "{name} stays at {}", self.metric(name));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node of the job, with connections of its own.
struct Node {
    name: usize,
    v3: Client,
    v2: v2::Client,
    lease: i64,
}

impl Node {
    async fn join(name: usize, serving: &Serving) -> Self {
        let mut v3 = serving.client().await;
        let v2 = v2::Client::connect(EtcdSettings::new(&serving.endpoint).unwrap()).await.unwrap();
        let lease = v3.lease_grant(3600, None).await.unwrap().id();
        Node { name, v3, v2, lease }
    }

    /// A bit of everything that nodes do, again and again.
    async fn round(&mut self, round: usize) {
        let (mine, value) = (format!("job/{}", self.name), vec![b'x'; VALUE]);
        // Heartbeats under a lease that is kept, each of which overwrites the last.
        let (mut keeper, mut kept) =
            soon("to keep alive", self.v3.lease_keep_alive(self.lease)).await.unwrap();
        keeper.keep_alive().await.unwrap();
        assert!(soon("kept alive", kept.message()).await.unwrap().unwrap().ttl() > 0);
        let leased = || Some(PutOptions::new().with_lease(self.lease));
        soon("heartbeat", self.v3.put(format!("{mine}/heartbeat"), value.clone(), leased())).await.unwrap();

        // A round that is waited for, made and taken away.
        let key = format!("{mine}/round/{round}");
        let mut events = soon("watch", self.v3.watch(key.as_str(), Some(WatchOptions::new()))).await.unwrap();
        let there = Compare::version(key.as_str(), CompareOp::Greater, 0);
        let make = Txn::new().when([there]).or_else([TxnOp::put(key.as_str(), value.clone(), None)]);
        assert!(!soon("txn", self.v3.txn(make)).await.unwrap().succeeded());
        while soon("event", events.message()).await.unwrap().unwrap().events().is_empty() {}
        soon("delete", self.v3.delete(key, None)).await.unwrap();

        // One that nobody takes away: its lease runs out.
        let left = soon("grant", self.v3.lease_grant(TTL as i64, None)).await.unwrap().id();
        let options = Some(PutOptions::new().with_lease(left));
        soon("put", self.v3.put(format!("{mine}/left/{round}"), value, options)).await.unwrap();

        // The same on v2: a TTL that is refreshed, a queue whose entries end by themselves, a wait.
        let (ttl, value) = (Duration::from_secs(TTL), "x".repeat(V2_VALUE));
        let alive = format!("/{mine}/alive");
        soon("v2 set", self.v2.put(&alive, v2::Put::value(&value).ttl(ttl))).await.unwrap();
        let refresh = v2::Put::refresh(ttl).prev_exist(true);
        let alive = soon("v2 refresh", self.v2.put(&alive, refresh)).await.unwrap();
        let entry = v2::Put::value(&value).ttl(ttl);
        soon("v2 push", self.v2.push(&format!("/{mine}/queue"), entry)).await.unwrap();
        let mut watcher = self.v2.watch(&format!("/{mine}"), alive.etcd_index).recursive();
        soon("v2 wait", watcher.next()).await.unwrap();
    }
}

/// A wait that ends, and is named if it is too long.
async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    let answer = tokio::time::timeout(Duration::from_secs(30), future).await;
    answer.unwrap_or_else(|_| panic!("no answer: {what}"))
}

async fn work(nodes: &mut [Node], rounds: std::ops::Range<usize>) {
    for round in rounds {
        join_all(nodes.iter_mut().map(|node| node.round(round))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_long_job_is_bounded() {
    let minutes: Option<u64> =
        std::env::var("RALLYPOINT_SOAK_MINUTES").ok().map(|minutes| minutes.parse().expect("minutes"));
    let serving = Serving::start();
    // Somebody who never reads what it asked for.
    let mut idle = serving.client().await;
    let _unread = idle.watch("job/", Some(WatchOptions::new().with_prefix())).await.unwrap();
    let mut nodes = join_all((0..NODES).map(|name| Node::join(name, &serving))).await;

    work(&mut nodes, 0..WARM_UP).await;
    for _ in 0..V2_WINDOW {
        nodes[0].v2.set("/warm", &"x".repeat(V2_VALUE)).await.unwrap();
    }
    let began = Instant::now();
    let before = serving.memory();
    let (mut rounds, mut most) = (WARM_UP, before);
    let is_over = |rounds| match minutes {
        None => rounds >= WARM_UP + ROUNDS,
        Some(minutes) => began.elapsed() >= Duration::from_secs(60 * minutes),
    };
    while !is_over(rounds) {
        work(&mut nodes, rounds..rounds + 10).await;
        rounds += 10;
        let now = serving.memory();
        if minutes.is_some() {
            println!("{:>6.0} s {rounds:>8} rounds {:>6} KiB", began.elapsed().as_secs_f64(), now >> 10);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        most = most.max(now);
    }
    // Three values on v3 and two on v2 in each round.
    let written = ((rounds - WARM_UP) * NODES * (3 * VALUE + 2 * V2_VALUE)) as u64;
    println!("{rounds} rounds: {} MiB written, from {} to {} KiB", written >> 20, before >> 10, most >> 10);
    assert!(written >= 3 * SLACK, "enough for what stays behind to show");
    assert!(most < before + SLACK, "it grew from {before} to {most} bytes while {written} were written");

    // What has a time ends with it, and who is gone leaves nothing behind.
    serving.until("etcd_debugging_lease_total", NODES as u64).await;
    serving.until("etcd_debugging_mvcc_watcher_total", 1).await;
    serving.until("etcd_debugging_store_watchers", 0).await;
    // The warm-up and the directories of the nodes and their queues stay: they have no TTL.
    serving.until("rallypoint_v2_keys", 2 + 2 * NODES as u64).await;
    assert!(serving.metric("etcd_debugging_mvcc_keys_total") < 2_000, "keys of the past are compacted away");
}
