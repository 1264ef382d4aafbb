//! Workers that make no progress under `rallypoint run`: really hung, found, named the same by all nodes, and started again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::launcher::{Launcher, RALLYPOINT, heeding, signal, wait_until};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
/// How long after the timeout who hangs is known, and what is left for a machine that has other things to do.
const PROMISE: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(10);

/// Steps together with others, until one of them hangs in its way and the others wait for it. Started again, it ends.
const TRAIN: &str = r#"
import ctypes, os, signal, socket, struct, sys, threading, time
import rallypoint
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
def written(step):
    # As a program in another language does.
    with open(os.environ["RALLYPOINT_HEARTBEAT_FILE"], "r+b", buffering=0) as file:
        file.seek(8)
        file.write(struct.pack("<Q", step))
beat = written if way == "socket" else lambda step: rallypoint.heartbeat()
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
def waits_in_the_kernel():
    # For a child that does not end: SYS_clone with CLONE_VFORK.
    if ctypes.CDLL(None).syscall(56, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        time.sleep(600)
def cannot_be_traced():
    ctypes.CDLL(None).prctl(4, 0)
    ours.recv(1)
ways = {
    "lock": stuck_in_a_lock,
    "socket": stuck_in_a_socket,
    "stop": stopped_by_a_signal,
    "kernel": waits_in_the_kernel,
    "traced": cannot_be_traced,
}
for step in range(1, 6):
    beat(step)
    time.sleep(0.05)
print(f"rank {rank} in step 5", file=sys.stderr, flush=True)
with open(os.path.join(folder, f"last.{rank}"), "w") as last:
    last.write(str(time.time()))
if rank == hung_rank:
    mark("hung")
    ways[way]()
all_reduce()
"#;

/// A server that all runs of a test meet on.
struct Server {
    child: std::process::Child,
    endpoint: String,
}

impl Server {
    fn start() -> Self {
        let free = format!("127.0.0.1:{}", rallypoint_testkit::closed_port());
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

/// A launcher whose workers can import the package; the command may do something else before.
fn launcher(command: &Command, args: &[&str]) -> Launcher {
    let mut all = heeding(command.get_program().to_str().unwrap());
    all.args(command.get_args()).arg("run").args(args);
    all.env("PYTHONPATH", PACKAGE).env("PYTHONDONTWRITEBYTECODE", "1");
    Launcher::spawn(all)
}

/// Now it is known who hangs: that the promise holds.
fn in_time(way: &str, folder: &Path, rank: usize, timeout: Duration) {
    let last = std::fs::read_to_string(folder.join(format!("last.{rank}"))).unwrap();
    let last = UNIX_EPOCH + Duration::from_secs_f64(last.parse().unwrap());
    let took = SystemTime::now().duration_since(last).unwrap();
    println!("{way}: found {:.2} s after its last sign, with a timeout of {timeout:?}", took.as_secs_f64());
    assert!(took < timeout + PROMISE + LATE, "{way}: found after {took:?}");
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
            launcher(&Command::new(RALLYPOINT), &[&args.concat()[..], &program[..]].concat())
        };
        let mut started: Vec<_> = (0..nodes).map(start).collect();
        started.iter_mut().for_each(|node| _ = node.wait_for(" hung: no progress for "));
        in_time(way, folder.path(), hung, Duration::from_secs(2));
        let ended: Vec<_> = started.into_iter().map(|node| node.ended().expect(0)).collect();
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
        ["--hang-timeout", "4"],
        ["--log-dir", logs.to_str().unwrap()],
    ];
    let mut node = Launcher::start(
        &[&args.concat()[..], &[train.to_str().unwrap(), end.to_str().unwrap()][..]].concat(),
    );
    // The other one has said nothing for longer than the timeout.
    node.wait_for("step 12");
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

/// After the last step one rank ends at once, and the other takes its time, in the way that is asked for.
const SLOW_END: &str = r#"
import atexit, os, sys, time
import rallypoint
way, gone = sys.argv[1], sys.argv[2]
rank = int(os.environ["RANK"])
def slow():
    time.sleep(float(sys.argv[3]))
def until_told():
    while not os.path.exists(gone):
        time.sleep(0.05)
if way == "python":
    atexit.register(slow)
for step in range(5):
    rallypoint.heartbeat()
    time.sleep(0.05)
print("is done", flush=True)
if way == "program" and rank == 0:
    until_told()
"#;

/// With a Python that takes so many seconds to end.
fn slow_end(server: &Server, way: &str, folder: &Path, seconds: &str, more: &[&str]) -> Launcher {
    let train = folder.join("train.py");
    std::fs::write(&train, SLOW_END).unwrap();
    let args = [["--nproc-per-node", "2"], ["--rdzv-id", way], ["--rdzv-endpoint", &server.endpoint]];
    let told = folder.join("told");
    let program = [train.to_str().unwrap(), way, told.to_str().unwrap(), seconds];
    let args = [&args.concat()[..], &["--nnodes", "1", "--hang-timeout", "2"], more, &program[..]].concat();
    launcher(&Command::new(RALLYPOINT), &args)
}

#[test]
fn a_worker_that_is_slow_to_end_is_not_taken_to_hang() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut node = slow_end(&server, "program", folder.path(), "0", &[]);
    node.wait_for("rank 1 has ended, and rank 0, still there, waits for no other: that may be a slow end");
    std::fs::write(folder.path().join("told"), "").unwrap();
    let ended = node.ended().expect(0);
    assert!(ended.with(" hung: ").is_empty(), "{}", ended.text());
    // Its Python says so itself, for all ranks. It takes several times as long as the timeout.
    let ended = slow_end(&server, "python", folder.path(), "8", &[]).ended().expect(0);
    assert!(ended.with(" hung: ").is_empty(), "{}", ended.text());
}

#[test]
fn a_worker_that_is_slow_to_end_hangs_when_its_time_for_that_is_over() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    for way in ["program", "python"] {
        let more = ["--hang-end-timeout", "3", "--shutdown-timeout", "1"];
        let ended = slow_end(&server, way, folder.path(), "600", &more).ended().expect(1);
        assert!(!ended.with("rank 0 on ").is_empty(), "{way}: {}", ended.text());
        assert!(!ended.with(" hung: no progress for ").is_empty(), "{way}: {}", ended.text());
    }
}

