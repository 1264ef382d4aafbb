//! What came first is named by all nodes and paid for by the one that failed, also on a bad day.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::launcher::{Launcher, signal, wait_until};
use rallypoint_testkit::{Etcd, Version};

const RALLYPOINT: &str = env!("CARGO_BIN_EXE_rallypoint");
const QUICK: &str = "last_call_timeout=1,lease_timeout=3";
/// Of one that is stopped for a while, and is not to be missed.
const PATIENT: &str = "last_call_timeout=1,lease_timeout=60";

fn node(endpoint: &str, name: &str, args: &[&str], script: &str) -> Launcher {
    node_with(QUICK, endpoint, name, args, script)
}

fn node_with(conf: &str, endpoint: &str, name: &str, args: &[&str], script: &str) -> Launcher {
    let conf = format!("{conf},node_id={name}");
    let run = ["--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--rdzv-conf", &conf];
    Launcher::start(&[&run[..], args, &["--", "sh", "-c", script]].concat())
}

/// A node dies and the worker of another fails with it; a third leaves before anybody can know of the death.
#[test]
fn a_death_is_the_cause_also_where_another_node_leaves_before_it_is_noticed() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let endpoint = etcd.endpoint();
    let fails = folder.path().join("fails");
    let script = format!(
        "trap 'echo is stopped; exit 0' TERM; echo begins $WORLD_SIZE; while :; do sleep 0.1; test $WORLD_SIZE = 3 && test -e {}.$0 && exit 9; done",
        fails.display()
    );
    let mut nodes = ["a", "b", "c"].map(|name| {
        let script = script.replace("$0", name);
        node(&endpoint, name, &["--nnodes", "1:3", "--max-restarts", "0"], &script)
    });
    nodes.iter_mut().for_each(|node| _ = node.wait_for("begins 3"));
    let [mut a, mut b, mut c] = nodes;
    // It may have been stopped before, for the third one to get in.
    b.forget();
    c.pull_the_plug();
    fs::write(format!("{}.a", fails.display()), "").unwrap();
    // It has heard of the failure.
    b.wait_for("is stopped");
    b.signal("TERM");
    b.ended().expect(143);
    a.wait_for("(c) died");
    a.wait_for("begins 1");
    a.signal("TERM");
    let ended = a.ended().expect(143);
    assert!(ended.with("failed first").is_empty(), "{}", ended.text());
}

/// Its others are told to end long before its last worker has, and may not go on without it meanwhile.
#[test]
fn a_run_without_restarts_is_closed_before_slow_workers_have_ended() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, fails) = (etcd.endpoint(), folder.path().join("fails"));
    let args = ["--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "0", "--shutdown-timeout", "8"];
    let mut good = node(&endpoint, "good", &args, "echo begins $WORLD_SIZE; exec sleep 600");
    let script = format!(
        "[ $WORLD_SIZE = 4 ] || exec sleep 600; trap '' TERM; echo begins $WORLD_SIZE; while :; do sleep 0.1; [ $LOCAL_RANK = 0 ] && [ -e {} ] && exit 7; done",
        fails.display()
    );
    let mut slow = node(&endpoint, "slow", &args, &script);
    slow.wait_for("begins 4");
    good.wait_for("begins 4");
    good.forget();
    fs::write(&fails, "").unwrap();
    let ended = good.ended().expect(1);
    assert!(ended.with("begins 2").is_empty(), "it goes on alone: {}", ended.text());
    assert!(ended.text().contains("node        slow"), "{}", ended.text());
    assert!(ended.text().contains("ended with  exit code 7"), "{}", ended.text());
    assert!(ended.text().contains("failed first"), "{}", ended.text());
    let ended = slow.ended().expect(1);
    assert!(ended.text().contains("failed first"), "{}", ended.text());
}

/// Two nodes of a run without restarts, one with rank 0 and one with rank 1. The worker of each ends or fails when it is told to.
struct Pair {
    folder: tempfile::TempDir,
    nodes: [Launcher; 2],
    etcd: Etcd,
}

