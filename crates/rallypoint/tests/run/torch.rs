//! PyTorch under `rallypoint run`: what its workers find is what torchrun gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::launcher::{Ended, Launcher, RALLYPOINT, wait_for_any};
use rallypoint_testkit::{Etcd, Network, Version, closed_port, torch_python};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).canonicalize().unwrap()
}

type Environments = BTreeMap<String, BTreeMap<String, String>>;

/// The environment of each of so many workers, by its rank.
fn environments(mut command: Command, workers: usize, args: &[&str]) -> Environments {
    // In one piece: torchrun's workers do not buffer, and `print` would mix its parts with those of another worker.
    const SCRIPT: &str =
        r"import json, os, sys; sys.stdout.write('ENV ' + json.dumps(dict(os.environ)) + '\n')";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.py");
    std::fs::write(&script, SCRIPT).unwrap();
    command.arg(format!("--nproc-per-node={workers}")).args(args).arg(script).current_dir(folder.path());
    command.env("PYTHON_EXEC", torch_python()).env_remove("OMP_NUM_THREADS");
    let ended = Launcher::spawn(command).ended().expect(0);
    let read = |line: &&str| {
        let environment: BTreeMap<String, String> =
            serde_json::from_str(line.split_once("ENV ").unwrap().1).unwrap();
        (environment["RANK"].clone(), environment)
    };
    let found: Environments = ended.with("ENV ").iter().map(read).collect();
    assert_eq!(found.len(), workers, "{}", ended.text());
    found
}

fn torchrun() -> Command {
    let mut command = Command::new(torch_python());
    command.args(["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]);
    command
}

fn ours() -> Command {
    let mut command = Command::new(RALLYPOINT);
    command.arg("run").arg("--standalone");
    command
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn workers_find_the_environment_that_torchrun_gives_them() {
    let logs = tempfile::tempdir().unwrap();
    let dir = logs.path().to_str().unwrap();
    for (workers, args) in
        [(2, &[][..]), (1, &["--role=reader", "--max-restarts=3"]), (2, &["--virtual-local-rank"])]
    {
        let args = [&["--log-dir", dir, "--rdzv-id=job", "--local-addr=127.0.0.1"], args].concat();
        // Both share their store with their workers, if they are not told otherwise.
        let env = |mut command: Command| {
            command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", if workers == 1 { "1" } else { "0" });
            environments(command, workers, &args)
        };
        let (theirs, ours) = (env(torchrun()), env(ours()));
        for (rank, theirs) in &theirs {
            compare(rank, theirs, &ours[rank]);
        }
    }
}

fn compare(rank: &str, theirs: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for name in names {
        let (theirs, ours) = (theirs.get(name), ours.get(name));
        match name.as_str() {
            // The test's own, to find processes by; and ours, which torchrun has nothing like.
            "RALLYPOINT_TEST_MARK" | "RALLYPOINT_HEARTBEAT_FILE" | "RALLYPOINT_PREEMPTION_FILE" => {}
            "MASTER_PORT" => {
                for port in [theirs, ours] {
                    assert!(
                        port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0)),
                        "{name}: {port:?}"
                    );
                }
            }
            // In a folder of a name drawn by lot, at the same place.
            "TORCHELASTIC_ERROR_FILE" => {
                let place = |file: Option<&String>| {
                    let file = file.unwrap().split('/').rev().take(3).collect::<Vec<_>>().join("/");
                    assert!(file.ends_with("attempt_0"), "{file}");
                    file
                };
                assert_eq!(place(theirs), place(ours), "rank {rank}");
            }
            _ => assert_eq!(theirs, ours, "{name} of rank {rank}: torchrun's and ours"),
        }
    }
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn the_ddp_example_gives_the_same_loss_under_torchrun_and_with_another_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let train = |mut command: Command, workers: &str, name: &str| {
        let script = example("ddp.py");
        let checkpoint = folder.path().join(name);
        command.args(["--nproc-per-node", workers]).arg(script).arg("--checkpoint").arg(checkpoint);
        command.env("PYTHON_EXEC", torch_python());
        loss(&Launcher::spawn(command).ended().expect(0))
    };
    let theirs = train(torchrun(), "2", "theirs");
    let ours = train(ours(), "3", "ours");
    assert!((ours - theirs).abs() < 1e-5, "{ours} instead of {theirs}");
}

/// How the nodes of a job get at each other.
enum Place {
    /// Processes of one machine, on an etcd there.
    Loopback(Etcd),
    /// Machines with addresses of their own, and the server on another.
    Machines { network: Network, endpoint: String, _server: Launcher },
}

impl Place {
    /// None where this machine has no network namespaces; why not.
    fn machines() -> Result<Self, String> {
        let network = Network::start(4)?;
        let endpoint = format!("{}:2379", network.hub().address());
        let mut command = network.hub().command(RALLYPOINT);
        command.args(["serve", "--listen", &endpoint]);
        let mut server = Launcher::spawn(command);
        server.wait_for("address=");
        Ok(Place::Machines { network, endpoint, _server: server })
    }

    /// The beginning of a command on the `n`th node, and where the etcd is.
    fn node(&self, n: usize) -> (Command, String) {
        match self {
            Place::Loopback(etcd) => (Command::new(RALLYPOINT), etcd.endpoint()),
            Place::Machines { network, endpoint, .. } => {
                let mut command = network.host(n).command(RALLYPOINT);
                // gloo looks its own address up by the machine's name, which all of these share.
                command.env("GLOO_SOCKET_IFNAME", "net0");
                (command, endpoint.clone())
            }
        }
    }
}

/// The loss that training ends with, if nothing ever happens to it.
fn undisturbed_loss() -> f64 {
    static LOSS: OnceLock<f64> = OnceLock::new();
    *LOSS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = ours();
        command
            .arg(example("ddp.py"))
            .args(["--steps", STEPS, "--checkpoint"])
            .arg(folder.path().join("checkpoint"));
        command.env("PYTHON_EXEC", torch_python());
        loss(&Launcher::spawn(command).ended().expect(0))
    })
}

