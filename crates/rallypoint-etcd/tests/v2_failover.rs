//! Endpoints that are dead, silent or strange: each is got round, or named in an error within its timeout.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v2::{Client, Code, Get, Put};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Silent, Version, refused_endpoint};

fn settings(endpoints: &str) -> EtcdSettings {
    let mut settings = EtcdSettings::new(endpoints).unwrap();
    settings.request_timeout = Duration::from_secs(1);
    settings.connect_timeout = Duration::from_secs(2);
    settings.retry_timeout = Duration::from_secs(5);
    settings
}

#[tokio::test]
async fn dead_endpoints_are_got_round_by_reads_and_writes() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let endpoints = [refused_endpoint(), etcd.endpoint(), refused_endpoint()].join(",");
    // Several clients, because each begins at an endpoint of its choice.
    for i in 0..6 {
        let key = format!("/k{i}");
        let client = Client::connect_lazily(settings(&endpoints)).unwrap();
        client.create(&key, "1").await.unwrap();
        assert_eq!(client.get(&key, Get::new()).await.unwrap().node.value.as_deref(), Some("1"));
        Client::connect(settings(&endpoints)).await.unwrap().create(&(key + "c"), "1").await.unwrap();
    }
}

#[tokio::test]
async fn a_cluster_that_loses_a_member_is_still_served() {
    let builder = Etcd::builder(Version::V34).v2();
    let mut cluster = Cluster::start_with(&builder, 3);
    let client = Client::connect(settings(&cluster.endpoints())).await.unwrap();
    client.set("/k", "1").await.unwrap();
    let leader = cluster.leader();
    cluster.node(leader).kill();
    // The survivors elect first; a write whose fate is unknown in between is for the caller to look into.
    let began = Instant::now();
    let mut tries = 0;
    while let Err(error) = client.put("/k", Put::value("2")).await {
        tries += 1;
        assert!(error.is_transient() && began.elapsed() < Duration::from_secs(30), "{error}");
    }
    assert_eq!(
        client.get("/k", Get::new()).await.unwrap().node.value.as_deref(),
        Some("2"),
        "{tries} failures"
    );
}

#[tokio::test]
async fn a_silent_endpoint_costs_a_moment() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let silent = Silent::start();
    let endpoints = format!("{},{}", silent.endpoint(), etcd.endpoint());
    // Whoever waited for the silent one would wait for this long.
    let mut patient = settings(&endpoints);
    (patient.request_timeout, patient.connect_timeout) = (Duration::from_secs(30), Duration::from_secs(30));
    for _ in 0..4 {
        let began = Instant::now();
        let client = Client::connect(patient.clone()).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        client.set("/k", "1").await.expect("it stays with the one that answered");

        let lazy = Client::connect_lazily(settings(&endpoints)).unwrap();
        lazy.get("/k", Get::new()).await.expect("a read goes on to the next");
    }
}

