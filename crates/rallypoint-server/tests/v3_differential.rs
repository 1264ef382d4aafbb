//! The same random requests to this server and to a real etcd get the same answers.
//!
//! `RALLYPOINT_SEED` replays one sequence; `RALLYPOINT_STEPS` makes it longer.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbEvent, PbHashKvRequest, PbHashKvResponse, PbPutRequest, PbRangeRequest,
    PbResponseHeader, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp,
    PbTxnResponse,
};
use fastrand::Rng;
use rallypoint_server::Numbering;
use rallypoint_testkit::Version;
use tonic::Status;
use v3_support::{Raw, Target, Watch, Watcher};

const STEPS: usize = 2000;
const SEEDS: u64 = 2;
/// Watches made along the way, their events compared at the end.
const WATCHES: usize = 40;
/// When a compaction is done.
const COMPACTED_BY: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn random_requests_get_the_answers_of_etcd() {
    run(Version::V35, SEEDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_requests_get_the_answers_of_etcd_3_4_too() {
    run(Version::V34, 1).await;
}

async fn run(version: Version, seeds: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seeds = number("RALLYPOINT_SEED").map_or_else(|| (0..seeds).collect(), |seed| vec![seed]);
    let steps = number("RALLYPOINT_STEPS").map_or(STEPS, |steps| usize::try_from(steps).unwrap());
    for seed in seeds {
        // Each its own: revisions and leases would carry over.
        let etcd = Target::real(version);
        let ours = Target::ours_with(|config| {
            (config.history_changes, config.numbering) = (usize::MAX, Numbering::FromOne);
        });
        let settles = version == Version::V34;
        Pair { ours: ours.client().await, etcd: etcd.client().await, settles }.run(seed, steps).await;
    }
}

struct Pair {
    ours: Raw,
    etcd: Raw,
    /// etcd 3.4 hashes what a compaction under way has not removed yet: its hash is asked for until that is done.
    settles: bool,
}

impl Pair {
    async fn run(&self, seed: u64, steps: usize) {
        let mut random = Random { rng: Rng::with_seed(seed), revision: 1, compacted: 0 };
        let mut watches = Vec::new();
        for step in 0..steps {
            if step % (steps / WATCHES).max(1) == 0 {
                let watch = random.watch();
                let starts_behind = (1..=random.revision).contains(&watch.start_revision);
                let mut both = Both {
                    ours: Tail::open(&self.ours, &watch).await,
                    etcd: Tail::open(&self.etcd, &watch).await,
                    watch,
                };
                // etcd catches up in its own time; a compaction before that would be seen by one and not the other.
                if starts_behind {
                    random.revision = self.compare_events(&mut both, seed, random.compacted).await;
                }
                watches.push(both);
            }
            let op = random.op();
            let (ours, mut etcd) = tokio::join!(op.send(&self.ours), op.send(&self.etcd));
            let until = Instant::now() + COMPACTED_BY;
            while self.settles && matches!(op, Op::HashKv(_)) && ours != etcd && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(20)).await;
                etcd = op.send(&self.etcd).await;
            }
            assert_eq!(
                ours, etcd,
                "ours and etcd's answer differ at step {step} of seed {seed} on {op:?}\n\
                 replay with RALLYPOINT_SEED={seed} cargo test -p rallypoint-server --test v3_differential"
            );
            random.learn(&op, &ours);
        }
        for both in &mut watches {
            self.compare_events(both, seed, random.compacted).await;
        }
    }

    /// Reads what a watch heard on both up to a new event; the revision of that.
    async fn compare_events(&self, both: &mut Both, seed: u64, compacted: i64) -> i64 {
        let Both { watch, ours, etcd } = both;
        // Every filter lets one of the two pass.
        let key = String::from_utf8(watch.key.clone()).unwrap();
        for client in [&self.ours, &self.etcd] {
            client.put_kv(&key, "end").await;
        }
        let (last, same) = tokio::join!(self.ours.delete_key(&key), self.etcd.delete_key(&key));
        assert_eq!(last, same);
        let until = if watch.filters.contains(&1) { last - 1 } else { last };
        let (ours, etcd) = tokio::join!(ours.read(until), etcd.read(until));
        assert_eq!(ours.len(), etcd.len(), "events of {watch:?} differ, seed {seed}");
        for (at, (mut ours, etcd)) in ours.into_iter().zip(etcd).enumerate() {
            // etcd looks a previous value up when it sends the event: a compaction may have been faster.
            if let (Heard::Event(ours), Heard::Event(etcd)) = (&mut ours, &etcd)
                && watch.prev_kv
                && etcd.prev_kv.is_none()
                && etcd.kv.as_ref().unwrap().mod_revision <= compacted
            {
                ours.prev_kv = None;
            }
            assert_eq!(ours, etcd, "event {at} of {watch:?} differs, seed {seed}");
        }
        last
    }
}