fn loss(ended: &Ended) -> f64 {
    ended.with("done after")[0].rsplit_once("loss ").unwrap().1.parse().unwrap()
}

const STEPS: &str = "200";

/// The number after `before` in a line.
fn number(line: &str, before: &str) -> u64 {
    line.split_once(before).unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
}

fn training_survives(place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let start = |n: usize| {
        let (mut command, endpoint) = place.node(n);
        command.args([
            "run",
            "--nnodes",
            "2:3",
            "--max-restarts",
            "0",
            "--rdzv-id",
            "ddp",
            "--rdzv-endpoint",
        ]);
        command
            .arg(format!("etcd://{endpoint}"))
            .args(["--rdzv-conf", "last_call_timeout=2,lease_timeout=2"]);
        command.arg(example("ddp.py")).args(["--steps", STEPS, "--pace", "0.05", "--checkpoint"]);
        command.arg(folder.path().join("checkpoint")).env("PYTHON_EXEC", torch_python());
        Launcher::spawn(command)
    };
    let mut nodes: Vec<Launcher> = (0..3).map(start).collect();
    // Past the first checkpoints; the one that says so is the master, and it is the one to die.
    let (master, _) = wait_for_any(&mut nodes, "step 12 with 3 workers");
    nodes[master].pull_the_plug();
    nodes.remove(master);
    let (_, line) = wait_for_any(&mut nodes, "with 2 workers");
    let resumed = number(&line, "from step ");
    assert!(resumed >= 10, "training goes on from its checkpoint: {line}");
    let (_, line) = wait_for_any(&mut nodes, &format!("step {} with 2 workers", resumed + 1));
    assert!(line.contains("with 2 workers"));

    nodes.iter_mut().for_each(Launcher::forget);
    nodes.push(start(3));
    let (_, line) = wait_for_any(&mut nodes, "with 3 workers");
    assert!(number(&line, "from step ") >= resumed, "{line}");
    let ended: Vec<Ended> = nodes.into_iter().map(|node| node.ended().expect(0)).collect();
    let last =
        ended.iter().find(|ended| !ended.with("done after").is_empty()).expect("one of them is the master");
    let undisturbed = undisturbed_loss();
    assert!((loss(last) - undisturbed).abs() < 1e-4, "{} instead of {undisturbed}", loss(last));
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn training_survives_a_death_and_grows_again() {
    match Place::machines() {
        Ok(machines) => training_survives(&machines),
        Err(why) => {
            // Said where a user of the tests looks, and the promise is still tried, on what there is.
            eprintln!("{why}: trying it with processes instead");
            training_survives(&Place::Loopback(Etcd::start(Version::V35)));
        }
    }
}

/// Three that sum for ever; two are content, and wait for a third one that has not come yet. PyTorch is loaded only where there
/// is something to sum.
const SUMS: &str = r#"
import os, sys, time
two, all_came = os.environ["WORLD_SIZE"] == "2", os.path.join(os.path.dirname(__file__), "all")
while two and not os.path.exists(all_came):
    time.sleep(0.05)
print(f"{os.environ['WORLD_SIZE']} are here", flush=True)
if two:
    sys.exit(0)
open(all_came, "w").close()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
while True:
    dist.all_reduce(total)
    if dist.get_rank() == 0 and total.item() == 3:
        print("they sum", flush=True)
    total.fill_(1)
"#;

/// gloo tells of a death in milliseconds, and the workers of the others fail with it; the node is missed only when its lease
/// has ended. The first of them, which leads, has the store of the workers too.
#[test]
fn the_death_of_a_whole_node_costs_workers_with_gloo_no_restart() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let script = folder.path().join("worker.py");
    std::fs::write(&script, SUMS).unwrap();
    let endpoint = etcd.endpoint();
    let start = |_| {
        let run = ["--nnodes=2:3", "--max-restarts=0", "--rdzv-id=job", "--rdzv-endpoint", &endpoint];
        // A Python that fails takes its time to end on a busy machine, and is to have ended before the death is known.
        let conf = ["--rdzv-conf=last_call_timeout=2,lease_timeout=10", script.to_str().unwrap()];
        Launcher::start_with(&[&run[..], &conf[..]].concat(), |command| {
            command.env("PYTHON_EXEC", torch_python());
        })
    };
    let mut nodes: Vec<_> = (0..3).map(start).collect();
    let (master, _) = wait_for_any(&mut nodes, "they sum");
    nodes[(master + 1) % 3].pull_the_plug();
    nodes.remove((master + 1) % 3);
    let mut followed = 0;
    for node in nodes {
        let ended = node.ended().expect(0);
        assert_eq!(ended.with("2 are here").len(), 1, "{}", ended.text());
        assert_eq!(ended.with("died; meeting again").len(), 1, "{}", ended.text());
        followed += ended.with("which followed from that").len();
    }
    assert!(followed > 0, "gloo has not told of it");
}