impl Pair {
    fn start() -> Self {
        let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
        let endpoint = etcd.endpoint();
        let script = format!(
            "echo begins $WORLD_SIZE as $RANK; [ $WORLD_SIZE = 2 ] || exit 0
            while :; do sleep 0.1; [ -e {0}/$RANK.fails ] && exit 9; [ -e {0}/$RANK.ends ] && exit 0; done",
            folder.path().display()
        );
        let args = ["--nnodes", "1:2", "--max-restarts", "0"];
        let mut nodes = ["a", "b"].map(|name| node(&endpoint, name, &args, &script));
        let first = nodes[0].wait_for("begins 2");
        nodes[1].wait_for("begins 2");
        if first.contains("as 1") {
            nodes.reverse();
        }
        Pair { folder, nodes, etcd }
    }

    /// What the worker with this rank is to do: `ends` or `fails`.
    fn tell(&self, rank: usize, what: &str) {
        fs::write(self.folder.path().join(format!("{rank}.{what}")), "").unwrap();
    }

    /// The one with this rank finishes.
    fn finish(&mut self, rank: usize) {
        self.tell(rank, "ends");
        self.nodes[rank].wait_for("waiting for those of other nodes");
    }

    /// The one with rank 1 does, and dies.
    fn lose_who_has_finished(&mut self) {
        self.finish(1);
        self.nodes[1].pull_the_plug();
        self.nodes[0].wait_for("died; its workers had finished, and the others go on");
    }
}

/// Nobody misses it until then; it served the store that the workers met at.
#[test]
fn what_fails_after_the_node_with_the_store_has_died_costs_nothing_though_that_had_finished() {
    let mut pair = Pair::start();
    pair.finish(0);
    pair.nodes[0].pull_the_plug();
    pair.nodes[1].wait_for("its workers had finished, and the others go on");
    pair.tell(1, "fails");
    let [_, other] = pair.nodes;
    let ended = other.ended().expect(0);
    assert!(!ended.with("begins 1").is_empty(), "{}", ended.text());
    assert!(!ended.with("failed with exit code 9, which followed from that").is_empty(), "{}", ended.text());
}

/// Nothing of it was needed any more.
#[test]
fn what_fails_after_another_node_that_had_finished_has_died_is_the_cause() {
    let mut pair = Pair::start();
    pair.lose_who_has_finished();
    pair.tell(0, "fails");
    let [other, _] = pair.nodes;
    let ended = other.ended().expect(1);
    assert_eq!(ended.with("rank 0 failed first").len(), 1, "{}", ended.text());
    assert!(ended.with("begins 1").is_empty(), "{}", ended.text());
}

/// As operators and the timeline have it.
#[test]
fn a_round_that_goes_on_without_who_had_finished_is_running() {
    let mut pair = Pair::start();
    pair.lose_who_has_finished();
    let said = |command: &[&str]| {
        let endpoint = pair.etcd.endpoint();
        let asked = Command::new(RALLYPOINT).args(command).args(["--endpoint", &endpoint]).output().unwrap();
        String::from_utf8(asked.stdout).unwrap()
    };
    let told = wait_until("it is written down", || {
        let events = said(&["events", "job"]);
        events.contains("round 1 goes on without node 1 (").then_some(events)
    });
    assert!(!told.contains("meeting again") && told.contains("1 death"), "{told}");
    let status = said(&["status", "job"]);
    assert!(status.contains("state    running") && status.contains("finished node 1 ("), "{status}");
    assert!(!status.contains("missing") && !status.contains("not back"), "{status}");
    let all = said(&["status"]);
    assert!(all.lines().any(|line| line.contains("job") && line.contains("running")), "{all}");
    pair.tell(0, "ends");
    let [other, _] = pair.nodes;
    other.ended().expect(0);
}

