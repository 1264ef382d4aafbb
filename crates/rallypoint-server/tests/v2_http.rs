//! What HTTP adds to the v2 API: paths, methods, headers, bodies, and what is asked about the server itself.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
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
    let mut silent = Vec::new();
    // What is only announced takes none.
    for sent in [0, 0, 0, 0, 1_040_000, 1_040_000] {
        let mut stream = TcpStream::connect(target.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; sent]).await.unwrap();
        silent.push(stream);
    }
    let value = format!("value={}", "v".repeat(20_000));
    let put = async |status: &[u16]| {
        while !status.contains(&target.put("/a", &value).await.status) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, put(&[500])).await.expect("there is no room");
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
