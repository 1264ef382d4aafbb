//! Locks, elections, watches of users, and snapshots: what etcd's clients call beside the keys, beside a real etcd.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use etcd_client::proto::{
    PbAuthEnableRequest, PbAuthUserAddRequest, PbAuthUserGrantRoleRequest, PbAuthenticateRequest,
    PbAuthenticateResponse, PbCampaignResponse, PbDeleteRequest, PbHashKvRequest, PbHashKvResponse,
    PbLeaderKey, PbLeaderResponse, PbLockResponse, PbPutRequest, PbRangeRequest, PbResponseHeader,
    PbUnlockResponse,
};
use futures::StreamExt as _;
use futures::channel::mpsc;
use prost::Message;
use rallypoint_server::{Config, Numbering, Server};
use rallypoint_testkit::{Etcd, Version};
use tonic::Status;
use tonic::codec::Streaming;
use v3_support::bytes::ask;
use v3_support::{Raw, Target, Watch, within};

fn both() -> [Target; 2] {
    [Target::ours_with(|config| config.numbering = Numbering::FromOne), Target::real(Version::V35)]
}

/// `v3lockpb.LockRequest` and `v3electionpb.CampaignRequest`, which has one field more.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
    #[prost(bytes = "vec", tag = "3")]
    value: Vec<u8>,
}

fn named(name: &str, lease: i64, value: &str) -> Named {
    Named { name: name.into(), lease, value: value.into() }
}

/// `v3lockpb.UnlockRequest`.
#[derive(Clone, PartialEq, Message)]
struct Unlock {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// `v3electionpb.ProclaimRequest`, and `ResignRequest`, which has one field less.
#[derive(Clone, PartialEq, Message)]
struct OfLeader {
    #[prost(message, optional, tag = "1")]
    leader: Option<PbLeaderKey>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

const LOCK: &str = "/v3lockpb.Lock/Lock";
const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";
const PROCLAIM: &str = "/v3electionpb.Election/Proclaim";
const RESIGN: &str = "/v3electionpb.Election/Resign";
const LEADER: &str = "/v3electionpb.Election/Leader";

/// What has been answered, without what each server has of its own.
fn told<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    header: impl Fn(&mut T) -> &mut Option<PbResponseHeader>,
) -> String {
    match answer {
        Ok(mut answer) => {
            let revision = header(&mut answer).take().map(|header| header.revision);
            format!("{revision:?} {answer:?}")
        }
        Err(status) => format!("{:?} {}", status.code(), status.message()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_and_elections_are_those_of_etcd() {
    let [ours, etcd] = both();
    let (ours, etcd) = (ours.client().await, etcd.client().await);
    let (one, other) = tokio::join!(locks(&ours), locks(&etcd));
    assert_eq!(one, other);
    let (one, other) = tokio::join!(elections(&ours), elections(&etcd));
    assert_eq!(one, other);
    lines_are_left(&ours).await;
}

async fn locks(client: &Raw) -> Vec<String> {
    let mut heard = Vec::new();
    let lock = |name: &str, lease| client.unary::<_, PbLockResponse>(LOCK, named(name, lease, ""));
    let answer = |answer| told(answer, |lock: &mut PbLockResponse| &mut lock.header);
    heard.push(answer(lock("l", 404).await));
    for lease in [0x11, 0x12] {
        client.grant(lease, 1000).await.unwrap();
    }
    heard.push(answer(lock("l", 0x11).await));
    // The same lease has it already.
    heard.push(answer(lock("l", 0x11).await));
    let mut second = Box::pin(lock("l", 0x12));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut second).await.is_err(), "it waits");
    let unlock = Unlock { key: b"l/11".to_vec() };
    let unlocked = client.unary::<_, PbUnlockResponse>("/v3lockpb.Lock/Unlock", unlock).await;
    heard.push(told(unlocked, |answer| &mut answer.header));
    heard.push(answer(second.await));
    // Without a lease it gets one.
    let alone = lock("alone", 0).await.unwrap();
    assert!(
        alone.key.starts_with(b"alone/") && client.leases().await.unwrap().leases.len() == 3,
        "{alone:?}"
    );
    client.delete_key(std::str::from_utf8(&alone.key).unwrap()).await;
    heard
}

async fn elections(client: &Raw) -> Vec<String> {
    let mut heard = Vec::new();
    for lease in [0x21, 0x22] {
        client.grant(lease, 1000).await.unwrap();
    }
    let campaign =
        |lease, value: &str| client.unary::<_, PbCampaignResponse>(CAMPAIGN, named("e", lease, value));
    let leader = || client.unary::<_, PbLeaderResponse>(LEADER, named("e", 0, ""));
    let of_leader = |path, leader: Option<PbLeaderKey>, value: &str| {
        // Their answers have a header and nothing else.
        client.unary::<_, PbUnlockResponse>(path, OfLeader { leader, value: value.into() })
    };
    let plain = |answer| told(answer, |answer: &mut PbUnlockResponse| &mut answer.header);
    let leads = |answer| told(answer, |answer: &mut PbLeaderResponse| &mut answer.header);
    heard.push(leads(leader().await));
    let leading = async {
        // After the observer has begun to wait.
        tokio::time::sleep(Duration::from_millis(300)).await;
        campaign(0x21, "one").await.unwrap()
    };
    let (observed, first) = tokio::join!(observe(client), leading);
    let (mut observed, one) = (observed.unwrap(), first.leader);
    heard.push(format!("{one:?}"));
    // The same lease leads already.
    heard.push(told(campaign(0x21, "one").await, |answer| &mut answer.header));
    heard.push(leads(leader().await));
    heard.push(plain(of_leader(PROCLAIM, one.clone(), "two").await));
    let mut second = Box::pin(campaign(0x22, "three"));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut second).await.is_err(), "it waits");
    heard.push(plain(of_leader(RESIGN, one.clone(), "").await));
    heard.push(told(second.await, |answer| &mut answer.header));
    heard.push(plain(of_leader(PROCLAIM, one.clone(), "late").await));
    heard.push(plain(of_leader(RESIGN, one, "").await));
    heard.push(plain(of_leader(PROCLAIM, None, "").await));
    heard.push(plain(of_leader(RESIGN, None, "").await));
    for _ in 0..3 {
        let message: PbLeaderResponse = within(observed.message()).await.unwrap().unwrap();
        heard.push(format!("{:?}", message.kv));
    }
    heard
}