/// It leaves in the moment in which the other one fails, and gives no answer.
#[test]
fn what_fails_while_the_node_with_the_store_leaves_costs_nothing_though_that_had_finished() {
    let mut pair = Pair::start();
    pair.finish(0);
    pair.nodes[0].signal("TERM");
    pair.tell(1, "fails");
    let [_, other] = pair.nodes;
    let ended = other.ended().expect(0);
    assert!(!ended.with("begins 1").is_empty(), "{}", ended.text());
    assert!(!ended.with("failed with exit code 9, which followed from that").is_empty(), "{}", ended.text());
}

/// A worker of `c` is killed with its node, and those of the others fail with it.
fn fails_with_c(folder: &std::path::Path) -> String {
    format!(
        "echo begins $WORLD_SIZE; [ $WORLD_SIZE = 3 ] || exec sleep 600; \
         if [ $RALLYPOINT_NODE = c ]; then echo $$ >{0}/pid; exec sleep 600; fi; \
         until [ -s {0}/pid ]; do sleep 0.05; done; while [ -e /proc/$(cat {0}/pid) ]; do sleep 0.02; done; exit 9",
        folder.display()
    )
}

/// It does not know of the death while it is away, and tells of it late when it is back.
#[test]
fn a_death_is_the_cause_also_where_etcd_is_away_at_that_moment() {
    let conf = "last_call_timeout=1,lease_timeout=5";
    c_dies(Etcd::start(Version::V35), conf, Etcd::pause, Duration::from_secs(5), Etcd::resume);
}

/// It takes no word of the death while it is full, nor of what failed with it.
#[test]
fn a_death_is_the_cause_also_where_etcd_is_full_at_that_moment() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=2000000").unsafe_no_fsync().start();
    let (fill, free) = (|etcd: &mut Etcd| etcd.exhaust_space(), |etcd: &mut Etcd| etcd.free_space());
    c_dies(etcd, QUICK, fill, Duration::from_secs(15), free);
}

/// In the time in which something is wrong with etcd. The others go on, and have failed for no reason of their own.
fn c_dies(mut etcd: Etcd, conf: &str, begins: fn(&mut Etcd), time: Duration, ends: fn(&mut Etcd)) {
    let folder = tempfile::tempdir().unwrap();
    let (endpoint, script) = (etcd.endpoint(), fails_with_c(folder.path()));
    let mut nodes = ["a", "b", "c"].map(|name| {
        let script = script.replace("$RALLYPOINT_NODE", name);
        node_with(conf, &endpoint, name, &["--nnodes", "2:3", "--max-restarts", "0"], &script)
    });
    for node in &mut nodes {
        node.wait_for("begins 3");
        node.forget();
    }
    let [mut a, mut b, mut c] = nodes;
    begins(&mut etcd);
    c.pull_the_plug();
    std::thread::sleep(time);
    ends(&mut etcd);
    for node in [&mut a, &mut b] {
        node.wait_for("begins 2");
    }
    end_without_failure([a, b]);
}

fn end_without_failure(nodes: [Launcher; 2]) {
    for node in nodes {
        node.signal("TERM");
        let ended = node.ended().expect(143);
        assert!(
            ended.with("failed first").is_empty() && ended.with("starting again").is_empty(),
            "{}",
            ended.text()
        );
    }
}

/// Their leases have ended meanwhile, and they come back.
#[test]
fn a_node_without_restarts_leaves_those_whom_etcd_has_forgotten_for_a_moment() {
    let (mut etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, fails) = (etcd.endpoint(), folder.path().join("fails"));
    let works = "echo begins $WORLD_SIZE; exec sleep 600";
    let script =
        format!("echo begins $WORLD_SIZE; until [ -e {} ]; do sleep 0.05; done; exit 7", fails.display());
    let args = ["--nnodes", "2:3", "--max-restarts", "0", "--when-exhausted", "leave"];
    let mut nodes = [("a", works), ("b", works), ("c", &script)]
        .map(|(name, script)| node_with(QUICK, &endpoint, name, &args, script));
    for node in &mut nodes {
        node.wait_for("begins 3");
        node.forget();
    }
    let [mut a, mut b, c] = nodes;
    etcd.pause();
    fs::write(&fails, "").unwrap();
    std::thread::sleep(Duration::from_secs(7));
    etcd.resume();
    c.ended().expect(1);
    for node in [&mut a, &mut b] {
        node.wait_for("begins 2");
    }
    for node in [a, b] {
        node.signal("TERM");
        node.ended().expect(143);
    }
}

