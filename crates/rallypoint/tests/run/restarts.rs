//! The restarts of a node: those that come back, and what happens when there is none left.

use crate::launcher::{Launcher, is_stopped, runs, signal, wait_for_any, wait_until};
use rallypoint_testkit::{Etcd, Version};

fn node(etcd: &Etcd, nodes: &str, args: &[&str], script: &str) -> Launcher {
    let endpoint = etcd.endpoint();
    // Nobody waits for a lease here, and all are in before the last call is over.
    let run = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let conf = ["--rdzv-conf", "last_call_timeout=6,lease_timeout=60"];
    Launcher::start(&[&run[..], &conf[..], args, &["--", "sh", "-c", script]].concat())
}

#[test]
fn restarts_come_back_after_a_time_without_failure() {
    // It fails in each attempt, the last but one after a while.
    let script = "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && sleep 3; \
                  [ $TORCHELASTIC_RESTART_COUNT = 3 ] || exit 9";
    let run = |more: &[&str]| {
        let args = [&["--standalone", "--max-restarts", "1"], more, &["--", "sh", "-c", script]].concat();
        Launcher::run(&args)
    };
    let ended = run(&[]).expect(1);
    assert!(ended.with("attempt 2").is_empty(), "{}", ended.text());
    assert!(!ended.text().contains("there again"), "{}", ended.text());
    // The second attempt is long enough; the third is not, and fails before the fourth, which would succeed.
    let ended = run(&["--restarts-return-after", "2"]).expect(1);
    assert!(!ended.with("attempt 2 of 1").is_empty(), "it counts on: {}", ended.text());
    assert_eq!(ended.with("its restart is there again").len(), 1, "{}", ended.text());
    assert!(ended.with("attempt 3").is_empty(), "{}", ended.text());
}

const FAILS: &str = "echo $WORLD_SIZE are here; [ $WORLD_SIZE = 1 ] && exit 0; exit 9";
const WORKS: &str = "echo $WORLD_SIZE are here; while [ $WORLD_SIZE = 3 ]; do sleep 0.05; done";

#[test]
fn a_node_without_restarts_leaves_and_the_others_go_on() {
    let etcd = Etcd::start(Version::V35);
    let leave = ["--when-exhausted", "leave"];
    let bad = node(&etcd, "2:3", &leave, "echo $WORLD_SIZE are here; exit 9");
    let good = [(); 2].map(|()| node(&etcd, "2:3", &leave, WORKS));
    let bad = bad.ended().expect(1);
    assert!(bad.text().contains("failed first") && bad.text().contains("it leaves"), "{}", bad.text());
    for node in good {
        let ended = node.ended().expect(0);
        assert!(!ended.with("2 are here").is_empty(), "{}", ended.text());
    }
}

/// Fails when the worker of the first node is gone, as workers do that are connected.
const CONNECTED: &str = "echo $WORLD_SIZE are here; [ -e $FOLDER/over ] && exit 0; echo $$ >$FOLDER/$ROLE_NAME; \
                         [ $ROLE_NAME = first ] && exec sleep 600; while [ ! -s $FOLDER/first ]; do sleep 0.02; done; \
                         while kill -0 $(cat $FOLDER/first) 2>/dev/null; do sleep 0.02; done; exit 9";

/// A launcher may see that its worker has failed before it hears that another node meets again or leaves, and why.
#[test]
fn what_fails_because_another_node_meets_again_or_leaves_costs_nothing() {
    for leaves in [false, true] {
        let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
        let script = CONNECTED.replace("$FOLDER", folder.path().to_str().unwrap());
        let start = |role| node(&etcd, "2:3", &["--role", role], &script);
        // The first one leads: the others hear from it who comes.
        let mut nodes = vec![start("first")];
        nodes[0].wait_for("1 of 2 is here");
        nodes.push(start("second"));
        nodes.iter_mut().for_each(|node| drop(node.wait_for("2 are here")));
        let worker =
            || std::fs::read_to_string(folder.path().join("second")).ok()?.trim().parse::<u32>().ok();
        let worker = wait_until("it works", worker);
        let deaf = nodes[1].working();
        signal(deaf, "STOP");
        wait_until("it is stopped", || is_stopped(deaf).then_some(()));
        std::fs::write(folder.path().join("over"), "").unwrap();
        if leaves {
            nodes[0].signal("TERM");
            nodes.remove(0).ended().expect(143);
        }
        nodes.push(start("third"));
        wait_until("its worker fails", || (!runs(worker)).then_some(()));
        signal(deaf, "CONT");
        nodes.into_iter().for_each(|node| drop(node.ended().expect(0)));
    }
}

