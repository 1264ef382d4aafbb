//! Nodes that are kept out of a run by an operator, with real launchers.

use std::process::{Command, Output};
use std::time::Duration;

use crate::launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::{Etcd, Version, closed_port};

fn node(endpoint: &str, nodes: &str, name: &str, args: &[&str], script: &str) -> Launcher {
    let run = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", endpoint];
    let conf = format!("last_call_timeout=2,lease_timeout=60,node_id={name}");
    Launcher::start(&[&run[..], &["--rdzv-conf", &conf], args, &["--", "sh", "-c", script]].concat())
}

fn operator(endpoint: &str, command: &str, args: &[&str]) -> Output {
    Command::new(RALLYPOINT).args([command, "job", "--endpoint", endpoint]).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

/// Which machine a node is on is what `--host` says there, as a pod does not know it.
#[test]
fn all_nodes_of_a_host_are_kept_out_and_a_spare_takes_their_place_also_after_etcd_was_killed() {
    let mut etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let start = |name: &str, host: &str| {
        node(&endpoint, "2", name, &["--host", host], "echo $WORLD_SIZE are here; sleep 600")
    };
    let (mut stays, mut sick) = (start("pod-0", "a"), start("pod-1", "b"));
    stays.wait_for("2 are here");
    sick.wait_for("2 are here");
    let (mut also_sick, mut spare) = (start("pod-2", "b"), start("pod-3", "c"));
    also_sick.wait_for("spare");
    spare.wait_for("spare");
    stays.forget();
    let said = operator(&endpoint, "exclude", &["--host", "b", "--reason", "GPU 3 is broken"]);
    assert!(said.status.success() && !text(&said).contains("note: "), "{}", text(&said));
    for node in [sick, also_sick] {
        let ended = node.ended().expect(7);
        assert!(ended.text().contains("GPU 3 is broken"), "{}", ended.text());
    }
    stays.wait_for("2 are here");
    spare.wait_for("2 are here");
    // What etcd has on its disk keeps them out, too.
    etcd.kill();
    etcd.restart();
    let again = start("pod-4", "b").ended().expect(7);
    assert!(again.text().contains("GPU 3 is broken"), "{}", again.text());
    let said = operator(&endpoint, "excluded", &[]);
    assert!(text(&said).contains("GPU 3 is broken"), "{}", text(&said));
    let said = operator(&endpoint, "include", &["--host", "b"]);
    assert!(said.status.success(), "{}", text(&said));
    let mut again = start("pod-4", "b");
    again.wait_for("spare");
    assert_eq!(stays.count("2 are here"), 1, "the others have worked on");
}

/// The operator is told before, and the others at once.
#[test]
fn who_excludes_the_node_with_the_server_is_told_that_the_run_ends_with_it() {
    let endpoint = format!("127.0.0.1:{}", closed_port());
    let script = "echo $WORLD_SIZE are here; sleep 600";
    let mut server = node(&endpoint, "2:3", "server", &[], script);
    server.wait_for("this node starts the embedded server");
    let mut others = ["b", "c"].map(|name| node(&endpoint, "2:3", name, &[], script));
    others.iter_mut().for_each(|node| _ = node.wait_for("are here"));
    let said = operator(&endpoint, "exclude", &["--node", "c", "--reason", "it is slow"]);
    assert!(said.status.success() && !text(&said).contains("server"), "{}", text(&said));
    let [mut stays, goes] = others;
    goes.ended().expect(7);
    stays.wait_for("2 are here");
    let said = operator(&endpoint, "exclude", &["--node", "server", "--reason", "it is slow"]);
    assert!(
        said.status.success() && text(&said).contains("has the server that the nodes have met on"),
        "{}",
        text(&said)
    );
    server.ended().expect(7);
    let ended = stays.ended().expect(5);
    assert!(
        ended.text().contains("ended, and with it the server that the nodes had met on"),
        "{}",
        ended.text()
    );
}

/// Those that are left go on with fewer when the time for a replacement is over, or at once with the replacement.
#[test]
fn a_group_waits_for_a_replacement_as_long_as_it_was_told() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let start = |name: &str, time: &str| {
        let script = "echo $WORLD_SIZE are here; sleep 600";
        node(&endpoint, "2:3", name, &["--replacement-timeout", time], script)
    };
    let mut nodes = ["a", "b", "c"].map(|name| start(name, "600"));
    nodes.iter_mut().for_each(|node| _ = node.wait_for("3 are here"));
    let [mut a, mut b, c] = nodes;
    for node in [&mut a, &mut b] {
        node.forget();
    }
    c.signal("INT");
    c.ended().expect(130);
    // Nobody goes on with two, until the third one has come.
    let mut d = start("d", "600");
    for node in [&mut a, &mut b, &mut d] {
        node.wait_for("3 are here");
        assert!(!node.heard("2 are here"));
    }
    for node in [a, b, d] {
        node.signal("INT");
        node.ended().expect(130);
    }
}

#[test]
fn a_group_that_no_replacement_comes_to_goes_on_with_fewer() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let start = |name: &str| {
        let script = "echo $WORLD_SIZE are here; sleep 600";
        node(&endpoint, "2:3", name, &["--replacement-timeout", "3"], script)
    };
    let mut nodes = ["a", "b", "c"].map(start);
    nodes.iter_mut().for_each(|node| _ = node.wait_for("3 are here"));
    let [mut a, mut b, c] = nodes;
    // They may have begun without the third one.
    for node in [&mut a, &mut b] {
        node.forget();
    }
    let gone = std::time::Instant::now();
    c.signal("INT");
    c.ended().expect(130);
    for node in [&mut a, &mut b] {
        node.wait_for("2 are here");
    }
    assert!(gone.elapsed() >= Duration::from_secs(3), "they have waited");
}
