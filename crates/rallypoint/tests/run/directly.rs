//! What nodes tell each other directly, from agent to agent, where etcd does not take it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::launcher::Launcher;
use rallypoint_testkit::{Etcd, Proxy, Version};

const QUICK: &str = "last_call_timeout=1,lease_timeout=3";
/// A node that etcd does not answer asks the others long before it is missed.
const PATIENT: &str = "last_call_timeout=1,lease_timeout=15";
/// Longer than any test takes.
const HELD: Duration = Duration::from_secs(3600);
const WORKS: &str = "echo begins $WORLD_SIZE; exec sleep 600";

fn node(conf: &str, endpoint: &str, name: &str, script: &str) -> Launcher {
    node_with(&[], conf, endpoint, name, script)
}

fn node_with(args: &[&str], conf: &str, endpoint: &str, name: &str, script: &str) -> Launcher {
    let (conf, endpoint) = (format!("{conf},node_id={name}"), format!("etcd://{endpoint}"));
    let run = ["--nnodes", "2:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
    Launcher::start(&[&run[..], args, &["--max-restarts", "0", "--", "sh", "-c", script]].concat())
}

/// Waits until all three work. Some may have begun without the last of them.
fn three(nodes: &mut [Launcher; 3]) {
    for node in nodes {
        node.wait_for("begins 3");
        node.forget();
    }
}

/// Three nodes, the third of which reaches etcd through a proxy, at work on these.
fn one_by_proxy(conf: &str, scripts: [&str; 3]) -> (Etcd, Proxy, [Launcher; 3]) {
    let etcd = Etcd::start(Version::V35);
    let (endpoint, proxy) = (etcd.endpoint(), Proxy::start(&etcd.endpoint()));
    let [a, b, c] = scripts;
    let mut nodes = [("a", &endpoint, a), ("b", &endpoint, b), ("c", &proxy.endpoint(), c)]
        .map(|(name, endpoint, script)| node(conf, endpoint, name, script));
    three(&mut nodes);
    (etcd, proxy, nodes)
}

/// A worker that fails with 7 when this file is there, in a round of three nodes.
fn fails_with(file: &Path) -> String {
    format!(
        "echo begins $WORLD_SIZE; until [ -e {} -a $WORLD_SIZE = 3 ]; do sleep 0.05; done; exit 7",
        file.display()
    )
}

/// It names the worker that failed, and nobody's death.
fn names_the_failure(node: Launcher) {
    let ended = node.ended().expect(1);
    assert_eq!(ended.with("failed first").len(), 1, "{}", ended.text());
    assert!(ended.text().contains("ended with  exit code 7"), "{}", ended.text());
    assert!(ended.with("died").is_empty(), "{}", ended.text());
}

/// The two that are left go on, and end as they are told to. No failure of theirs counts.
fn go_on(mut nodes: [Launcher; 2]) {
    nodes.iter_mut().for_each(|node| _ = node.wait_for("begins 2"));
    nodes.iter().for_each(|node| node.signal("TERM"));
    for node in nodes {
        let ended = node.ended().expect(143);
        assert!(ended.with("failed first").is_empty(), "{}", ended.text());
        assert!(ended.with("starting again").is_empty(), "{}", ended.text());
    }
}

#[test]
fn a_node_that_leaves_while_etcd_is_full_tells_the_others_and_what_fails_with_it_costs_nothing() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=2000000").unsafe_no_fsync().start();
    let (endpoint, folder) = (etcd.endpoint(), tempfile::tempdir().unwrap());
    let pid = folder.path().join("pid");
    let pid = pid.display();
    // The worker of the second one fails with that of the third.
    let fails = format!(
        "echo begins $WORLD_SIZE; [ $WORLD_SIZE = 3 ] || exec sleep 600; until [ -s {pid} ]; do sleep 0.05; done; \
         while [ -e /proc/$(cat {pid}) ]; do sleep 0.02; done; exit 9"
    );
    let goes = format!("[ $WORLD_SIZE != 3 ] || echo $$ >{pid}; {WORKS}");
    let mut nodes = [("a", WORKS), ("b", &fails), ("c", &goes)]
        .map(|(name, script)| node(QUICK, &endpoint, name, script));
    three(&mut nodes);
    etcd.exhaust_space();
    let [mut a, mut b, c] = nodes;
    c.signal("TERM");
    c.ended().expect(143);
    for node in [&mut a, &mut b] {
        node.wait_for("(c) leaves; meeting again");
    }
    etcd.free_space();
    go_on([a, b]);
}

#[test]
fn a_node_that_is_cut_off_and_leaves_is_not_taken_for_dead() {
    // It takes its time to end, in which the others are told.
    let slow = "trap 'sleep 2; exit 0' TERM; echo begins $WORLD_SIZE; while :; do sleep 0.1; done";
    let (_etcd, proxy, [mut a, mut b, c]) = one_by_proxy(PATIENT, [WORKS, WORKS, slow]);
    proxy.delay(HELD);
    c.signal("TERM");
    c.ended().expect(143);
    for node in [&mut a, &mut b] {
        let said = node.wait_for("; meeting again");
        assert!(said.contains("(c) leaves; meeting again"), "{said}");
    }
    go_on([a, b]);
}

