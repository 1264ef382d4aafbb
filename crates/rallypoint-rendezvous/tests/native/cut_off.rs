//! A member whose network is cut, in a network namespace of its own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rallypoint_testkit::Version;

use super::LIMIT;
use super::processes::{Process, example, rounds};

/// A bridge, and three namespaces on it. All of it is in a user namespace, so that it needs no rights and is gone with
/// its processes.
const NETWORK: &str = r#"
set -e
mount -t tmpfs none /run
ip link set lo up
ip link add hub type bridge
ip addr add 10.78.0.254/24 dev hub
ip link set hub up
for n in 0 1 2; do
    ip netns add node$n
    ip link add up$n type veth peer name net0 netns node$n
    ip link set up$n master hub up
    ip -n node$n link set lo up
    ip -n node$n addr add 10.78.0.1$n/24 dev net0
    ip -n node$n link set net0 up
done
echo ready
exec "$0" --data-dir "$1" --listen-client-urls http://10.78.0.254:2379 --advertise-client-urls http://10.78.0.254:2379 \
    --listen-peer-urls http://127.0.0.1:0 --log-level error
"#;

/// The namespaces, with an etcd in them.
struct Network {
    keeper: Child,
    _data: tempfile::TempDir,
}

impl Network {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "-Urnm", "sh", "-c", NETWORK]);
        command.arg(Version::V35.binary()).arg(data.path());
        let mut keeper = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready", "this needs user namespaces and iproute2");
        let network = Network { keeper, _data: data };
        let mut health = network.enter();
        health.arg(Version::V35.etcdctl()).args(["--endpoints", "10.78.0.254:2379", "endpoint", "health"]);
        health.stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        while !health.status().unwrap().success() {
            assert!(began.elapsed() < LIMIT, "etcd does not answer");
        }
        network
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--preserve-credentials", "-U", "-n", "-m", "-t", &self.keeper.id().to_string()]);
        command
    }

    fn node(&self, n: usize) -> Process {
        let mut command = self.enter();
        command.args(["ip", "netns", "exec", &format!("node{n}")]).arg(example());
        let options = "lease_timeout=2,last_call_timeout=0.3,read_timeout=1";
        Process::start_by(command, "10.78.0.254:2379", "cut", 2, 3, options)
    }

    fn link(&self, n: usize, state: &str) {
        let status = self.enter().args(["ip", "link", "set", &format!("up{n}"), state]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[test]
fn a_member_that_is_cut_off_is_missed_and_comes_back() {
    let network = Network::start();
    let mut group: Vec<Process> = (0..3).map(|n| network.node(n)).collect();
    let first = rounds(&group);
    assert!(first[0]["master"].as_str().unwrap().starts_with("10.78.0.1"), "{first:?}");

    network.link(2, "down");
    let cut = group.pop().unwrap();
    let second = rounds(&group);
    assert_eq!((&second[0]["round"], &second[0]["world_size"]), (&2.into(), &2.into()));

    network.link(2, "up");
    group.push(cut);
    let third = rounds(&group);
    assert_eq!((&third[0]["round"], &third[0]["world_size"]), (&3.into(), &3.into()));
}
