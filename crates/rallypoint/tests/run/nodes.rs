//! Several nodes under `rallypoint run`: they meet, lose one, gain one, and end together.

use std::process::{Command, Output};

use crate::launcher::{self, Launcher, RALLYPOINT, wait_for_any, wait_until};
use rallypoint_testkit::{Certs, Etcd, Version, closed_port};

/// A port that a launcher may start its server on, and that the system gives to nobody else.
fn free_endpoint() -> String {
    format!("127.0.0.1:{}", closed_port())
}

fn node(endpoint: &str, nodes: &str, more: &[&str]) -> Launcher {
    let args = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", endpoint];
    // PyTorch's has no leases.
    let of_pytorch = more.windows(2).any(|pair| pair == ["--rdzv-backend", "etcd"]);
    let conf = if of_pytorch { "last_call_timeout=1" } else { "last_call_timeout=1,lease_timeout=2" };
    let conf = ["--rdzv-conf", conf];
    Launcher::start(&[&args[..], &conf[..], more].concat())
}

fn rallypoint(args: &[&str]) -> (Output, String) {
    let output = Command::new(RALLYPOINT).args(args).output().unwrap();
    let text = String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap();
    (output, text)
}

#[test]
fn nodes_meet_on_the_server_that_one_of_them_starts() {
    let endpoint = free_endpoint();
    let script = "echo rank $RANK of $WORLD_SIZE on node $GROUP_RANK at $MASTER_ADDR:$MASTER_PORT";
    let nodes: Vec<_> = (0..3)
        .map(|n| {
            let workers = ["1", "2", "3"][n];
            node(&endpoint, "3", &["--nproc-per-node", workers, "--", "sh", "-c", script])
        })
        .collect();
    let ended: Vec<_> = nodes.into_iter().map(|node| node.ended().expect(0)).collect();
    let mut said: Vec<&str> = ended.iter().flat_map(|ended| ended.with("]: rank ")).collect();
    said.sort_unstable();
    assert_eq!(said.len(), 6, "nodes with different numbers of workers: {said:?}");
    let master = said[0].rsplit_once(" at ").unwrap().1;
    for (rank, line) in said.iter().enumerate() {
        assert!(line.starts_with(&format!("[{rank}]: rank {rank} of 6 on node ")), "{line}");
        assert!(line.ends_with(master), "one master for all: {said:?}");
    }
    let servers = ended.iter().filter(|ended| ended.text().contains("starts the embedded server")).count();
    assert_eq!(servers, 1);
}

/// A server in memory, which forgets everything when it is killed.
struct Server(std::process::Child);

