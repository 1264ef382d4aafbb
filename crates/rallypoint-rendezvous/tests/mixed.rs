//! PyTorch's nodes and ours in one run, each in a process of its own, on real etcd.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use rallypoint_testkit::{Etcd, Version};
use serde_json::json;
use support::Kind::{Ours, Torch};
use support::{Kind, Node, Run, meet};

#[test]
fn a_process_of_its_own() {
    support::node::run_if_asked();
}

fn server(version: Version) -> Etcd {
    Etcd::builder(version).v2().start()
}

/// So many of each kind, in an order drawn by lot.
fn nodes(run: &Run, each: usize) -> Vec<Node> {
    let mut kinds = [vec![Ours; each], vec![Torch; each]].concat();
    fastrand::shuffle(&mut kinds);
    println!("order: {kinds:?}");
    kinds.into_iter().map(|kind| run.node(kind)).collect()
}

/// Each node sets a key, and reads everybody's.
fn share_data(nodes: &mut [Node]) {
    for (at, node) in nodes.iter_mut().enumerate() {
        node.get(&json!({"do": "set", "key": format!("of{at}"), "value": format!("value {at}")}));
    }
    for of in 0..nodes.len() {
        for node in nodes.iter_mut() {
            assert_eq!(node.get(&json!({"do": "get", "key": format!("of{of}")})), format!("value {of}"));
        }
    }
}

fn groups_meet(version: Version) {
    let etcd = server(version);
    for each in [1, 3, 8] {
        let run = Run::new(&etcd, 2 * each, 2 * each);
        let mut nodes = nodes(&run, each);
        meet(&mut nodes);
        share_data(&mut nodes);
    }
}

#[test]
fn groups_of_both_kinds_meet_on_etcd_3_4() {
    groups_meet(Version::V34);
}

#[test]
fn groups_of_both_kinds_meet_on_etcd_3_5() {
    groups_meet(Version::V35);
}

/// A group of one of each kind, and a third node that comes late.
fn late(version: Version, latecomer: Kind) {
    let etcd = server(version);
    // Long enough for PyTorch's nodes to get in on a busy machine.
    let run = Run { last_call: 5, ..Run::new(&etcd, 2, 3) };
    let mut nodes = nodes(&run, 1);
    meet(&mut nodes);
    let mut late = run.node(latecomer);
    late.meet();
    for node in &mut nodes {
        assert_eq!(node.sees_waiting(), 1, "{:?}", node.kind);
    }
    for node in &mut nodes {
        node.meet();
    }
    let mut met: Vec<_> = nodes.iter_mut().map(Node::met).collect();
    met.push(late.met());
    support::assert_one_group(&met);
    nodes.push(late);
    share_data(&mut nodes);
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn a_late_node_of_ours_is_counted_and_gets_in() {
    late(Version::V34, Ours);
}

#[test]
fn a_late_node_of_pytorchs_is_counted_and_gets_in() {
    late(Version::V35, Torch);
}

#[test]
fn a_group_meets_again() {
    for version in Version::WITH_V2 {
        let etcd = server(version);
        let run = Run::new(&etcd, 2, 2);
        let mut nodes = nodes(&run, 1);
        meet(&mut nodes);
        meet(&mut nodes);
        share_data(&mut nodes);
    }
}

/// Of two of ours and two of PyTorch's one is killed; the others learn it and meet without it.
fn killed(version: Version, victim: Kind) {
    let etcd = server(version);
    let run = Run { last_call: 5, ..Run::new(&etcd, 3, 4) };
    let mut nodes = nodes(&run, 2);
    meet(&mut nodes);
    let at = nodes.iter().position(|node| node.kind == victim).expect("there are two of each kind");
    drop(nodes.remove(at));
    for node in &mut nodes {
        if node.kind == Ours {
            let change = node.get(&json!({"do": "changed"}));
            assert!(change.as_str().unwrap().starts_with("Died"), "{change}");
        }
        assert!(node.sees_waiting() > 0);
    }
    assert_eq!(meet(&mut nodes).len(), 3);
    share_data(&mut nodes);
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn the_others_meet_again_when_a_node_of_ours_is_killed() {
    killed(Version::V35, Ours);
}

#[test]
fn the_others_meet_again_when_a_node_of_pytorchs_is_killed() {
    killed(Version::V34, Torch);
}

#[test]
fn a_run_closed_by_one_kind_is_closed_for_the_other() {
    let etcd = server(Version::V34);
    for closer in [Ours, Torch] {
        let run = Run::new(&etcd, 2, 2);
        let mut nodes = nodes(&run, 1);
        meet(&mut nodes);
        let closing = nodes.iter_mut().find(|node| node.kind == closer).unwrap();
        assert_eq!(closing.get(&json!({"do": "shutdown"})), true);
        for node in &mut nodes {
            assert_eq!(node.get(&json!({"do": "closed"})), true, "{:?}", node.kind);
            let refused = node.ask(&json!({"do": "meet"}));
            assert_eq!(refused["error"], "closed", "{:?}: {refused}", node.kind);
        }
        for kind in [Ours, Torch] {
            let refused = run.node(kind).ask(&json!({"do": "meet"}));
            assert_eq!(refused["error"], "closed", "{kind:?}: {refused}");
        }
    }
}

#[test]
fn extra_data_goes_both_ways() {
    let etcd = server(Version::V35);
    let run = Run::new(&etcd, 2, 2);
    let mut nodes = nodes(&run, 1);
    meet(&mut nodes);
    for (at, value) in [(0, json!("text")), (1, json!({"a": [1, 2.5, null]}))] {
        let key = format!("of{at}");
        nodes[at].get(&json!({"do": "extra_set", "version": 1, "key": key, "value": value}));
        for node in &mut nodes {
            assert_eq!(node.get(&json!({"do": "extra_get", "version": 1, "key": key})), value);
        }
    }
}