#[test]
fn a_failure_is_the_cause_also_where_a_node_that_has_heard_of_it_is_cut_off_and_missed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fails");
    let (_etcd, proxy, [a, b, mut c]) = one_by_proxy(PATIENT, [WORKS, &fails_with(&file), WORKS]);
    proxy.delay(HELD);
    fs::write(&file, "").unwrap();
    // It is told by one that it asks, and is missed after that.
    c.wait_for("etcd does not answer, and another node says: rank ");
    [a, b].into_iter().for_each(names_the_failure);
    proxy.delay(Duration::ZERO);
    proxy.cut();
    let ended = c.ended().expect(1);
    assert_eq!(ended.with("failed first").len(), 1, "{}", ended.text());
}

/// It cannot be told through etcd, and its lease ends before anybody could hear of it so.
#[test]
fn the_failure_of_a_node_that_is_cut_off_from_etcd_alone_is_the_cause_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fails");
    let conf = "last_call_timeout=1,lease_timeout=5";
    let (_etcd, proxy, nodes) = one_by_proxy(conf, [WORKS, WORKS, &fails_with(&file)]);
    proxy.delay(HELD);
    fs::write(&file, "").unwrap();
    nodes.into_iter().for_each(names_the_failure);
}

/// What fails with it on the others is told to etcd before it can be.
#[test]
fn what_fails_with_a_node_that_is_cut_off_from_etcd_is_not_taken_for_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fails");
    let echo = fails_with(&file).replace("exit 7", "sleep 0.2; exit 9");
    let conf = "last_call_timeout=1,lease_timeout=5";
    let (_etcd, proxy, nodes) = one_by_proxy(conf, [&echo, &echo, &fails_with(&file)]);
    proxy.delay(HELD);
    fs::write(&file, "").unwrap();
    nodes.into_iter().for_each(names_the_failure);
}

/// It is killed before it can: the others know that the run ends.
#[test]
fn a_run_ends_for_all_though_the_node_that_is_to_close_it_is_gone_before_etcd_takes_that() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=2000000").unsafe_no_fsync().start();
    let (endpoint, folder) = (etcd.endpoint(), tempfile::tempdir().unwrap());
    let file = folder.path().join("fails");
    let fails = format!(
        "trap 'sleep 600' TERM; echo begins $WORLD_SIZE; sleep 600 & while :; do sleep 0.05; \
         [ -e {0} -a $LOCAL_RANK = 0 -a $WORLD_SIZE = 4 ] && exit 7; done",
        file.display()
    );
    let of_two = ["--nproc-per-node", "2"];
    let mut nodes = [
        node(QUICK, &endpoint, "a", WORKS),
        node(QUICK, &endpoint, "b", WORKS),
        node_with(&of_two, QUICK, &endpoint, "c", &fails),
    ];
    nodes.iter_mut().for_each(|node| _ = node.wait_for("begins 4"));
    etcd.exhaust_space();
    fs::write(&file, "").unwrap();
    let [a, b, mut c] = nodes;
    c.wait_for("have 23 s more to end");
    c.pull_the_plug();
    etcd.free_space();
    for node in [a, b] {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("failed first").len(), 1, "{}", ended.text());
        assert!(ended.with("begins 2").is_empty(), "{}", ended.text());
    }
}

/// It cannot be told by etcd that the first one is alive, nor by that one that the second is not.
#[test]
fn a_death_is_the_cause_also_where_one_that_is_cut_off_from_etcd_is_missed_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let dies = format!("echo $$ >{}; {WORKS}", pid.display());
    let echo = format!(
        "echo begins $WORLD_SIZE; [ $WORLD_SIZE = 3 ] || exec sleep 600; until [ -s {0} ]; do sleep 0.05; done; \
         while [ -e /proc/$(cat {0}) ]; do sleep 0.02; done; sleep 0.3; exit 9",
        pid.display()
    );
    let (_etcd, proxy, [mut a, mut b, c]) = one_by_proxy(QUICK, [&echo, &dies, &echo]);
    proxy.delay(HELD);
    std::thread::sleep(Duration::from_millis(600));
    b.pull_the_plug();
    let said = a.wait_for("meeting again");
    assert!(said.contains("(b) died"), "{said}");
    proxy.delay(Duration::ZERO);
    proxy.cut();
    go_on([a, c]);
}

#[test]
fn a_failure_is_the_cause_also_where_etcd_loses_all_it_had_right_after_it() {
    let mut etcd = Etcd::start(Version::V35);
    let (endpoint, folder) = (etcd.endpoint(), tempfile::tempdir().unwrap());
    let file = folder.path().join("fails");
    let mut nodes = [("a", WORKS), ("b", WORKS), ("c", &fails_with(&file))]
        .map(|(name, script)| node(QUICK, &endpoint, name, script));
    three(&mut nodes);
    etcd.pause();
    fs::write(&file, "").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    etcd.restart_empty();
    nodes.into_iter().for_each(names_the_failure);
}