impl Server {
    fn start(endpoint: &str) -> Self {
        let mut command = Command::new(RALLYPOINT);
        command.args(["serve", "--listen", endpoint]).stdout(std::process::Stdio::null());
        let server = Server(command.spawn().unwrap());
        wait_until("it listens", || std::net::TcpStream::connect(endpoint).ok());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn nodes_meet_again_when_their_server_has_lost_its_data_and_work_that_is_done_ends_well() {
    let endpoint = free_endpoint();
    let server = Server::start(&endpoint);
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!("echo $ROLE_NAME is up; while [ ! -e {} ]; do sleep 0.1; done", go.display());
    // One has finished when it happens, and waits for the other.
    let mut quick = node(&endpoint, "2", &["--role", "quick", "--", "sh", "-c", "echo quick is up"]);
    let mut slow = node(&endpoint, "2", &["--role", "slow", "--", "sh", "-c", &script]);
    quick.wait_for("quick is up");
    slow.wait_for("slow is up");
    drop(server);
    let _server = Server::start(&endpoint);
    for node in [&mut quick, &mut slow] {
        node.wait_for("etcd has lost what it had of this round");
        node.wait_for("is up");
    }
    std::fs::write(&go, "").unwrap();
    for node in [quick, slow] {
        node.ended().expect(0);
    }
}

#[test]
fn a_failure_on_one_node_restarts_all_and_the_last_one_ends_the_run_everywhere() {
    let (etcd, folder) = (Etcd::builder(Version::V35).v2().start(), tempfile::tempdir().unwrap());
    let endpoint = etcd.endpoint();
    for backend in ["rallypoint", "etcd"] {
        // The bad one fails when the good one has begun, each time.
        let begun = folder.path().join(backend);
        std::fs::write(&begun, "").unwrap();
        let script = format!(
            "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $ROLE_NAME = good ] || {{ \
             until [ $(wc -l <{0}) -gt $TORCHELASTIC_RESTART_COUNT ]; do sleep 0.05; done; exit 9; }}; \
             echo begun >>{0}; exec sleep 600",
            begun.display()
        );
        let good =
            node(&endpoint, "2", &["--rdzv-backend", backend, "--role", "good", "--", "sh", "-c", &script]);
        let bad = node(
            &endpoint,
            "2",
            &["--rdzv-backend", backend, "--role", "bad", "--max-restarts", "1", "--", "sh", "-c", &script],
        );
        let bad = bad.ended().expect(1);
        assert!(!bad.with("attempt 0").is_empty() && !bad.with("attempt 1").is_empty(), "{}", bad.text());
        assert!(bad.text().contains("exit code 9"), "{}", bad.text());
        let good = good.ended().expect(1);
        assert_eq!(
            good.with("attempt 0").len(),
            2,
            "it met again, without a failure of its own: {}",
            good.text()
        );
        let cause = |ended: &launcher::Ended| -> Vec<String> {
            let from = ended.lines.iter().position(|line| line.contains("failed first"));
            ended.lines[from.expect("a report")..].iter().take(5).cloned().collect()
        };
        assert_eq!(cause(&good), cause(&bad), "both name the same rank, host, process and exit");
    }
}

#[test]
fn a_node_that_is_killed_is_missed_and_the_others_go_on() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let endpoint = etcd.endpoint();
    // Two that begin without a third one wait until it has come.
    let script = format!(
        "echo $WORLD_SIZE are here; [ $WORLD_SIZE = 2 ] || : >{0}; \
         while [ $WORLD_SIZE = 3 -o ! -e {0} ]; do sleep 0.05; done",
        folder.path().join("all").display()
    );
    let mut nodes: Vec<_> = (0..3).map(|_| node(&endpoint, "2:3", &["--", "sh", "-c", &script])).collect();
    nodes.iter_mut().for_each(|node| {
        node.wait_for("3 are here");
    });
    nodes[1].pull_the_plug();
    nodes.remove(1);
    for node in nodes {
        let ended = node.ended().expect(0);
        assert!(!ended.with("2 are here").is_empty(), "{}", ended.text());
        assert!(ended.text().contains("died"), "{}", ended.text());
    }
}

/// Workers that see each other's ends at once, as gloo's do: those that are connected to rank 0 fail with it, and it
/// with them. With two of them left they are content; two that begin without a third one wait until it has come.
const CONNECTED: &str = r#"
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
while size == 2 and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print(f"{size} are here", flush=True)
if size == 2:
    sys.exit(0)
open(sys.argv[1], "w").close()
if rank == 0:
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    peers = [server.accept()[0] for _ in range(size - 1)]
    print("all are connected", flush=True)
    import select
    select.select(peers, [], [])
else:
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
            break
        except OSError:
            pass
    peer.recv(1)
sys.exit("connection reset by peer")
"#;

#[test]
fn the_death_of_a_whole_node_costs_the_others_no_restart() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, all) = (etcd.endpoint(), folder.path().join("all"));
    // On a busy machine the workers of the others take their time to fail, and are to have failed before the death is known.
    let run = ["--nnodes", "2:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let conf = ["--rdzv-conf", "last_call_timeout=1,lease_timeout=10", "--max-restarts", "0"];
    // The one with rank 0 listens at the master's port itself.
    let work = ["--worker-store", "rank0", "--", "python3", "-c", CONNECTED, all.to_str().unwrap()];
    let start = |_| Launcher::start(&[&run[..], &conf, &work].concat());
    let mut nodes: Vec<_> = (0..3).map(start).collect();
    wait_for_any(&mut nodes, "all are connected");
    nodes.pop().unwrap().pull_the_plug();
    let mut followed = 0;
    for node in nodes {
        let ended = node.ended().expect(0);
        assert!(!ended.with("2 are here").is_empty(), "{}", ended.text());
        assert!(!ended.with("died; meeting again").is_empty(), "{}", ended.text());
        followed += ended.with("failed with exit code 1, which followed").len();
    }
    // Who hears of another node's failure first stops its worker before that can fail.
    assert!(followed > 0);
}