#[test]
fn who_is_asked_to_end_when_it_has_finished_is_not_missed() {
    for rank in [0, 1] {
        let mut pair = Pair::start();
        pair.finish(rank);
        pair.nodes[rank].signal("TERM");
        pair.nodes[1 - rank].wait_for(" left; its workers had finished, and the others go on");
        pair.tell(1 - rank, "ends");
        let mut nodes = Vec::from(pair.nodes);
        nodes.remove(rank).ended().expect(143);
        let ended = nodes.remove(0).ended().expect(0);
        assert!(ended.with("begins 1").is_empty(), "{}", ended.text());
    }
}

/// However long the message of a worker is, the run is closed for all, and all say the same.
#[test]
fn a_message_without_end_closes_the_run_for_all_nodes_in_the_same_words() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let writes = r#"printf '{"message": {"message": "ValueError: ' >$TORCHELASTIC_ERROR_FILE
        head -c 1600000 /dev/zero | tr '\0' M >>$TORCHELASTIC_ERROR_FILE
        printf '"}}' >>$TORCHELASTIC_ERROR_FILE; exit 3"#;
    let args = ["--nnodes", "2", "--max-restarts", "0"];
    let nodes =
        [("a", "exec sleep 600"), ("b", writes)].map(|(name, script)| node(&endpoint, name, &args, script));
    let ended = nodes.map(|node| node.ended().expect(1));
    for ended in ended {
        let first = ended.with("failed first");
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(ended.text().contains("exit code 3"), "the exit is told");
    }
}

/// The server that the nodes meet on ends with its node: that one cannot be spared.
#[test]
fn a_node_with_the_server_does_not_leave_the_others_alone() {
    let endpoint = format!("127.0.0.1:{}", rallypoint_testkit::closed_port());
    let args = ["--nnodes", "1:2", "--max-restarts", "0", "--when-exhausted", "leave"];
    let mut host = node(
        &endpoint,
        "host",
        &args,
        "echo begins $WORLD_SIZE; test $WORLD_SIZE = 1 || { sleep 1; exit 3; }; exec sleep 600",
    );
    host.wait_for("starts the embedded server");
    let other = node(&endpoint, "other", &args, "exec sleep 600");
    host.wait_for("begins 2");
    for node in [host, other] {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("failed first").len(), 1, "{}", ended.text());
        assert!(ended.with("the others go on").is_empty(), "{}", ended.text());
    }
}

/// Who is not fit stays away until the run is over, and no longer.
#[test]
fn a_sick_node_ends_with_the_run_that_did_without_it() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    for (code, close) in [(0, false), (5, true)] {
        let args = ["--nnodes", "1:2", "--health-check", "false", "--health-check-interval", "60"];
        let mut sick = node(&endpoint, "sick", &args, "true");
        sick.wait_for("this node does not join");
        let (well, works) = if close { ("well", "exec sleep 600") } else { ("well", "exit 0") };
        let mut well = node(&endpoint, well, &["--nnodes", "1:2"], works);
        if close {
            well.wait_for("starting workers");
            let close = ["close", "job", "--reason", "enough", "--endpoint", &endpoint];
            let closed =
                std::process::Command::new(crate::launcher::RALLYPOINT).args(close).output().unwrap();
            assert!(closed.status.success(), "{closed:?}");
        }
        well.ended().expect(code);
        sick.ended().expect(code);
        let _ = etcd.etcdctl(&["del", "--prefix", ""]);
    }
}

