//! Machines of a network reach each other unless they are cut off, and are gone with what made them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may unwrap as the tests do")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rallypoint_testkit::{Cluster, Etcd, Host, Network, Version};

/// Whether `from` gets a connection to the server. A link that was mended may take some seconds, and until then there may
/// be no way to it at all.
fn reaches(from: &Host, etcd: &Etcd) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !connects(from, etcd, "10") {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    true
}

/// Whether what `from` sends to the server is not answered.
fn is_cut_off(from: &Host, etcd: &Etcd) -> bool {
    !connects(from, etcd, "2")
}

fn connects(from: &Host, etcd: &Etcd, seconds: &str) -> bool {
    let (address, port) = etcd.endpoint().split_once(':').map(|(a, p)| (a.to_owned(), p.to_owned())).unwrap();
    let mut command = from.command("timeout");
    command.args([seconds, "bash", "-c", r#"exec 3<>"/dev/tcp/$0/$1""#, &address, &port]);
    command.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn a_host_that_is_cut_off_reaches_nobody_until_it_is_mended() {
    let network = Network::start(2).unwrap();
    let etcd = Etcd::builder(Version::V35).on(&network.hub()).start();
    let hosts = network.hosts();
    assert!(reaches(&hosts[0], &etcd) && reaches(&hosts[1], &etcd));
    hosts[0].cut();
    assert!(is_cut_off(&hosts[0], &etcd) && reaches(&hosts[1], &etcd));
    hosts[0].mend();
    assert!(reaches(&hosts[0], &etcd));
}

#[test]
fn two_that_are_cut_from_each_other_still_reach_the_rest() {
    let network = Network::start(3).unwrap();
    let hosts = network.hosts();
    let [one, two] = [0, 1].map(|n| Etcd::builder(Version::V35).on(&hosts[n]).start());
    assert!(reaches(&hosts[0], &two) && reaches(&hosts[1], &one));
    hosts[0].cut_from(&hosts[1]);
    assert!(is_cut_off(&hosts[0], &two) && is_cut_off(&hosts[1], &one));
    assert!(reaches(&hosts[2], &one) && reaches(&hosts[2], &two));
    hosts[0].mend_to(&hosts[1]);
    assert!(reaches(&hosts[0], &two) && reaches(&hosts[1], &one));
}

#[test]
fn what_a_host_sends_is_late_where_the_kernel_can_do_that() {
    let network = Network::start(1).unwrap();
    let etcd = Etcd::builder(Version::V35).on(&network.hub()).start();
    let (host, delay) = (network.host(0), Duration::from_millis(300));
    match host.delay(delay) {
        Ok(()) => {
            let began = Instant::now();
            assert!(reaches(&host, &etcd));
            assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
        }
        Err(why) => assert!(why.starts_with("this kernel cannot delay packets: "), "{why}"),
    }
}

#[test]
fn a_cluster_on_machines_loses_its_leader_to_a_cut_and_to_a_pause_and_takes_it_back() {
    let network = Network::start(4).unwrap();
    let hosts = network.hosts();
    let mut cluster = Cluster::start_on(&Etcd::builder(Version::V35), &hosts[..3]);
    assert_eq!(cluster.endpoints(), "10.77.0.10:2379,10.77.0.11:2379,10.77.0.12:2379");
    let put = |on: &Etcd, value: &str| assert_eq!(on.etcdctl(&["put", "k", value]).trim(), "OK");

    let first = cluster.leader();
    hosts[first].cut();
    let other = cluster.leader_but(first);
    put(&cluster.nodes()[other], "1");
    assert!(is_cut_off(&hosts[3], &cluster.nodes()[first]));
    hosts[first].mend();
    assert_eq!(cluster.nodes()[first].etcdctl(&["get", "--print-value-only", "k"]).trim(), "1");

    let second = cluster.leader();
    cluster.node(second).pause();
    assert_ne!(cluster.leader(), second);
    cluster.node(second).resume();
    cluster.node(second).kill();
    cluster.node(second).restart();
    put(&cluster.nodes()[second], "2");
}

#[test]
fn names_are_not_found_where_no_resolver_answers() {
    let network = Network::start(1).unwrap();
    let look_up = |name: &str| {
        let mut command = network.host(0).command_without_names("timeout");
        command.args(["3", "getent", "hosts", name]).output().unwrap().status.code()
    };
    assert_eq!(look_up("localhost"), Some(0));
    assert_eq!(look_up("rallypoint.example"), Some(124), "it is still being looked up");
}

/// What is started in a namespace can be listed there; nothing of it is on this machine's own network.
#[test]
fn a_network_is_apart_from_this_machines_own() {
    let network = Network::start(1).unwrap();
    let here = Command::new("ip").args(["-brief", "addr"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&here.stdout).contains("10.77.0."));
    let there = network.host(0).command("ip").args(["-brief", "addr"]).output().unwrap();
    assert!(String::from_utf8_lossy(&there.stdout).contains("10.77.0.10/24"));
}
