//! What is said is so: the cause of an end, what comes next, and who is there.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::launcher::{Launcher, RALLYPOINT, signal, wait_for_any, wait_until};
use rallypoint_testkit::{Etcd, Version, closed_port};

/// A server of a process of its own, which can be stopped.
struct Server {
    process: Child,
    endpoint: String,
}

impl Server {
    fn start() -> Self {
        let endpoint = free_endpoint();
        let mut command = Command::new(RALLYPOINT);
        command.args(["serve", "--listen", &endpoint]).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        wait_until("it listens", || std::net::TcpStream::connect(&endpoint).ok());
        Server { process, endpoint }
    }

    fn stop(&self) {
        signal(self.process.id(), "STOP");
    }

    fn go_on(&self) {
        signal(self.process.id(), "CONT");
    }

    /// A node that starts no server of its own.
    fn node(&self, nodes: &str, conf: &str, more: &[&str]) -> Launcher {
        let endpoint = format!("etcd://{}", self.endpoint);
        let args = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", conf];
        Launcher::start(&[&args[..], more].concat())
    }

    fn status(&self, more: &[&str]) -> String {
        self.ask("status", more)
    }

    fn ask(&self, what: &str, more: &[&str]) -> String {
        let mut command = Command::new(RALLYPOINT);
        command.args([what, "job", "--endpoint", &self.endpoint]).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A port that the system gives to nobody else.
fn free_endpoint() -> String {
    format!("127.0.0.1:{}", closed_port())
}

const QUICK: &str = "last_call_timeout=1,lease_timeout=2";
/// Where somebody is killed after somebody else, before anybody is missed.
const PATIENT: &str = "last_call_timeout=1,lease_timeout=6";

#[test]
fn a_death_that_leaves_too_few_nodes_is_named_as_the_cause() {
    let server = Server::start();
    let start = || {
        server.node(
            "3",
            &format!("{PATIENT},join_timeout=15"),
            &["--", "sh", "-c", "echo at work; sleep 600"],
        )
    };
    let mut nodes = [start(), start(), start()];
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    let [left, mut dies, mut dies_too] = nodes;
    dies.pull_the_plug();
    dies_too.pull_the_plug();
    let text = wait_until("it is ready to meet again", || {
        Some(server.status(&[])).filter(|text| text.contains("ready for round 2"))
    });
    assert!(text.contains("died     node "), "{text}");
    assert!(!text.contains("lost") && text.contains("round    1, of 3 nodes (the run needs 3)"), "{text}");
    let ended = left.ended().expect(3);
    let last = ended.lines.last().unwrap();
    assert!(
        last.contains(") died, ") && last.contains(", and too few nodes are here to go on"),
        "{}",
        ended.text()
    );
    assert!(last.contains(") and node ") && !last.contains("more"), "both are named: {last}");
    assert!(last.contains("3 nodes are needed, and 1 node is here after 15 s"), "{}", ended.text());
    assert!(last.contains("--nnodes MIN:MAX") && !last.contains("--rdzv"), "no flag is to blame: {last}");
}

#[test]
fn nodes_that_are_killed_process_by_process_are_all_named_once() {
    let server = Server::start();
    let start = |_| {
        // The other one dies, and is missed, before their time to meet again is over.
        server.node("3", &format!("{QUICK},join_timeout=18"), &["--", "sh", "-c", "echo at work; sleep 600"])
    };
    let mut nodes: Vec<_> = (0..3).map(start).collect();
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    let mut left = nodes.remove(0);
    // The first one's launcher can still say so, and ends before it is killed, too.
    nodes[0].signal("KILL");
    left.wait_for(") was killed; meeting again");
    let text = wait_until("the group has lost it", || {
        Some(server.status(&[])).filter(|text| {
            text.contains(" node 0 (") || text.contains(" node 1 (") || text.contains(" node 2 (")
        })
    });
    assert!(text.contains("killed   node ") && !text.contains("left "), "{text}");
    nodes[1].pull_the_plug();
    let ended = left.ended().expect(3);
    let last = ended.lines.last().unwrap();
    assert!(last.contains(") was killed; node ") && last.contains(") died, and too few nodes"), "{last}");
    assert!(!last.contains(" left") && !last.contains(" more "), "{last}");
    // The timeline has the one whose launcher was killed among the dead. The other may have asked for a round before it died:
    // then nothing tells of it there.
    let events = server.ask("events", &[]);
    assert!(events.lines().any(|line| line.ends_with(") was killed")), "{events}");
    assert!(!events.contains(") left"), "it was killed: {events}");
    assert!(events.contains("1 round, 1 death") || events.contains("1 round, 2 deaths"), "{events}");
}

#[test]
fn a_spare_whose_members_have_died_has_its_time_and_names_them() {
    let server = Server::start();
    let conf = format!("{PATIENT},join_timeout=8");
    let start = |_| server.node("2", &conf, &["--", "sh", "-c", "echo at work; sleep 600"]);
    let mut nodes: Vec<_> = (0..3).map(start).collect();
    let (spare, _) = wait_for_any(&mut nodes, "standing by as a spare");
    let spare = nodes.remove(spare);
    for node in &mut nodes {
        node.wait_for("at work");
        node.pull_the_plug();
    }
    let ended = spare.ended().expect(3);
    let last = ended.lines.last().unwrap();
    assert!(last.contains(") died, and too few nodes are here to go on"), "{}", ended.text());
    assert!(last.contains("node 0 (") && last.contains(" and node 1 ("), "{last}");
    let stood_by = ended.lines.iter().position(|line| line.contains("standing by")).unwrap();
    let waits = ended.lines[stood_by..].iter().find(|line| line.contains("waiting for 1 node"));
    assert!(waits.is_some_and(|line| !line.contains(", 0 s left)")), "{}", ended.text());
}

#[test]
fn nodes_that_all_leave_at_once_are_all_named() {
    let server = Server::start();
    let start = |_| server.node("4", QUICK, &["--", "sh", "-c", "echo at work; exec sleep 600"]);
    let mut nodes: Vec<_> = (0..4).map(start).collect();
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    nodes.iter().for_each(|node| node.signal("TERM"));
    nodes.into_iter().for_each(|node| drop(node.ended().expect(143)));
    let text = server.status(&[]);
    assert!(text.contains("state    abandoned") && text.matches("left     node ").count() == 4, "{text}");
}

#[test]
fn nodes_that_meet_again_are_not_lost() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("end");
    // One is slow to end its worker.
    let script = format!(
        "[ $ROLE_NAME = slow ] && trap 'while [ ! -e {file} ]; do sleep 0.05; done; exit 0' TERM
         echo $WORLD_SIZE are here; while [ ! -e {file} ]; do sleep 0.05; done",
        file = file.display()
    );
    let start = |role: &str| {
        server.node(
            "2:3",
            // They wait for the slow one for as long as the test looks at them.
            "last_call_timeout=10,lease_timeout=60",
            &["--role", role, "--", "sh", "-c", &script],
        )
    };
    let (mut slow, mut quick) = (start("slow"), start("quick"));
    slow.wait_for("2 are here");
    quick.wait_for("2 are here");
    let late = start("late");
    let said = quick.wait_for("meeting again");
    assert!(said.contains("1 more node waits to get in; meeting again"), "{said}");
    let text = wait_until("one is ready", || {
        Some(server.status(&[])).filter(|text| text.contains("ready for round 2"))
    });
    assert!(text.contains("state    meeting again") && text.contains("still in round 1"), "{text}");
    for word in ["lost", "died", "left ", "gone"] {
        assert!(!text.lines().any(|line| line.starts_with(word)), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&server.status(&["--json"])).unwrap();
    assert_eq!(json["lost"].as_array().unwrap().len(), 0, "{json}");
    std::fs::write(&file, "").unwrap();
    for node in [slow, quick, late] {
        node.ended().expect(0);
    }
}

#[test]
fn all_nodes_say_that_restarts_are_used_up_and_nobody_that_it_goes_on() {
    let server = Server::start();
    let script = "echo at work; [ $RANK = 0 ] && exit 3; exec sleep 600";
    let start = || server.node("2", QUICK, &["--max-restarts", "1", "--", "sh", "-c", script]);
    for node in [start(), start()] {
        let ended = node.ended().expect(1);
        let text = ended.text();
        assert_eq!(ended.with("none left on its node (--max-restarts 1)").len(), 1, "{text}");
        // Of the first failure, which a restart was left for, the other node says that it meets again; of the last one it
        // says that the run ends, unless it hears of the end itself first.
        let others = ended.with("failed with exit code 3; ");
        let (goes_on, ends): (Vec<&str>, Vec<&str>) =
            others.into_iter().partition(|line| line.contains("again"));
        assert_eq!(goes_on.len(), 1, "{text}");
        let last = "; node 0 has no restarts left (--max-restarts 1): the run ends";
        assert!(ends.iter().all(|line| line.ends_with(last)), "{text}");
    }
}

#[test]
fn why_a_node_stops_its_workers_is_said_while_they_take_their_time() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let fails = folder.path().join("fails").to_str().unwrap().to_owned();
    // Those of the other node do not end until they are told to by this test.
    let script = "trap 'while [ -e $0 ]; do sleep 0.05; done; exit 0' TERM; echo ready
        while :; do sleep 0.05; [ $RANK = 0 ] && [ -e $0 ] && exit 3; done";
    let start = || server.node("2", QUICK, &["--max-restarts", "0", "--", "sh", "-c", script, &fails]);
    let mut nodes = [start(), start()];
    nodes.iter_mut().for_each(|node| drop(node.wait_for("ready")));
    std::fs::write(&fails, "").unwrap();
    let (_, line) = wait_for_any(&mut nodes, "the workers of this node");
    assert!(line.contains("rank 0 on ") && line.contains(" failed with exit code 3"), "{line}");
    assert!(line.contains(" have 23 s more to end"), "{line}");
    std::fs::remove_file(&fails).unwrap();
    let _ = nodes.map(|node| node.ended().expect(1));
}

#[test]
fn a_node_that_has_finished_does_not_wait_for_ever_for_an_etcd_that_does_not_answer() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("end");
    let script = format!("[ $RANK = 1 ] || while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let more = ["--exit-barrier-timeout", "2", "--", "sh", "-c", &script];
    let mut nodes = vec![server.node("2", QUICK, &more), server.node("2", QUICK, &more)];
    let (done, _) = wait_for_any(&mut nodes, "waiting for those of other nodes");
    server.stop();
    // The other one is still at work.
    let ended = nodes.remove(done).ended().expect(0);
    let said = "for 2 s etcd has not said whether those of other nodes have";
    assert_eq!(ended.with(said).len(), 1, "{}", ended.text());
    assert!(!ended.text().contains("torchelastic/"), "{}", ended.text());
    std::fs::write(&file, "").unwrap();
    nodes.remove(0).ended().expect(0);
}

#[test]
fn a_full_etcd_is_named_by_a_member_that_misses_another_and_by_one_that_has_finished() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=2000000").unsafe_no_fsync().start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("end");
    let script = format!("echo at work; while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let args =
        ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint(), "--rdzv-conf", QUICK];
    let args = [&args[..], &["--exit-barrier-timeout", "3", "--", "sh", "-c", &script]].concat();
    let mut nodes = [Launcher::start(&args), Launcher::start(&args)];
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    etcd.exhaust_space();
    let [mut stays, mut goes] = nodes;
    goes.pull_the_plug();
    // It leads, or wants to: either way etcd would have to take something.
    let said = stays.wait_for("refuses this node");
    assert!(said.contains("database is full"), "{said}");
    std::fs::write(&file, "").unwrap();
    let ended = stays.ended().expect(0);
    let said = ended.with("for 3 s etcd has refused to take note of it");
    assert!(said.len() == 1 && said[0].contains("database is full"), "{}", ended.text());
    assert!(!ended.text().contains("has not renewed"), "{}", ended.text());
}

