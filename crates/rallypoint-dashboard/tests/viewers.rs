//! What viewers may cost, and what they are told while no etcd answers.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_dashboard::{Config, Dashboard};
use rallypoint_etcd::v3::Client;
use reqwest::{Response, StatusCode};

/// A dashboard before an etcd that is not there.
fn dashboard(change: impl FnOnce(&mut Config)) -> Dashboard {
    // It fails where another test has done it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::connect_lazily(EtcdSettings::new("127.0.0.1:1").unwrap()).unwrap();
    let mut config = Config::on("127.0.0.1:0".parse().unwrap());
    change(&mut config);
    Dashboard::bind(&config, &client).unwrap()
}

async fn get(dashboard: &Dashboard, path: &str) -> Response {
    reqwest::get(format!("{}{path}", dashboard.url())).await.unwrap()
}

/// Reads a stream until it says so.
async fn read_until(stream: &mut Response, words: &str) -> String {
    let mut text = String::new();
    let read = async {
        while let Some(part) = stream.chunk().await.unwrap() {
            text.push_str(&String::from_utf8_lossy(&part));
            if text.contains(words) {
                return;
            }
        }
        panic!("the stream has ended");
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap();
    text
}

#[tokio::test]
async fn a_page_is_told_at_once_who_it_talks_to_and_that_etcd_is_away() {
    let dashboard = dashboard(|config| config.token = Some("a token that nobody sees".to_owned()));
    let mut live = get(&dashboard, "api/live").await;
    assert_eq!(live.headers()["content-type"], "text/event-stream");
    let text = read_until(&mut live, "event: etcd").await;
    assert!(text.contains("event: hello\n") && text.contains("\"writable\":true"), "{text}");
    let text = text + &read_until(&mut live, "has not answered for").await;
    assert!(
        text.contains("etcd at 127.0.0.1:1 has not answered for") && !text.contains("nobody sees"),
        "{text}"
    );
    assert_eq!(get(&dashboard, "api/runs").await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn only_so_many_pages_are_open_at_a_time() {
    let dashboard = dashboard(|config| config.max_viewers = 1);
    let first = get(&dashboard, "api/live").await;
    assert_eq!(first.status(), StatusCode::OK);
    let second = get(&dashboard, "api/live").await;
    assert_eq!(second.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(second.headers()["retry-after"], "10");
    drop(first);
    // That a viewer has gone is noticed when something is written to it: here, that etcd is still away.
    let begin = std::time::Instant::now();
    while get(&dashboard, "api/live").await.status() != StatusCode::OK {
        assert!(begin.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn connections_and_heads_of_requests_have_their_limits() {
    let dashboard = dashboard(|config| config.max_connections = 2);
    let client = reqwest::Client::new();
    let large = client.get(dashboard.url()).header("x-large", "x".repeat(40_000)).send().await.unwrap();
    assert_eq!(large.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    let held = [get(&dashboard, "api/live").await, get(&dashboard, "api/live").await];
    assert!(reqwest::get(dashboard.url()).await.is_err(), "a third connection is turned away");
    drop(held);
    dashboard.stop().await;
}

#[tokio::test]
async fn connections_that_ask_for_nothing_are_let_go() {
    let dashboard = dashboard(|config| config.max_connections = 4);
    let address = dashboard.address();
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    // One more is turned away, until they have had their time.
    let served = async {
        while reqwest::get(dashboard.url()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served).await.unwrap();
    drop(silent);
}

#[tokio::test]
async fn it_stops_while_pages_are_open() {
    let dashboard = dashboard(|_| {});
    let mut live = get(&dashboard, "api/live").await;
    read_until(&mut live, "event: hello").await;
    tokio::time::timeout(Duration::from_secs(20), dashboard.stop()).await.unwrap();
    while live.chunk().await.unwrap().is_some() {}
}
