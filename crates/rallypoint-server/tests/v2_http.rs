//! What HTTP adds to the v2 API: paths, methods, headers, bodies, and what is asked about the server itself.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use std::collections::BTreeMap;
use std::time::Duration;

use rallypoint_server::Config;
use rallypoint_testkit::Version;
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use v2_support::{Answer, Limits, TIMEOUT, Target};

/// The value of a header in a head in lower case.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {head:?}")).parse().unwrap()
}

#[tokio::test]
async fn paths_are_normalised_as_etcd_does_it() {
    for target in Target::all().await {
        target.put("/a/b", "value=1").await;
        target.put("/b", "value=1").await;
        for (path, wanted, location) in [
            ("/v2/keys/a/b", 200, None),
            ("/v2/keys/a/b/", 200, None),
            ("/v2/keys/a%2Fb", 200, None),
            ("/v2%2fkeys/a/%62", 200, None),
            ("/v2/keys", 200, None),
            ("/v2/keys/", 200, None),
            ("/v2/keys/a//b", 301, Some("/v2/keys/a/b")),
            ("/v2/keys//a/b/?x=1&y=%zz", 301, Some("/v2/keys/a/b/?x=1&y=%zz")),
            ("/v2/keys/a/../b", 301, Some("/v2/keys/b")),
            ("/v2/keys/a/./b", 301, Some("/v2/keys/a/b")),
            ("/v2/keys/a%2F..%2Fb", 301, Some("/v2/keys/b")),
            ("/v2/keys/a%2F%2Fb", 301, Some("/v2/keys/a/b")),
            ("/v2/keys/..", 301, Some("/v2")),
            ("/v2/keys/../../..", 301, Some("/")),
            ("/v2/keys/x//%20%3f%25%e2%82%ac", 301, Some("/v2/keys/x/%20%3f%25%e2%82%ac")),
            ("/v2/keysx", 404, None),
            ("/v2/", 404, None),
            ("/", 404, None),
            ("/v2/keys/a%", 400, None),
            ("/v2/keys/a%zz", 400, None),
        ] {
            let head = target.raw_head("GET", path).await;
            let seen = (status(&head), header(&head, "location"));
            assert_eq!(seen, (wanted, location), "{} {path}: {head}", target.name);
        }
        // A write goes no further than the redirect.
        assert_eq!(status(&target.raw_head("PUT", "/v2/keys/new//key").await), 301);
        assert_eq!(target.get("/new", "").await.status, 404);
    }
}

#[tokio::test]
async fn a_method_that_is_not_served_is_told_which_are() {
    for target in Target::all().await {
        for (method, path, allow) in [
            ("PATCH", "/v2/keys/a", "head,get,put,post,delete"),
            ("TRACE", "/v2/keys/a", "head,get,put,post,delete"),
            ("POST", "/v2/machines", "get,head"),
            ("PUT", "/v2/stats/self", "get"),
            ("POST", "/version", "get"),
            ("POST", "/health", "get"),
        ] {
            let head = target.raw_head(method, path).await;
            let seen = (status(&head), header(&head, "allow"));
            assert_eq!(seen, (405, Some(allow)), "{} {method} {path}", target.name);
        }
    }
}

/// What clients and monitors go by in an answer.
async fn answered(target: &Target, method: Method, path: &str) -> (u16, Vec<Option<String>>, Vec<String>) {
    let answer = target.client.request(method, target.url(path)).send().await.unwrap();
    let header = |name: &str| Some(answer.headers().get(name)?.to_str().unwrap().to_owned());
    let headers = ["content-type", "location", "allow", "x-content-type-options"].map(header);
    let status = answer.status().as_u16();
    // etcd tells what it has looked at in any order.
    let mut lines: Vec<String> = answer.text().await.unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    (status, headers.to_vec(), lines)
}