/// One request and no more: etcd's library waits for the end of what a client says.
async fn observe(client: &Raw) -> Result<Streaming<PbLeaderResponse>, Status> {
    let (sender, requests) = mpsc::unbounded();
    sender.unbounded_send(named("e", 0, "")).unwrap();
    drop(sender);
    within(client.stream_of("/v3electionpb.Election/Observe", requests)).await
}

/// Who stops waiting, or whose lease ends, is in no line.
async fn lines_are_left(client: &Raw) {
    for lease in [0x31, 0x32, 0x33] {
        client.grant(lease, 1000).await.unwrap();
    }
    let lock = |lease| client.unary::<_, PbLockResponse>(LOCK, named("left", lease, ""));
    lock(0x31).await.unwrap();
    let mut going = Box::pin(lock(0x32));
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut going).await.is_err());
    drop(going);
    let mut expiring = Box::pin(lock(0x33));
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut expiring).await.is_err());
    client.revoke(0x33).await.unwrap();
    let status = expiring.await.unwrap_err();
    assert_eq!(status.message(), "mutex: session is expired");
    let all = PbRangeRequest { key: "left/".into(), range_end: "left0".into(), ..Default::default() };
    let in_line = async {
        while client.range(all.clone()).await.unwrap().count > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(in_line).await;
}