#[test]
fn who_gives_workers_more_time_to_end_than_the_others_wait_is_warned() {
    let etcd = Etcd::start(Version::V35);
    let words = "the others wait 1 s for a node that stops its workers (last_call_timeout)";
    for (more, warns) in
        [(&["--shutdown-timeout", "3"][..], 1), (&["--shutdown-timeout", "0.5"], 0), (&[], 0)]
    {
        let ended = node(&etcd.endpoint(), "1:2", &[more, &["--", "true"]].concat()).ended().expect(0);
        assert_eq!(ended.with(words).len(), warns, "{more:?}: {}", ended.text());
        assert!(warns == 0 || ended.text().contains("--rdzv-conf last_call_timeout=8"), "{}", ended.text());
        let _ = etcd.etcdctl(&["del", "--prefix", ""]);
    }
}

/// A worker that ends only when this file is there. One that fails does so when all others can no longer be stopped.
fn stubborn(path: &std::path::Path) -> String {
    format!(
        "trap 'while [ ! -e {0} ]; do sleep 0.05; done; exit 0' TERM INT; : > {0}.$RANK; echo $WORLD_SIZE are here; \
         [ $LOCAL_RANK = 0 ] && [ -n \"$FAILS\" ] && {{ \
         until [ $(ls {0}.* | wc -l) = $WORLD_SIZE ]; do sleep 0.05; done; exit 7; }}; \
         while :; do sleep 0.05; done",
        path.display()
    )
}

#[test]
fn the_others_are_told_of_a_failure_before_the_workers_have_stopped() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, file) = (etcd.endpoint(), folder.path().join("end"));
    let script = stubborn(&file);
    let args = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--nproc-per-node", "2"];
    let bad = Launcher::start_with(&[&args[..], &["--", "sh", "-c", &script]].concat(), |command| {
        command.env("FAILS", "1");
    });
    let script = format!(": > {}.$RANK; echo $WORLD_SIZE are here; exec sleep 600", file.display());
    let good = Launcher::start(&[&args[..], &["--", "sh", "-c", &script]].concat());
    // Its own workers end at once, and so does it, while those of the other one run on.
    let good = good.ended().expect(1);
    std::fs::write(&file, "").unwrap();
    for ended in [good, bad.ended().expect(1)] {
        assert!(!ended.with("failed first").is_empty(), "{}", ended.text());
        assert!(ended.with("killing what is left").is_empty(), "{}", ended.text());
    }
}

#[test]
fn the_others_are_told_that_a_node_leaves_before_its_workers_have_stopped() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, file) = (etcd.endpoint(), folder.path().join("end"));
    let script = stubborn(&file);
    let mut first = node(&endpoint, "1:2", &["--", "sh", "-c", &script]);
    let mut second = node(&endpoint, "1:2", &["--", "sh", "-c", &script]);
    first.wait_for("2 are here");
    second.wait_for("2 are here");
    second.signal("TERM");
    first.wait_for("leaves");
    std::fs::write(&file, "").unwrap();
    second.ended().expect(143);
    first.wait_for("1 are here");
    first.signal("TERM");
    first.ended().expect(143);
}

#[test]
fn work_that_is_done_has_succeeded_even_if_etcd_is_away_at_the_end() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let file = folder.path().join("end");
    let script = format!("echo at work; while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let more = ["--exit-barrier-timeout", "2", "--", "sh", "-c", &script];
    let mut nodes: Vec<_> = (0..2).map(|_| node(&etcd.endpoint(), "2", &more)).collect();
    nodes.iter_mut().for_each(|node| {
        node.wait_for("at work");
    });
    drop(etcd);
    std::fs::write(&file, "").unwrap();
    for node in nodes {
        let ended = node.ended().expect(0);
        assert!(!ended.with("etcd has not said whether").is_empty(), "{}", ended.text());
    }
}