/// Redirects, OPTIONS, and what monitors ask for, as etcd 3.5 answers with v2 and without.
#[tokio::test]
async fn what_is_around_the_keys_is_answered_as_etcd_does() {
    let ours = Target::embedded().await;
    let etcd = Target::etcd(Version::V35).await;
    let (get, head, post) = (Method::GET, Method::HEAD, Method::POST);
    for (method, path) in [
        (&get, "/v2/keys//a"),
        (&get, "//v2/keys/a/?x=1&y='2'"),
        (&head, "/v2/keys//a"),
        (&post, "/v2/keys//a"),
        (&Method::PUT, "/v2/keys//a"),
        (&Method::OPTIONS, "/v2/keys/a"),
        (&Method::OPTIONS, "/v2/keys//a"),
        (&Method::OPTIONS, "/health"),
        (&Method::OPTIONS, "/v3/kv/range"),
        (&get, "/health"),
        (&get, "/health?exclude=NOSPACE"),
        (&post, "/health"),
        (&get, "/version"),
        (&get, "/nothing"),
    ] {
        let expected = answered(&etcd, method.clone(), path).await;
        assert_eq!(answered(&ours, method.clone(), path).await, expected, "{method} {path}");
    }
    // Only without v2 it has these.
    let etcd = Target::etcd_without_v2(Version::V35).await;
    for (method, path) in [
        (&get, "/livez"),
        (&get, "/readyz"),
        (&get, "/livez?verbose"),
        (&get, "/readyz?verbose"),
        (&get, "/readyz?exclude=serializable_read&verbose&exclude=non_learner"),
        (&get, "/readyz?exclude=nonsense&verbose=0"),
        (&get, "/livez/serializable_read"),
        (&get, "/readyz/data_corruption?verbose"),
        (&get, "/readyz/nothing"),
        (&get, "/readyz/"),
        (&get, "//livez"),
        (&head, "/livez"),
        (&post, "/readyz"),
    ] {
        let expected = answered(&etcd, method.clone(), path).await;
        assert_eq!(answered(&ours, method.clone(), path).await, expected, "{method} {path}");
    }
}

