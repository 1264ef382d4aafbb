//! Whatever bytes come in, the server answers or hangs up, and goes on.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use std::env;
use std::fs;
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use v2_support::{TIMEOUT, Target};

const REQUESTS: usize = 6000;
const CONNECTIONS: usize = 16;

/// What requests are made of.
const PIECES: [&str; 44] = [
    "GET",
    "HEAD",
    "PUT",
    "POST",
    "DELETE",
    "PATCH",
    "OPTIONS",
    " ",
    "/",
    "//",
    "/..",
    "/.",
    "/v2/keys",
    "/v2/keys/",
    "/v2/machines",
    "/v2/members",
    "/v2/stats/self",
    "/metrics",
    "/version",
    "/health",
    "%2F",
    "%",
    "%zz",
    "%00",
    "%ff",
    "?",
    "&",
    "=",
    ";",
    "#",
    "wait=true",
    "recursive=true",
    "stream=true",
    "waitIndex=1",
    "prevExist=false",
    "prevIndex=4",
    "ttl=1",
    "refresh=true",
    "dir=true",
    "value=x",
    "a",
    "_b",
    " HTTP/1.1",
    "\r\n",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_and_mutated_requests_neither_stop_the_server_nor_fill_it() {
    let seed = env::var("RALLYPOINT_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    eprintln!("seed {seed}; to replay it: RALLYPOINT_SEED={seed} cargo test --test v2_fuzz");
    let target = Target::embedded().await;
    let mut rng = Rng::with_seed(seed);
    // The first rounds fill what is kept for the next.
    run(&target, &mut rng).await;
    let before = resident_bytes();
    run(&target, &mut rng).await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{REQUESTS} requests left {grown} bytes behind");

    // It still works, and whoever has hung up watches no more.
    assert_eq!(target.put("/still", "value=here").await.status, 201);
    let settled = async {
        loop {
            let text = target.client.get(target.url("/metrics")).send().await.unwrap().text().await.unwrap();
            if text.contains("\netcd_debugging_store_watchers 0\n") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, settled).await.expect("every watcher goes with its client");
}

async fn run(target: &Target, rng: &mut Rng) {
    let mut requests: Vec<Vec<u8>> = (0..REQUESTS).map(|_| request(rng)).collect();
    let mut clients = Vec::new();
    while !requests.is_empty() {
        let share = requests.split_off(requests.len().saturating_sub(REQUESTS / CONNECTIONS));
        let address = target.address;
        clients.push(tokio::spawn(async move {
            let mut answered = 0;
            for request in share {
                let mut stream = TcpStream::connect(address).await.unwrap();
                // It may hang up before it has read all.
                let _ = stream.write_all(&request).await;
                let _ = stream.shutdown().await;
                // Every answer ends: that we have sent all and closed is the end even of a watch.
                let mut answer = Vec::new();
                let read = timeout(TIMEOUT, stream.read_to_end(&mut answer)).await;
                assert!(read.is_ok(), "no end of {:?}", String::from_utf8_lossy(&request));
                assert!(
                    answer.is_empty() || answer.starts_with(b"HTTP/1."),
                    "{:?} got {:?}",
                    String::from_utf8_lossy(&request),
                    String::from_utf8_lossy(&answer)
                );
                assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(&answer));
                answered += usize::from(!answer.is_empty());
            }
            answered
        }));
    }
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    assert!(answered > REQUESTS / 2, "only {answered} of {REQUESTS} got an answer");
}

fn request(rng: &mut Rng) -> Vec<u8> {
    let pieces = |rng: &mut Rng, most: usize| -> String {
        (0..rng.usize(..=most)).map(|_| PIECES[rng.usize(..PIECES.len() - 2)]).collect()
    };
    let method = PIECES[rng.usize(..7)];
    let body = pieces(rng, 8);
    let mut request = match rng.u8(..8) {
        // Nothing but pieces, or nothing but noise.
        0 => (0..rng.usize(..30)).map(|_| PIECES[rng.usize(..PIECES.len())]).collect::<String>().into_bytes(),
        1 => std::iter::repeat_with(|| rng.u8(..)).take(200).collect(),
        _ => format!(
            "{method} /v2/keys{} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{body}",
            pieces(rng, 8).replace([' ', '#'], ""),
            body.len()
        )
        .into_bytes(),
    };
    // Half of them are spoilt.
    for _ in 0..rng.usize(..6).saturating_sub(2) {
        if request.is_empty() {
            break;
        }
        let at = rng.usize(..request.len());
        match rng.u8(..4) {
            0 => request[at] = rng.u8(..),
            1 => request.truncate(at),
            2 => request.insert(at, rng.u8(..)),
            _ => _ = request.remove(at),
        }
    }
    request
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