/// One worker is in the kernel and cannot be stopped to be looked at, and one launcher does not answer: neither is waited for.
#[test]
fn one_that_waits_in_the_kernel_is_named_in_time_though_a_node_does_not_answer() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let train = folder.path().join("train.py");
    std::fs::write(&train, TRAIN).unwrap();
    let start = |node: usize| {
        let logs = folder.path().join(format!("logs{node}"));
        let args = [
            ["--nnodes", "3"],
            ["--rdzv-id", "job"],
            ["--rdzv-endpoint", &server.endpoint],
            ["--rdzv-conf", "last_call_timeout=1,lease_timeout=60"],
            ["--node-rank", &node.to_string()],
            ["--hang-timeout", "4"],
            ["--max-restarts", "1"],
            ["--shutdown-timeout", "3"],
            ["--log-dir", logs.to_str().unwrap()],
        ];
        let program = [train.to_str().unwrap(), folder.path().to_str().unwrap(), "1", "kernel"];
        launcher(&Command::new(RALLYPOINT), &[&args.concat()[..], &program[..]].concat())
    };
    let mut nodes = [start(0), start(1), start(2)];
    let silent = nodes[2].working();
    wait_until("all wait", || {
        (0..3).all(|rank| folder.path().join(format!("last.{rank}")).exists()).then_some(())
    });
    signal(silent, "STOP");
    for node in &mut nodes[..2] {
        let said = node.wait_for(" hung: no progress for ");
        assert!(
            said.contains("rank 1 on ") && said.contains("it waits for its child process, as in vfork"),
            "{said}"
        );
        assert!(said.contains("node 2 has not answered"), "{said}");
    }
    in_time("kernel", folder.path(), 1, Duration::from_secs(4));
    signal(silent, "CONT");
    let ended = nodes.map(|node| node.ended().expect(0));
    assert!(ended.iter().all(|ended| ended.with("]: again").len() == 1));
    let whole = files(&folder.path().join("logs1"), "stacks.txt");
    let whole = std::fs::read_to_string(&whole[0]).unwrap();
    assert!(whole.contains("waits for its child, as in vfork (D") && whole.contains("not seen: "), "{whole}");
}