#[tokio::test]
async fn a_write_that_nobody_answers_is_not_sent_again() {
    let silent = Silent::start();
    let began = Instant::now();
    let client = Client::connect_lazily(settings(&silent.endpoint())).unwrap();
    let error = client.set("/k", "1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.may_have_applied());
    assert!(began.elapsed() < Duration::from_secs(10), "one try: {:?}", began.elapsed());
    let text = error.to_string();
    assert!(text.contains("set \"/k\" at http://127.0.0.1:") && !text.contains("tries"), "{text}");

    let began = Instant::now();
    let error = client.get("/k", Get::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("tries"), "{error}");
    assert!((4..20).contains(&began.elapsed().as_secs()), "until its time is over: {:?}", began.elapsed());

    let short = client.retrying_for(Duration::from_millis(300));
    let began = Instant::now();
    short.get("/k", Get::new()).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(Client::connect(settings(&silent.endpoint())).await.unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn a_lost_reply_leaves_a_write_in_doubt_and_a_read_unharmed() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let proxy = Proxy::start(&etcd.endpoint());
    let client = Client::connect(settings(&proxy.endpoint())).await.unwrap();
    client.set("/k", "1").await.unwrap();

    proxy.drop_replies(true);
    let error = client.set("/k", "2").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && error.may_have_applied(), "{error}");
    proxy.cut();
    proxy.drop_replies(false);
    assert_eq!(
        client.get("/k", Get::new()).await.unwrap().node.value.as_deref(),
        Some("2"),
        "it was carried out"
    );

    // Cut in the middle: interrupted, not timed out.
    proxy.drop_replies(true);
    let (result, ()) = tokio::join!(client.set("/k", "3"), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.cut();
    });
    let error = result.unwrap_err();
    assert!(error.kind() == ErrorKind::Interrupted && error.may_have_applied(), "{error}");
    let (result, ()) = tokio::join!(client.get("/k", Get::new()), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.drop_replies(false);
        proxy.cut();
    });
    assert_eq!(result.unwrap().node.value.as_deref(), Some("3"));
}

#[tokio::test]
async fn no_server_at_all_is_unreachable_and_every_write_is_known_to_be_unsent() {
    let endpoints = [refused_endpoint(), refused_endpoint()].join(",");
    let client = Client::connect_lazily(settings(&endpoints)).unwrap().retrying_for(Duration::from_secs(1));
    let began = Instant::now();
    let error = client.set("/k", "1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(!error.may_have_applied());
    assert!(error.to_string().contains("tries") && error.to_string().contains("refused"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let error = Client::connect(settings(&endpoints)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn an_etcd_paused_in_the_middle_of_a_request_answers_it_later() {
    let mut etcd = Etcd::builder(Version::V34).v2().start();
    let client = Client::connect(settings(&etcd.endpoint())).await.unwrap();
    client.set("/k", "1").await.unwrap();
    etcd.pause();
    let (read, ()) = tokio::join!(client.get("/k", Get::new()), async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        etcd.resume();
    });
    assert_eq!(read.unwrap().node.value.as_deref(), Some("1"));
}

#[tokio::test]
async fn an_etcd_without_the_v2_api_is_recognised() {
    let etcd = Etcd::start(Version::V35);
    let client = Client::connect(settings(&etcd.endpoint())).await.unwrap();
    let error = client.set("/k", "1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(error.to_string().contains("--enable-v2"), "{error}");
}

/// A server that gives every request the same answer.
fn answering(status: &str, body: &str) -> String {
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    endpoint
}

#[tokio::test]
async fn answers_that_are_not_of_etcd_are_told_apart() {
    let timed_out = r#"{"errorCode":300,"message":"m","cause":"etcdserver: request timed out","index":0}"#;
    for (status, body, kind, in_doubt) in [
        ("200 OK", "<html>", ErrorKind::Protocol, true),
        ("502 Bad Gateway", "", ErrorKind::Interrupted, true),
        ("403 Forbidden", "", ErrorKind::PermissionDenied, false),
        ("413 Payload Too Large", "", ErrorKind::TooLarge, false),
        ("307 Temporary Redirect", "", ErrorKind::Rejected, false),
        ("500 Internal Server Error", timed_out, ErrorKind::V2(Code::RaftInternal), true),
    ] {
        let client = Client::connect_lazily(settings(&answering(status, body))).unwrap();
        let error = client.set("/k", "1").await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_applied()), (kind, in_doubt), "{error}");
    }
}

#[tokio::test]
async fn a_reply_without_end_is_not_read_to_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[b'x'; 1 << 20]).is_ok() {}
    });
    let mut settings = settings(&endpoint);
    settings.request_timeout = Duration::from_secs(30);
    settings.retry_timeout = Duration::from_secs(30);
    let error = Client::connect_lazily(settings).unwrap().get("/k", Get::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("larger than"), "{error}");
}