#[test]
fn a_failure_that_a_full_etcd_does_not_take_is_the_cause_on_all_nodes_once_there_is_room() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=2000000").unsafe_no_fsync().start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fail");
    let script =
        format!("echo at work; until [ $RANK = 1 -a -e {} ]; do sleep 0.05; done; exit 3", file.display());
    let args =
        ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint(), "--rdzv-conf", QUICK];
    let args = [&args[..], &["--", "sh", "-c", &script]].concat();
    let mut nodes = [Launcher::start(&args), Launcher::start(&args)];
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    etcd.exhaust_space();
    std::fs::write(&file, "").unwrap();
    wait_for_any(&mut nodes, "the other nodes cannot be told through etcd");
    etcd.free_space();
    for node in nodes {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("rank 1 failed first").len(), 1, "{}", ended.text());
    }
}

#[test]
fn while_etcd_is_full_all_nodes_end_with_the_failure_that_came_first() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=2000000").unsafe_no_fsync().start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fail");
    // Rank 0 fails because of it, a moment after rank 1 has ended, whose number stays taken for a while; rank 2 waits for ever.
    let script = format!(
        "[ $RANK != 1 ] || echo $$ >{0}.pid; echo at work; until [ $RANK != 2 -a -e {0} ]; do sleep 0.05; done; \
         [ $RANK != 1 ] || exit 3; first=/proc/$(cat {0}.pid); \
         while [ -e $first ] && ! grep -q 'State:.Z' $first/status; do sleep 0.05; done; sleep 0.3; exit 3",
        file.display()
    );
    let args =
        ["--nnodes", "3", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint(), "--rdzv-conf", QUICK];
    let args = [&args[..], &["--", "sh", "-c", &script]].concat();
    let mut nodes = [(); 3].map(|()| Launcher::start(&args));
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    etcd.exhaust_space();
    std::fs::write(&file, "").unwrap();
    for node in nodes {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("rank 1 failed first").len(), 1, "{}", ended.text());
    }
}

