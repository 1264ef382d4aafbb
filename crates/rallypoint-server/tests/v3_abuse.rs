//! Clients that send nonsense, too much, or do not read: no panic, no hang, no growth.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::time::Duration;

use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbPutRequest, PbRangeRequest, PbTxnOpRequest, PbTxnRequest,
    PbTxnRequestOp, PbWatchRequest,
};
use etcd_client::{AlarmAction, AlarmMember, AlarmType};
use fastrand::Rng;
use prost::Message;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request};
use v3_support::bytes::Bytes as Verbatim;
use v3_support::{Raw, Target, Watch, within};

const UNARY: &[&str] = &[
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/DeleteRange",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Cluster/MemberList",
    "/grpc.health.v1.Health/Check",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/MoveLeader",
];
/// Those that may wait, and whose refusals may have no code.
const WAITING: &[&str] = &[
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Observe",
];
const STREAMING: &[&str] = &[
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Maintenance/Snapshot",
];
const REQUESTS: usize = 5000;

/// A message that was valid once, or never was.
fn mutated(rng: &mut Rng) -> Vec<u8> {
    let key = || b"k".to_vec();
    let mut message = match rng.u32(0..6) {
        0 => {
            PbRangeRequest { key: key(), range_end: vec![0], limit: 3, sort_target: 2, ..Default::default() }
                .encode_to_vec()
        }
        1 => PbPutRequest { key: key(), value: b"v".to_vec(), lease: 1, prev_kv: true, ..Default::default() }
            .encode_to_vec(),
        2 => PbTxnRequest {
            success: vec![PbTxnRequestOp {
                request: Some(PbTxnOpRequest::RequestPut(PbPutRequest { key: key(), ..Default::default() })),
            }],
            ..Default::default()
        }
        .encode_to_vec(),
        3 => PbWatchRequest::from(Watch { start_revision: 1, prev_kv: true, ..Watch::span("a", "z") })
            .encode_to_vec(),
        4 => (0..200).fold(Vec::new(), |inner, _| {
            // Deeper than any decoder wants to go.
            let mut outer = vec![0x12, 0x22];
            prost::encode_length_delimiter(inner.len(), &mut outer).unwrap();
            outer.truncate(2 + inner.len().min(1));
            outer.extend(inner);
            outer
        }),
        _ => (0..rng.usize(0..64)).map(|_| rng.u8(..)).collect(),
    };
    for _ in 0..rng.usize(0..4) {
        if message.is_empty() {
            break;
        }
        let at = rng.usize(0..message.len());
        match rng.u32(0..4) {
            0 => message[at] = rng.u8(..),
            1 => drop(message.remove(at)),
            2 => message.insert(at, rng.u8(..)),
            _ => message.truncate(at),
        }
    }
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn random_and_mutated_requests_are_answered() {
    let target = Target::ours();
    let seed = std::env::var("RALLYPOINT_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("RALLYPOINT_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let channel = Channel::from_shared(target.url()).unwrap().connect().await.unwrap();
    for _ in 0..REQUESTS {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        if rng.u32(0..10) == 0 {
            let path = PathAndQuery::from_static(rng.choice(STREAMING).unwrap());
            let mut messages: Vec<_> = (0..rng.usize(0..4)).map(|_| mutated(&mut rng)).collect();
            // A stream begins with an answer, which not every message gets. As a keep-alive this one is odd.
            messages.push(PbWatchRequest::from(Watch::key("k")).encode_to_vec());
            let stream = Request::new(futures::stream::iter(messages));
            if let Ok(answers) = within(grpc.streaming(stream, path, Verbatim)).await {
                // What can be read at once; then it is dropped with its watches.
                let mut answers = answers.into_inner();
                let _ = tokio::time::timeout(Duration::from_millis(1), answers.message()).await;
            }
        } else if rng.u32(0..10) == 0 {
            let path = PathAndQuery::from_static(rng.choice(WAITING).unwrap());
            let asking = grpc.unary(Request::new(mutated(&mut rng)), path, Verbatim);
            let _ = tokio::time::timeout(Duration::from_millis(2), asking).await;
        } else {
            let path = PathAndQuery::from_static(rng.choice(UNARY).unwrap());
            if let Err(status) = within(grpc.unary(Request::new(mutated(&mut rng)), path, Verbatim)).await {
                assert_ne!(status.code(), Code::Unknown, "{status:?}");
                assert_ne!(status.code(), Code::Cancelled, "{status:?}");
            }
        }
    }
    let client = target.client().await;
    // One of them may have raised the alarm.
    let disarm = PbAlarmRequest { action: 2, alarm: 1, ..Default::default() };
    let _: PbAlarmResponse = client.unary("/etcdserverpb.Maintenance/Alarm", disarm).await.unwrap();
    client.put_kv("alive", "1").await;
}

/// What ends a real etcd.
#[tokio::test]
async fn a_delete_and_a_put_that_keeps_the_value_of_one_key_are_refused() {
    let target = Target::ours();
    let client = target.client().await;
    let before = client.put_kv("k", "1").await;
    let delete = etcd_client::proto::PbDeleteRequest { key: "a".into(), range_end: vec![0], prev_kv: false };
    let put = PbPutRequest { key: "k".into(), ignore_value: true, ..Default::default() };
    let ops = [PbTxnOpRequest::RequestDeleteRange(delete), PbTxnOpRequest::RequestPut(put)];
    let success = ops.map(|op| PbTxnRequestOp { request: Some(op) }).to_vec();
    let status = client.txn(PbTxnRequest { success, ..Default::default() }).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "etcdserver: key not found"));
    let kept = client.range(PbRangeRequest { key: "k".into(), ..Default::default() }).await.unwrap();
    assert_eq!((kept.kvs.len(), kept.header.unwrap().revision), (1, before), "nothing of it was applied");
}