/// How often something was written to the key that ends with this.
fn writes(etcd: &Etcd, key: &str) -> u32 {
    let text = etcd.etcdctl(&["get", "--prefix", "rallypoint/job/", "-w", "fields"]);
    let is_key = |line: &&str| line.starts_with("\"Key\"") && line.ends_with(&format!("{key}\""));
    let after = text.lines().skip_while(|line| !is_key(line));
    let version = after.into_iter().find_map(|line| line.strip_prefix("\"Version\" : "));
    version.map_or(0, |version| version.parse().unwrap())
}

/// One fails, and all but one have heard of it when another one is killed: that one was there after the failure.
#[test]
fn a_failure_is_the_cause_also_where_a_node_dies_after_it_has_heard_of_it() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let endpoint = etcd.endpoint();
    let fails = folder.path().join("fails");
    let start = |name: &str, lease: &str| {
        let works = "echo begins $WORLD_SIZE; exec sleep 600".to_owned();
        let script = match name {
            "fails" => format!(
                "echo begins $WORLD_SIZE; until [ -e {} ]; do sleep 0.05; done; exit 9",
                fails.display()
            ),
            _ => works,
        };
        let conf = format!("last_call_timeout=5,node_id={name},lease_timeout={lease}");
        let run = ["--nnodes", "2:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
        Launcher::start(&[&run[..], &["--", "sh", "-c", &script]].concat())
    };
    // The first one leads, and notices the death soon.
    let mut first = start("fails", "2");
    first.wait_for("1 of 2 is here");
    let mut nodes = [first, start("deaf", "60"), start("dies", "2")];
    nodes.iter_mut().for_each(|node| _ = node.wait_for("begins 3"));
    let [fails_first, deaf, mut dies] = nodes;
    let stopped = deaf.working();
    signal(stopped, "STOP");
    fs::write(&fails, "").unwrap();
    wait_until("two have answered", || (writes(&etcd, "rallypoint/notice/answers") == 2).then_some(()));
    dies.pull_the_plug();
    // Until it is told to all, nobody knows.
    let told = || etcd.etcdctl(&["get", "rallypoint/job/group/round"]).contains("\"died\"").then_some(());
    wait_until("the death is told", told);
    signal(stopped, "CONT");
    for node in [fails_first, deaf] {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("failed first").len(), 1, "{}", ended.text());
        assert!(ended.text().contains("ended with  exit code 9"), "{}", ended.text());
        assert!(ended.with("died").is_empty(), "{}", ended.text());
    }
}

/// One fails and tells it, and waits for the answer of a node that is stopped. Then the node with the server dies: the failure was
/// there before, and is what the run ends with.
#[test]
fn a_failure_is_the_cause_also_where_the_node_with_the_server_dies_right_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("127.0.0.1:{}", rallypoint_testkit::closed_port());
    let fails = folder.path().join("fails");
    let args = ["--nnodes", "3", "--max-restarts", "0", "--fence-timeout", "4"];
    let listens = "trap 'echo is stopped; exit 0' TERM; echo begins; while :; do sleep 0.05; done";
    let mut host = node(&endpoint, "host", &args, listens);
    host.wait_for("starts the embedded server");
    let script = format!("echo begins; until [ -e {} ]; do sleep 0.05; done; exit 9", fails.display());
    let mut failing = node(&endpoint, "failing", &args, &script);
    let mut deaf = node(&endpoint, "deaf", &args, "echo begins; exec sleep 600");
    [&mut host, &mut failing, &mut deaf].into_iter().for_each(|node| _ = node.wait_for("]: begins"));
    let stopped = deaf.working();
    signal(stopped, "STOP");
    fs::write(&fails, "").unwrap();
    // It has heard of the failure.
    host.wait_for("is stopped");
    host.pull_the_plug();
    signal(stopped, "CONT");
    for node in [failing, deaf] {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("failed first").len(), 1, "{}", ended.text());
        assert!(ended.text().contains("ended with  exit code 9"), "{}", ended.text());
    }
}