#[test]
fn a_spare_takes_the_place_of_a_node_that_leaves() {
    let etcd = Etcd::start(Version::V35);
    let leave = ["--when-exhausted", "leave"];
    let script = "echo $ROLE_NAME is here; while [ ! -e $GO ]; do sleep 0.05; done; [ $ROLE_NAME = good ] || exit 9; \
                  sleep 600";
    let folder = tempfile::tempdir().unwrap();
    let script = script.replace("$GO", folder.path().join("go").to_str().unwrap());
    let start = |role: &str| node(&etcd, "2", &[&leave[..], &["--role", role]].concat(), &script);
    let (mut good, mut bad) = (start("good"), start("bad"));
    good.wait_for("good is here");
    bad.wait_for("bad is here");
    let mut spare = start("good");
    spare.wait_for("standing by as a spare");
    std::fs::write(folder.path().join("go"), "").unwrap();
    bad.ended().expect(1);
    spare.wait_for("good is here");
    for node in [good, spare] {
        node.signal("TERM");
        node.ended().expect(143);
    }
}

#[test]
fn a_node_that_the_others_need_closes_the_run() {
    let etcd = Etcd::start(Version::V35);
    let leave = ["--when-exhausted", "leave"];
    let bad = node(&etcd, "2", &leave, "exit 9");
    let good = node(&etcd, "2", &leave, "sleep 600");
    let bad = bad.ended().expect(1);
    assert!(bad.text().contains("needs 2 nodes, and would have 1"), "{}", bad.text());
    good.ended().expect(1);
}

#[test]
fn a_program_that_fails_everywhere_does_not_take_the_nodes_down_one_by_one() {
    let etcd = Etcd::start(Version::V35);
    let mut nodes: Vec<_> = (0..4)
        .map(|_| node(&etcd, "1:4", &["--when-exhausted", "leave", "--max-departures", "1"], FAILS))
        .collect();
    let (_, line) = wait_for_any(&mut nodes, "it cannot leave");
    assert!(line.contains("1 node may leave a run, and as many have"), "{line}");
    let ended: Vec<_> = nodes.into_iter().map(|node| node.ended().expect(1)).collect();
    let left = ended.iter().filter(|ended| ended.text().contains("it leaves, and the others go on")).count();
    assert_eq!(left, 1);
    let keys = etcd.etcdctl(&["get", "--prefix", "rallypoint/job/", "--keys-only"]);
    let left: Vec<&str> = keys.split_whitespace().filter(|key| !key.contains("/event/")).collect();
    assert_eq!(left, ["rallypoint/job/group/round"], "nothing is left of the count");
}

#[test]
fn a_node_that_fails_too_often_is_kept_out_also_when_it_is_started_again() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let bad = || {
        let run = ["--nnodes", "2:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
        let conf = ["--rdzv-conf", "last_call_timeout=6,lease_timeout=60,node_id=bad"];
        let fails = ["--max-restarts", "1", "--when-exhausted", "exclude", "--", "sh", "-c", "exit 9"];
        Launcher::start(&[&run[..], &conf[..], &fails[..]].concat())
    };
    let first = bad();
    let good = [(); 2]
        .map(|()| node(&etcd, "2:3", &[], "echo of $WORLD_SIZE; [ $WORLD_SIZE = 3 ] && sleep 600; sleep 5"));
    let ended = first.ended().expect(1);
    assert!(
        ended.text().contains("this node is excluded from the run: its workers failed first 2 times"),
        "{}",
        ended.text()
    );
    let again = bad().ended().expect(7);
    assert!(again.text().contains("its workers failed first 2 times"), "{}", again.text());
    for node in good {
        let ended = node.ended().expect(0);
        assert!(!ended.with("of 2").is_empty(), "{}", ended.text());
    }
}

/// One that was told its machine: all nodes on that go with it.
fn of_host(endpoint: &str, nodes: &str, (name, host): (&str, &str), script: &str) -> Launcher {
    let run = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--host", host];
    let conf = format!("last_call_timeout=2,lease_timeout=60,node_id={name}");
    let excludes = ["--rdzv-conf", &conf, "--max-restarts", "0", "--when-exhausted", "exclude"];
    Launcher::start(&[&run[..], &excludes, &["--", "sh", "-c", script]].concat())
}