/// Turns users on, with one that may read `r` and is nobody else; the tokens of root and of that one.
async fn turn_users_on(client: &Raw) -> [String; 2] {
    let send = async |method: &str, token: Option<&str>, message: Vec<u8>| {
        ask(client, &format!("/etcdserverpb.Auth/{method}"), token, message).await.unwrap().1
    };
    for name in ["root", "reader"] {
        let user = PbAuthUserAddRequest { name: name.into(), password: name.into(), ..Default::default() };
        send("UserAdd", None, user.encode_to_vec()).await;
    }
    let root = PbAuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    send("UserGrantRole", None, root.encode_to_vec()).await;
    send("AuthEnable", None, PbAuthEnableRequest {}.encode_to_vec()).await;
    let mut tokens = Vec::new();
    for name in ["root", "reader"] {
        let request = PbAuthenticateRequest { name: name.into(), password: name.into() };
        let answer = send("Authenticate", None, request.encode_to_vec()).await;
        tokens.push(PbAuthenticateResponse::decode(&answer[..]).unwrap().token);
    }
    tokens.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_and_keep_alives_of_users_are_those_of_etcd() {
    let mut heard = Vec::new();
    for target in both() {
        let client = target.client().await;
        client.grant(5, 1000).await.unwrap();
        let [root, reader] = turn_users_on(&client).await;
        let mut answers = Vec::new();
        for token in [None, Some("nobody.1"), Some(reader.as_str()), Some(root.as_str())] {
            let client = client.clone().with_token(token);
            let mut watch = client.watcher(Watch::key("r")).await;
            let first = watch.next().await;
            answers.push(format!(
                "{} {} {} {}",
                first.watch_id, first.created, first.canceled, first.cancel_reason
            ));
            let renewed = client.try_keep_alive(5).await;
            answers.push(format!("{:?}", renewed.map(|answer| answer.ttl).map_err(|status| status.code())));
        }
        heard.push(answers);
    }
    assert_eq!(heard[0], heard[1]);
}

/// The keys of v2 are in no role: they are for root alone, and for nobody who shows no password.
#[tokio::test(flavor = "multi_thread")]
async fn while_users_are_asked_for_v2_is_for_root() {
    let target = Target::ours();
    // reqwest wants one even for plain HTTP. Another test of the process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/v2/keys/a", target.url());
    let put = async |login: Option<(&str, &str)>| {
        let request = http.put(format!("{url}?value=1"));
        let request = match login {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request,
        };
        within(request.send()).await.unwrap().status().as_u16()
    };
    assert_eq!(put(None).await, 201);
    turn_users_on(&target.client().await).await;
    for login in [None, Some(("root", "wrong")), Some(("reader", "reader")), Some(("none", ""))] {
        assert_eq!(put(login).await, 401, "{login:?}");
    }
    for _ in 0..3 {
        assert_eq!(put(Some(("root", "root"))).await, 200);
    }
}

/// However many try passwords, all else goes on, and a place is free again when they have gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_passwords_is_turned_away_and_keeps_nobody_from_their_keys() {
    let target = Target::ours();
    let client = target.client().await;
    turn_users_on(&client).await;
    let root = root_of(&client).await;
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(target.client().await);
    }
    let mut flood = futures::stream::FuturesUnordered::new();
    let wrong = PbAuthenticateRequest { name: "root".into(), password: "wrong".into() };
    for connection in &connections {
        for _ in 0..400 {
            flood.push(
                connection
                    .unary::<_, PbAuthenticateResponse>("/etcdserverpb.Auth/Authenticate", wrong.clone()),
            );
        }
    }
    // 1,024 may wait, and are answered one after the other. Of the others some at least are refused.
    let mut refused = 0;
    while refused < 50 {
        let status = within(flood.next()).await.unwrap().unwrap_err();
        refused += usize::from(status.code() == tonic::Code::ResourceExhausted);
        root.put_kv("beside", "1").await;
    }
    drop(flood);
    drop(connections);
    root_of(&client).await.put_kv("after", "1").await;
}

