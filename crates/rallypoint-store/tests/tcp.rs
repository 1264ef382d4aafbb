//! What only a store on a server of a `TCPStore` has: a server that dies, is silent, late, or none at all.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use rallypoint_store::{Store, StoreError, TcpStore};
use rallypoint_tcpstore::TcpStoreServer;
use rallypoint_testkit::{Python, Silent, closed_port, refused_endpoint};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn serve() -> (TcpStoreServer, String) {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr().to_string();
    (server, address)
}

/// A server that answers each piece that comes with what `answer` gives, and ends the connection at none.
fn pretend(answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut piece = vec![0; 1 << 16];
                while let Ok(count @ 1..) = client.read(&mut piece)
                    && let Some(answer) = answer(&piece[..count])
                    && client.write_all(&answer).is_ok()
                {}
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[track_caller]
fn assert_names(error: &StoreError, address: &str, what: &str) {
    let text = error.to_string();
    assert!(matches!(error, StoreError::Server { .. }), "{error:?}");
    assert!(text.contains(address) && text.contains(what), "{text}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_named_also_to_who_waits_and_another_is_not_taken_for_it() {
    let (server, address) = serve();
    let store = TcpStore::connect(&address, LONG).await.unwrap();
    store.set(b"key", b"value").await.unwrap();
    let waiting = store.clone();
    let waiting = tokio::spawn(async move { waiting.get(b"missing").await });
    server.stop().await;
    // Whether its wait had begun or not.
    assert_names(&waiting.await.unwrap().unwrap_err(), &address, "get failed");
    assert_names(&store.set(b"key", b"value").await.unwrap_err(), &address, "ended the connection");
    let next = TcpStoreServer::bind(address.parse().unwrap()).unwrap();
    assert_names(&store.check(&[b"key"]).await.unwrap_err(), &address, "ended the connection");
    let store = TcpStore::connect(&address, LONG).await.unwrap();
    assert!(!store.check(&[b"key"]).await.unwrap());
    next.stop().await;
}

#[tokio::test]
async fn a_server_is_waited_for() {
    let error = TcpStore::connect(&refused_endpoint(), SHORT).await.unwrap_err();
    assert_names(&error, "127.0.0.1:", "refused");
    assert_names(&TcpStore::connect("nowhere", LONG).await.unwrap_err(), "nowhere", "connect");

    let address = format!("127.0.0.1:{}", closed_port());
    let connecting = TcpStore::connect(&address, LONG);
    let serving = async { TcpStoreServer::bind(address.parse().unwrap()).unwrap() };
    let (store, _server) = tokio::join!(connecting, serving);
    assert_eq!(store.unwrap().num_keys().await.unwrap(), 0);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    // It greets, and then never says a word.
    let address = pretend(|piece| Some(if piece[0] == 0 { vec![0] } else { vec![] }));
    let store = TcpStore::connect(&address, LONG).await.unwrap();
    // What is measured from here on passes at once.
    tokio::time::pause();
    assert_names(&store.add(b"key", 1).await.unwrap_err(), &address, "no answer within");
    assert_names(
        &store.wait(&[b"key"], Some(SHORT)).await.unwrap_err(),
        &address,
        "no answer within 5.000 s",
    );

    let silent = Silent::start();
    let error = TcpStore::connect(&silent.endpoint(), LONG).await.unwrap_err();
    assert_names(&error, &silent.endpoint(), "no answer within");
}

#[tokio::test]
async fn what_speaks_another_protocol_is_told_at_once() {
    let address = pretend(|_| Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    let error = TcpStore::connect(&address, LONG).await.unwrap_err();
    assert_names(&error, &address, "is no TCPStore");
}

#[tokio::test]
async fn a_reply_that_comes_while_the_wait_is_cancelled_counts() {
    let address = pretend(|piece| {
        Some(match piece[0] {
            0 => vec![0],
            // The end of the wait may come together with the wait.
            _ if piece.ends_with(&[12]) => vec![0, 1],
            6 => vec![],
            10 => [&5_u64.to_le_bytes()[..], b"value"].concat(),
            number => panic!("{number}"),
        })
    });
    let store = TcpStore::connect(&address, LONG).await.unwrap();
    store.set_timeout(SHORT);
    assert_eq!(store.get(b"key").await.unwrap(), b"value");
    // The connection is in order after that.
    assert_eq!(store.get(b"key").await.unwrap(), b"value");
}

#[tokio::test]
async fn a_server_that_answers_at_random_does_no_harm() {
    for seed in 0..100 {
        let answer = move |piece: &[u8]| {
            let mut random = fastrand::Rng::with_seed(seed * 1000 + piece.len() as u64);
            // Lengths are likely among them.
            let bytes =
                (0..random.usize(0..40)).map(|_| if random.bool() { 0 } else { random.u8(..) }).collect();
            match piece[0] {
                0 => Some(vec![0]),
                _ if random.bool() => None,
                _ => Some(bytes),
            }
        };
        let address = pretend(answer);
        let store = TcpStore::connect(&address, LONG).await.unwrap();
        store.set_timeout(SHORT);
        tokio::time::pause();
        let _ = store.get(b"key").await;
        let _ = store.list_keys().await;
        let _ = store.queue_pop(b"queue", false).await;
        let _ = store.compare_set(b"key", b"", b"value").await;
        let _ = store.add(b"key", 1).await;
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_queue_is_no_value_and_a_value_is_no_queue() {
    let (_server, address) = serve();
    let store = TcpStore::connect(&address, LONG).await.unwrap();
    store.queue_push(b"queue", b"1").await.unwrap();
    store.set(b"key", b"").await.unwrap();
    store.set_timeout(SHORT);
    assert!(matches!(store.get(b"queue").await, Err(StoreError::Timeout { what: "get", .. })));
    assert!(matches!(
        store.queue_pop(b"key", true).await,
        Err(StoreError::Timeout { what: "queue_pop", .. })
    ));
    assert_eq!(store.multi_get(&[b"key"]).await.unwrap(), [b""]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_shares_keys_queues_and_barriers_with_pytorchs_client() {
    const SCRIPT: &str = r#"
import sys
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), None, False, timedelta(seconds=60), wait_for_workers=False)
# What an older PyTorch does not have is left out.
knows = [name for name in ("queue_push", "list_keys", "barrier") if hasattr(store, name)]
print(*knows)
store.set("theirs", store.get("ours") + b" and theirs")
if "queue_push" in knows:
    store.queue_push("queue", "pushed")
if "barrier" in knows:
    store.barrier("both", 2, timedelta(seconds=60))
print(store.add("count", 1))
print(*sorted(store.list_keys() if "list_keys" in knows else []))
"#;
    let (server, address) = serve();
    let port = server.local_addr().port().to_string();
    let starts = tokio::task::spawn_blocking(move || {
        let mut python = Python::spawn(SCRIPT, &[&port]);
        let knows = python.read_line();
        (python, knows)
    });
    let (python, knows) = starts.await.unwrap();
    let store = TcpStore::connect(&address, LONG).await.unwrap();
    store.add(b"count", 41).await.unwrap();
    store.set(b"ours", b"ours").await.unwrap();
    assert_eq!(store.get(b"theirs").await.unwrap(), b"ours and theirs");
    if knows.contains("queue_push") {
        assert_eq!(store.queue_pop(b"queue", true).await.unwrap(), b"pushed");
    }
    if knows.contains("barrier") {
        store.barrier(b"both", 2, None).await.unwrap();
    }
    let said = tokio::task::spawn_blocking(|| python.finish()).await.unwrap();
    let keys = match (knows.contains("list_keys"), knows.contains("barrier")) {
        (false, _) => "",
        (true, false) => "count ours theirs",
        (true, true) => "both count ours theirs",
    };
    assert_eq!(said, format!("42\n{keys}\n"));
}
