//! What concerns very many keys at a time.

use etcd_client::{Client, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp, WatchOptions};
use rallypoint_testkit::http_get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{is_full, port, size, under};
use crate::serving::Serving;

/// One request, or a few, of a client that needs no more.
#[derive(Debug, Clone, Copy)]
enum Request {
    Delete,
    DeleteWatched,
    Revoke,
    Compact,
    ListV2,
    DeleteV2,
}

/// More than are deleted at once.
fn keys() -> usize {
    size(200_000, 5_000)
}

impl Request {
    const ALL: [Request; 6] = [
        Request::Delete,
        Request::DeleteWatched,
        Request::Revoke,
        Request::Compact,
        Request::ListV2,
        Request::DeleteV2,
    ];

    fn name(self) -> &'static str {
        match self {
            Request::Delete => "one delete of 200,000 keys",
            Request::DeleteWatched => "the same, with its keys in the answer, and watched",
            Request::Revoke => "the end of a lease with 200,000 keys",
            Request::Compact => "a compaction of 60,000 changes",
            Request::ListV2 => "8 listings of 200,000 nodes of v2",
            Request::DeleteV2 => "one delete of 200,000 nodes of v2",
        }
    }

    async fn prepare(self, serving: &Serving) {
        match self {
            Request::Delete | Request::DeleteWatched => fill(serving, keys(), 0).await,
            Request::Revoke => {
                let mut client = Client::connect([&serving.endpoint], None).await.unwrap();
                client
                    .lease_grant(600, Some(etcd_client::LeaseGrantOptions::new().with_id(7)))
                    .await
                    .unwrap();
                fill(serving, keys(), 7).await;
            }
            Request::Compact => fill(serving, size(60_000, 5_000), 0).await,
            Request::ListV2 => fill_v2(&serving.endpoint, keys()).await,
            // They are there from the listing.
            Request::DeleteV2 => {}
        }
    }

    async fn send(self, serving: &Serving) {
        let mut client = Client::connect([&serving.endpoint], None).await.unwrap();
        let all = || DeleteOptions::new().with_prefix();
        let patience = std::time::Duration::from_secs(20);
        match self {
            Request::Delete => {
                let deleted = client.delete("data/", Some(all())).await.unwrap().deleted();
                assert_eq!(usize::try_from(deleted).unwrap(), keys());
            }
            Request::DeleteWatched => {
                let options = WatchOptions::new().with_prefix().with_prev_key();
                let mut watch = client.watch("data/", Some(options)).await.unwrap();
                let mut client = client.clone();
                // Very many are too large for the client, who has asked for them nevertheless.
                let deleted = client.delete("data/", Some(all().with_prev_key())).await;
                assert!(is_full() || deleted.unwrap().prev_kvs().len() == keys());
                let told = async {
                    loop {
                        match watch.message().await {
                            Ok(Some(told)) if told.events().is_empty() => {}
                            told => break told,
                        }
                    }
                };
                let told = tokio::time::timeout(patience, told).await.expect("it is told of");
                assert!(is_full() || told.unwrap().unwrap().events().len() == keys(), "in one message");
            }
            Request::Revoke => {
                client.lease_revoke(7).await.unwrap();
                let left = client.get("data/", Some(GetOptions::new().with_prefix().with_count_only()));
                assert_eq!(left.await.unwrap().count(), 0);
            }
            Request::Compact => {
                let revision = client.get("data/", None).await.unwrap().header().unwrap().revision();
                client.compact(revision, None).await.unwrap();
            }
            Request::ListV2 => {
                let (port, path) = (port(serving), "/v2/keys/tree?recursive=true&sorted=true");
                for _ in 0..8 {
                    let listing = tokio::task::spawn_blocking(move || http_get(port, path, patience));
                    assert!(listing.await.unwrap().unwrap().contains("/tree/d0/k000000"));
                }
            }
            Request::DeleteV2 => {
                let head =
                    "DELETE /v2/keys/tree?recursive=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                let mut socket = TcpStream::connect(&serving.endpoint).await.unwrap();
                socket.write_all(head.as_bytes()).await.unwrap();
                socket.read_to_end(&mut Vec::new()).await.unwrap();
            }
        }
    }
}

/// Small keys, many in each transaction, on a lease if it is not 0.
async fn fill(serving: &Serving, keys: usize, lease: i64) {
    let mut client = Client::connect([&serving.endpoint], None).await.unwrap();
    for keys in (0..keys).collect::<Vec<_>>().chunks(128) {
        let put = |key| TxnOp::put(format!("data/{key:06}"), "v", Some(PutOptions::new().with_lease(lease)));
        client.txn(Txn::new().and_then(keys.iter().map(put).collect::<Vec<_>>())).await.unwrap();
    }
}

/// Files in directories of a thousand, many requests in each write.
async fn fill_v2(endpoint: &str, files: usize) {
    let mut socket = TcpStream::connect(endpoint).await.unwrap();
    let (mut answers, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    for files in (0..files).collect::<Vec<_>>().chunks(200) {
        let put = |file: &usize| {
            let directory = file / 1_000;
            format!(
                "PUT /v2/keys/tree/d{directory}/k{file:06}?value=v HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
            )
        };
        socket.write_all(files.iter().map(put).collect::<String>().as_bytes()).await.unwrap();
        answers.clear();
        while answers.windows(9).filter(|window| window == b"HTTP/1.1 ").count() < files.len() {
            let read = socket.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "the server has hung up");
            answers.extend_from_slice(&buffer[..read]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_concern_very_many_keys() {
    let serving = Serving::start();
    let serves_v2 = http_get(port(&serving), "/v2/keys/", std::time::Duration::from_secs(1))
        .is_ok_and(|keys| keys.contains("node"));
    let is_served = |request: &Request| serves_v2 || !matches!(request, Request::ListV2 | Request::DeleteV2);
    if is_full() {
        for request in Request::ALL.into_iter().filter(is_served) {
            request.prepare(&serving).await;
            under(request.name(), &serving, request.send(&serving)).await;
        }
        return;
    }
    // One after the other is enough to see that nobody is locked out.
    let all = async {
        for request in Request::ALL.into_iter().filter(is_served) {
            request.prepare(&serving).await;
            request.send(&serving).await;
        }
    };
    under("requests that concern many keys", &serving, all).await;
}