/// The same where a restart is left: the nodes cannot meet again for want of a server, and name both.
#[test]
fn who_cannot_meet_again_without_the_server_names_the_failure_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("127.0.0.1:{}", rallypoint_testkit::closed_port());
    let fails = folder.path().join("fails");
    let args = ["--nnodes", "2", "--max-restarts", "3", "--fence-timeout", "4"];
    let conf = format!("{QUICK},join_timeout=8");
    let start = |name: &str, script: &str| {
        let conf = format!("{conf},node_id={name}");
        let run = ["--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
        Launcher::start(&[&run[..], &args, &["--", "sh", "-c", script]].concat())
    };
    // It stops its workers, and does not meet again before they have ended.
    let listens = "trap 'echo is stopped' TERM; echo begins; while :; do sleep 0.05; done";
    let mut host = start("host", listens);
    host.wait_for("starts the embedded server");
    let script = format!("echo begins; until [ -e {} ]; do sleep 0.05; done; exit 9", fails.display());
    let mut failing = start("failing", &script);
    [&mut host, &mut failing].into_iter().for_each(|node| _ = node.wait_for("]: begins"));
    fs::write(&fails, "").unwrap();
    host.wait_for("is stopped");
    host.pull_the_plug();
    let ended = failing.ended().expect(4);
    let last = ended.lines.last().unwrap();
    let both = "failed with exit code 9, and after that the server that the nodes had met on";
    assert!(last.contains(both), "{}", ended.text());
}

/// The end is asked for while the nodes find out what came first: the code is the signal's, and what failed here is told, to the
/// others too.
#[test]
fn a_failure_is_told_also_where_the_end_is_asked_for_before_it_is_settled() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let endpoint = etcd.endpoint();
    let fails = folder.path().join("fails");
    let args = ["--nnodes", "1:2", "--max-restarts", "3"];
    let script = format!(
        "echo begins $WORLD_SIZE; until [ -e {} ]; do sleep 0.05; done; echo no data >&2; exit 9",
        fails.display()
    );
    let mut failing = node(&endpoint, "failing", &args, &script);
    let mut deaf = node_with(PATIENT, &endpoint, "deaf", &args, "echo begins $WORLD_SIZE; exec sleep 600");
    [&mut failing, &mut deaf].into_iter().for_each(|node| _ = node.wait_for("begins 2"));
    let stopped = deaf.working();
    signal(stopped, "STOP");
    fs::write(&fails, "").unwrap();
    wait_until("one has answered", || (writes(&etcd, "rallypoint/notice/answers") == 1).then_some(()));
    failing.signal("TERM");
    let ended = failing.ended().expect(143);
    assert!(ended.text().contains("failed; signal 15 (SIGTERM) ended this node before"), "{}", ended.text());
    for part in ["ended with  exit code 9", "last lines of its stderr", "    no data"] {
        assert!(ended.text().contains(part), "{part}: {}", ended.text());
    }
    signal(stopped, "CONT");
    deaf.wait_for("failed with exit code 9; meeting again");
    deaf.signal("TERM");
    deaf.ended().expect(143);
}

/// Both have waited for as long for a third; one was a moment earlier.
#[test]
fn those_who_wait_in_vain_together_end_in_the_same_words() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    // Its worker takes a second to end.
    let script = "trap 'sleep 1; exit 0' TERM; echo begins; while :; do sleep 0.05; done";
    let start = |name: &str, script: &str| {
        let conf = format!("{QUICK},join_timeout=10,node_id={name}");
        let run = ["--nnodes", "3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
        Launcher::start(&[&run[..], &["--", "sh", "-c", script]].concat())
    };
    let quick = "echo begins; exec sleep 600";
    let mut nodes = [start("quick", quick), start("slow", script), start("dies", quick)];
    nodes.iter_mut().for_each(|node| _ = node.wait_for("begins"));
    let [quick, slow, mut dies] = nodes;
    dies.pull_the_plug();
    let last = [quick, slow].map(|node| node.ended().expect(3).lines.pop().unwrap());
    assert_eq!(last[0], last[1]);
    assert!(last[0].contains(" (dies) died") && last[0].contains("2 nodes are here"), "{}", last[0]);
    assert!(!last[0].contains("left"), "{}", last[0]);
}