#[test]
fn a_node_that_is_alone_does_not_speak_of_others() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("end");
    let script = format!("echo at work; while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let mut node = server.node("1", QUICK, &["--exit-barrier-timeout", "2", "--", "sh", "-c", &script]);
    node.wait_for("at work");
    server.stop();
    std::fs::write(&file, "").unwrap();
    let ended = node.ended().expect(0);
    let said = "the workers have finished; etcd has not renewed this node's lease for 2 s";
    assert_eq!(ended.with(said).len(), 1, "{}", ended.text());
    assert!(!ended.text().contains("other nodes"), "{}", ended.text());
}

#[test]
fn a_node_that_is_cut_off_does_not_say_that_it_starts() {
    let server = Server::start();
    let more = ["--max-etcd-outage", "3", "--", "sh", "-c", "echo at work; exec sleep 600"];
    let mut node = server.node("1:2", QUICK, &more);
    node.wait_for("at work");
    server.stop();
    node.wait_for("waiting for etcd, which does not serve this node");
    node.signal("TERM");
    let ended = node.ended().expect(143);
    let (before, after): (Vec<_>, Vec<_>) = {
        let at = ended.lines.iter().position(|line| line.contains("stopping the workers")).unwrap();
        (ended.lines[..=at].to_vec(), ended.lines[at + 1..].to_vec())
    };
    assert!(!after.join("\n").contains("starting"), "{}", ended.text());
    assert!(before.last().unwrap().contains("etcd has been away for"), "{}", ended.text());
    assert!(!after.join("\n").contains("etcd has been away for"), "it was said: {}", ended.text());
}