/// Meets the others. In the first round rank 0 is killed, and the others read what it has said when they are stopped for
/// that. In the next one nothing is left.
const STORE_WORKER: &str = r#"
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

def stopped(*_):
    # Rank 0 is dead by now.
    print(f"rank {rank} reads: {store.get('cause').decode()}", flush=True)
    open(os.environ["FOLDER"] + "/again", "w").close()
    os._exit(1)

signal.signal(signal.SIGTERM, stopped)
dist.init_process_group("gloo")
rank, store = dist.get_rank(), dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
first = not os.path.exists(os.environ["FOLDER"] + "/again")
print(f"rank {rank}, agent store {os.environ['TORCHELASTIC_USE_AGENT_STORE']}, {store.check(['cause'])}", flush=True)
total = torch.tensor([rank])
dist.all_reduce(total)
# Both meet at the store once more.
dist.monitored_barrier(timeout=timedelta(seconds=60))
odd = dist.new_group([1, 3])
if rank in (1, 3):
    among = torch.tensor([rank])
    dist.all_reduce(among, group=odd)
    print(f"rank {rank} sum of the odd {among.item()}", flush=True)
# Nobody is in a collective any more when rank 0 dies.
store.set(f"past/{rank}", "")
if first and rank == 0:
    store.wait([f"past/{other}" for other in range(4)])
    store.set("cause", "the disk of rank 0 is full")
    store.get("cause")
    os.kill(os.getpid(), signal.SIGKILL)