/// What a worker wrote of its error is in the report of every node, but for what lies on one of them.
#[test]
fn all_nodes_report_the_message_the_traceback_and_the_last_lines_of_the_worker_that_failed() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, logs) = (etcd.endpoint(), folder.path().to_str().unwrap());
    let traceback =
        "Traceback (most recent call last):\\n  File \\\"train.py\\\", line 5\\nValueError: no data";
    let fails = format!(
        r#"printf '%s' '{{"message": {{"message": "ValueError: no data\nin shard 7", "extraInfo": {{"py_callstack": "{traceback}"}}}}}}' >$TORCHELASTIC_ERROR_FILE
        echo "the disk is slow" >&2; echo "giving up" >&2; exit 3"#
    );
    let args = ["--nnodes", "2", "--max-restarts", "0", "--log-dir", logs, "--tee", "3"];
    let nodes =
        [("a", "exec sleep 600"), ("b", &fails)].map(|(name, script)| node(&endpoint, name, &args, script));
    let reports = nodes.map(|node| {
        let ended = node.ended().expect(1);
        let from = ended.lines.iter().position(|line| line.contains("failed first")).expect("a report");
        let (own, shared): (Vec<String>, Vec<String>) = ended.lines[from..]
            .iter()
            .cloned()
            .partition(|line| line.starts_with("  error file  ") || line.starts_with("  log         "));
        (own.len(), shared)
    });
    let [(of_other, other), (of_own, own)] = reports;
    assert_eq!((of_other, of_own), (0, 2), "files are named where they are: {own:#?}");
    assert_eq!(other, own);
    let text = own.join("\n");
    for part in [
        "  error       ValueError: no data",
        "  traceback\n    Traceback (most recent call last):\n      File \"train.py\", line 5\n    ValueError: no data",
        "  last lines of its stderr\n    the disk is slow\n    giving up",
        "  restarts    none left on its node (--max-restarts 0)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The name that `rallypoint status` shows: one node is called the same, whatever is said of it.
#[test]
fn a_node_has_one_name_whatever_is_said_of_it() {
    let endpoint = format!("127.0.0.1:{}", rallypoint_testkit::closed_port());
    let node = |id: &str, name: &str, script: &str| {
        let run = ["--nnodes", "2", "--rdzv-id", id, "--rdzv-endpoint", &endpoint, "--max-restarts", "0"];
        let conf = format!("last_call_timeout=1,lease_timeout=60,node_id={name}");
        Launcher::start(&[&run[..], &["--rdzv-conf", &conf, "--", "sh", "-c", script]].concat())
    };
    let works = "echo works; exec sleep 600";
    let mut server = node("fails", "the-first", works);
    server.wait_for("this node starts the embedded server");
    let fails = node("fails", "the-second", "exit 9");
    for ended in [fails.ended().expect(1), server.ended().expect(1)] {
        assert!(!ended.with("  node        the-second").is_empty(), "{}", ended.text());
    }
    let listens = r#": >"$RALLYPOINT_PREEMPTION_FILE.listening"; echo works; exec sleep 600"#;
    let mut server = node("goes", "the-first", works);
    server.wait_for("this node starts the embedded server");
    let mut goes = node("goes", "the-second", listens);
    [&mut server, &mut goes].into_iter().for_each(|node| _ = node.wait_for("works"));
    goes.signal("TERM");
    server.wait_for("node 1 (the-second) is preempted by SIGTERM");
    goes.signal("TERM");
    // Who comes under its name comes after it.
    goes.ended();
    server.wait_for("node 1 (the-second) ");
    let mut again = node("goes", "the-second", works);
    again.wait_for("works");
    server.signal("INT");
    server.ended().expect(130);
    let ended = again.ended().expect(5);
    assert!(!ended.with("the-first ended, and with it the server").is_empty(), "{}", ended.text());
}