#[tokio::test]
async fn a_full_store_takes_deletes_and_nothing_else() {
    let target = Target::ours_with(|config| (config.quota_bytes, config.history_bytes) = (1 << 20, 1 << 16));
    let client = target.client().await;
    let mut stored = 0;
    let status = loop {
        let put = PbPutRequest {
            key: format!("k/{stored:05}").into(),
            value: vec![0; 10_000],
            ..Default::default()
        };
        match client.put(put).await {
            Ok(_) => stored += 1,
            Err(status) => break status,
        }
        assert!(stored < 1000, "it never fills");
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "etcdserver: mvcc: database space exceeded");
    assert_eq!(client.grant(0, 60).await.unwrap_err().code(), Code::ResourceExhausted);
    let mut watcher = client.watcher(Watch::key("k")).await;
    assert!(watcher.next().await.canceled);
    let health = async || {
        let port = target.url().rsplit_once(':').unwrap().1.parse().unwrap();
        let ask = move || rallypoint_testkit::http_get(port, "/health", Duration::from_secs(20));
        tokio::task::spawn_blocking(ask).await.unwrap().unwrap()
    };
    let alarms = async || {
        let mut tool = etcd_client::Client::connect([target.url()], None).await.unwrap();
        let listed = tool.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
        let errors = tool.status().await.unwrap().errors().join(", ");
        (listed.alarms().iter().map(AlarmMember::alarm).collect::<Vec<_>>(), errors)
    };
    let (listed, errors) = alarms().await;
    assert_eq!(listed, [AlarmType::Nospace]);
    assert!(errors.contains("alarm:NOSPACE"), "{errors}");
    let full = health().await;
    assert!(
        full.contains(" 503 ") && full.contains(r#""health":"false","reason":"ALARM NOSPACE""#),
        "{full}"
    );
    let all =
        etcd_client::proto::PbDeleteRequest { key: "k/".into(), range_end: "k0".into(), prev_kv: false };
    assert_eq!(client.delete(all).await.unwrap().deleted, stored);
    // What was deleted is forgotten as the history goes on.
    for _ in 0..200 {
        client.put_kv("other", &"v".repeat(1000)).await;
    }
    assert_eq!(alarms().await, (vec![], String::new()));
    let well = health().await;
    assert!(well.contains(" 200 ") && well.contains(r#""health":"true""#), "{well}");
}

/// A large read is done in steps, and others come in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_read_sees_one_revision_whatever_is_written_meanwhile() {
    const KEYS: usize = 10_000;
    let target = Target::ours_with(|config| config.history_changes = KEYS);
    let client = target.client().await;
    let puts = (0..KEYS).map(|key| client.put(put(&format!("m/{key:05}"), "v")));
    futures::future::join_all(puts).await.into_iter().for_each(|done| drop(done.unwrap()));
    let writer = Raw::connect(target.url()).await;
    let writes = tokio::spawn(async move {
        for round in 0..300 {
            // At both ends, together.
            let ops = ["a", "z"].map(|key| PbTxnOpRequest::RequestPut(put(key, &round.to_string())));
            let success = ops.map(|op| PbTxnRequestOp { request: Some(op) }).to_vec();
            writer.txn(PbTxnRequest { success, ..Default::default() }).await.unwrap();
        }
    });
    for target in [0, 3].repeat(3) {
        let all = PbRangeRequest {
            key: "a".into(),
            range_end: vec![0],
            sort_target: target,
            sort_order: 2 * i32::from(target > 0),
            ..Default::default()
        };
        let mut found = client.range(all).await.unwrap();
        found.kvs.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(usize::try_from(found.count).unwrap(), found.kvs.len());
        if found.kvs.len() > KEYS {
            assert_eq!(found.kvs.len(), KEYS + 2);
            assert_eq!(found.kvs[0].value, found.kvs[KEYS + 1].value);
        }
    }
    writes.await.unwrap();
}

fn put(key: &str, value: &str) -> PbPutRequest {
    PbPutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

#[tokio::test]
async fn what_cannot_be_answered_is_not_carried_out() {
    let target = Target::ours_with(|config| config.inflight_bytes = 4 << 20);
    let client = target.client().await;
    for key in ["d/1", "d/2", "d/3", "d/4", "d/5"] {
        client.put_kv(key, &"v".repeat(1 << 20)).await;
    }
    let delete =
        etcd_client::proto::PbDeleteRequest { key: "d/".into(), range_end: "d0".into(), prev_kv: true };
    assert_eq!(client.delete(delete.clone()).await.unwrap_err().code(), Code::ResourceExhausted);
    let ops =
        [PbTxnOpRequest::RequestPut(put("new", "1")), PbTxnOpRequest::RequestDeleteRange(delete.clone())];
    let success = ops.map(|op| PbTxnRequestOp { request: Some(op) }).to_vec();
    let status = client.txn(PbTxnRequest { success, ..Default::default() }).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let count =
        PbRangeRequest { key: "a".into(), range_end: vec![0], count_only: true, ..Default::default() };
    assert_eq!(client.range(count).await.unwrap().count, 5);
    let delete = etcd_client::proto::PbDeleteRequest { prev_kv: false, ..delete };
    assert_eq!(client.delete(delete).await.unwrap().deleted, 5);
}

#[tokio::test]
async fn a_transaction_that_looks_at_too_much_is_refused_whole() {
    let target = Target::ours();
    let client = target.client().await;
    let puts = (0..2000).map(|key| client.put(put(&format!("m/{key:05}"), "v")));
    futures::future::join_all(puts).await.into_iter().for_each(|done| drop(done.unwrap()));
    let count =
        PbRangeRequest { key: "m/".into(), range_end: "m0".into(), count_only: true, ..Default::default() };
    let txn = |times: usize| {
        let mut ops = vec![PbTxnOpRequest::RequestPut(put("new", "1"))];
        ops.extend(vec![PbTxnOpRequest::RequestRange(count.clone()); times]);
        let success = ops.into_iter().map(|op| PbTxnRequestOp { request: Some(op) }).collect();
        PbTxnRequest { success, ..Default::default() }
    };
    let status = client.txn(txn(60)).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "etcdserver: request is too large")
    );
    let get = PbRangeRequest { key: "new".into(), ..Default::default() };
    assert!(client.range(get).await.unwrap().kvs.is_empty());
    assert!(client.txn(txn(40)).await.is_ok());
}

#[tokio::test]
async fn a_watcher_that_does_not_read_holds_nobody_up_and_is_told_what_it_missed() {
    let target = Target::ours_with(|config| config.history_bytes = 4 << 20);
    let client = target.client().await;
    let mut slow = client.watching(Watch::key("k")).await;
    let mut quick = Raw::connect(target.url()).await.watching(Watch::key("k")).await;
    let value = "v".repeat(100_000);
    let writer = Raw::connect(target.url()).await;
    let mut last = 0;
    for _ in 0..300 {
        last = writer.put_kv("k", &value).await;
        quick.events_until(last).await;
    }
    // 30 MB went by, which neither the connection nor the history could hold for the slow one.
    let told = loop {
        let answer = slow.next().await;
        if answer.canceled {
            break answer.compact_revision;
        }
    };
    assert!(told > 1 && told <= last);
}

#[tokio::test]
async fn a_job_of_weeks_does_not_fill_the_memory() {
    let target = Target::ours_with(|config| config.history_changes = 100);
    let client = target.client().await;
    let first = client.put_kv("k", "1").await;
    for _ in 1..1000 {
        client.put_kv("k", "1").await;
    }
    let old = PbRangeRequest { key: "k".into(), revision: first + 8, ..Default::default() };
    assert_eq!(client.range(old).await.unwrap_err().code(), Code::OutOfRange);
    let now = client.range(PbRangeRequest { key: "k".into(), ..Default::default() }).await.unwrap();
    assert_eq!(now.kvs[0].version, 1000);
}

#[tokio::test]
async fn a_client_that_does_not_read_large_answers_gets_errors() {
    let target = Target::ours_with(|config| config.inflight_bytes = 16 << 20);
    let client = target.client().await;
    client.put_kv("large", &"v".repeat(1 << 20)).await;
    let range = PbRangeRequest { key: "large".into(), ..Default::default() }.encode_to_vec();
    let channel = Channel::from_shared(target.url()).unwrap().connect().await.unwrap();
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
    let mut unread = Vec::new();
    let refused = loop {
        assert!(unread.len() < 100, "all of them are held");
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        match within(grpc.server_streaming(Request::new(range.clone()), path.clone(), Verbatim)).await {
            Ok(answer) => unread.push(answer),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // Once it gives them up, all is well.
    drop(unread);
    let mut answer = client.range(PbRangeRequest { key: "large".into(), ..Default::default() }).await;
    while answer.is_err() {
        answer = client.range(PbRangeRequest { key: "large".into(), ..Default::default() }).await;
    }
}

/// What an attacker of the JSON gateway asks for: a small request for an answer of 10 MB, which it does not read.
async fn ask_and_do_not_read(target: &Target, path: &str, body: &str) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt as _;
    let address = target.url().trim_start_matches("http://").to_owned();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    socket
}

/// Bytes that are held for clients.
async fn held(target: &Target) -> u64 {
    let port = target.url().rsplit_once(':').unwrap().1.parse().unwrap();
    let ask = move || rallypoint_testkit::http_get(port, "/metrics", Duration::from_secs(20));
    let text = tokio::task::spawn_blocking(ask).await.unwrap().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("rallypoint_server_inflight_bytes "));
    line.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_large_answers_in_json_that_nobody_reads_keep_nobody_else_out() {
    const MOST: u64 = 64 << 20;
    let target = Target::ours_with(|config| config.inflight_bytes = usize::try_from(MOST).unwrap());
    let client = target.client().await;
    for at in 0..10 {
        client.put_kv(&format!("big/{at}"), &"v".repeat(1_000_000)).await;
    }
    let body = r#"{"key":"YmlnLw==","range_end":"YmlnMA=="}"#;
    let mut hostile = Vec::new();
    let began = std::time::Instant::now();
    for _ in 0..100 {
        hostile.push(ask_and_do_not_read(&target, "/v3/kv/range", body).await);
        within(client.put_kv("good", "1")).await;
        let held = held(&target).await;
        assert!(held <= MOST, "{held} bytes are held");
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    within(client.put_kv("good", "2")).await;
    drop(hostile);
    within(async {
        while held(&target).await > 1 << 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_large_answers_that_nobody_reads_stops_all_the_same() {
    let target = Target::ours();
    let client = target.client().await;
    for at in 0..10 {
        client.put_kv(&format!("big/{at}"), &"v".repeat(1_000_000)).await;
    }
    let body = r#"{"key":"YmlnLw==","range_end":"YmlnMA=="}"#;
    let mut hostile = Vec::new();
    for _ in 0..100 {
        hostile.push(ask_and_do_not_read(&target, "/v3/kv/range", body).await);
    }
    within(client.put_kv("good", "1")).await;
    let began = std::time::Instant::now();
    let Target::Ours(server) = target else { unreachable!("it is ours") };
    within(server.stop()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_that_wait_for_a_lock_leave_the_line_at_once() {
    const WAITING: usize = 500;
    let target = Target::ours();
    let client = target.client().await;
    let line = || PbRangeRequest {
        key: "L/".into(),
        range_end: "L0".into(),
        count_only: true,
        ..Default::default()
    };
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        waiting.push(ask_and_do_not_read(&target, "/v3/lock/lock", r#"{"name":"TA=="}"#).await);
    }
    let counts = async |wanted: i64| {
        while client.range(line()).await.unwrap().count != wanted {
            client.put_kv("good", "1").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(counts(i64::try_from(WAITING).unwrap())).await;
    let first = waiting.remove(0);
    drop(waiting);
    // The first has the lock, and keeps it when its client has gone.
    within(counts(1)).await;
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_removed_is_noticed_at_the_next_write() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let target = Target::ours_with(|config| config.data_dir = Some(data.clone()));
    let client = target.client().await;
    client.put_kv("k", "1").await;
    std::fs::remove_dir_all(&data).unwrap();
    within(client.put(put("k", "2"))).await.unwrap_err();
    let Target::Ours(mut server) = target else { unreachable!("it is ours") };
    let ended = within(server.ended()).await.unwrap_err();
    assert!(ended.to_string().contains("cannot keep data"), "{ended}");
}