/// The names in a page of metrics, with their types.
async fn metrics(target: &Target) -> BTreeMap<String, String> {
    let text = target.client.get(target.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// Those of etcd's own dashboard and alerts, but for what is between members.
#[tokio::test]
async fn metrics_that_etcds_dashboards_ask_for_have_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::on("127.0.0.1:0".parse().unwrap());
    config.data_dir = Some(folder.path().join("data"));
    let (ours, etcd) = (Target::embedded_as(config), Target::etcd(Version::V35).await);
    let (ours, etcd) = (metrics(&ours).await, metrics(&etcd).await);
    for name in [
        "etcd_cluster_version",
        "etcd_debugging_mvcc_compact_revision",
        "etcd_debugging_mvcc_current_revision",
        "etcd_debugging_mvcc_keys_total",
        "etcd_debugging_mvcc_watch_stream_total",
        "etcd_debugging_mvcc_watcher_total",
        "etcd_debugging_store_expires_total",
        "etcd_debugging_store_reads_total",
        "etcd_debugging_store_watch_requests_total",
        "etcd_debugging_store_watchers",
        "etcd_debugging_store_writes_total",
        "etcd_disk_backend_commit_duration_seconds",
        "etcd_disk_wal_fsync_duration_seconds",
        "etcd_mvcc_db_total_size_in_bytes",
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "etcd_network_client_grpc_received_bytes_total",
        "etcd_network_client_grpc_sent_bytes_total",
        "etcd_server_has_leader",
        "etcd_server_id",
        "etcd_server_is_leader",
        "etcd_server_is_learner",
        "etcd_server_leader_changes_seen_total",
        "etcd_server_proposals_applied_total",
        "etcd_server_proposals_committed_total",
        "etcd_server_proposals_failed_total",
        "etcd_server_proposals_pending",
        "etcd_server_quota_backend_bytes",
        "etcd_server_version",
        "grpc_server_handled_total",
        "grpc_server_msg_received_total",
        "grpc_server_msg_sent_total",
        "grpc_server_started_total",
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    ] {
        assert!(etcd.contains_key(name), "etcd has no {name}");
        assert_eq!(ours.get(name), etcd.get(name), "{name}");
    }
}

#[tokio::test]
async fn a_body_is_read_from_a_form_only() {
    for target in Target::all().await {
        for (n, (content_type, value)) in [
            (Some("application/x-www-form-urlencoded"), "body"),
            (Some("application/x-www-form-urlencoded; charset=utf-8"), "body"),
            (Some("text/plain"), "query"),
            (Some("multipart/form-data; boundary=x"), "query"),
            (None, "query"),
        ]
        .into_iter()
        .enumerate()
        {
            let mut request = target.client.put(target.url(&format!("/v2/keys/b{n}?value=query")));
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            let answer = Answer::read(request.body("value=body").send().await.unwrap()).await;
            let wanted = format!("\"value\":\"{value}\"");
            assert!(answer.body.contains(&wanted), "{} {content_type:?}: {}", target.name, answer.body);
        }
        // The fields of a read stand in the query.
        let request = target.client.get(target.url("/v2/keys/b0")).body("wait=true");
        assert_eq!(Answer::read(request.send().await.unwrap()).await.status, 200, "{}", target.name);
    }
}

#[tokio::test]
async fn a_value_may_be_large_but_not_too_large() {
    let megabytes = |n: usize| format!("value={}", "x".repeat(n << 20));
    for target in Target::all().await {
        let large = target.put("/large", &megabytes(9)).await;
        assert_eq!(large.status, 201, "{}", target.name);
        assert_eq!(target.get("/large", "").await.body.len() >> 20, 9, "{}", target.name);
    }
    for target in Target::all().await {
        let body = megabytes(10);
        let head = format!(
            "PUT /v2/keys/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\n",
            body.len()
        );
        let answer = target.raw(format!("{head}{body}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{}: {answer}", target.name);
        assert!(answer.contains("\"errorCode\":210") && answer.contains("http: POST too large"), "{answer}");
    }
}

#[tokio::test]
async fn bodies_that_come_in_part_take_no_more_than_their_room() {
    let target = Target::embedded_with(Limits { body: 1 << 20, held: 2 << 20, ..Limits::default() }).await;
    let head = "PUT /v2/keys/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\
                Content-Type: application/x-www-form-urlencoded\r\n\r\n";
    let value = format!("value={}", "v".repeat(20_000));
    let begin = async || {
        let mut silent = Vec::new();
        // What is only announced takes none.
        for sent in [0, 0, 0, 0, 1_040_000, 1_040_000] {
            let mut stream = TcpStream::connect(target.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&vec![b'x'; sent]).await.unwrap();
            silent.push(stream);
        }
        silent
    };
    // Of a put that comes before they are all there, the last of them is refused.
    let full = async {
        for pause in 1.. {
            let silent = begin().await;
            tokio::time::sleep(Duration::from_millis(200) * pause).await;
            if target.put("/a", &value).await.status == 500 {
                return silent;
            }
        }
        unreachable!("it goes on for ever")
    };
    let silent = tokio::time::timeout(TIMEOUT, full).await.expect("there is no room");
    let put = async |status: &[u16]| {
        while !status.contains(&target.put("/a", &value).await.status) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    drop(silent);
    tokio::time::timeout(TIMEOUT, put(&[200, 201])).await.expect("who is gone takes no room");
}

#[tokio::test]
async fn the_list_of_machines_leads_back_to_the_server() {
    for target in Target::every().await {
        let get = |url: String| async { target.client.get(url).send().await.unwrap().text().await.unwrap() };
        let machines = get(target.url("/v2/machines")).await;
        assert_eq!(machines, format!("http://{}", target.address), "{}", target.name);
        let version: Value = serde_json::from_str(&get(format!("{machines}/version")).await).unwrap();
        assert!(version["etcdserver"].is_string() && version["etcdcluster"].is_string());
    }
}

#[tokio::test]
async fn members_and_stats_agree_on_the_leader() {
    for target in Target::every().await {
        let get = async |path: &str| -> Value {
            let text = target.client.get(target.url(path)).send().await.unwrap().text().await.unwrap();
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error} in {text}"))
        };
        let members = get("/v2/members").await;
        let member = &members["members"][0];
        assert_eq!(member["clientURLs"][0], format!("http://{}", target.address).as_str());
        assert_eq!(&get("/v2/members/leader").await, member, "{}", target.name);
        let stats = get("/v2/stats/self").await;
        assert_eq!(stats["leaderInfo"]["leader"], member["id"], "{}", target.name);
        assert_eq!((&stats["id"], stats["state"].as_str()), (&member["id"], Some("StateLeader")));
        assert_eq!(get("/v2/stats/leader").await["leader"], member["id"]);
        target.put("/a", "value=1").await;
        let store = get("/v2/stats/store").await;
        assert!(store["setsSuccess"].as_u64() > Some(0) && store["watchers"] == 0, "{store}");
        assert_eq!(get("/health").await["health"], "true");
    }
}

#[tokio::test]
async fn each_start_is_another_cluster_and_raft_goes_on() {
    let (one, two) = (Target::embedded().await, Target::embedded().await);
    let id = async |target: &Target| {
        let response = target.send(Method::GET, "", "").await;
        response.headers()["x-etcd-cluster-id"].to_str().unwrap().to_owned()
    };
    assert_ne!(id(&one).await, id(&two).await);
    assert_eq!(id(&one).await, id(&one).await);
    let raft = async |fields: &str| {
        let response = one.send(Method::PUT, "/a", fields).await;
        response.headers().get("x-raft-index").map(|value| value.to_str().unwrap().parse::<u64>().unwrap())
    };
    let before = raft("value=1").await.unwrap();
    assert_eq!(raft("prevExist=false").await, None);
    assert!(raft("value=1").await.unwrap() > before + 1);
}

#[tokio::test]
async fn metrics_count_requests_keys_and_watchers() {
    let target = Target::embedded().await;
    target.put("/d/a", "value=1").await;
    target.put("/d/b", "value=1&ttl=4").await;
    target.put("/d/a", "prevExist=false").await;
    target.get("/d/a", "").await;
    let watch = target.watch("/d/b", "").await;
    let text = async || target.client.get(target.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let seen = text().await;
    for line in [
        "rallypoint_v2_keys 3",
        "etcd_debugging_store_watchers 1",
        "etcd_debugging_store_watch_requests_total 1",
        "etcd_debugging_store_reads_total{action=\"get\"} 1",
        "etcd_debugging_store_writes_total{action=\"set\"} 2",
        "rallypoint_v2_failed_total{action=\"create\"} 1",
    ] {
        assert!(seen.lines().any(|seen| seen == line), "{line} is missing in:\n{seen}");
    }
    assert!(seen.lines().all(|line| line.starts_with("# ") || line.split(' ').count() == 2), "{seen}");
    Answer::read(watch).await;
    assert!(text().await.contains("\netcd_debugging_store_expires_total 1\n"));
}

#[tokio::test]
async fn whoever_sends_more_behind_a_watch_and_hangs_up_watches_no_more() {
    for target in Target::all().await {
        let mut socket = TcpStream::connect(target.address).await.unwrap();
        socket
            .write_all(b"GET /v2/keys/never?wait=true HTTP/1.1\r\nHost: x\r\n\r\n/v2/members")
            .await
            .unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(TIMEOUT, socket.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{} waits for a change", target.name);
    }
}

#[tokio::test]
async fn whoever_sends_several_requests_at_once_and_hangs_up_gets_all_answers() {
    const ASKED: usize = 5;
    for target in Target::all().await {
        target.put("/a", &format!("value={}", "x".repeat(1 << 20))).await;
        let mut socket = TcpStream::connect(target.address).await.unwrap();
        let requests = b"GET /v2/keys/a HTTP/1.1\r\nHost: x\r\n\r\n".repeat(ASKED);
        socket.write_all(&requests).await.unwrap();
        socket.shutdown().await.unwrap();
        let (mut answer, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        while answer.len() < ASKED << 20 {
            let read =
                tokio::time::timeout(TIMEOUT, socket.read(&mut piece)).await.expect(target.name).unwrap();
            assert!(read > 0, "{} ends after {} bytes", target.name, answer.len());
            answer.extend_from_slice(&piece[..read]);
        }
        let text = String::from_utf8(answer).unwrap();
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), ASKED, "{}", target.name);
    }
}