/// A snapshot is a file that etcd's own tools check, restore and serve.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_becomes_an_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::on("127.0.0.1:0".parse().unwrap());
    config.numbering = Numbering::FromOne;
    config.data_dir = Some(folder.path().join("data"));
    let server = Server::bind(config.clone()).unwrap();
    let client = Raw::connect(server.url().to_owned()).await;
    fill(&client).await;
    let [root, _] = turn_users_on(&client).await;
    server.stop().await.unwrap();

    // Users and roles are there after a start, and are asked for.
    let server = Server::bind(config).unwrap();
    let client = Raw::connect(server.url().to_owned()).await;
    let denied = client.range(PbRangeRequest { key: "k".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(denied.message(), "etcdserver: user name is empty");
    let old = client.clone().with_token(Some(&root));
    let denied = old.range(PbRangeRequest { key: "k".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(denied.message(), "etcdserver: invalid auth token");
    let ours = hash_as_root(&client).await;

    let file = folder.path().join("snapshot.db");
    let url = server.url().to_owned();
    let (etcd, status) = tokio::task::spawn_blocking(move || {
        run(
            &Version::V35.etcdctl(),
            &["--endpoints", &url, "--user", "root:root", "snapshot", "save"],
            &file,
        );
        let status = run(&Version::V35.etcdutl(), &["snapshot", "status", "-w", "json"], &file);
        let mut etcd = Etcd::builder(Version::V35).unsafe_no_fsync().start();
        etcd.restore(&file);
        (etcd, status)
    })
    .await
    .unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["revision"], ours.0, "{status}");

    let restored = Raw::connect(etcd.url()).await;
    let denied = restored.range(PbRangeRequest { key: "k".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(denied.message(), "etcdserver: user name is empty");
    // The same versions of the same keys, compacted at the same revision.
    assert_eq!(hash_as_root(&restored).await, ours);
    let lease = root_of(&restored).await.time_to_live(77, true).await.unwrap();
    assert_eq!((lease.granted_ttl, lease.keys), (1000, vec![b"leased".to_vec()]));
    tokio::task::spawn_blocking(move || drop(etcd)).await.unwrap();
}

/// Enough for a tree of three floors, values of many pages, a past and deletions.
async fn fill(client: &Raw) {
    client.grant(77, 1000).await.unwrap();
    client.put(PbPutRequest { lease: 77, ..put("leased", "x") }).await.unwrap();
    client.put(put("large", &"v".repeat(1_000_000))).await.unwrap();
    let many = (0..400).map(|at| client.put(put(&format!("k{at:04}"), &"w".repeat(at * 7))));
    futures::future::join_all(many).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    let last = client.put_kv("k0001", "again").await;
    client.compact(last - 5).await.unwrap();
    client.put_kv("k0002", "again").await;
    client.put(put("large", &"v".repeat(5000))).await.unwrap();
    client
        .delete(PbDeleteRequest { key: "k01".into(), range_end: "k02".into(), ..Default::default() })
        .await
        .unwrap();
    let small = (0..300).map(|at| client.put(put(&format!("s{at}"), "")));
    futures::future::join_all(small).await.into_iter().for_each(|answer| drop(answer.unwrap()));
}

fn put(key: &str, value: &str) -> PbPutRequest {
    PbPutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

async fn root_of(client: &Raw) -> Raw {
    let request = PbAuthenticateRequest { name: "root".into(), password: "root".into() };
    let answer: PbAuthenticateResponse =
        client.unary("/etcdserverpb.Auth/Authenticate", request).await.unwrap();
    client.clone().with_token(Some(&answer.token))
}

/// The revision of the last change, the hash of all keys, and where they are compacted.
async fn hash_as_root(client: &Raw) -> (i64, u32, i64) {
    let root = root_of(client).await;
    let answer: PbHashKvResponse =
        root.unary("/etcdserverpb.Maintenance/HashKV", PbHashKvRequest::default()).await.unwrap();
    (answer.header.unwrap().revision, answer.hash, answer.compact_revision)
}

fn run(program: &Path, args: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(args).arg(file).env("ETCDCTL_API", "3").output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `ServerReflectionRequest`, and of `ServerReflectionResponse` what is looked at.
#[derive(Clone, PartialEq, Message)]
struct Reflected {
    #[prost(string, tag = "7")]
    list_services: String,
}

#[derive(Clone, PartialEq, Message)]
struct Reflection {
    #[prost(message, optional, tag = "6")]
    listed: Option<Listed>,
}

#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Listing>,
}

#[derive(Clone, PartialEq, Message)]
struct Listing {
    #[prost(string, tag = "1")]
    name: String,
}

/// Tools for gRPC ask so what there is, in either version.
#[tokio::test]
async fn tools_are_told_what_is_served() {
    let target = Target::ours_with(|_| {});
    let client = target.client().await;
    for path in [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ] {
        let (sender, requests) = mpsc::unbounded();
        sender.unbounded_send(Reflected { list_services: "*".to_owned() }).unwrap();
        let asking = client.stream_of::<_, Reflection>(path, requests);
        let mut told = within(asking).await.unwrap();
        for _ in 0..2 {
            let answer = within(told.message()).await.unwrap().unwrap();
            let services = answer.listed.unwrap().services;
            assert!(services.iter().any(|service| service.name == "etcdserverpb.KV"), "{services:?}");
            sender.unbounded_send(Reflected { list_services: "*".to_owned() }).unwrap();
        }
    }
}