#[test]
fn a_user_who_may_touch_only_the_run_meets_works_and_misses_who_is_killed() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        etcd.ask_for_passwords("trainer", "secret", "rallypoint/job/");
        let script = "echo $WORLD_SIZE are here; while [ $WORLD_SIZE = 2 ]; do sleep 0.05; done";
        let start = || {
            let args = ["--nnodes", "1:2", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint()];
            let conf = ["--rdzv-conf", "last_call_timeout=2,lease_timeout=4", "--user", "trainer"];
            let args = [&args[..], &conf[..], &["--", "sh", "-c", script]].concat();
            Launcher::start_with(&args, |command| {
                command.env("RALLYPOINT_PASSWORD", "secret");
            })
        };
        let (mut first, mut second) = (start(), start());
        first.wait_for("2 are here");
        second.wait_for("2 are here");
        first.forget();
        // Longer than a lease that nobody refreshes.
        std::thread::sleep(std::time::Duration::from_secs(9));
        second.pull_the_plug();
        let ended = first.ended().expect(0);
        assert_eq!(ended.with("are here").len(), 1, "no round before: {}", ended.text());
        assert!(!ended.with("1 are here").is_empty(), "{}", ended.text());
        assert!(ended.text().contains("died"), "{}", ended.text());
    }
}

#[test]
fn a_node_that_is_stopped_leaves_at_once_and_one_that_comes_is_let_in() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    // A lease of an hour: nobody can be waiting for it to run out.
    let long = ["--rdzv-conf", "last_call_timeout=1,lease_timeout=500"];
    let script = "echo $WORLD_SIZE are here; [ $WORLD_SIZE = 3 ] || while :; do sleep 0.05; done";
    let start = || {
        let args = ["--nnodes", "1:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
        Launcher::start(&[&args[..], &long[..], &["--", "sh", "-c", script]].concat())
    };
    let mut first = start();
    let mut second = start();
    first.wait_for("2 are here");
    second.wait_for("2 are here");
    first.forget();
    second.signal("INT");
    second.ended().expect(130);
    first.wait_for("1 are here");
    first.forget();
    let (third, fourth) = (start(), start());
    for node in [first, third, fourth] {
        let ended = node.ended().expect(0);
        assert!(!ended.with("3 are here").is_empty(), "{}", ended.text());
    }
}

#[test]
fn a_command_that_is_killed_still_tells_the_others() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let script = "echo $WORLD_SIZE are here; while :; do sleep 0.05; done";
    let start = || {
        let args = ["--nnodes", "1:2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
        let conf = ["--rdzv-conf", "last_call_timeout=1,lease_timeout=500", "--", "sh", "-c", script];
        Launcher::start(&[&args[..], &conf[..]].concat())
    };
    let (mut first, mut second) = (start(), start());
    first.wait_for("2 are here");
    second.wait_for("2 are here");
    first.forget();
    second.signal("KILL");
    second.nothing_is_left();
    first.wait_for("1 are here");
    first.signal("TERM");
    first.ended().expect(143);
}