/// So the others would be too few, and would wait until their time is up.
#[test]
fn a_node_does_not_exclude_its_host_where_too_few_are_left_without_all_nodes_of_it() {
    let etcd = Etcd::start(Version::V35);
    let works = "echo $WORLD_SIZE are here; exec sleep 600";
    let fails = "[ $WORLD_SIZE = 3 ] && exit 9; exec sleep 600";
    let nodes = [("a", "h1", works), ("b", "h2", works), ("c", "h2", fails)];
    let nodes = nodes.map(|(name, host, script)| of_host(&etcd.endpoint(), "2:3", (name, host), script));
    let ended = nodes.map(|node| node.ended().expect(1));
    assert!(
        ended[2].text().contains("it cannot leave: the group needs 2 nodes, and would have 1"),
        "{}",
        ended[2].text()
    );
    for node in &ended {
        assert!(!node.with("  node        c").is_empty(), "{}", node.text());
    }
}

/// Where enough are left without its host, all of it goes.
#[test]
fn a_node_excludes_its_host_where_enough_are_left_without_all_nodes_of_it() {
    let etcd = Etcd::start(Version::V35);
    let works = "echo $WORLD_SIZE are here; exec sleep 600";
    let fails = "[ $WORLD_SIZE = 3 ] && exit 9; exec sleep 600";
    let nodes = [("a", "h1", works), ("b", "h2", works), ("c", "h2", fails)];
    let nodes = nodes.map(|(name, host, script)| of_host(&etcd.endpoint(), "1:3", (name, host), script));
    let [mut stays, goes, fails] = nodes;
    fails.ended().expect(1);
    goes.ended().expect(7);
    stays.wait_for("1 are here");
}

#[test]
fn a_node_does_not_exclude_its_host_where_another_on_it_has_the_server() {
    let endpoint = format!("127.0.0.1:{}", rallypoint_testkit::closed_port());
    let works = "echo $WORLD_SIZE are here; exec sleep 600";
    let fails = "[ $WORLD_SIZE = 3 ] && exit 9; exec sleep 600";
    let mut server = of_host(&endpoint, "1:3", ("a", "h1"), works);
    server.wait_for("this node starts the embedded server");
    let other = of_host(&endpoint, "1:3", ("b", "h2"), works);
    let fails = of_host(&endpoint, "1:3", ("c", "h1"), fails);
    let ended = fails.ended().expect(1);
    let said = "it cannot leave: the nodes meet on the server of another node of host h1";
    assert!(ended.text().contains(said), "{}", ended.text());
    for node in [server, other] {
        assert!(!node.ended().expect(1).with("  node        c").is_empty());
    }
}

#[test]
fn rounds_that_fail_one_after_the_other_end_the_run_whoever_has_restarts_left() {
    let etcd = Etcd::start(Version::V35);
    let most = ["--max-restarts", "50", "--max-failed-rounds", "3"];
    let nodes = [(); 2].map(|()| node(&etcd, "2", &most, "echo attempt; exit 9"));
    for node in nodes {
        let ended = node.ended().expect(1);
        assert!(ended.text().contains("3 in a row have failed"), "{}", ended.text());
        assert_eq!(ended.with("attempt").len(), 3, "{}", ended.text());
        let again = ended.with("starting again").len() + ended.with("meeting again").len();
        assert_eq!(again, 2, "after the last one nobody does: {}", ended.text());
    }
}

/// Each of them takes longer than `--failed-round-time`, and makes progress for less.
#[test]
fn rounds_that_hang_one_after_the_other_end_the_run_however_long_each_takes() {
    let etcd = Etcd::start(Version::V35);
    let most = ["--max-restarts", "50", "--max-failed-rounds", "2", "--failed-round-time", "5"];
    let hangs = ["--hang-timeout", "6", "--shutdown-timeout", "1"];
    let args = [&most[..], &hangs[..]].concat();
    let nodes = [(); 2].map(|()| node(&etcd, "2", &args, "echo attempt; exec sleep 600"));
    for node in nodes {
        let ended = node.ended().expect(1);
        assert!(ended.text().contains("2 in a row have failed"), "{}", ended.text());
        assert_eq!(ended.with("]: attempt").len(), 2, "{}", ended.text());
    }
}
