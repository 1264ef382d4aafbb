//! What clients rely on, asked of real etcd 3.4, 3.5 and 3.6 and of this server with the same expectations.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../v3_support/mod.rs"]
mod v3_support;
mod watches;

use std::fmt::Debug;

use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbPutRequest,
    PbRangeRequest, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use rallypoint_testkit::Version;
use tonic::{Code, Status};
use v3_support::{Raw, Target, Watch, within};

/// Each on a fresh key space would cost a server each; each uses keys of its own instead, except for those
/// about revisions, which count from where they start.
type Case = for<'a> fn(&'a Raw, Option<Version>) -> BoxFuture<'a, ()>;

const CASES: &[(&str, Case)] = &[
    ("revisions", |client, _| revisions(client).boxed()),
    ("ranges", |client, _| ranges(client).boxed()),
    ("sort options", |client, version| sort_options(client, version).boxed()),
    ("puts", |client, _| puts(client).boxed()),
    ("transactions", |client, _| transactions(client).boxed()),
    ("transactions_refused", |client, _| transactions_refused(client).boxed()),
    ("leases", |client, _| leases(client).boxed()),
    ("lease_expiry", |client, _| lease_expiry(client).boxed()),
    ("watch_headers", |client, _| watches::headers(client).boxed()),
    ("watch_basics", |client, _| watches::basics(client).boxed()),
    ("watch_refused", |client, _| watches::refused(client).boxed()),
    ("watch_filters_and_previous", |client, _| watches::filters_and_previous(client).boxed()),
    ("watch_progress_and_cancel", |client, _| watches::progress_and_cancel(client).boxed()),
    ("watch_fragments", |client, _| watches::fragments(client).boxed()),
    ("limits", |client, _| limits(client).boxed()),
    ("health", |client, _| health(client).boxed()),
    ("compaction", |client, _| compaction(client).boxed()),
];

