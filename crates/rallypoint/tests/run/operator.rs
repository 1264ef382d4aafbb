//! What an operator's commands cost, and in what order they show nodes, of more of them than a machine can run.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use etcd_client::{Client, Txn, TxnOp};
use rallypoint_testkit::{Etcd, Version};
use serde_json::{Value, json};

use super::launcher::RALLYPOINT;

const NODES: usize = 300;

/// Writes a round of nodes at work, as they do. The names are counted from the end, and two racks take turns.
async fn write_group(etcd: &Etcd) {
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let settings = json!({"min_nodes": NODES, "max_nodes": NODES, "policy": "arrival"});
    let mut records = Vec::new();
    for rank in 0..NODES {
        let name = format!("gpu-{}", NODES - rank);
        let at = json!({"version": 1, "incarnation": 1, "address": "10.0.0.1", "port": 29400});
        let mut node = json!({"wants": "stay", "round": 1, "since": 1, "rack": format!("r{}", rank % 2), "settings": settings});
        node.as_object_mut().unwrap().extend(at.as_object().unwrap().clone());
        let place = json!({"version": 1, "round": 1, "plan": "plan1", "rank": rank, "incarnation": 1});
        records.extend([(format!("node/{name}"), node), (format!("rank/{name}"), place)]);
    }
    let master = json!({"node": "gpu-300", "address": "10.0.0.1", "port": 29400});
    let round = json!({"version": 1, "round": 1, "plan": "plan1", "world_size": NODES, "master": master, "settings": settings, "news": {}});
    records.push(("group/round".to_owned(), round));
    for records in records.chunks(100) {
        let puts = records.iter();
        let puts =
            puts.map(|(key, value)| TxnOp::put(format!("rallypoint/job/{key}"), value.to_string(), None));
        client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.unwrap();
    }
}

/// How many requests etcd has been sent so far, streams counted when they began.
fn requests(etcd: &Etcd) -> f64 {
    let mut stream = TcpStream::connect(etcd.endpoint()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let counted = page.lines().filter(|line| line.starts_with("grpc_server_started_total{"));
    counted.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_many_nodes_takes_a_few_requests_and_has_them_in_the_order_that_is_asked_for() {
    let etcd = Etcd::start(Version::V35);
    write_group(&etcd).await;
    let status = |flags: &[&str]| -> Value {
        let output = Command::new(RALLYPOINT)
            .args(["status", "job", "--json", "--endpoint", &etcd.endpoint()])
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let before = requests(&etcd);
    let all = status(&[]);
    let taken = requests(&etcd) - before;
    println!("{taken} requests");
    assert_eq!(all["nodes"].as_array().unwrap().len(), NODES);
    assert!((1.0..=10.0).contains(&taken), "{taken} requests");
    // Unless what is left of each lease is asked for.
    let before = requests(&etcd);
    status(&["--leases"]);
    assert!(requests(&etcd) - before >= NODES as f64);

    let names = |flags: &[&str]| -> Vec<(String, String)> {
        let text = |node: &Value, field: &str| node[field].as_str().unwrap().to_owned();
        let nodes = status(flags)["nodes"].as_array().unwrap().clone();
        nodes.iter().map(|node| (text(node, "node"), text(node, "rack"))).collect()
    };
    let ends = |flags: &[&str]| {
        let names = names(flags);
        [names[0].0.clone(), names[1].0.clone(), names[NODES - 1].0.clone()]
    };
    assert_eq!(ends(&["--sort", "rank"]), ["gpu-300", "gpu-299", "gpu-1"]);
    assert_eq!(ends(&["--sort", "name"]), ["gpu-1", "gpu-2", "gpu-300"]);
    let by_rack = names(&["--sort", "rack"]);
    assert_eq!(
        by_rack[..2],
        [("gpu-300", "r0"), ("gpu-298", "r0")].map(|(name, rack)| (name.to_owned(), rack.to_owned()))
    );
    assert!(by_rack.is_sorted_by_key(|(_, rack)| rack.clone()));
    // Nodes of one transaction came together, and the last transaction has the last of them.
    assert_eq!(names(&["--sort", "newest"])[0].0, "gpu-50");
}

#[test]
fn what_metrics_and_traces_cost_is_measured_with_traces_that_arrive() {
    let etcd = Etcd::start(Version::V35);
    let bench = ["bench", "rendezvous", "--nodes", "5", "--compare-telemetry", "2", "--json"];
    let output =
        Command::new(RALLYPOINT).args(bench).args(["--endpoint", &etcd.endpoint()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
    let telemetry = &measured["telemetry"];
    let figure = |name: &str| telemetry.pointer(name).and_then(Value::as_f64).unwrap();
    assert!(figure("/on/seconds") > 0.0 && figure("/off/seconds") > 0.0, "{telemetry}");
    // Each node sends its spans of a round.
    assert!(figure("/trace_bytes") > 5.0 * 2.0 * 100.0, "{telemetry}");
    let on = figure("/on/requests_per_node");
    assert!(
        on > 3.0 && on < figure("/off/requests_per_node") + 5.0,
        "they ask etcd for nothing: {telemetry}"
    );
}

/// What the record counted when it was written is not there any more.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_or_stands_by_in_a_run_that_is_over_or_that_all_have_left() {
    let etcd = Etcd::start(Version::V35);
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    for (run, closed) in [("over", Some("the work is done")), ("left", None)] {
        let master = json!({"node": "a", "address": "10.0.0.1", "port": 29400});
        let news = json!({"waiting": 1, "spares": 1, "joined": 2, "lost_count": 1});
        let round = json!({"version": 1, "round": 2, "plan": "plan2", "world_size": 2, "master": master, "news": news, "closed": closed});
        client.put(format!("rallypoint/{run}/group/round"), round.to_string(), None).await.unwrap();
    }
    let output =
        Command::new(RALLYPOINT).args(["status", "--json", "--endpoint", &etcd.endpoint()]).output().unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counted = |row: &Value| (row["nodes"].clone(), row["waiting"].clone(), row["spares"].clone());
    let rows: Vec<_> = rows.as_array().unwrap().iter().map(counted).collect();
    assert_eq!(rows, vec![(json!(0), json!(0), json!(0)); 2]);
}