#[test]
fn the_options_for_tls_are_the_same_everywhere() {
    let certs = Certs::generate();
    let etcd = Etcd::builder(Version::V35).mutual_tls(&certs).start();
    let endpoint = etcd.endpoint();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (ca, cert, key) = (path(certs.ca()), path(certs.client_cert()), path(certs.client_key()));
    let tls = ["--endpoint", &endpoint, "--cacert", &ca, "--cert", &cert, "--key", &key];
    let run =
        [&["--nnodes", "1:2", "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=0"], &tls[..]].concat();
    let mut node = Launcher::start(&[&run[..], &["--", "sh", "-c", "echo ready; sleep 600"]].concat());
    node.wait_for("ready");
    let (output, text) = rallypoint(&[&["status"], &tls[..]].concat());
    assert!(output.status.success() && text.contains("job  running"), "{text}");
    let (output, text) = rallypoint(&[&["close", "job", "--reason", "done"], &tls[..]].concat());
    assert!(output.status.success(), "{text}");
    node.ended().expect(5);
    for args in [&["--endpoint", &endpoint][..], &tls[..4]] {
        let (output, text) = rallypoint(&[&["status"], args].concat());
        assert_eq!(output.status.code(), Some(4), "{text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
    let (output, text) = rallypoint(&["status", "--endpoint", &endpoint, "--cert", "a.pem"]);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let (output, text) = rallypoint(&["status", "--endpoint", &endpoint, "--user", "me"]);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("RALLYPOINT_PASSWORD"), "{text}");
}

#[test]
fn a_user_and_a_password_let_a_node_in() {
    let etcd = Etcd::start(Version::V35);
    for args in
        [&["user", "add", "root:secret"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]]
    {
        let _ = etcd.etcdctl(args);
    }
    let endpoint = etcd.endpoint();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let run = [
        "--nnodes",
        "1:2",
        "--rdzv-id",
        "job",
        "--rdzv-conf",
        "last_call_timeout=0",
        "--endpoint",
        &endpoint,
    ];
    let user = ["--user", "root", "--password-file", file.to_str().unwrap()];
    Launcher::run(&[&run[..], &user[..], &["true"]].concat()).expect(0);
    let with_password = |password: &str| {
        Launcher::start_with(&[&run[..], &["--user", "root", "true"]].concat(), |command| {
            command.env("RALLYPOINT_PASSWORD", password);
        })
    };
    let ended = with_password("wrong").ended().expect(4);
    assert!(ended.text().contains("password") && !ended.text().contains("wrong"), "{}", ended.text());
}

#[test]
fn who_may_touch_only_rallypoints_keys_can_measure_and_is_told_of_keys_as_etcd_has_them() {
    let etcd = Etcd::start(Version::V35);
    etcd.ask_for_passwords("trainer", "secret", "rallypoint/");
    let operate = |args: &[&str]| {
        let mut command = Command::new(RALLYPOINT);
        command.args(args).args(["--user", "trainer", "--endpoint", &etcd.endpoint()]);
        Launcher::spawn({
            command.env("RALLYPOINT_PASSWORD", "secret");
            command
        })
        .ended()
    };
    let bench = ["bench", "rendezvous", "--nodes", "3"];
    let ended = operate(&bench).expect(0);
    assert!(!ended.with("forming a group of 3 nodes").is_empty(), "{}", ended.text());
    for command in [&bench[..], &["status"], &["close", "job", "--reason", "enough"]] {
        let ended = operate(&[command, &["--prefix", "/other/"]].concat()).expect(4);
        let last = ended.lines.last().unwrap();
        assert!(last.contains("permission denied") && last.contains(r#""/other/rallypoint/"#), "{last}");
        assert!(last.contains("what that user may do"), "{last}");
    }
    let given = ["--nnodes", "1", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint()];
    let more = ["--user", "trainer", "--prefix", "/other/", "true"];
    let ended = Launcher::start_with(&[&given[..], &more[..]].concat(), |command| {
        command.env("RALLYPOINT_PASSWORD", "secret");
    });
    let ended = ended.ended().expect(4);
    assert!(ended.lines.last().unwrap().contains(r#""/other/rallypoint/job/"#), "{}", ended.text());
}

#[test]
fn nobody_leaves_before_all_have_finished() {
    let etcd = Etcd::start(Version::V35);
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script =
        format!("echo rank $RANK; [ $RANK = 0 ] || while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let mut nodes: Vec<_> =
        (0..2).map(|_| node(&etcd.endpoint(), "2", &["--", "sh", "-c", &script])).collect();
    nodes.iter_mut().for_each(|node| {
        node.wait_for("rank ");
    });
    // The node with rank 0 is done, and says so; the run is still there, whole, until the other is too.
    wait_for_any(&mut nodes, "waiting for those of other nodes");
    let (output, text) = rallypoint(&["status", "job", "--endpoint", &etcd.endpoint()]);
    assert!(output.status.success() && text.contains("running"), "{text}");
    assert_eq!(text.matches("member").count(), 2, "{text}");
    std::fs::write(&go, "").unwrap();
    for node in nodes {
        let ended = node.ended().expect(0);
        assert_eq!(ended.with("]: rank").len(), 1, "nobody worked twice: {}", ended.text());
    }
}

#[test]
fn a_spare_of_a_run_that_ended_well_has_done_well() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    for backend in ["rallypoint", "etcd"] {
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        let script = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
        let args = ["--rdzv-backend", backend, "--", "sh", "-c", &script];
        let mut nodes: Vec<_> = (0..3).map(|_| node(&etcd.endpoint(), "1:2", &args)).collect();
        wait_for_any(&mut nodes, "standing by as a spare");
        std::fs::write(&go, "").unwrap();
        let ended: Vec<_> = nodes.into_iter().map(|node| node.ended().expect(0)).collect();
        let spares = ended.iter().filter(|ended| ended.text().contains("stood by and was not needed"));
        assert_eq!(spares.count(), 1, "{backend}");
    }
}

#[test]
fn an_operator_sees_runs_and_closes_them() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let (output, text) = rallypoint(&["status", "--endpoint", &endpoint]);
    assert!(output.status.success() && text == "no runs of the backend rallypoint\n", "{text}");
    let mut nodes: Vec<_> =
        (0..3).map(|_| node(&endpoint, "1:2", &["--", "sh", "-c", "echo ready; sleep 600"])).collect();
    // Two are members, the third is a spare.
    wait_for_any(&mut nodes, "standing by as a spare");
    let (_, text) = rallypoint(&["status", "--endpoint", &endpoint]);
    assert!(text.lines().any(|line| line.starts_with("job  running  ")), "{text}");
    let (_, text) = rallypoint(&["status", "job", "--endpoint", &endpoint]);
    assert_eq!((text.matches("member").count(), text.matches("spare").count()), (2, 1), "{text}");
    assert!(text.contains("AGE") && text.contains("LEASE"), "{text}");
    let (_, text) = rallypoint(&["status", "job", "--json", "--endpoint", &endpoint]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["world_size"].as_u64(), json["nodes"].as_array().unwrap().len()), (Some(2), 3));
    let table = (json["state"].as_str(), json["waiting"].as_u64(), json["spares"].as_u64());
    assert_eq!(table, (Some("running"), Some(0), Some(1)), "{text}");

    let mut command = Command::new(RALLYPOINT);
    command.args(["status", "job", "--watch", "--json", "--endpoint", &endpoint]);
    let mut watching = Launcher::spawn(command);
    watching.wait_for("\"closed\":null");
    let (output, text) =
        rallypoint(&["close", "job", "--reason", "enough for today", "--endpoint", &endpoint]);
    assert!(output.status.success(), "{text}");
    watching.wait_for("\"closed\":\"enough for today\"");
    for node in nodes {
        let ended = node.ended().expect(5);
        assert!(ended.text().contains("enough for today"), "{}", ended.text());
    }
    watching.ended().expect(0);
    let late = node(&endpoint, "1:2", &["true"]).ended().expect(5);
    assert!(late.text().contains("enough for today") && late.text().contains("--rdzv-id"), "{}", late.text());

    for (args, code, word) in [
        (&["close", "job", "--reason", "again"][..], 5, "closed already"),
        (&["close", "other", "--reason", "x"], 1, "no run \"other\""),
        (&["status", "other"], 1, "no run \"other\""),
        (&["status", "--rdzv-id", "other"], 1, "of the backend rallypoint, and no others"),
        (&["close", "job", "--reason", "again"], 5, &format!("status job --endpoint {endpoint}`")),
        (&["close", "job"], 2, "--reason"),
        (&["close", "job", "--reason", " "], 2, "say why"),
    ] {
        let (output, text) = rallypoint(&[args, &["--endpoint", &endpoint]].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(word) && text.lines().count() == 1, "{args:?}: {text}");
    }
    let refused = rallypoint_testkit::refused_endpoint();
    let (output, text) = rallypoint(&["status", "--endpoint", &refused]);
    assert_eq!(output.status.code(), Some(4), "{text}");
    let (output, text) = rallypoint(&["status"]);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--endpoint"), "{text}");
}

#[test]
fn an_operator_is_shown_all_runs_whatever_stands_in_one_of_them() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let _ = etcd.etcdctl(&["put", "rallypoint/bad/group/round", "garbage"]);
    let _ =
        etcd.etcdctl(&["put", &format!("rallypoint/{}/group/round", "r".repeat(70_000)), r#"{"round":3}"#]);
    let mut first = node(&endpoint, "1", &["--", "sh", "-c", "echo ready; sleep 600"]);
    first.wait_for("ready");
    let (output, text) = rallypoint(&["status", "--endpoint", &endpoint]);
    assert!(output.status.success(), "{text}");
    let states: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(states, ["unreadable", "running", "abandoned"]);
    let (output, text) = rallypoint(&["status", "bad", "--endpoint", &endpoint]);
    assert!(output.status.success() && text.contains("rallypoint/bad/group/round"), "{text}");
    for run in ["bad", "job"] {
        let reason = "over\x1b[2J";
        let (output, text) = rallypoint(&["close", run, "--reason", reason, "--endpoint", &endpoint]);
        assert!(output.status.success() && text.contains("over\\u{1b}[2J"), "{text}");
    }
    let ended = first.ended().expect(5);
    assert!(!ended.text().contains("over\x1b"), "{}", ended.text());
    let long = "r".repeat(2_000);
    let (output, text) = rallypoint(&["status", &long, "--endpoint", &endpoint]);
    assert!(output.status.code() == Some(2) && text.contains("2000 bytes"), "{text}");
}

#[test]
fn nodes_with_other_settings_are_told_so() {
    let etcd = Etcd::start(Version::V35);
    let mut first = node(&etcd.endpoint(), "1:2", &["--", "sh", "-c", "echo ready; sleep 600"]);
    first.wait_for("ready");
    let other = node(&etcd.endpoint(), "1:3", &["true"]).ended().expect(3);
    let said = "has 2 for MAX of --nnodes, this node has 3: start all nodes with the same --nnodes";
    assert!(other.text().contains(said), "{}", other.text());
    first.signal("TERM");
    first.ended().expect(143);
}

#[test]
fn too_few_nodes_in_time_is_an_error_that_says_so() {
    let etcd = Etcd::start(Version::V35);
    let args = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint()];
    let ended = Launcher::run(&[&args[..], &["--rdzv-conf", "join_timeout=4", "true"]].concat()).expect(3);
    let last = ended.lines.last().unwrap();
    assert!(last.contains("2 nodes are needed, and 1 node is here after 4 s"), "{}", ended.text());
    assert!(last.contains("--rdzv-id and --rdzv-endpoint"), "{}", ended.text());
    assert!(ended.with("waiting for 1 node")[0].contains(" s left)"), "{}", ended.text());
}

#[test]
fn work_that_is_done_has_succeeded_though_etcd_refuses_for_a_while() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    etcd.ask_for_passwords("trainer", "secret", "rallypoint/job/");
    let file = folder.path().join("end");
    let script = format!("echo at work; while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let start = |_| {
        let args = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &etcd.endpoint()];
        let args = [&args[..], &["--user", "trainer", "--", "sh", "-c", &script]].concat();
        Launcher::start_with(&args, |command| {
            command.env("RALLYPOINT_PASSWORD", "secret");
        })
    };
    let mut nodes: Vec<_> = (0..2).map(start).collect();
    nodes.iter_mut().for_each(|node| {
        node.wait_for("at work");
    });
    etcd.revoke_role("trainer");
    std::fs::write(&file, "").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    etcd.grant_role("trainer");
    for node in nodes {
        let ended = node.ended().expect(0);
        assert_eq!(ended.with("at work").len(), 1, "no round again: {}", ended.text());
    }
}
