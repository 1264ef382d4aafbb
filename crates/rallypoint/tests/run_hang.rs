//! Workers that make no progress under `rallypoint run`: really hung, found, named the same by all nodes, and started again.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use launcher::{Launcher, RALLYPOINT, wait_until};

/// Steps together with others, until one of them hangs in its way and the others wait for it. Started again, it ends.
const TRAIN: &str = r#"
import os, signal, socket, struct, sys, threading, time
folder, hung_rank, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here = lambda name: os.path.exists(os.path.join(folder, name))
mark = lambda name: open(os.path.join(folder, name), "w").close()
if here("hung"):
    print("again", flush=True)
    sys.exit(0)
mark(f"started.{rank}")
while not all(here(f"started.{other}") for other in range(world)):
    time.sleep(0.02)
beat = open(os.environ["RALLYPOINT_HEARTBEAT_FILE"], "r+b", buffering=0)
ours, theirs = socket.socketpair()
def all_reduce():
    ours.recv(1)
def stuck_in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
def stuck_in_a_socket():
    ours.recv(1)
def stopped_by_a_signal():
    os.kill(os.getpid(), signal.SIGSTOP)
for step in range(1, 6):
    beat.seek(8)
    beat.write(struct.pack("<Q", step))
    time.sleep(0.05)
if rank == hung_rank:
    mark("hung")
    {"lock": stuck_in_a_lock, "socket": stuck_in_a_socket, "stop": stopped_by_a_signal}[way]()
all_reduce()
"#;

/// A server that all runs of a test meet on.
struct Server {
    child: std::process::Child,
    endpoint: String,
}

impl Server {
    fn start() -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = Command::new(RALLYPOINT);
        let command = command.args(["serve", "--listen", &free]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server { child: command.spawn().unwrap(), endpoint: free };
        wait_until("it serves", || std::net::TcpStream::connect(&server.endpoint).ok());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The files of this name below a folder.
fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path, name)),
            path if path.file_name().is_some_and(|it| it == name) => found.push(path),
            _ => {}
        }
    }
    found
}

#[test]
fn the_one_that_hangs_is_named_by_all_nodes_and_all_start_again() {
    let server = Server::start();
    for (way, nodes, workers, hung, shown) in [
        ("lock", 2, 2, 1, "stuck_in_a_lock"),
        ("socket", 3, 1, 2, "stuck_in_a_socket"),
        ("stop", 2, 1, 0, "stopped by a signal"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let train = folder.path().join("train.py");
        std::fs::write(&train, TRAIN).unwrap();
        let (nnodes, per_node, rank) = (nodes.to_string(), workers.to_string(), hung.to_string());
        let start = |node: usize| {
            let logs = folder.path().join(format!("logs{node}"));
            let args = [
                ["--nnodes", &nnodes],
                ["--nproc-per-node", &per_node],
                ["--rdzv-id", way],
                ["--rdzv-endpoint", &server.endpoint],
                ["--rdzv-conf", "last_call_timeout=1"],
                ["--node-rank", &node.to_string()],
                ["--hang-timeout", "2"],
                ["--max-restarts", "1"],
                ["--shutdown-timeout", "3"],
                ["--log-dir", logs.to_str().unwrap()],
            ];
            let program = [train.to_str().unwrap(), folder.path().to_str().unwrap(), &rank, way];
            Launcher::start(&[&args.concat()[..], &program[..]].concat())
        };
        let ended: Vec<_> = (0..nodes).map(start).collect();
        let ended: Vec<_> = ended.into_iter().map(|node| node.ended().expect(0)).collect();
        for (node, ended) in ended.iter().enumerate() {
            let ours = node == hung / workers;
            let named = ended.with(&format!("rank {hung} on "));
            assert!(
                named.iter().any(|line| line.contains("hung: no progress for ")),
                "{way}: {}",
                ended.text()
            );
            assert!(
                ended.with(" hung: ").iter().all(|line| line.contains(&format!("rank {hung} on "))),
                "nobody else is"
            );
            // It costs the node with that worker a restart, and the others nothing.
            assert_eq!(ended.with("; starting again").len(), usize::from(ours), "{way}: {}", ended.text());
            assert_eq!(ended.with("; meeting again").len(), usize::from(!ours), "{way}: {}", ended.text());
            assert_eq!(ended.with("]: again").len(), workers);
            let stack = ended.with(&format!(" rank {hung}"));
            assert!(
                stack.iter().any(|line| line.contains(shown)),
                "{way}: its stack is shown: {}",
                ended.text()
            );
            assert!(
                !ended.with("all_reduce (").is_empty(),
                "{way}: and what the others do: {}",
                ended.text()
            );
        }
        let logs = folder.path().join(format!("logs{}", hung / workers));
        let whole: Vec<String> =
            files(&logs, "stacks.txt").iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        assert_eq!(whole.len(), workers, "all workers were looked at");
        let way_it_hangs = if way == "stop" { "stopped_by_a_signal" } else { shown };
        assert!(whole.iter().any(|text| text.contains(way_it_hangs)), "{whole:?}");
    }
}

/// One goes on slowly and says so; the other says one thing, and no more. After a while it fails.
const LIVING: &str = r#"
import os, sys, time
rank = int(os.environ["RANK"])
def slow_step(step):
    time.sleep(0.4)
def silent_work():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.1)
print("begins", flush=True)
if rank == 1:
    silent_work()
    sys.exit(7)