/// One watch on both.
struct Both {
    watch: Watch,
    ours: Tail,
    etcd: Tail,
}

/// A watch and what it heard.
struct Tail {
    watcher: Watcher,
    ended: bool,
}

#[derive(Debug, PartialEq)]
enum Heard {
    Event(PbEvent),
    /// The revision up to which was compacted, and the reason.
    Canceled(i64, String),
}

impl Tail {
    async fn open(client: &Raw, watch: &Watch) -> Self {
        let mut watcher = client.watcher(watch.clone()).await;
        let created = watcher.next().await;
        assert!(created.created);
        Tail { watcher, ended: created.canceled }
    }

    async fn read(&mut self, until: i64) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut last = 0;
        while !self.ended && last < until {
            let answer = self.watcher.next().await;
            if answer.canceled {
                heard.push(Heard::Canceled(answer.compact_revision, answer.cancel_reason));
                self.ended = true;
            }
            for event in answer.events {
                last = event.kv.as_ref().unwrap().mod_revision;
                heard.push(Heard::Event(event));
            }
        }
        heard
    }
}

#[derive(Debug, Clone)]
enum Op {
    Range(PbRangeRequest),
    Put(PbPutRequest),
    Delete(PbDeleteRequest),
    Txn(PbTxnRequest),
    Compact(i64),
    HashKv(i64),
    Grant(i64, i64),
    Revoke(i64),
    KeepAlive(i64),
    TimeToLive(i64),
    Leases,
}

/// What came back: the revision of the header, and the rest as text.
type Answer = Result<(i64, String), (tonic::Code, String)>;

impl Op {
    async fn send(&self, client: &Raw) -> Answer {
        match self.clone() {
            Op::Range(request) => answer(client.range(request).await, |response| &mut response.header),
            Op::Put(request) => answer(client.put(request).await, |response| &mut response.header),
            Op::Delete(request) => answer(client.delete(request).await, |response| &mut response.header),
            Op::Txn(request) => {
                let mut response = client.txn(request).await;
                if let Ok(response) = &mut response {
                    strip(response);
                }
                answer(response, |response| &mut response.header)
            }
            Op::Compact(revision) => answer(client.compact(revision).await, |response| &mut response.header),
            Op::HashKv(revision) => {
                let request = PbHashKvRequest { revision };
                let response: Result<PbHashKvResponse, _> =
                    client.unary("/etcdserverpb.Maintenance/HashKV", request).await;
                answer(response, |response| &mut response.header)
            }
            Op::Grant(id, ttl) => answer(client.grant(id, ttl).await, |response| &mut response.header),
            Op::Revoke(id) => answer(client.revoke(id).await, |response| &mut response.header),
            Op::KeepAlive(id) => answer(Ok(client.keep_alive(id).await), |response| &mut response.header),
            Op::TimeToLive(id) => {
                let response = client.time_to_live(id, true).await.map(|mut response| {
                    response.keys.sort();
                    // The two were not granted at the same time.
                    response.ttl = response.ttl.signum();
                    response
                });
                answer(response, |response| &mut response.header)
            }
            Op::Leases => {
                let response = client.leases().await.map(|mut response| {
                    response.leases.sort_by_key(|lease| lease.id);
                    response
                });
                answer(response, |response| &mut response.header)
            }
        }
    }
}

