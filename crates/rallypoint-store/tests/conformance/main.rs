//! One suite for every store. What each case is named after must hold for all of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod cases_keys;
mod cases_numbers;
mod cases_queues;
mod cases_waiting;
mod suite;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::{v2, v3};
use rallypoint_server::EtcdServer;
use rallypoint_store::{EtcdStore, EtcdV2Store, MemoryStore, PrefixStore, Store, TcpStore};
use rallypoint_tcpstore::TcpStoreServer;
use rallypoint_testkit::{Etcd, Python, Version};

use suite::{Limit, Suite};

const V2_LIMIT: Limit = Limit { fits: 7_000_000, too_large: &[7_900_000, 16_000_000] };
const V3_LIMIT: Limit = Limit { fits: 1_500_000, too_large: &[1_600_000, 3_000_000, 16_000_000] };
const TCP_LIMIT: Limit = Limit { fits: 8 << 20, too_large: &[(8 << 20) + 1, 16_000_000] };

#[tokio::test(flavor = "multi_thread")]
async fn memory_store() {
    Suite::new(None, |_| async { Box::new(MemoryStore::new()) as Box<dyn Store> }).run().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prefix_store_on_memory() {
    let open =
        |_| async { Box::new(PrefixStore::new("a/b", Box::new(MemoryStore::new()))) as Box<dyn Store> };
    Suite::new(None, open).run().await;
}

async fn v3_store(endpoint: &str) {
    let settings = EtcdSettings::new(endpoint).unwrap();
    let client = v3::Client::connect(settings).await.unwrap();
    let open = move |name: String| {
        let store = EtcdStore::new(client.clone(), &format!("/conformance/{name}"));
        async { Box::new(store) as Box<dyn Store> }
    };
    Suite::new(Some(V3_LIMIT), open).run().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes long: scripts/test long"]
async fn etcd_store_on_etcd_3_4() {
    v3_store(&Etcd::start(Version::V34).endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_store_on_etcd_3_5() {
    v3_store(&Etcd::start(Version::V35).endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_store_on_etcd_3_6_where_there_is_one() {
    if Version::all().contains(&Version::V36) {
        v3_store(&Etcd::start(Version::V36).endpoint()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_store_under_a_client_prefix_and_a_prefix_store() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
    settings.prefix = "/tenant/".into();
    let client = v3::Client::connect(settings).await.unwrap();
    let open = move |name: String| {
        let store = EtcdStore::new(client.clone(), &name);
        async { Box::new(PrefixStore::new("p", Box::new(store))) as Box<dyn Store> }
    };
    Suite::new(Some(V3_LIMIT), open).run().await;
    assert_eq!(
        etcd.etcdctl(&["get", "", "--prefix", "--keys-only"])
            .lines()
            .filter(|line| { !line.is_empty() && !line.starts_with("/tenant/") })
            .count(),
        0,
        "everything is under the client's prefix"
    );
}

async fn v2_store(endpoint: &str, prefix: &str) {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.prefix = prefix.to_owned();
    let client = v2::Client::connect(settings).await.unwrap();
    let open = move |name: String| {
        let store = EtcdV2Store::new(client.clone(), &format!("/conformance/{name}"));
        async { Box::new(store) as Box<dyn Store> }
    };
    Suite::new(Some(V2_LIMIT), open).run().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes long: scripts/test long"]
async fn v2_store_on_etcd_3_4() {
    v2_store(&Etcd::builder(Version::V34).v2().start().endpoint(), "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_store_on_etcd_3_5_under_a_client_prefix() {
    v2_store(&Etcd::builder(Version::V35).v2().start().endpoint(), "/tenant/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_on_the_embedded_server() {
    let server = EtcdServer::start_embedded().unwrap();
    v3_store(&server.endpoint()).await;
    v2_store(&server.endpoint(), "").await;
}

/// On servers that `start` gives the addresses of, one for each case, since they are to be empty.
fn tcp_store(limit: Option<Limit>, start: impl Fn() -> String + 'static) -> Suite {
    Suite::new(limit, move |_| {
        let address = start();
        async move {
            Box::new(TcpStore::connect(&address, Duration::from_secs(30)).await.unwrap()) as Box<dyn Store>
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_store_on_our_server() {
    let servers = Mutex::new(Vec::new());
    let start = move || {
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.local_addr().to_string();
        servers.lock().unwrap().push(server);
        address
    };
    tcp_store(Some(TCP_LIMIT), start).run().await;
}

/// Says what this PyTorch knows of, which older ones do not, and serves a store for each line, which says whether it is one with libuv.
const PYTORCHS_SERVERS: &str = r#"
import os
import sys
# They look up the name of each peer, which takes long where nobody answers.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
from datetime import timedelta
import torch.distributed as dist
print(*(name for name in ("queue_push", "list_keys") if hasattr(dist.TCPStore, name)))
servers = []
for line in sys.stdin:
    servers.append(dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False,
                                 use_libuv=line.strip() == "libuv"))
    print(servers[-1].port)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn tcp_store_on_pytorchs_servers() {
    let mut python = Python::spawn(PYTORCHS_SERVERS, &[]);
    let knows = python.read_line();
    let python = Arc::new(Mutex::new(python));
    let start = |kind: &'static str| {
        let python = Arc::clone(&python);
        move || {
            let mut python = python.lock().unwrap();
            python.write_line(kind);
            format!("127.0.0.1:{}", python.read_line())
        }
    };
    let as_known = |suite: Suite| if knows.contains("list_keys") { suite } else { suite.without_lists() };
    let libuv = as_known(tcp_store(Some(TCP_LIMIT), start("libuv")));
    let libuv = if knows.contains("queue_push") { libuv } else { libuv.without_queues() };
    libuv.run().await;
    as_known(tcp_store(None, start("older"))).without_queues().run().await;
}