async fn conforms(target: Target, version: Option<Version>) {
    for (name, case) in CASES {
        println!("{}: {name}", target.name());
        case(&target.client().await, version).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_3_4_is_as_expected() {
    conforms(Target::real(Version::V34), Some(Version::V34)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_3_5_is_as_expected() {
    conforms(Target::real(Version::V35), Some(Version::V35)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_3_6_is_as_expected_where_there_is_one() {
    if Version::all().contains(&Version::V36) {
        conforms(Target::real(Version::V36), Some(Version::V36)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn this_server_is_as_expected() {
    conforms(Target::ours(), None).await;
}

#[track_caller]
fn refused<T: Debug>(answer: Result<T, Status>, code: Code, message: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

fn range(key: &str, end: &str) -> PbRangeRequest {
    PbRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() }
}

fn put(key: &str, value: &str) -> PbPutRequest {
    PbPutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

fn delete(key: &str, end: &str) -> PbDeleteRequest {
    PbDeleteRequest { key: key.into(), range_end: end.into(), prev_kv: false }
}

fn op(request: PbTxnOpRequest) -> PbTxnRequestOp {
    PbTxnRequestOp { request: Some(request) }
}

fn put_op(key: &str, value: &str) -> PbTxnRequestOp {
    op(PbTxnOpRequest::RequestPut(put(key, value)))
}

fn range_op(key: &str, end: &str) -> PbTxnRequestOp {
    op(PbTxnOpRequest::RequestRange(range(key, end)))
}

fn delete_op(key: &str, end: &str) -> PbTxnRequestOp {
    op(PbTxnOpRequest::RequestDeleteRange(delete(key, end)))
}

fn txn(success: Vec<PbTxnRequestOp>) -> PbTxnRequest {
    PbTxnRequest { success, ..Default::default() }
}

fn nested(success: Vec<PbTxnRequestOp>, failure: Vec<PbTxnRequestOp>) -> PbTxnRequestOp {
    op(PbTxnOpRequest::RequestTxn(PbTxnRequest { success, failure, ..Default::default() }))
}

async fn revision(client: &Raw) -> i64 {
    client.range(range("any", "")).await.unwrap().header.unwrap().revision
}

async fn keys(client: &Raw, request: PbRangeRequest) -> Vec<String> {
    let answer = client.range(request).await.unwrap();
    answer.kvs.into_iter().map(|kv| String::from_utf8(kv.key).unwrap()).collect()
}

async fn revisions(client: &Raw) {
    let start = revision(client).await;
    let answer = client.txn(txn(vec![put_op("rev/a", "1"), put_op("rev/b", "1")])).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, start + 1, "one for a transaction");
    let answer = client.txn(txn(vec![range_op("rev/a", "")])).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, start + 1, "none for one that only reads");
    client.txn(txn(vec![delete_op("rev/none", "")])).await.unwrap();
    client.delete(delete("rev/none", "")).await.unwrap();
    assert_eq!(revision(client).await, start + 1, "none for a delete of nothing");
    let answer = client.delete(delete("rev/", "rev0")).await.unwrap();
    assert_eq!((answer.deleted, answer.header.unwrap().revision), (2, start + 2), "one for a range");

    let lease = client.grant(0, 60).await.unwrap().id;
    for key in ["rev/x", "rev/y"] {
        client.put(PbPutRequest { lease, ..put(key, "1") }).await.unwrap();
    }
    let answer = client.revoke(lease).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, start + 5, "one for a lease, however many keys");
    assert_eq!(keys(client, range("rev/", "rev0")).await, Vec::<String>::new());
    let empty = client.grant(0, 60).await.unwrap().id;
    assert_eq!(client.revoke(empty).await.unwrap().header.unwrap().revision, start + 5);

    client.put(put("rev/a", "2")).await.unwrap();
    let kv = client.range(range("rev/a", "")).await.unwrap().kvs.remove(0);
    assert_eq!((kv.version, kv.create_revision), (1, start + 6), "a key made again starts anew");
}

async fn ranges(client: &Raw) {
    for (key, value) in [("r/a", "3"), ("r/b", "1"), ("r/c", "2")] {
        client.put_kv(key, value).await;
    }
    let answer = client.range(PbRangeRequest { limit: 1, ..range("r/", "r0") }).await.unwrap();
    assert_eq!((answer.count, answer.kvs.len(), answer.more), (3, 1, true), "the count ignores the limit");
    let answer = client.range(PbRangeRequest { count_only: true, ..range("r/", "r0") }).await.unwrap();
    assert_eq!((answer.count, answer.kvs.len()), (3, 0));
    let by_value = PbRangeRequest { sort_target: 4, ..range("r/", "r0") };
    assert_eq!(keys(client, by_value.clone()).await, ["r/b", "r/c", "r/a"], "no order means ascending");
    let descending = PbRangeRequest { sort_order: 2, ..by_value };
    assert_eq!(keys(client, descending).await, ["r/a", "r/c", "r/b"]);
    assert_eq!(keys(client, range("r/b", "\0")).await[..2], ["r/b", "r/c"], "a zero byte is no end");
    assert_eq!(keys(client, range("r/c", "r/a")).await, Vec::<String>::new());
    let all = client.range(range("r/", "r0")).await.unwrap().kvs;
    let middle = PbRangeRequest {
        min_mod_revision: all[1].mod_revision,
        max_create_revision: all[1].create_revision,
        ..range("r/", "r0")
    };
    assert_eq!(keys(client, middle).await, ["r/b"]);
    let kv =
        client.range(PbRangeRequest { keys_only: true, ..range("r/a", "") }).await.unwrap().kvs.remove(0);
    assert!(kv.value.is_empty() && kv.mod_revision > 0);
    let before = PbRangeRequest { revision: all[1].mod_revision - 1, ..range("r/", "r0") };
    assert_eq!(keys(client, before).await, ["r/a"]);
    let future = PbRangeRequest { revision: i64::MAX, ..range("r/", "r0") };
    refused(
        client.range(future).await,
        Code::OutOfRange,
        "etcdserver: mvcc: required revision is a future revision",
    );
    refused(client.range(range("", "")).await, Code::InvalidArgument, "etcdserver: key is not provided");
}

/// etcd 3.4 ends when asked for one, so it is not.
async fn sort_options(client: &Raw, version: Option<Version>) {
    if version.is_none() {
        let invalid = "etcdserver: invalid sort option";
        let target = PbRangeRequest { sort_target: 99, ..range("r/", "r0") };
        refused(client.range(target).await, Code::InvalidArgument, invalid);
        let order = PbRangeRequest { sort_order: 99, ..range("r/", "r0") };
        refused(client.range(order).await, Code::InvalidArgument, invalid);
    }
}

async fn puts(client: &Raw) {
    let invalid = Code::InvalidArgument;
    refused(client.put(put("", "1")).await, invalid, "etcdserver: key is not provided");
    let ignoring = PbPutRequest { ignore_value: true, ..put("p/a", "") };
    refused(client.put(ignoring.clone()).await, invalid, "etcdserver: key not found");
    let with_value = PbPutRequest { value: b"1".to_vec(), ..ignoring.clone() };
    refused(client.put(with_value).await, invalid, "etcdserver: value is provided");
    let with_lease = PbPutRequest { ignore_lease: true, lease: 1, ..put("p/a", "1") };
    refused(client.put(with_lease).await, invalid, "etcdserver: lease is provided");
    let no_lease = PbPutRequest { lease: 987_654, ..put("p/a", "1") };
    refused(client.put(no_lease).await, Code::NotFound, "etcdserver: requested lease not found");

    let lease = client.grant(0, 60).await.unwrap().id;
    client.put(PbPutRequest { lease, ..put("p/a", "1") }).await.unwrap();
    let answer =
        client.put(PbPutRequest { ignore_lease: true, prev_kv: true, ..put("p/a", "2") }).await.unwrap();
    assert_eq!(answer.prev_kv.unwrap().value, b"1");
    let kv = client.range(range("p/a", "")).await.unwrap().kvs.remove(0);
    assert_eq!((kv.lease, kv.version, &kv.value[..]), (lease, 2, &b"2"[..]), "ignore_lease keeps the lease");
    client.put(ignoring).await.unwrap();
    let kv = client.range(range("p/a", "")).await.unwrap().kvs.remove(0);
    assert_eq!((kv.lease, &kv.value[..]), (0, &b"2"[..]), "a put without a lease detaches");
    assert!(client.time_to_live(lease, true).await.unwrap().keys.is_empty());
}

async fn transactions(client: &Raw) {
    let answer = client
        .txn(txn(vec![
            put_op("t/a", "1"),
            range_op("t/a", ""),
            delete_op("t/b", "t/c"),
            range_op("t/", "t0"),
        ]))
        .await
        .unwrap();
    let Some(PbTxnOpResponse::ResponseRange(read)) = &answer.responses[1].response else {
        panic!("{answer:?}")
    };
    assert_eq!(read.kvs[0].value, b"1", "reads see earlier writes of the same transaction");
    assert_eq!(read.header.as_ref().unwrap().revision, answer.header.as_ref().unwrap().revision);

    // Compares without a value compare with zero; those over ranges must hold for all keys.
    client.put_kv("t/b", "1").await;
    let holds = async |compare: PbCompare| {
        client.txn(PbTxnRequest { compare: vec![compare], ..Default::default() }).await.unwrap().succeeded
    };
    let (equal, greater) = (0, 1);
    let (version, value) = (0, 3);
    let compare = |key: &str, end: &str, target, result| PbCompare {
        key: key.into(),
        range_end: end.into(),
        target,
        result,
        target_union: None,
    };
    assert!(holds(compare("t/none", "", version, equal)).await);
    assert!(!holds(compare("t/a", "", version, equal)).await);
    assert!(holds(compare("t/", "t0", version, greater)).await);
    assert!(!holds(compare("t/none", "", value, equal)).await, "a missing key has no value");
    assert!(!holds(compare("t/none", "", value, greater)).await);

    // Nested compares see the store as it was before.
    let inner = PbTxnRequest {
        compare: vec![compare("t/new", "", version, equal)],
        success: vec![put_op("t/seen", "1")],
        failure: vec![],
    };
    let outer = txn(vec![put_op("t/new", "1"), op(PbTxnOpRequest::RequestTxn(inner))]);
    let answer = client.txn(outer).await.unwrap();
    let Some(PbTxnOpResponse::ResponseTxn(inner)) = &answer.responses[1].response else {
        panic!("{answer:?}")
    };
    assert!(inner.succeeded);
}

async fn transactions_refused(client: &Raw) {
    let invalid = Code::InvalidArgument;
    let duplicate = "etcdserver: duplicate key given in txn request";
    let a = || put_op("d/a", "1");
    let del = |end| delete_op("d/a", end);
    for ops in [
        vec![a(), a()],
        vec![a(), del("")],
        vec![a(), del("d/b")],
        vec![a(), nested(vec![a()], vec![])],
        vec![a(), nested(vec![], vec![a()])],
        vec![nested(vec![a()], vec![]), nested(vec![], vec![a()])],
        vec![del(""), nested(vec![a()], vec![])],
        vec![nested(vec![del("")], vec![]), a()],
        vec![nested(vec![nested(vec![a()], vec![])], vec![]), a()],
    ] {
        refused(client.txn(txn(ops)).await, invalid, duplicate);
    }
    for ops in [
        vec![del(""), del("d/b")],
        vec![nested(vec![a()], vec![a()])],
        vec![nested(vec![a()], vec![del("")])],
        vec![del("d/a"), a()],
    ] {
        client.txn(txn(ops)).await.unwrap();
    }
    client.txn(PbTxnRequest { success: vec![a()], failure: vec![a()], ..Default::default() }).await.unwrap();

    // One bad operation and nothing is applied.
    let before = revision(client).await;
    let bad_lease = PbPutRequest { lease: 987_654, ..put("d/y", "1") };
    let ops = vec![put_op("d/x", "1"), op(PbTxnOpRequest::RequestPut(bad_lease))];
    refused(client.txn(txn(ops)).await, Code::NotFound, "etcdserver: requested lease not found");
    let future = PbRangeRequest { revision: before + 10, ..range("d/x", "") };
    let ops = vec![put_op("d/x", "1"), op(PbTxnOpRequest::RequestRange(future))];
    refused(
        client.txn(txn(ops)).await,
        Code::OutOfRange,
        "etcdserver: mvcc: required revision is a future revision",
    );
    refused(
        client.txn(txn(vec![PbTxnRequestOp { request: None }])).await,
        invalid,
        "etcdserver: key not found",
    );
    assert_eq!(revision(client).await, before);
    assert!(keys(client, range("d/x", "")).await.is_empty());

    let many = |count: usize| (0..count).map(|n| put_op(&format!("d/many/{n}"), "1")).collect::<Vec<_>>();
    client.txn(txn(many(128))).await.unwrap();
    let too_many = "etcdserver: too many operations in txn request";
    refused(client.txn(txn(many(129))).await, invalid, too_many);
    refused(client.txn(txn(vec![nested(many(128), vec![])])).await, invalid, too_many);
}

async fn leases(client: &Raw) {
    for (asked, granted) in [(-1, 2), (0, 2), (1, 2), (2, 2), (3, 3), (9_000_000_000, 9_000_000_000)] {
        let lease = client.grant(0, asked).await.unwrap();
        assert_eq!(lease.ttl, granted, "asked for {asked}");
        client.revoke(lease.id).await.unwrap();
    }
    refused(client.grant(0, 9_000_000_001).await, Code::OutOfRange, "etcdserver: too large lease TTL");
    client.grant(4711, 60).await.unwrap();
    refused(client.grant(4711, 60).await, Code::FailedPrecondition, "etcdserver: lease already exists");
    client.put(PbPutRequest { lease: 4711, ..put("l/a", "1") }).await.unwrap();
    let lease = client.time_to_live(4711, true).await.unwrap();
    assert_eq!((lease.granted_ttl, lease.keys), (60, vec![b"l/a".to_vec()]));
    assert!((55..=60).contains(&lease.ttl), "{}", lease.ttl);
    assert!(client.leases().await.unwrap().leases.iter().any(|lease| lease.id == 4711));
    assert_eq!(client.keep_alive(4711).await.ttl, 60);
    client.revoke(4711).await.unwrap();

    refused(client.revoke(4711).await, Code::NotFound, "etcdserver: requested lease not found");
    let gone = client.time_to_live(4711, true).await.unwrap();
    assert_eq!((gone.id, gone.ttl, gone.granted_ttl), (4711, -1, 0));
    let answer = client.keep_alive(4711).await;
    assert_eq!((answer.id, answer.ttl), (4711, 0));
}

async fn lease_expiry(client: &Raw) {
    let lease = client.grant(0, 1).await.unwrap().id;
    let mut last = 0;
    for key in ["e/a", "e/b"] {
        last = client.put(PbPutRequest { lease, ..put(key, "1") }).await.unwrap().header.unwrap().revision;
    }
    let mut watcher = client.watching(Watch::span("e/", "e0")).await;
    let events = watcher.next().await.events;
    assert_eq!(events.len(), 2, "both keys go at once");
    assert!(
        events.iter().all(|event| event.r#type == 1 && event.kv.as_ref().unwrap().mod_revision == last + 1)
    );

    // Kept alive, it stays.
    let first = PbLeaseKeepAliveRequest { id: client.grant(0, 60).await.unwrap().id };
    let (sender, mut answers) = client
        .stream::<_, PbLeaseKeepAliveResponse>("/etcdserverpb.Lease/LeaseKeepAlive", first)
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(v3_support::within(answers.message()).await.unwrap().unwrap().ttl, 60);
        sender.unbounded_send(first).unwrap();
    }
}

async fn limits(client: &Raw) {
    let large = |bytes: usize| put("m/a", &"v".repeat(bytes));
    let most = 3 << 19;
    client.put(large(most - 100)).await.unwrap();
    refused(client.put(large(most)).await, Code::InvalidArgument, "etcdserver: request is too large");
    let ops = vec![op(PbTxnOpRequest::RequestPut(large(most)))];
    refused(client.txn(txn(ops)).await, Code::InvalidArgument, "etcdserver: request is too large");
    let status = client.put(large((2 << 20) + 1)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("larger than max"), "{status:?}");
    client.put(put("m/a", "")).await.unwrap();

    for path in ["/v3electionpb.Nothing/At", "/etcdserverpb.KV/Nothing"] {
        let status = client.unary::<_, PbLeaseKeepAliveResponse>(path, put("a", "b")).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().starts_with("unknown "), "{status:?}");
    }
}

/// gRPC's own health check, whose messages have one field each.
async fn health(client: &Raw) {
    const SERVING: i32 = 1;
    const SERVICE_UNKNOWN: i32 = 3;
    let check = |service: &str| client.unary("/grpc.health.v1.Health/Check", service.to_owned());
    let served: Result<i32, Status> = check("").await;
    assert_eq!(served.unwrap(), SERVING);
    let unknown: Result<i32, Status> = check("no such service").await;
    refused(unknown, Code::NotFound, "unknown service");
    for (service, status) in [("", SERVING), ("no such service", SERVICE_UNKNOWN)] {
        // A stream of one message: etcd waits for its end.
        let (sender, requests) = futures::channel::mpsc::unbounded();
        sender.unbounded_send(service.to_owned()).unwrap();
        drop(sender);
        let watching = client.stream_of::<_, i32>("/grpc.health.v1.Health/Watch", requests);
        let mut told = within(watching).await.unwrap();
        assert_eq!(within(told.message()).await.unwrap(), Some(status), "{service:?}");
    }
}

/// The last: what was before it is gone for all others.
async fn compaction(client: &Raw) {
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let future = "etcdserver: mvcc: required revision is a future revision";
    let first = client.put_kv("c/a", "1").await;
    let second = client.put_kv("c/a", "2").await;
    let third = client.put_kv("c/a", "3").await;
    client.compact(second).await.unwrap();
    refused(client.compact(second).await, Code::OutOfRange, compacted);
    refused(client.compact(third + 1).await, Code::OutOfRange, future);
    let at = |revision| PbRangeRequest { revision, ..range("c/a", "") };
    refused(client.range(at(first)).await, Code::OutOfRange, compacted);
    assert_eq!(client.range(at(second)).await.unwrap().kvs[0].value, b"2");

    let mut watcher = client.watching(Watch { start_revision: first, ..Watch::key("c/a") }).await;
    let answer = watcher.next().await;
    assert_eq!((answer.canceled, answer.compact_revision, answer.watch_id), (true, second, 0));
    assert_eq!(answer.header.unwrap().revision, 0);
    let mut watcher = client.watching(Watch { start_revision: second, ..Watch::key("c/a") }).await;
    assert_eq!(watcher.events_until(third).await.len(), 2);
    watches::after_compaction(client, first).await;
}
