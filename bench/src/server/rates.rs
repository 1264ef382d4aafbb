//! How many requests a second.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};

use super::process::Server;
use super::{ETCD, VALUE, beside_both};
use crate::lean::{Kind, Lean};
use crate::measure::{Samples, parallel_rate};
use crate::report::{Comparison, Promise};

/// A turn of one server; then it is another's.
const TURN: Duration = Duration::from_millis(250);
/// Leases that are kept alive side by side, each on a stream of its own, as those of many nodes are.
const LEASES: usize = 64;

/// What is asked, with how many in flight, and what the two clients' rows are called.
const CASES: [(Kind, usize, &str, &str); 9] = [
    (Kind::Put, 1, "put, 1 in flight", "put, 1 in flight, etcd-client"),
    (Kind::Get, 1, "get, 1 in flight", "get, 1 in flight, etcd-client"),
    (Kind::Txn, 1, "txn, 1 in flight", "txn, 1 in flight, etcd-client"),
    (Kind::Put, 64, "put, 64 in flight", "put, 64 in flight, etcd-client"),
    (Kind::Get, 64, "get, 64 in flight", "get, 64 in flight, etcd-client"),
    (Kind::Txn, 64, "txn, 64 in flight", "txn, 64 in flight, etcd-client"),
    (Kind::Put, 1024, "put, 1,024 in flight", "put, 1,024 in flight, etcd-client"),
    (Kind::Get, 1024, "get, 1,024 in flight", "get, 1,024 in flight, etcd-client"),
    (Kind::Txn, 1024, "txn, 1,024 in flight", "txn, 1,024 in flight, etcd-client"),
];

/// Rates of the three servers through the leanest client, one connection each. It has a runtime of its own.
pub(super) fn lean(rounds: u32, only: Option<&str>) -> Vec<Comparison> {
    let servers = [Server::ours(), Server::etcd(), Server::etcd_with_fsync()];
    let clients = servers.each_ref().map(|server| Lean::connect(&server.endpoint()));
    // The rates of each, and what a request costs each in processor time.
    let in_turn = |what: &str, rate: &dyn Fn(&Lean) -> f64| {
        eprintln!("{what} ...");
        let [mut rates, mut costs] = [(); 2].map(|()| [(); 3].map(|()| Samples::default()));
        for _ in 0..rounds {
            for (at, (server, client)) in servers.iter().zip(&clients).enumerate() {
                let (began, before) = (Instant::now(), server.cpu());
                let rate = rate(client);
                rates[at].push(rate);
                let requests = rate * began.elapsed().as_secs_f64();
                costs[at].push((server.cpu() - before) * 1e6 / requests);
            }
        }
        (rates, costs)
    };

    let is_wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut comparisons = Vec::new();
    for (kind, in_flight, name, _) in CASES.into_iter().filter(|(_, _, name, _)| is_wanted(name)) {
        let (rates, costs) = in_turn(name, &|client| client.rate(kind, &VALUE, in_flight, TURN));
        comparisons.extend(beside_both(name, "/s", rates, Some(Promise::AtLeast(2.0))));
        if in_flight == 64 {
            let name = match kind {
                Kind::Put => "the server's processor time of a put",
                Kind::Get => "the server's processor time of a get",
                Kind::Txn => "the server's processor time of a txn",
            };
            let [cost, _] = beside_both(name, "us", costs, None);
            comparisons.push(cost);
        }
    }
    let name = "lease keep-alive, 64 leases";
    if is_wanted(name) {
        let (rates, _) = in_turn(name, &|client| client.keep_alive_rate(LEASES, TURN));
        comparisons.extend(beside_both(name, "/s", rates, None));
    }
    comparisons
}

/// The same through the client that Rust programs use. It takes more of the machine than the servers do.
pub(super) async fn usual(rounds: u32, only: Option<&str>) -> Vec<Comparison> {
    let (ours, etcd) = (Server::ours(), Server::etcd());
    let (our_client, etcd_client) = (ours.client().await, etcd.client().await);
    let mut comparisons = Vec::new();
    for (kind, in_flight, _, name) in CASES {
        if !only.is_none_or(|only| name.contains(only)) {
            continue;
        }
        eprintln!("{name} ...");
        let [mut ours, mut theirs] = [(); 2].map(|()| Samples::default());
        for _ in 0..rounds {
            ours.push(operate(&our_client, kind, in_flight).await);
            theirs.push(operate(&etcd_client, kind, in_flight).await);
        }
        comparisons.push(Comparison { name, unit: "/s", ours, rival: ETCD, theirs, promise: None });
    }
    comparisons
}

async fn operate(client: &Client, kind: Kind, in_flight: usize) -> f64 {
    let each = if in_flight == 1 { 2_000 } else { 10_000 / in_flight };
    parallel_rate(in_flight, each, |task| {
        let mut kv = client.kv_client();
        async move {
            let key = format!("bench/{task}");
            for _ in 0..each {
                match kind {
                    Kind::Put => drop(kv.put(key.clone(), VALUE, None).await.expect("put")),
                    Kind::Get => drop(kv.get(key.clone(), None).await.expect("get")),
                    Kind::Txn => {
                        let txn = Txn::new()
                            .when([Compare::version(key.clone(), CompareOp::Greater, 0)])
                            .and_then([TxnOp::put(key.clone(), VALUE, None), TxnOp::get(key.clone(), None)])
                            .or_else([TxnOp::put(key.clone(), VALUE, None)]);
                        drop(kv.txn(txn).await.expect("txn"));
                    }
                }
            }
        }
    })
    .await
}
