//! Attacks on etcd's JSON gateway: each is a crowd of connections of HTTP/1.1.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{fill, size, under};
use crate::serving::Serving;

/// Connections that send a request so often each and read no answer.
async fn ask(serving: &Serving, connections: usize, times: usize, path: &str, body: &str) -> Vec<TcpStream> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    let request = format!("{head}{body}").repeat(times);
    let all = (0..connections).map(|_| async {
        let mut socket = TcpStream::connect(&serving.endpoint).await.ok()?;
        // Who is closed to make room for others is gone.
        let sent = tokio::time::timeout(Duration::from_secs(5), socket.write_all(request.as_bytes())).await;
        sent.is_ok_and(|sent| sent.is_ok()).then_some(socket)
    });
    join_all(all).await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_in_json_that_many_do_not_read() {
    let serving = Serving::start();
    fill(&serving, "data/", 10, 1 << 20).await;
    let body = r#"{"key":"ZGF0YS8=","range_end":"ZGF0YTA="}"#;
    let attack = ask(&serving, size(400, 100), size(50, 2), "/v3/kv/range", body);
    under("400 connections with 50 answers in JSON of 14 MB each that are not read", &serving, attack).await;
    ends_soon(serving).await;
}

/// The same with the connections there.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_large_answers_in_json_ends_when_it_is_told_to() {
    let serving = Serving::start();
    fill(&serving, "data/", 10, 1 << 20).await;
    let body = r#"{"key":"ZGF0YS8=","range_end":"ZGF0YTA="}"#;
    let _held = ask(&serving, 100, 2, "/v3/kv/range", body).await;
    ends_soon(serving).await;
}

async fn ends_soon(serving: Serving) {
    let began = Instant::now();
    tokio::task::spawn_blocking(|| serving.end()).await.unwrap();
    println!("it ended within {:.1?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_watches_in_json_beside_a_writer() {
    let serving = Serving::start();
    // Of a key of 300 bytes on to the last.
    let create = format!(r#"{{"create_request":{{"key":"{}","range_end":"AA=="}}}}"#, "d3d3".repeat(100));
    let body = create.repeat(size(3_000, 300));
    let attack = async {
        let held = ask(&serving, size(200, 20), 1, "/v3/watch", &body).await;
        for _ in 0..size(20, 5) {
            fill(&serving, "x", 1, 200 << 10).await;
        }
        held
    };
    under("200 connections with 3,000 watches in JSON each, beside values of 200 kB", &serving, attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_that_wait_in_line_and_leave_at_once() {
    let serving = Serving::start();
    let attack = async {
        let waiting = ask(&serving, size(3_000, 300), 1, "/v3/lock/lock", r#"{"name":"TA=="}"#).await;
        let leading = ask(&serving, size(1_000, 100), 1, "/v3/election/campaign", r#"{"name":"RQ=="}"#).await;
        tokio::time::sleep(Duration::from_secs(size(8, 1) as u64)).await;
        drop((waiting, leading));
    };
    under("4,000 that wait for a lock or to lead and leave at once", &serving, attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_in_json_of_one_key_that_are_not_read() {
    let serving = Serving::start();
    let attack = async {
        let body = r#"{"create_request":{"key":"aG90MDAwMDAw"}}"#;
        let held = ask(&serving, size(12_000, 1_500), 1, "/v3/watch", body).await;
        for _ in 0..12 {
            fill(&serving, "hot", 1, size(2_000, 20_000)).await;
        }
        // The attacker does nothing more.
        tokio::time::sleep(Duration::from_secs(size(20, 3) as u64)).await;
        held
    };
    under("12,000 watches in JSON of one key, beside 12 values of 2 kB, that are not read", &serving, attack)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_in_json_whose_answers_are_not_read() {
    let serving = Serving::start();
    let key = format!(r#"{{"key":"{}"#, "A".repeat(size(4_100_000, 1_000_000)));
    let number = format!(r#"{{"lease":{}"#, "9".repeat(size(4_100_000, 1_000_000)));
    let attack = async {
        let mut held = Vec::new();
        for _ in 0..size(25, 3) {
            held.extend(ask(&serving, 40, 1, "/v3/kv/put", &key).await);
            held.extend(ask(&serving, 40, 1, "/v3/kv/put", &number).await);
        }
        held
    };
    under("2,000 bodies in JSON of 4.1 MB whose answers are not read", &serving, attack).await;
}
