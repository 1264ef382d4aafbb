//! How many requests a second.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};

use super::lean::{Kind, Lean};
use super::process::Server;
use super::{ETCD, ETCD_WITH_FSYNC, VALUE, beside_both};
use crate::measure::{Samples, in_turn, parallel_rate};
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Promise, Row, Table};

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
pub(super) fn lean(plan: &Plan, rounds: u32) -> (Vec<Comparison>, Table) {
    let servers = [Server::ours(), Server::etcd(), Server::etcd_with_fsync()];
    let clients = servers.each_ref().map(|server| Lean::connect(&server.endpoint()));
    // The rates of each, and what a request costs each in processor time.
    let measure = |what: &str, rate: &dyn Fn(&Lean) -> f64| {
        plan.say(what);
        let [mut rates, mut costs] = [(); 2].map(|()| [(); 3].map(|()| Samples::default()));
        for round in 0..rounds {
            for at in in_turn(servers.len(), round) {
                let (server, client) = (&servers[at], &clients[at]);
                let (began, before) = (Instant::now(), server.cpu());
                let rate = rate(client);
                rates[at].push(rate);
                let requests = rate * began.elapsed().as_secs_f64();
                costs[at].push((server.cpu() - before) * 1e6 / requests);
            }
        }
        (rates, costs)
    };

    let mut comparisons = Vec::new();
    let mut table = Table {
        id: "server".to_owned(),
        title: "Requests a second".to_owned(),
        rows_are: "what".to_owned(),
        columns: ["rallypoint-server", ETCD, ETCD_WITH_FSYNC].map(str::to_owned).into(),
        rows: Vec::new(),
    };
    let row = |name: &str, rates: &[Samples; 3]| {
        let cells = rates.iter().cloned().map(Outcome::Measured).collect();
        Row { name: name.to_owned(), x: None, unit: "/s".to_owned(), cells }
    };
    for (kind, in_flight, name, _) in CASES.into_iter().filter(|(_, _, name, _)| plan.wants(name)) {
        let (rates, costs) = measure(name, &|client| client.rate(kind, &VALUE, in_flight, TURN));
        table.rows.push(row(name, &rates));
        let [beside_etcd, _] = beside_both(name, "/s", rates, Some(Promise::AtLeast(2.0)));
        comparisons.push(beside_etcd);
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
    if plan.wants(name) {
        let (rates, _) = measure(name, &|client| client.keep_alive_rate(LEASES, TURN));
        table.rows.push(row(name, &rates));
    }
    (comparisons, table)
}

/// Rates of the two servers that wait for the disk. It has a runtime of its own.
pub(super) fn on_disk(plan: &Plan, rounds: u32) -> Vec<Comparison> {
    const CASES: [(Kind, usize, &str); 4] = [
        (Kind::Put, 1, "put in a folder, 1 in flight"),
        (Kind::Put, 64, "put in a folder, 64 in flight"),
        (Kind::Put, 1024, "put in a folder, 1,024 in flight"),
        (Kind::Txn, 64, "txn in a folder, 64 in flight"),
    ];
    let servers = [Server::ours_in_a_folder(), Server::etcd_with_fsync()];
    let clients = servers.each_ref().map(|server| Lean::connect(&server.endpoint()));
    let mut comparisons = Vec::new();
    for (kind, in_flight, name) in CASES.into_iter().filter(|(_, _, name)| plan.wants(name)) {
        plan.say(name);
        let mut rates = [(); 2].map(|()| Samples::default());
        for round in 0..rounds {
            for at in in_turn(servers.len(), round) {
                rates[at].push(clients[at].rate(kind, &VALUE, in_flight, TURN));
            }
        }
        let [ours, theirs] = rates;
        // One alone has nobody to share its sync with, and goes through more hands than etcd's.
        let promise = (in_flight > 1).then_some(Promise::AtLeast(1.0));
        comparisons.push(Comparison::new(name, "/s", (ours, ETCD_WITH_FSYNC, theirs), promise));
    }
    comparisons
}

/// Rates through the client that Rust programs use, in memory. It takes more of the machine than the servers do.
pub(super) async fn usual(plan: &Plan, rounds: u32) -> Vec<Comparison> {
    let (ours, etcd) = (Server::ours(), Server::etcd());
    let (our_client, etcd_client) = (ours.client().await, etcd.client().await);
    let mut comparisons = Vec::new();
    for (kind, in_flight, _, name) in CASES {
        if !plan.wants(name) {
            continue;
        }
        plan.say(name);
        let [mut ours, mut theirs] = [(); 2].map(|()| Samples::default());
        for _ in 0..rounds {
            ours.push(operate(&our_client, kind, in_flight).await);
            theirs.push(operate(&etcd_client, kind, in_flight).await);
        }
        comparisons.push(Comparison::new(name, "/s", (ours, ETCD, theirs), None));
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