while first:
    time.sleep(0.05)
print(f"rank {rank} sum {total.item()}", flush=True)
dist.destroy_process_group()
"#;

/// Two nodes of two workers each, whose store the agent of the first serves. The second would have it otherwise, and is not
/// asked.
#[test]
fn the_workers_store_outlives_rank_0_and_is_empty_in_every_round() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let script = folder.path().join("worker.py");
    std::fs::write(&script, STORE_WORKER).unwrap();
    let (endpoint, port) = (etcd.endpoint(), closed_port());
    let (address, etcd_port) = endpoint.rsplit_once(':').unwrap();
    let start = |rank: &str, choice: &str| {
        let mut command = Command::new(RALLYPOINT);
        command.args(["run", "--nnodes=2", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=store"]);
        command.args(["--node-rank", rank, "--master-addr", address, "--master-port", etcd_port]);
        if rank == "0" {
            // The same in both rounds: connections of the first may be left.
            command.arg("--rdzv-conf").arg(format!("master_port={port}"));
        }
        command.arg(&script).env("FOLDER", folder.path()).env("PYTHON_EXEC", torch_python());
        Launcher::spawn({
            command.env("RALLYPOINT_WORKER_STORE", choice);
            command
        })
    };
    let ended = [start("0", "agent"), start("1", "rank0")].map(|node| node.ended().expect(0));
    let said = format!("{}\n{}", ended[0].text(), ended[1].text());
    let count = |line: &str| said.matches(line).count();
    for rank in 0..4 {
        assert_eq!(count(&format!("rank {rank}, agent store True, False")), 2, "{said}");
        assert_eq!(count(&format!("rank {rank} sum 6")), 1, "{said}");
    }
    assert_eq!(count("sum of the odd 4"), 4, "{said}");
    assert_eq!(count("reads: the disk of rank 0 is full"), 3, "{said}");
    assert_eq!(ended[1].with("failed with signal 9 (SIGKILL); meeting again").len(), 1, "{said}");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "somebody listens on {port} still");
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

/// One node under torchrun with PyTorch's `etcd` backend, one under ours: one group, whichever comes first.
#[test]
#[ignore = "it takes long: scripts/test long"]
fn a_node_under_torchrun_and_one_under_ours_are_one_group() {
    const WORKER: &str = r#"
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} sum {total.item()} of {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"#;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("worker.py");
    std::fs::write(&script, WORKER).unwrap();
    let etcd = Etcd::builder(Version::V35).v2().start();
    let start = |mut command: Command, workers: &str| {
        command.args(["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=mixed", "--local-addr=127.0.0.1"]);
        command
            .args([&format!("--rdzv-endpoint={}", etcd.endpoint()), &format!("--nproc-per-node={workers}")]);
        Launcher::spawn({
            command.arg(&script).env("PYTHON_EXEC", torch_python());
            command
        })
    };
    let mut theirs = Command::new(torch_python());
    theirs.args(["-m", "torch.distributed.run"]);
    let mut ours = Command::new(RALLYPOINT);
    ours.arg("run");
    let nodes = [start(theirs, "1"), start(ours, "2")];
    let ended = nodes.map(|node| node.ended().expect(0));
    let mut said: Vec<String> = ended
        .iter()
        .flat_map(|ended| ended.with("sum 6 of 3"))
        .map(|line| line.split_once("rank ").unwrap().1.to_owned())
        .collect();
    said.sort_unstable();
    assert_eq!(
        said,
        ["0 sum 6 of 3", "1 sum 6 of 3", "2 sum 6 of 3"],
        "{}{}",
        ended[0].text(),
        ended[1].text()
    );
}
