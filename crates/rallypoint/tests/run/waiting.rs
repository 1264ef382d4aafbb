//! `rallypoint run` and the operator's commands on an etcd that is not there, not there yet, or does not answer.

use std::process::{Child, Command, Stdio};

use crate::launcher::{Launcher, RALLYPOINT, signal, wait_for_any, wait_until};
use rallypoint_testkit::{Certs, Etcd, Version, refused_endpoint as free_endpoint};

fn node(endpoint: &str, nodes: &str, more: &[&str]) -> Launcher {
    let args = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", endpoint];
    Launcher::start(&[&args[..], more].concat())
}

const QUICK: [&str; 2] = ["--rdzv-conf", "last_call_timeout=1,lease_timeout=2"];

/// A server of a process of its own.
struct Server(Child);

impl Server {
    fn start(endpoint: &str) -> Self {
        let mut command = Command::new(RALLYPOINT);
        command.args(["serve", "--listen", endpoint]).stdout(Stdio::null()).stderr(Stdio::null());
        Server(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn endpoints_that_are_of_two_clusters_are_named_to_who_waits_and_to_who_works() {
    let (one, other) = (free_endpoint(), free_endpoint());
    let _servers = [Server::start(&one), Server::start(&other)];
    let both = format!("{one},{other}");
    let words = "are of two etcd clusters";
    let told = |said: &str| said.contains(&one) && said.contains(&other);
    let conf = ["--rdzv-conf", "last_call_timeout=1,join_timeout=15"];
    let mut waits = node(&both, "2", &[&conf[..], &["echo", "met"]].concat());
    let work = ["--rdzv-id", "alone", "--rdzv-endpoint", &both, "--", "sleep", "600"];
    let mut works = Launcher::start(&work);
    for node in [&mut waits, &mut works] {
        let said = node.wait_for(words);
        assert!(told(&said), "{said}");
    }
    let mut operator = Command::new(RALLYPOINT);
    operator.args(["status", "--endpoint", &both]);
    let ended = Launcher::spawn(operator).ended().expect(0);
    assert!(ended.with(words).first().is_some_and(|said| told(said)), "{}", ended.text());
    works.signal("TERM");
    works.ended().expect(143);
    let ended = waits.ended().expect(2);
    let last = ended.lines.last().unwrap();
    assert!(last.contains(words) && told(last) && last.contains("one cluster"), "{}", ended.text());
}

#[test]
fn a_node_waits_for_an_etcd_that_is_not_there_yet_and_says_so() {
    for backend in ["rallypoint", "etcd"] {
        let (endpoint, nobody) = (free_endpoint(), free_endpoint());
        // Neither is ever started by a node.
        for given in [format!("etcd://{endpoint}"), format!("{endpoint},{nobody}")] {
            let conf = ["--rdzv-backend", backend, "--rdzv-conf", "last_call_timeout=1"];
            let mut node = node(&given, "1", &[&conf[..], &["echo", "met"]].concat());
            let said = node.wait_for("no server answers at");
            let why =
                format!("{given} yet: no connection: Connection refused; waiting for one for up to 600 s");
            assert!(said.contains(why.strip_prefix("etcd://").unwrap_or(&why)), "{said}");
            let said = node.wait_for("has not answered for");
            assert!(said.contains(&endpoint) && said.contains("Connection refused"), "{said}");
            let _server = Server::start(&endpoint);
            let ended = node.ended().expect(0);
            assert!(!ended.with("answers again").is_empty(), "{}", ended.text());
        }
    }
}

#[test]
fn the_wait_for_an_etcd_ends_when_the_user_says_and_with_the_time_to_join() {
    let endpoint = free_endpoint();
    let given = format!("etcd://{endpoint}");
    for limit in [["--connect-timeout", "3"], ["--rdzv-conf", "join_timeout=3"]] {
        let ended = node(&given, "2", &[&limit[..], &["true"]].concat()).ended().expect(4);
        let (last, text) = (ended.lines.last().unwrap(), ended.text());
        assert!(
            last.starts_with("error: ") && last.contains(&endpoint) && last.contains("refused"),
            "{text}"
        );
        assert!(!text.contains("embedded"), "{text}");
    }
}

/// Nobody answers, and the one at the other end of a route that drops all packets does not even refuse.
#[test]
fn launchers_that_wait_for_an_etcd_that_never_comes_end_soon_when_they_are_told_to() {
    let refuses = format!("etcd://{}", free_endpoint());
    let drops = "etcd://192.0.2.7:2379";
    let mut nodes = [&refuses[..], &refuses, &refuses, drops, drops]
        .map(|endpoint| node(endpoint, "2", &["--local-addr", "127.0.0.1", "true"]));
    nodes.iter_mut().for_each(|node| _ = node.wait_for("no server answers at"));
    let told = std::time::Instant::now();
    nodes.iter().for_each(|node| node.signal("TERM"));
    for node in nodes {
        let ended = node.ended().expect(143);
        // Whoever waited for an answer first would take far longer.
        assert!(told.elapsed() < std::time::Duration::from_secs(15), "{}", ended.text());
    }
    println!("all have ended {:.2} s after SIGTERM", told.elapsed().as_secs_f64());
}

#[test]
fn what_somebody_has_to_mend_is_not_waited_out() {
    let (certs, others) = (Certs::generate(), Certs::generate());
    let etcd = Etcd::builder(Version::V35).v2().tls(&certs).start();
    for backend in ["rallypoint", "etcd"] {
        let more = ["--rdzv-backend", backend, "--cacert", others.ca().to_str().unwrap(), "true"];
        let ended = node(&etcd.endpoint(), "2", &more).ended().expect(4);
        assert_eq!(ended.lines.len(), 1, "{}", ended.text());
        // Without TLS it is hung up on, which may pass, but not for long.
        let more = ["--rdzv-backend", backend, "true"];
        for endpoint in [etcd.endpoint(), format!("etcd://{}", etcd.endpoint())] {
            let ended = node(&endpoint, "2", &more).ended().expect(4);
            let last = ended.lines.last().unwrap();
            assert!(last.contains("TLS") && last.contains("--cacert"), "{}", ended.text());
        }
    }
    let elsewhere = Etcd::builder(Version::V35).tls_of_elsewhere(&certs).start();
    let more = ["--cacert", certs.ca().to_str().unwrap(), "true"];
    let ended = node(&elsewhere.endpoint(), "2", &more).ended().expect(4);
    let last = ended.lines.last().unwrap();
    assert!(last.contains("certificate not valid for name") && last.contains("--rdzv-endpoint"), "{last}");
    for command in [&["status"][..], &["bench", "rendezvous", "--nodes", "2"]] {
        let mut operator = Command::new(RALLYPOINT);
        operator.args(command).args(["--endpoint", &etcd.endpoint()]);
        let ended = Launcher::spawn(operator).ended().expect(4);
        assert!(
            ended.lines.last().unwrap().contains("if it uses TLS give --cacert FILE"),
            "{}",
            ended.text()
        );
    }
}

#[test]
fn when_the_node_with_the_server_is_stopped_the_others_end_and_say_why() {
    let endpoint = free_endpoint();
    let more = [&QUICK[..], &["--", "sh", "-c", "echo at work; sleep 600"]].concat();
    let mut nodes: Vec<_> = (0..2).map(|_| node(&endpoint, "2", &more)).collect();
    nodes.iter_mut().for_each(|node| {
        node.wait_for("at work");
    });
    let (at, _) = wait_for_any(&mut nodes, "starts the embedded server");
    let host = nodes.remove(at);
    host.signal("TERM");
    host.ended().expect(143);
    let ended = nodes.remove(0).ended().expect(5);
    let last = ended.lines.last().unwrap();
    assert!(
        last.contains("is closed") && last.contains("the server that the nodes had met on"),
        "{}",
        ended.text()
    );
}

#[test]
fn when_the_node_with_the_server_dies_the_others_say_that_it_did() {
    let endpoint = free_endpoint();
    let conf = ["--rdzv-conf", "last_call_timeout=1,lease_timeout=2,join_timeout=10", "--fence-timeout=2"];
    let more = [&conf[..], &["--", "sh", "-c", "echo at work; sleep 600"]].concat();
    let mut nodes: Vec<_> = (0..2).map(|_| node(&endpoint, "2", &more)).collect();
    nodes.iter_mut().for_each(|node| drop(node.wait_for("at work")));
    let (at, _) = wait_for_any(&mut nodes, "starts the embedded server");
    nodes.remove(at).pull_the_plug();
    let mut left = nodes.remove(0);
    left.wait_for("the server that the nodes have met on is on node ");
    let said = left.wait_for("waiting for node ");
    assert!(said.contains("which ran the server: start it again") && said.contains("s left"), "{said}");
    let ended = left.ended().expect(4);
    let last = ended.lines.last().unwrap();
    for part in ["the server that the nodes had met on ran on node ", "that node has died", &endpoint] {
        assert!(last.contains(part), "{part}: {}", ended.text());
    }
}

#[test]
fn a_node_at_work_and_one_that_is_done_say_that_the_server_is_gone() {
    let (endpoint, folder) = (free_endpoint(), tempfile::tempdir().unwrap());
    let file = folder.path().join("end");
    let script = format!("echo at work; while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let more = [&QUICK[..], &["--exit-barrier-timeout", "20", "--", "sh", "-c", &script]].concat();
    let mut nodes: Vec<_> = (0..2).map(|_| node(&endpoint, "2", &more)).collect();
    nodes.iter_mut().for_each(|node| {
        node.wait_for("at work");
    });
    let (at, _) = wait_for_any(&mut nodes, "starts the embedded server");
    nodes.remove(at).pull_the_plug();
    let mut left = nodes.remove(0);
    let words = format!("etcd at {endpoint} has not answered for");
    left.wait_for(&words);
    left.forget();
    std::fs::write(&file, "").unwrap();
    left.wait_for("this node's workers have finished");
    left.wait_for(&words);
    let ended = left.ended().expect(0);
    assert!(!ended.with("etcd has not said whether").is_empty(), "{}", ended.text());
}

#[test]
fn a_frozen_etcd_is_told_of_whatever_a_node_waits_for_and_so_is_its_return() {
    for backend in ["rallypoint", "etcd"] {
        let endpoint = free_endpoint();
        let server = Server::start(&endpoint);
        let given = format!("etcd://{endpoint}");
        let conf = ["--rdzv-backend", backend, "--rdzv-conf", "last_call_timeout=1"];
        let mut works =
            node(&given, "1:2", &[&conf[..], &["--", "sh", "-c", "echo at work; sleep 600"]].concat());
        works.wait_for("at work");
        signal(server.0.id(), "STOP");
        let words = format!("etcd at {endpoint} has not answered for");
        works.wait_for(&words);
        signal(server.0.id(), "CONT");
        works.wait_for("answers again");
        works.signal("TERM");
        let ended = works.ended().expect(143);
        assert_eq!(ended.with("at work").len(), 1, "the workers ran on: {}", ended.text());
    }
}

#[test]
fn a_node_that_could_not_join_because_etcd_fell_silent_says_so() {
    for backend in ["rallypoint", "etcd"] {
        let endpoint = free_endpoint();
        let server = Server::start(&endpoint);
        let conf = ["--rdzv-backend", backend, "--rdzv-conf", "timeout=15", "true"];
        let mut node = node(&format!("etcd://{endpoint}"), "2", &conf);
        node.wait_for("waiting for 1 node");
        signal(server.0.id(), "STOP");
        let ended = node.ended().expect(4);
        let last = ended.lines.last().unwrap();
        assert!(last.contains(&endpoint) && last.contains("has not answered for"), "{}", ended.text());
    }
}

/// Whatever is asked of it.
#[test]
fn every_command_of_an_operator_ends_at_an_etcd_that_is_frozen_and_says_why() {
    let mut etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let mut works = node(&endpoint, "1", &["--", "sh", "-c", "echo at work; sleep 600"]);
    works.wait_for("at work");
    let start = |args: &[&str]| {
        let mut command = Command::new(RALLYPOINT);
        command.args(args).args(["--endpoint", &endpoint]);
        Launcher::spawn(command)
    };
    let mut follows = start(&["events", "job", "--follow"]);
    follows.wait_for("the workers of round 1 were started");
    // It has asked the node, which does not answer, when etcd stands still.
    let stopped = works.working();
    signal(stopped, "STOP");
    let asks = start(&["stacks", "job"]);
    wait_until("it has asked", || {
        etcd.etcdctl(&["get", "--prefix", "rallypoint/job/", "--keys-only"]).contains("inquiry").then_some(())
    });
    etcd.pause();
    let commands: [&[&str]; 9] = [
        &["status"],
        &["status", "job"],
        &["events", "job"],
        &["events", "job", "--follow"],
        &["stacks", "job"],
        &["close", "job", "--reason", "enough"],
        &["exclude", "job", "--host", "gpu-17", "--reason", "broken"],
        &["include", "job", "--all"],
        &["excluded", "job"],
    ];
    let started = commands.map(|command| (command, start(command)));
    for (command, launcher) in started {
        let ended = launcher.ended().expect(4);
        let last = ended.lines.last().unwrap();
        assert!(
            last.starts_with(&format!("error: {endpoint} takes connections and says nothing")),
            "{command:?}: {last}"
        );
        assert_eq!(ended.lines.len(), 1, "{command:?}: {}", ended.text());
    }
    let ended = asks.ended().expect(4);
    let last = ended.lines.last().unwrap();
    assert!(last.contains(&endpoint) && last.contains("no answer in time"), "{last}");
    follows.wait_for(&format!("etcd at {endpoint} has not answered for"));
    etcd.resume();
    signal(stopped, "CONT");
    follows.wait_for("answers again");
    works.signal("TERM");
    works.ended().expect(143);
}

#[test]
fn an_operator_is_told_that_etcd_does_not_answer() {
    let endpoint = free_endpoint();
    let server = Server::start(&endpoint);
    let given = format!("etcd://{endpoint}");
    let mut works = node(&given, "1", &["--", "sh", "-c", "echo at work; sleep 600"]);
    works.wait_for("at work");
    let mut command = Command::new(RALLYPOINT);
    command.args(["status", "job", "--watch", "--endpoint", &endpoint]);
    let mut watch = Launcher::spawn(command);
    watch.wait_for("running");
    drop(server);
    watch.wait_for(&format!("etcd at {endpoint} has not answered for"));
}
