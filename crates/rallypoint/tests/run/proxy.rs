//! `--worker-store proxy`: workers meet through their own launchers, each of which has one connection to rank 0's.

use std::process::Command;

use crate::launcher::{Launcher, RALLYPOINT, heeding};
use rallypoint_testkit::{Certs, Etcd, Version, closed_port, torch_python};

/// A node with a rank of its own, at an etcd.
fn node(etcd: &Etcd, rank: &str, args: &[&str], change: impl FnOnce(&mut Command)) -> Launcher {
    let endpoint = etcd.endpoint();
    let (address, port) = endpoint.rsplit_once(':').unwrap();
    let mut command = heeding(RALLYPOINT);
    command.args(["run", "--nnodes=2", "--rdzv-id=proxy", "--node-rank", rank]);
    command.args(["--master-addr", address, "--master-port", port]).args(args);
    change(&mut command);
    Launcher::spawn(command)
}

/// In the first round rank 0 dies, and the others read what it has said when they are stopped for that. In the next one
/// nothing is left of it.
const GLOO: &str = r#"
import os, signal, time
import torch, torch.distributed as dist

def stopped(*_):
    print(f"rank {rank} reads: {store.get('cause').decode()}", flush=True)
    open(os.environ["FOLDER"] + "/again", "w").close()
    os._exit(1)

signal.signal(signal.SIGTERM, stopped)
dist.init_process_group("gloo")
rank, place = dist.get_rank(), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store = dist.TCPStore(*place, is_master=False)
first = not os.path.exists(os.environ["FOLDER"] + "/again")
print(f"rank {rank} meets at {place[0]} {place[1]}, agent store {os.environ['TORCHELASTIC_USE_AGENT_STORE']}, {store.check(['cause'])}", flush=True)
total = torch.tensor([rank])
dist.all_reduce(total)
store.set(f"past/{rank}", "x" * (1 << 20))
if first and rank == 0:
    store.wait([f"past/{other}" for other in range(3)])
    store.set("cause", "the disk of rank 0 is full")
    store.get("cause")
    os.kill(os.getpid(), signal.SIGKILL)
while first:
    time.sleep(0.05)
dist.new_group([0, 2])
# gloo takes it for a crash when one goes before the others have met.
dist.barrier()
print(f"rank {rank} sum {total.item()}", flush=True)
dist.destroy_process_group()
"#;

/// One worker and two, with certificates: gloo meets, restarts and meets again.
#[test]
fn gloo_meets_through_proxies_with_tls_and_again_after_a_failure() {
    let (etcd, folder, certs) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap(), Certs::generate());
    let (script, port) = (folder.path().join("worker.py"), closed_port());
    std::fs::write(&script, GLOO).unwrap();
    let start = |rank: &str| {
        let workers = if rank == "0" { "--nproc-per-node=1" } else { "--nproc-per-node=2" };
        let args = [workers, "--max-restarts=1", "--worker-store", "proxy"];
        node(&etcd, rank, &args, |command| {
            if rank == "0" {
                command.arg("--rdzv-conf").arg(format!("master_port={port}"));
            }
            command.arg("--store-cacert").arg(certs.ca()).arg("--store-cert").arg(certs.server_cert());
            command.arg("--store-key").arg(certs.server_key()).arg(&script);
            command.env("FOLDER", folder.path()).env("PYTHON_EXEC", torch_python());
        })
    };
    let ended = [start("0"), start("1")].map(|node| node.ended().expect(0));
    let said = format!("{}\n{}", ended[0].text(), ended[1].text());
    let count = |line: &str| said.matches(line).count();
    for rank in 0..3 {
        assert_eq!(count(&format!("rank {rank} meets at 127.0.0.1 ")), 2, "{said}");
        assert_eq!(count(&format!("rank {rank} sum 3")), 1, "{said}");
    }
    assert_eq!(count("agent store True, False"), 6, "{said}");
    assert_eq!(count("reads: the disk of rank 0 is full"), 2, "{said}");
    // Workers of no node were told of the port that agents come to.
    assert_eq!(count(&format!("127.0.0.1 {port}")), 0, "{said}");
    assert_eq!(count("turned "), 0, "{said}");
}

/// Waits for a key that never comes, by the bytes that PyTorch's client would send; and what it hears.
const WAITS: &str = r#"
import os, socket, struct, sys
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 60)
store.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + bytes([13, 1, 2, 3, 4]))
assert store.recv(4) == bytes([1, 2, 3, 4])
store.sendall(bytes([6]) + struct.pack("<QQ", 1, 5) + b"never")
store.settimeout(None)
print(f"rank {os.environ['RANK']} is connected", flush=True)
try:
    print("heard", store.recv(1))
except ConnectionResetError:
    sys.exit("the store reset the connection")
"#;

/// The other node was not told of proxies, and does as the one with rank 0 says.
#[test]
fn workers_whose_store_dies_see_a_reset_and_it_is_named() {
    let (etcd, port) = (Etcd::start(Version::V35), closed_port().to_string());
    let start = |rank: &str| {
        node(&etcd, rank, &[], |command| {
            if rank == "0" {
                let conf = format!("worker_store=proxy,master_port={port},lease_timeout=2");
                command.args(["--rdzv-conf", &conf]);
            } else {
                command.args(["--rdzv-conf", "lease_timeout=2"]);
            }
            command.args(["--", "python3", "-c", WAITS]);
        })
    };
    let [mut first, mut second] = [start("0"), start("1")];
    first.wait_for("rank 0 is connected");
    second.wait_for("rank 1 is connected");
    first.pull_the_plug();
    second.wait_for(&format!("the connection to the workers' store at 127.0.0.1:{port} is lost"));
    second.wait_for("[1]: the store reset the connection");
    // That its worker has failed is not its node's fault.
    second.wait_for("node 0 (node-rank-0) died; meeting again");
    second.signal("TERM");
    let ended = second.ended().expect(143);
    assert_eq!(ended.with("is lost").len(), 1, "{}", ended.text());
}

/// What cannot be encrypted is not sent, and the sentence says what to do.
#[test]
fn a_node_that_wants_tls_does_not_go_without() {
    let (etcd, certs) = (Etcd::start(Version::V35), Certs::generate());
    let [ca, cert, key] =
        [certs.ca(), certs.server_cert(), certs.server_key()].map(|file| file.to_str().unwrap());
    let files = ["--store-cacert", ca, "--store-cert", cert, "--store-key", key];
    let sleeps = ["--", "sleep", "600"];
    let mut plain = node(&etcd, "0", &[&["--worker-store", "proxy"], &sleeps[..]].concat(), |_| {});
    let secure = [&["--worker-store", "proxy"], &files[..], &sleeps].concat();
    let refused = node(&etcd, "1", &secure, |_| {}).ended().expect(6);
    assert_eq!(
        refused.with("error: this node wants TLS for the workers' store").len(),
        1,
        "{}",
        refused.text()
    );
    // The one with rank 0 is told why it is alone.
    plain.wait_for("this node ends: this node wants TLS for the workers' store");
    drop(plain);
    // Before anybody is met.
    let ended = Launcher::run(&[&["--standalone"], &files[..], &["true"]].concat()).expect(2);
    assert!(ended.text().contains("--worker-store proxy"), "{}", ended.text());
    let mixed = ["--store-cacert", ca, "--store-cert", cert, "--store-key", ca];
    let ended =
        Launcher::run(&[&["--standalone", "--worker-store", "proxy"], &mixed[..], &["true"]].concat())
            .expect(2);
    assert!(ended.text().contains("private key"), "{}", ended.text());
}