for step in range(1000):
    slow_step(step)
    print("step", step, flush=True)
"#;

#[test]
fn slow_workers_are_left_alone_and_an_operator_sees_what_they_do() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let (train, end) = (folder.path().join("train.py"), folder.path().join("end"));
    std::fs::write(&train, LIVING).unwrap();
    let logs = folder.path().join("logs");
    let args = [
        ["--nnodes", "1"],
        ["--nproc-per-node", "2"],
        ["--rdzv-id", "job"],
        ["--rdzv-endpoint", &server.endpoint],
        ["--hang-timeout", "1"],
        ["--log-dir", logs.to_str().unwrap()],
    ];
    let mut node = Launcher::start(
        &[&args.concat()[..], &[train.to_str().unwrap(), end.to_str().unwrap()][..]].concat(),
    );
    node.wait_for("step 5");
    let ask = |more: &[&str]| {
        let mut command = Command::new(RALLYPOINT);
        let output =
            command.args(["stacks", "job", "--endpoint", &server.endpoint]).args(more).output().unwrap();
        let text = String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap();
        (output.status.code(), text)
    };
    let (code, text) = ask(&[]);
    assert_eq!(code, Some(0), "{text}");
    for (rank, function) in [(0, "slow_step"), (1, "silent_work")] {
        let of_rank = text.split(&format!("rank {rank}:\n")).nth(1).unwrap_or_else(|| panic!("{text}"));
        assert!(of_rank.split("rank ").next().unwrap().contains(function), "{text}");
    }
    let (code, text) = ask(&["--rank", "1", "--json"]);
    let seen: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, seen["stacks"][0]["ranks"].to_string()), (Some(0), "[1]".to_owned()), "{text}");
    assert_eq!(seen["not_heard_of"], serde_json::json!([]));
    std::fs::write(&end, "").unwrap();
    let ended = node.ended().expect(1);
    assert!(ended.with("hung").is_empty(), "nobody hung: {}", ended.text());
    // Before the other was stopped, it was looked at.
    assert_eq!(ended.with("when it was stopped, rank 0: ").len(), 1, "{}", ended.text());
    let seen = files(&logs, "stacks.txt");
    assert!(
        seen.iter().any(|file| std::fs::read_to_string(file).unwrap().contains("when rank 1 on ")),
        "{seen:?}"
    );
    let (code, text) = ask(&[]);
    assert_eq!(code, Some(1), "it is over: {text}");
}
