//! A server that is started again has lost what it held, and says so: it is another cluster, later than the one before.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v2_support;
mod v3_support;

use etcd_client::proto::PbRangeRequest;
use rallypoint_server::{Config, Server};
use tonic::Code;
use v3_support::{Raw, Target, Watch};

#[tokio::test]
async fn revisions_of_an_earlier_start_are_compacted() {
    let first = Target::ours();
    let client = first.client().await;
    let old = client.put_kv("k", "1").await;
    let header = |answer: etcd_client::proto::PbRangeResponse| answer.header.unwrap();
    let get = |revision| PbRangeRequest { key: "k".into(), revision, ..Default::default() };
    let was = header(client.range(get(0)).await.unwrap());
    drop(first);

    let second = Target::ours();
    let client = second.client().await;
    let is = header(client.range(get(0)).await.unwrap());
    assert!(is.cluster_id != was.cluster_id && is.member_id != was.member_id, "{was:?} {is:?}");
    assert!(is.revision > old && is.revision < 1 << 53, "{was:?} {is:?}");
    assert_eq!(client.range(get(old)).await.unwrap_err().code(), Code::OutOfRange);
    // Where it began, and nothing before it, can be read.
    assert!(client.range(get(is.revision)).await.unwrap().kvs.is_empty());
    assert_eq!(client.range(get(is.revision - 1)).await.unwrap_err().code(), Code::OutOfRange);

    let mut watcher = client.watching(Watch { start_revision: old + 1, ..Watch::key("k") }).await;
    let told = watcher.next().await;
    assert_eq!((told.canceled, told.compact_revision), (true, is.revision));
    let next = client.put_kv("k", "2").await;
    let mut watcher = client.watching(Watch { start_revision: is.revision, ..Watch::key("k") }).await;
    assert_eq!(watcher.events_until(next).await.len(), 1);
}

#[tokio::test]
async fn indices_of_an_earlier_start_are_cleared() {
    let first = v2_support::Target::embedded().await;
    let old = first.put("/k", "value=1").await.index.unwrap();
    drop(first);
    let second = v2_support::Target::embedded().await;
    let at = second.get("", "").await.index.unwrap();
    assert!(at > old && at < 1 << 53, "{old} {at}");
    let cleared = second.get("/k", &format!("wait=true&waitIndex={}", old + 1)).await;
    assert_eq!((cleared.status, cleared.index), (400, Some(at)));
    assert!(cleared.body.contains("\"errorCode\":401"), "{}", cleared.body);
    let next = second.put("/k", "value=2").await.index.unwrap();
    assert_eq!(next, at + 1);
    assert_eq!(second.get("/k", &format!("wait=true&waitIndex={next}")).await.status, 200);
}

#[tokio::test]
async fn one_to_be_compared_with_etcd_begins_where_etcd_does() {
    let mut config = Config::on("127.0.0.1:0".parse().unwrap());
    config.numbering = rallypoint_server::Numbering::FromOne;
    let server = Server::bind(config).unwrap();
    assert_eq!(Raw::connect(server.url().to_owned()).await.put_kv("k", "1").await, 2);
}
