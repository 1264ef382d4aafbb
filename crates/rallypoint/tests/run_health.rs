//! A node that is not fit does not meet the others, says why, and comes when it is.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::fs;

use launcher::Launcher;
use rallypoint_testkit::{Etcd, Version};

fn node(etcd: &Etcd, nodes: &str, args: &[&str], script: &str) -> Launcher {
    let endpoint = etcd.endpoint();
    let run = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let conf = ["--rdzv-conf", "last_call_timeout=3,lease_timeout=60", "--health-check-interval", "0.3"];
    Launcher::start(&[&run[..], &conf[..], args, &["--", "sh", "-c", script]].concat())
}

#[test]
fn a_node_that_fails_a_check_stays_away_until_it_passes() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let well = folder.path().join("well");
    let check = format!("test -e {} || {{ echo GPU 3 is lost; exit 4; }}", well.display());
    let passes = ["--health-check", "clock", "--health-check", "disk=1M"];
    let mut first = node(&etcd, "2", &passes, "exit 0");
    let mut second = node(&etcd, "2", &["--health-check", "disk=1M", "--health-check", &check], "exit 0");
    second.wait_for("it ended with exit code 4");
    second.wait_for("GPU 3 is lost");
    first.wait_for("1 of 2 is here");
    fs::write(&well, "").unwrap();
    first.ended().expect(0);
    let ended = second.ended().expect(0);
    // However often it looked.
    assert_eq!(ended.with("it ended with exit code 4").len(), 1, "{}", ended.text());
    assert_eq!(ended.with("passes its health checks again").len(), 1, "{}", ended.text());
}

#[test]
fn a_node_that_is_told_to_ends_with_6_and_one_sentence() {
    let ended = Launcher::run(&[
        "--standalone",
        "--health-check",
        "echo no link on mlx5_0; exit 1",
        "--when-unhealthy",
        "end",
        "true",
    ])
    .expect(6);
    let said = ended.with("error:");
    assert!(
        said[0].contains("this node is not fit: the health check") && said[0].contains("no link on mlx5_0"),
        "{said:?}"
    );
    // What is no check of ours is a command, and one that there is not is told with those that there are.
    let ended = Launcher::run(&["--standalone", "--health-check", "gpus", "--when-unhealthy", "end", "true"])
        .expect(6);
    assert!(
        ended.text().contains("the checks that are built in are clock, disk, gpu, port"),
        "{}",
        ended.text()
    );
    let ended = Launcher::run(&["--standalone", "--health-check", "disk=much", "true"]).expect(2);
    assert!(ended.text().contains("disk=20G"), "{}", ended.text());
}

#[test]
fn a_spare_that_falls_sick_steps_back_and_may_come_again() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let well = folder.path().join("well");
    fs::write(&well, "").unwrap();
    let check = format!("test -e {}", well.display());
    let mut member = node(&etcd, "1", &[], "echo works; sleep 600");
    member.wait_for("works");
    let mut spare = node(&etcd, "1", &["--health-check", &check], "echo took over");
    spare.wait_for("spare");
    fs::remove_file(&well).unwrap();
    spare.wait_for("this node does not join");
    // Nobody is there to take its place.
    member.signal("TERM");
    member.ended().expect(143);
    let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", ""]);
    assert!(!keys.contains("job/node/"), "the spare has no key while it is away: {keys}");
    assert!(!spare.heard("took over"));
    fs::write(&well, "").unwrap();
    let ended = spare.ended().expect(0);
    assert_eq!(ended.with("took over").len(), 1, "{}", ended.text());
}

#[test]
fn a_node_that_others_cannot_reach_is_found_before_workers_are_started() {
    let etcd = Etcd::start(Version::V35);
    let port = ["--health-check", "port", "--health-check-timeout", "6"];
    // An address for documentation, which nobody has.
    let away = [&port[..], &["--local-addr", "192.0.2.7", "--when-unhealthy", "end"]].concat();
    let bad = node(&etcd, "2:3", &away, "echo never");
    let good = [(); 2].map(|()| node(&etcd, "2:3", &port, "echo of $WORLD_SIZE"));
    let bad = bad.ended().expect(6);
    assert!(bad.text().contains("\"port\" failed"), "{}", bad.text());
    assert!(bad.with("never").is_empty());
    for node in good {
        let ended = node.ended().expect(0);
        assert!(ended.with("of 3").is_empty() && !ended.with("of 2").is_empty(), "{}", ended.text());
    }
}

#[test]
fn of_two_nodes_neither_begins_where_the_one_cannot_reach_the_other() {
    let etcd = Etcd::start(Version::V35);
    let port = ["--health-check", "port", "--health-check-timeout", "5", "--when-unhealthy", "end"];
    // It is there first, so it has rank 0.
    let mut away = node(&etcd, "2", &[&port[..], &["--local-addr", "192.0.2.7"]].concat(), "echo never");
    away.wait_for("1 of 2 is here");
    let other = node(&etcd, "2", &port, "echo never").ended().expect(6);
    assert!(other.text().contains("two nodes cannot tell"), "{}", other.text());
    assert!(other.with("never").is_empty(), "{}", other.text());
    away.wait_for("waiting for 1 node");
    assert!(!away.heard("]: never"));
}
