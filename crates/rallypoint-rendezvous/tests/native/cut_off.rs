//! A member whose network is cut, in a network namespace of its own.

use std::process::{Child, Stdio};
use std::time::Instant;

use rallypoint_testkit::{Network, Version};

use super::LIMIT;
use super::processes::{Process, example, rounds};

/// A network with an etcd at its hub.
struct WithEtcd {
    network: Network,
    etcd: Child,
    endpoint: String,
    _data: tempfile::TempDir,
}

impl WithEtcd {
    fn start(nodes: usize) -> Self {
        let network = Network::start(nodes).expect("this needs user namespaces and iproute2");
        let data = tempfile::tempdir().unwrap();
        let endpoint = format!("{}:2379", Network::HUB);
        let url = format!("http://{endpoint}");
        let mut command = network.hub();
        command.arg(Version::V35.binary()).arg("--data-dir").arg(data.path());
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error"]);
        let etcd = command.spawn().unwrap();
        let started = WithEtcd { network, etcd, endpoint, _data: data };

        let mut health = started.network.hub();
        health.arg(Version::V35.etcdctl()).args(["--endpoints", &started.endpoint, "endpoint", "health"]);
        health.stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        while !health.status().unwrap().success() {
            assert!(began.elapsed() < LIMIT, "etcd does not answer");
        }
        started
    }

    fn node(&self, n: usize) -> Process {
        let mut command = self.network.node(n);
        command.arg(example());
        let options = "lease_timeout=2,last_call_timeout=0.3,read_timeout=1";
        Process::start_by(command, &self.endpoint, "cut", 2, 3, options)
    }
}

impl Drop for WithEtcd {
    fn drop(&mut self) {
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

#[test]
fn a_member_that_is_cut_off_is_missed_and_comes_back() {
    let etcd = WithEtcd::start(3);
    let mut group: Vec<Process> = (0..3).map(|n| etcd.node(n)).collect();
    let first = rounds(&group);
    assert!(first[0]["master"].as_str().unwrap().starts_with("10.77.0.1"), "{first:?}");

    etcd.network.cut(2);
    let cut = group.pop().unwrap();
    let second = rounds(&group);
    assert_eq!((&second[0]["round"], &second[0]["world_size"]), (&2.into(), &2.into()));

    etcd.network.mend(2);
    group.push(cut);
    let third = rounds(&group);
    assert_eq!((&third[0]["round"], &third[0]["world_size"]), (&3.into(), &3.into()));
}