/// As in a container: the launcher has no right to trace others, and the worker lets nobody look.
#[test]
fn one_that_may_not_be_looked_at_is_named_with_why() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let train = folder.path().join("train.py");
    std::fs::write(&train, TRAIN).unwrap();
    let mut without = Command::new("setpriv");
    without.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", RALLYPOINT]);
    let args = [
        ["--nnodes", "1"],
        ["--nproc-per-node", "3"],
        ["--rdzv-id", "job"],
        ["--rdzv-endpoint", &server.endpoint],
        ["--hang-timeout", "3"],
        ["--shutdown-timeout", "3"],
    ];
    let program = [train.to_str().unwrap(), folder.path().to_str().unwrap(), "1", "traced"];
    let ended = launcher(&without, &[&args.concat()[..], &program[..]].concat()).ended().expect(1);
    let named = ended.with("rank 1 on ");
    assert!(
        named.iter().any(|line| line.contains("it could not be looked at, and others could")),
        "{}",
        ended.text()
    );
    let why = ended.with("rank 1: its stacks: this process may not trace it");
    assert_eq!(why.len(), 1, "{}", ended.text());
    // Without a restart all of it is in the report: the one that hangs, and the others.
    let report = ended.text();
    let report = report.split("  stacks\n").nth(1).unwrap_or_else(|| panic!("{report}"));
    assert!(report.contains("may not trace it") && report.contains("all_reduce ("), "{report}");
}

/// One fails on another node, when this one's worker sleeps. What that did then is seen before it is stopped for that.
const PEER: &str = r#"
import os, sys, time
def waits_for_the_other():
    print("step 7 of 9", file=sys.stderr, flush=True)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(600)
if os.environ["RANK"] == "0":
    waits_for_the_other()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
while "nanosleep" not in open(f"/proc/{open(sys.argv[1]).read()}/wchan").read():
    time.sleep(0.05)
sys.exit(7)
"#;

#[test]
fn what_workers_do_when_one_of_another_node_fails_is_in_their_own_nodes_log() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let (train, waits) = (folder.path().join("train.py"), folder.path().join("waits"));
    std::fs::write(&train, PEER).unwrap();
    let logs = |node: usize| folder.path().join(format!("logs{node}"));
    let start = |node: usize| {
        let logs = logs(node);
        let args = [
            ["--nnodes", "2"],
            ["--rdzv-id", "job"],
            ["--rdzv-endpoint", &server.endpoint],
            ["--node-rank", &node.to_string()],
            ["--shutdown-timeout", "3"],
            ["--log-dir", logs.to_str().unwrap()],
        ];
        let program = [train.to_str().unwrap(), waits.to_str().unwrap()];
        Launcher::start(&[&args.concat()[..], &program[..]].concat())
    };
    let [first, second] = [start(0), start(1)];
    let ended = first.ended().expect(1);
    second.ended().expect(1);
    let line = ended.with("when it was stopped, rank 0: ");
    assert!(line.len() == 1 && line[0].contains("waits_for_the_other"), "{}", ended.text());
    let seen = files(&logs(0), "stacks.txt");
    let seen = std::fs::read_to_string(seen.first().unwrap_or_else(|| panic!("{}", ended.text()))).unwrap();
    assert!(seen.contains("when rank 1 on ") && seen.contains("waits_for_the_other (train.py:"), "{seen}");
    assert!(seen.contains("last lines of its stderr\nstep 7 of 9"), "{seen}");
    let state = seen.lines().find(|line| line.starts_with("thread ")).unwrap();
    assert!(state.contains("(S, ") && state.contains("nanosleep"), "its state and wait channel: {state}");
}
