//! A client that asks for this and that, and notes what it was told.

use std::time::Instant;

use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbKeyValue, PbPutRequest, PbRangeRequest, PbTargetUnion, PbTxnOpRequest,
    PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp,
};
use fastrand::Rng;

use crate::history::{KEYS, Op, Seen, What};
use crate::v3_support::Raw;

/// Few, so that the clients get in each other's way.
const NAMES: usize = 4;
/// Far longer than a history.
const TTL: i64 = 600;
/// How often a planted bug shows.
const ONE_IN: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    AnswersFromItsCache,
    SaysItSwapped,
    /// It is carried out, and the client never hears of it.
    LosesAWrite,
}

pub(crate) async fn work(client: &Raw, number: usize, requests: usize, planted: Planted) -> Vec<Op> {
    let mut worker =
        Worker { client, rng: Rng::new(), number, count: 0, lease: None, seen: 0, ops: Vec::new() };
    for _ in 0..requests {
        let shows = worker.rng.usize(..ONE_IN) == 0;
        let op = worker.ask().await;
        let op = match (planted, op) {
            (Planted::AnswersFromItsCache, op) if shows && matches!(op.what, What::Read(_)) => {
                let cached = worker.ops.iter().find(|op| matches!(op.what, What::Read(_)));
                Op { began: op.began, ended: op.ended, ..cached.unwrap_or(&op).clone() }
            }
            (
                Planted::SaysItSwapped,
                Op { what: What::NotSwapped { key, expected, .. }, began, ended, revision },
            ) => Op { what: What::Swapped { key, value: Vec::new(), expected }, began, ended, revision },
            (Planted::LosesAWrite, op) if shows && op.what.changes() => continue,
            (_, op) => op,
        };
        worker.ops.push(op);
    }
    worker.ops
}

struct Worker<'a> {
    client: &'a Raw,
    rng: Rng,
    number: usize,
    /// Makes each value another one.
    count: usize,
    lease: Option<i64>,
    /// When a key was modified, as was last seen.
    seen: i64,
    ops: Vec<Op>,
}

impl Worker<'_> {
    fn key(&mut self) -> String {
        format!("{}{}", KEYS.0, self.rng.usize(..NAMES))
    }

    fn value(&mut self) -> Vec<u8> {
        self.count += 1;
        format!("{} {}", self.number, self.count).into_bytes()
    }

    async fn ask(&mut self) -> Op {
        let key = self.key();
        let began = Instant::now();
        let (revision, what) = match self.rng.usize(..20) {
            0..6 => self.read(key).await,
            6..8 => self.read_all().await,
            8..13 => self.put(key).await,
            13..17 => self.swap(key).await,
            17 => self.delete(key).await,
            _ => self.revoke().await,
        };
        Op { began, ended: Instant::now(), revision, what }
    }

    async fn read(&mut self, key: String) -> (i64, What) {
        let answer = self.client.range(get(&key)).await.unwrap();
        let found = answer.kvs.first().map(Seen::from);
        self.seen = found.as_ref().map_or(0, |seen| seen.modified);
        (answer.header.unwrap().revision, What::Read(vec![(key, found)]))
    }

    async fn read_all(&mut self) -> (i64, What) {
        let all = PbRangeRequest { range_end: KEYS.1.into(), ..get(KEYS.0) };
        let answer = self.client.range(all).await.unwrap();
        let found = |key: &str| answer.kvs.iter().find(|kv| kv.key == key.as_bytes()).map(Seen::from);
        let keys = (0..NAMES).map(|number| format!("{}{number}", KEYS.0));
        let keys = keys
            .map(|key| {
                let seen = found(&key);
                (key, seen)
            })
            .collect();
        (answer.header.unwrap().revision, What::Read(keys))
    }

    async fn put(&mut self, key: String) -> (i64, What) {
        let value = self.value();
        if self.lease.is_none() && self.rng.bool() {
            self.lease = Some(self.client.grant(0, TTL).await.unwrap().id);
        }
        let lease = self.lease.filter(|_| self.rng.bool()).unwrap_or(0);
        let (name, prev_kv) = (key.clone().into(), true);
        let put = PbPutRequest { key: name, value: value.clone(), lease, prev_kv, ..Default::default() };
        let answer = self.client.put(put).await.unwrap();
        let before = answer.prev_kv.as_ref().map(Seen::from);
        (answer.header.unwrap().revision, What::Wrote { key, value: Some(value), before })
    }

    async fn swap(&mut self, key: String) -> (i64, What) {
        const EQUAL: i32 = 0;
        const MODIFIED: i32 = 2;
        let (value, expected) = (self.value(), self.seen);
        let compare = PbCompare {
            result: EQUAL,
            target: MODIFIED,
            key: key.clone().into(),
            target_union: Some(PbTargetUnion::ModRevision(expected)),
            ..Default::default()
        };
        let put = PbPutRequest { key: key.clone().into(), value: value.clone(), ..Default::default() };
        let op = |request| vec![PbTxnRequestOp { request: Some(request) }];
        let txn = PbTxnRequest {
            compare: vec![compare],
            success: op(PbTxnOpRequest::RequestPut(put)),
            failure: op(PbTxnOpRequest::RequestRange(get(&key))),
        };
        let answer = self.client.txn(txn).await.unwrap();
        let revision = answer.header.unwrap().revision;
        if answer.succeeded {
            return (revision, What::Swapped { key, value, expected });
        }
        let found = answer.responses.into_iter().next().and_then(|response| response.response);
        let Some(PbTxnOpResponse::ResponseRange(range)) = found else { panic!("it was asked for a range") };
        let found = range.kvs.first().map(Seen::from);
        self.seen = found.as_ref().map_or(0, |seen| seen.modified);
        (revision, What::NotSwapped { key, expected, found })
    }

    async fn delete(&mut self, key: String) -> (i64, What) {
        let delete = PbDeleteRequest { key: key.clone().into(), prev_kv: true, ..Default::default() };
        let answer = self.client.delete(delete).await.unwrap();
        let before = answer.prev_kvs.first().map(|kv: &PbKeyValue| Seen::from(kv));
        let what = match before {
            Some(before) => What::Wrote { key, value: None, before: Some(before) },
            None => What::Read(vec![(key, None)]),
        };
        (answer.header.unwrap().revision, what)
    }

    async fn revoke(&mut self) -> (i64, What) {
        let lease = match self.lease.take() {
            Some(lease) => lease,
            None => self.client.grant(0, TTL).await.unwrap().id,
        };
        let answer = self.client.revoke(lease).await.unwrap();
        (answer.header.unwrap().revision, What::Revoked { lease })
    }
}

fn get(key: &str) -> PbRangeRequest {
    PbRangeRequest { key: key.into(), ..Default::default() }
}
