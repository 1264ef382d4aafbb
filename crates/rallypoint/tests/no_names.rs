//! Where no resolver answers, nothing waits for one.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::process::Command;
use std::time::{Duration, Instant};

use launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::{Host, Network};

/// One look-up takes longer.
const STALL: Duration = Duration::from_secs(30);

fn rallypoint(host: &Host, args: &[&str]) -> Command {
    let mut command = host.command_without_names(RALLYPOINT);
    command.args(args);
    command
}

const WORKER: &[&str] = &["--no-python", "sh", "-c", "echo here $RANK of $WORLD_SIZE at $MASTER_ADDR"];

#[test]
fn a_standalone_node_asks_for_no_name() {
    let network = Network::start(1).unwrap();
    let began = Instant::now();
    let args = [&["run", "--standalone", "--nproc-per-node=2"], WORKER].concat();
    let ended = Launcher::spawn(rallypoint(&network.host(0), &args)).ended().expect(0);
    assert_eq!(ended.with("of 2 at").len(), 2, "{}", ended.text());
    assert!(began.elapsed() < STALL, "{:?}: {}", began.elapsed(), ended.text());
}

#[test]
fn nodes_that_meet_on_loopback_ask_for_no_name() {
    let network = Network::start(1).unwrap();
    let host = network.host(0);
    let began = Instant::now();
    let mut server = Launcher::spawn(rallypoint(&host, &["serve", "--listen", "127.0.0.1:2379"]));
    server.wait_for("address=");
    let args = ["run", "--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint=etcd://127.0.0.1:2379"];
    let args = [&args[..], WORKER].concat();
    let nodes = [(); 2].map(|()| Launcher::spawn(rallypoint(&host, &args)));
    let ended = nodes.map(|node| node.ended().expect(0));
    for ended in &ended {
        assert_eq!(ended.with("of 2 at").len(), 1, "{}", ended.text());
    }
    assert!(began.elapsed() < STALL, "{:?}: {}{}", began.elapsed(), ended[0].text(), ended[1].text());
}