#[test]
fn a_port_with_something_else_is_one_cause_with_one_code_on_all_nodes() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || {
        for stream in other.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    let conf = ["--nnodes", "2", "--rdzv-conf", "join_timeout=1"];
    let endpoint = format!("127.0.0.1:{port}");
    // Node 0 would start the server there; node 1 waits for it.
    for rank in ["0", "1"] {
        let args = ["--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", &port, "true"];
        let ended = Launcher::run(&[&conf[..], &args[..]].concat()).expect(4);
        let last = ended.lines.last().unwrap();
        assert!(last.contains("--master-port") && !last.contains("--rdzv"), "as the user typed it: {last}");
    }
    for endpoint in [endpoint.clone(), format!("etcd://{endpoint}")] {
        let args = ["--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "true"];
        let ended = Launcher::run(&[&conf[..], &args[..]].concat()).expect(4);
        assert!(ended.lines.last().unwrap().contains("--rdzv-endpoint"), "{}", ended.text());
    }
}

#[test]
fn a_static_command_is_answered_in_its_own_flags() {
    let endpoint = free_endpoint();
    let (_, port) = endpoint.rsplit_once(':').unwrap();
    let run = |args: &[&str]| {
        let conf = ["--nnodes", "2", "--rdzv-conf", "join_timeout=1", "--master-port", port];
        Launcher::run(&[&conf[..], args, &["true"]].concat())
    };
    for (rank, code) in [("0", 3), ("1", 4)] {
        let ended = run(&["--node-rank", rank, "--master-addr", "127.0.0.1"]).expect(code);
        let last = ended.lines.last().unwrap();
        assert!(last.contains("--master-addr and --master-port") && !last.contains("--rdzv"), "{last}");
        assert!(!ended.text().contains("no --master-addr"), "{}", ended.text());
        // torchrun's address is of use on one machine alone.
        let ended = run(&["--node-rank", rank]).expect(code);
        let said = ended.with("there is no --master-addr, so it is 127.0.0.1");
        assert!(said.len() == 1 && said[0].contains("other machines cannot reach"), "{}", ended.text());
        assert_eq!(ended.with("--master-port means Rallypoint's own backend").len(), 1, "{}", ended.text());
    }
    let ended = run(&["--node-rank", "0", "--master-addr", "127.0.0.1:7000"]).expect(2);
    assert!(!ended.text().contains("--rdzv"), "{}", ended.text());
}

#[test]
fn what_is_watched_is_shown_again_only_when_it_has_changed() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let args = ["--nnodes", "1:2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", QUICK];
    let mut node = Launcher::start(&[&args[..], &["--", "sh", "-c", "echo at work; sleep 600"]].concat());
    node.wait_for("at work");
    let mut command = Command::new(RALLYPOINT);
    // That its workers were started is an event, which may be written a moment later.
    command.args(["status", "job", "--watch", "--events", "0", "--endpoint", &endpoint]);
    let mut watch = Launcher::spawn(command);
    watch.wait_for("state    running");
    // It is among the run's keys, and nothing that is shown.
    for number in 0..20 {
        let _ = etcd.etcdctl(&["put", "rallypoint/job/store/some", &number.to_string()]);
    }
    let mut close = Command::new(RALLYPOINT);
    close.args(["close", "job", "--reason", "enough", "--endpoint", &endpoint]);
    assert!(close.output().unwrap().status.success());
    watch.wait_for("state    closed: enough");
    node.ended().expect(5);
    watch.wait_for("no nodes are there");
    // Nothing will change any more.
    let ended = watch.ended().expect(0);
    assert_eq!(ended.with("state    running").len(), 1, "{}", ended.text());
}