fn answer<T: Debug>(
    response: Result<T, Status>,
    header: impl Fn(&mut T) -> &mut Option<PbResponseHeader>,
) -> Answer {
    match response {
        Ok(mut response) => {
            let revision = header(&mut response).take().unwrap().revision;
            Ok((revision, format!("{response:?}")))
        }
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

/// A header inside a transaction has a revision alone, here as in etcd; an absent one and an empty one are the same.
fn strip(response: &mut PbTxnResponse) {
    for op in &mut response.responses {
        if let Some(PbTxnOpResponse::ResponseTxn(nested)) = &mut op.response {
            nested.header.get_or_insert_default();
            strip(nested);
        }
    }
}

struct Random {
    rng: Rng,
    revision: i64,
    compacted: i64,
}

impl Random {
    fn learn(&mut self, op: &Op, answer: &Answer) {
        if let Ok((revision, _)) = answer {
            self.revision = *revision;
            if let Op::Compact(compacted) = op {
                self.compacted = *compacted;
            }
        }
    }

    fn op(&mut self) -> Op {
        match self.rng.u32(0..100) {
            0..25 => Op::Range(self.range()),
            25..45 => Op::Put(self.put()),
            45..55 => Op::Delete(self.delete()),
            55..85 => Op::Txn(self.txn(0)),
            85..87 => Op::Compact(self.rng.i64(self.compacted - 1..=self.revision + 1)),
            87..91 => {
                Op::Grant(self.lease(), self.rng.choice([100, 1000, 9_000_000_000, 9_000_000_001]).unwrap())
            }
            91..93 => Op::Revoke(self.lease()),
            93..95 => Op::KeepAlive(self.lease()),
            95..97 => Op::TimeToLive(self.lease()),
            // Of what was compacted etcd may still know a hash.
            97 if self.rng.bool() => Op::HashKv(self.rng.i64(self.compacted + 1..=self.revision + 2)),
            97 => Op::HashKv(0),
            _ => Op::Leases,
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn key(&mut self) -> Vec<u8> {
        if self.one_in(60) {
            return Vec::new();
        }
        self.rng.choice(["a", "ab", "abc", "b", "b\0", "c", "\0", "zz"]).unwrap().into()
    }

    fn end(&mut self) -> Vec<u8> {
        self.rng.choice(["", "", "", "a", "b", "ac", "c", "d", "\0", "zzz"]).unwrap().into()
    }

    fn value(&mut self) -> Vec<u8> {
        self.rng.choice(["", "1", "2", "22", "3"]).unwrap().into()
    }

    /// Never 0: a server would choose one at random.
    fn lease(&mut self) -> i64 {
        self.rng.i64(1..6)
    }

    fn revision(&mut self) -> i64 {
        match self.rng.u32(0..40) {
            0 => -self.rng.i64(1..4),
            1..8 => self.rng.i64(0..=self.revision + 2),
            8..12 => self.rng.i64((self.compacted - 1).max(0)..=self.revision),
            _ => 0,
        }
    }

    fn bound(&mut self) -> i64 {
        if self.one_in(6) { self.rng.i64(0..=self.revision) } else { 0 }
    }

    fn range(&mut self) -> PbRangeRequest {
        PbRangeRequest {
            key: self.key(),
            range_end: self.end(),
            limit: if self.one_in(3) { self.rng.i64(-1..4) } else { 0 },
            revision: self.revision(),
            sort_order: self.rng.i32(0..3),
            sort_target: self.rng.i32(0..5),
            serializable: self.rng.bool(),
            keys_only: self.one_in(6),
            count_only: self.one_in(6),
            min_mod_revision: self.bound(),
            max_mod_revision: self.bound(),
            min_create_revision: self.bound(),
            max_create_revision: self.bound(),
        }
    }

    fn put(&mut self) -> PbPutRequest {
        let (ignore_value, ignore_lease) = (self.one_in(8), self.one_in(8));
        PbPutRequest {
            key: self.key(),
            value: if ignore_value && !self.one_in(8) { Vec::new() } else { self.value() },
            lease: if self.one_in(3) && (!ignore_lease || self.one_in(8)) { self.lease() } else { 0 },
            prev_kv: self.one_in(3),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> PbDeleteRequest {
        PbDeleteRequest { key: self.key(), range_end: self.end(), prev_kv: self.rng.bool() }
    }

    fn txn(&mut self, depth: u32) -> PbTxnRequest {
        PbTxnRequest {
            compare: self.some(2, Random::compare),
            success: self.some(4, |random| random.txn_op(depth)),
            failure: self.some(3, |random| random.txn_op(depth)),
        }
    }

    fn some<T>(&mut self, most: usize, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.rng.usize(0..=most)).map(|_| make(self)).collect()
    }

    fn compare(&mut self) -> PbCompare {
        let target = self.rng.i32(0..5);
        let number = self.rng.i64(0..=self.revision.min(4));
        // Mostly of its target, sometimes of another, sometimes none.
        let union = if self.one_in(8) { self.rng.i32(0..6) } else { target };
        PbCompare {
            result: self.rng.i32(0..4),
            target,
            key: self.key(),
            range_end: self.end(),
            target_union: match union {
                0 => Some(PbTargetUnion::Version(number)),
                1 => Some(PbTargetUnion::CreateRevision(self.rng.i64(0..=self.revision))),
                2 => Some(PbTargetUnion::ModRevision(self.rng.i64(0..=self.revision))),
                3 => Some(PbTargetUnion::Value(self.value())),
                4 => Some(PbTargetUnion::Lease(number)),
                _ => None,
            },
        }
    }

    fn txn_op(&mut self, depth: u32) -> PbTxnRequestOp {
        let request = match self.rng.u32(0..20) {
            0..7 => Some(PbTxnOpRequest::RequestRange(self.range())),
            7..13 => {
                let mut put = self.put();
                // Together with a delete of the same key this is what ends a real etcd.
                put.ignore_value = false;
                put.ignore_lease = false;
                Some(PbTxnOpRequest::RequestPut(put))
            }
            13..17 => Some(PbTxnOpRequest::RequestDeleteRange(self.delete())),
            17..19 if depth < 3 => Some(PbTxnOpRequest::RequestTxn(self.txn(depth + 1))),
            19 if self.one_in(4) => None,
            _ => Some(PbTxnOpRequest::RequestRange(self.range())),
        };
        PbTxnRequestOp { request }
    }

    fn watch(&mut self) -> Watch {
        let key = self.rng.choice(["a", "ab", "b", "c", "zz"]).unwrap();
        let start_revision = match self.rng.u32(0..4) {
            0 => Some(self.rng.i64(1..=self.revision + 20))
                .filter(|start| *start != self.compacted)
                .unwrap_or(0),
            // At the compaction itself, etcd tells what it has not cleared away yet.
            1 if self.compacted < self.revision => self.rng.i64(self.compacted.max(0) + 1..=self.revision),
            _ => 0,
        };
        Watch {
            key: key.into(),
            range_end: self.rng.choice(["", "", "d", "\0", "zzz"]).unwrap().into(),
            start_revision,
            filters: self.rng.choice([vec![], vec![], vec![0], vec![1]]).unwrap(),
            prev_kv: self.rng.bool(),
            ..Watch::default()
        }
    }
}