#[test]
fn an_endpoint_may_be_a_url() {
    let server = Server::start();
    let endpoint = format!("http://{}", server.endpoint);
    Launcher::run(&["--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "true"]).expect(0);
    // Where there is a server without TLS, it is not said that there is none.
    let endpoint = format!("https://{}", server.endpoint);
    let ended =
        Launcher::run(&["--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--connect-timeout", "1", "true"]);
    let ended = ended.expect(4);
    assert!(!ended.text().contains("no etcd"), "{}", ended.text());
    let ended =
        Launcher::run(&["--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--cacert", "/none.pem", "true"]);
    let ended = ended.expect(2);
    assert!(ended.text().contains("--cacert /none.pem: No such file"), "{}", ended.text());
}

#[test]
fn who_types_too_little_is_shown_what_there_is() {
    let output = Command::new(RALLYPOINT).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("Usage: rallypoint <COMMAND>") && text.contains("status"), "{text}");
    let ended = Launcher::run(&["--nproc-per-node", "2"]).expect(2);
    assert!(
        ended.text().contains("rallypoint run --standalone --nproc-per-node 2 train.py"),
        "{}",
        ended.text()
    );
    // Something else is missing.
    let ended = Launcher::run(&["--cert", "/etc/passwd", "true"]).expect(2);
    assert!(ended.text().contains("--key"), "{}", ended.text());
    // Nobody reads on.
    for _ in 0..5 {
        let line = format!("{RALLYPOINT} completions bash | true");
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}

/// Those that ask a node whose worker has failed stop theirs because of that, which is not what came first.
#[test]
fn a_failure_while_etcd_is_away_is_the_cause_and_costs_a_restart() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let worker = format!(
        "echo started $RANK; while [ ! -e {} ]; do sleep 0.1; done; [ $RANK != 1 ] || exit 9; sleep 600",
        go.display()
    );
    let more = ["--max-restarts", "0", "--shutdown-timeout", "1", "--", "sh", "-c", &worker];
    let mut nodes: Vec<Launcher> =
        (0..3).map(|_| server.node("3", "last_call_timeout=1,lease_timeout=2", &more)).collect();
    for node in &mut nodes {
        node.wait_for("]: started");
    }
    server.stop();
    // Everybody has noticed, and asks the others.
    for node in &mut nodes {
        node.wait_for("asking other nodes");
    }
    std::fs::write(&go, "").unwrap();
    wait_for_any(&mut nodes, "another node says: rank 1 ");
    server.go_on();
    for node in nodes {
        let ended = node.ended().expect(1);
        assert_eq!(ended.with("]: started").len(), 1, "nothing is started again: {}", ended.text());
        assert!(ended.text().contains("rank 1 failed first"), "{}", ended.text());
    }
}

/// The names in the first column of the table under this heading.
#[test]
fn a_program_that_listens_where_the_workers_store_is_is_told_how() {
    let script =
        r#"import os, socket, sys; print(socket.create_server(("", int(os.environ["MASTER_PORT"]))))"#;
    let args = ["--standalone", "--nproc-per-node", "1", "--", "python3", "-c", script];
    let ended = Launcher::run(&args).expect(1);
    let hint = ended.with("  hint  ");
    assert!(hint.len() == 1 && hint[0].contains("--worker-store rank0"), "{}", ended.text());
    let ended = Launcher::run(&[&["--worker-store", "rank0"], &args[..]].concat()).expect(0);
    assert!(ended.text().contains("<socket.socket"), "{}", ended.text());
}

fn table(heading: &str) -> BTreeSet<String> {
    let text = include_str!("../../../../docs/launcher.md");
    let part = text.split_once(&format!("\n## {heading}\n")).unwrap().1.split("\n## ").next().unwrap();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    rows.flat_map(|cell| cell.split(", ").map(|name| name.trim_matches('`').to_owned())).collect()
}

#[test]
fn the_variables_of_a_worker_are_those_that_the_documents_list() {
    let folder = tempfile::tempdir().unwrap();
    // By its name it is a Python.
    let python = folder.path().join("python3");
    std::os::unix::fs::symlink("/usr/bin/env", &python).unwrap();
    let args = ["--standalone", "--nproc-per-node", "2", "--local-ranks-filter", "0"];
    let ended = Launcher::start_with(&[&args[..], &[python.to_str().unwrap()]].concat(), |command| {
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("PET_NNODE", "2").env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    });
    let ended = ended.ended().expect(0);
    let said = ended.with("PET_NNODE is set, and nothing reads it: did you mean PET_NNODES?");
    assert_eq!(said.len(), 1, "{}", ended.text());
    let inherited = ["PATH", "PET_NNODE", "TORCHELASTIC_ENABLE_FILE_TIMER", "RALLYPOINT_TEST_MARK"];
    let names = ended.lines.iter().filter_map(|line| line.strip_prefix("[0]: ")?.split('=').next());
    let found: BTreeSet<String> = names.filter(|name| !inherited.contains(name)).map(str::to_owned).collect();
    assert_eq!(found, table("What a worker finds"));
}

/// One line each, and nothing is made or started before it is said.
#[test]
fn what_cannot_work_is_told_before_anything_is_started() {
    let (folder, endpoint) = (tempfile::tempdir().unwrap(), free_endpoint());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (pipe, script, logs) = (at("pipe"), at("script"), at("logs"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::create_dir(&logs).unwrap();
    let nodes = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let cases: [(&[&str], i32, &str); 8] = [
        (&["--cacert", &pipe], 2, "--cacert"),
        (&["--user", "me", "--password-file", &pipe], 2, "it is no file"),
        (&["--cacert", &logs], 2, "it is no file"),
        (&["--rdzv-conf", "join_timout=10"], 2, "did you mean 'join_timeout'?"),
        (&["--rdzv-conf", "join_timeout=4 last_call_timeout=1"], 2, "separated by commas"),
        (&["--rdzv-backend", "etcd", "--rdzv-conf", "join_timout=10"], 2, "did you mean 'join_timeout'?"),
        (&["--rdzv-backend", "etcd", "--rdzv-conf", "join_timeout=abc"], 2, "'abc'"),
        (&["--nproc-per-node", "99999999999"], 2, "kernel.pid_max"),
    ];
    for (more, code, words) in cases {
        let args = [&nodes[..], more, &["--tee", "3", "true"]].concat();
        let ended = Launcher::start_with(&args, |command| {
            command.env("TMPDIR", &logs);
        });
        let ended = ended.ended().expect(code);
        assert!(ended.lines.len() == 1 && ended.text().contains(words), "{more:?}: {}", ended.text());
        let left: Vec<_> = std::fs::read_dir(&logs).unwrap().flatten().collect();
        assert!(left.is_empty(), "{more:?}: {left:?}");
    }
    std::fs::write(&script, "echo no interpreter\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    let ended = Launcher::run(&["--standalone", &script]).expect(126);
    assert!(ended.lines.last().unwrap().contains("begin with #!"), "{}", ended.text());
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = Launcher::run(&["--master-port", &port, "true"]).expect(6);
    let last = ended.lines.last().unwrap();
    assert!(last.contains(&port) && last.contains("choose another --master-port"), "{}", ended.text());
    let ended = Launcher::start_with(&["-m", "module"], |command| {
        command.env("PYTHON_EXEC", "/no/python");
    });
    let ended = ended.ended().expect(127);
    assert!(ended.text().contains("PYTHON_EXEC: there is no program"), "{}", ended.text());
}
