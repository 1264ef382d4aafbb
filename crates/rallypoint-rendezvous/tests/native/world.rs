//! Servers and nodes as processes, each on a machine of its own.

use std::time::{Duration, Instant};

use rallypoint_testkit::{Cluster, Etcd, EtcdBuilder, Host, Network, Version};
use serde_json::Value;

use super::processes::{Process, example, rounds_within};

pub(super) const LEASE: Duration = Duration::from_secs(2);
/// Within which a group takes note of whatever happens, also on a busy machine. No last call of [`PATIENT`] is over by then.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// Machines for servers, then machines for nodes.
pub(super) struct World {
    pub(super) network: Network,
    pub(super) cluster: Cluster,
    pub(super) group: Vec<Process>,
    settings: Settings,
}

/// How nodes are started.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) options: &'static str,
}

pub(super) const OPTIONS: &str = "lease_timeout=2,last_call_timeout=0.3,read_timeout=1";
/// As [`OPTIONS`], for a group that meets when it is full, however long one of them takes to come.
pub(super) const PATIENT: &str = "lease_timeout=2,last_call_timeout=20,read_timeout=1";

impl World {
    /// Servers, and room for nodes.
    pub(super) fn new(servers: usize, nodes: usize, settings: Settings) -> Self {
        Self::with(&Etcd::builder(Version::V35).unsafe_no_fsync(), servers, nodes, settings)
    }

    pub(super) fn with(builder: &EtcdBuilder, servers: usize, nodes: usize, settings: Settings) -> Self {
        let network = Network::start(servers + nodes).unwrap();
        let cluster = Cluster::start_on(builder, &network.hosts()[..servers]);
        World { network, cluster, group: Vec::new(), settings }
    }

    /// A machine for nodes, from 0.
    pub(super) fn host(&self, number: usize) -> Host {
        self.network.host(self.cluster.nodes().len() + number)
    }

    pub(super) fn hosts(&self) -> Vec<Host> {
        self.network.hosts()[self.cluster.nodes().len()..].to_vec()
    }

    /// A node on one of the machines, with these options beside the group's.
    pub(super) fn start(&self, host: usize, options: &str) -> Process {
        let Settings { min, max, options: all } = &self.settings;
        let options = if options.is_empty() { (*all).to_owned() } else { format!("{all},{options}") };
        let command = self.host(host).command(example());
        Process::start_by(command, &self.cluster.endpoints(), "run", *min, *max, &options)
    }

    /// Starts nodes on the first machines, which meet.
    pub(super) fn meet(&mut self, nodes: usize) -> Vec<Value> {
        self.group = (0..nodes).map(|host| self.start(host, "")).collect();
        self.whole()
    }

    /// The round that all of them are in at last: some may have met before the others came.
    pub(super) fn whole(&self) -> Vec<Value> {
        let mut rounds: Vec<Value> = self.group.iter().map(|process| process.next("round")).collect();
        loop {
            let latest = rounds.iter().map(|round| round["round"].as_u64()).max().flatten();
            let behind = rounds.iter().position(|round| round["round"].as_u64() != latest);
            let behind = behind.or_else(|| (rounds[0]["world_size"] != rounds.len()).then_some(0));
            let Some(behind) = behind else { break };
            rounds[behind] = self.group[behind].next("round");
        }
        let mut ranks = ranks(&rounds);
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..rounds.len() as u64), "{rounds:?}");
        rounds
    }

    /// The next round of all.
    pub(super) fn rounds(&self) -> Vec<Value> {
        rounds_within(&self.group, super::LIMIT)
    }

    /// The next round of all, which must come soon.
    pub(super) fn soon(&self) -> Vec<Value> {
        rounds_within(&self.group, SOON)
    }

    /// Which of the nodes of these names leads.
    pub(super) fn leader(&self, names: &[Value]) -> usize {
        let etcd = &self.cluster.nodes()[0];
        let leader = etcd.etcdctl(&["get", "--print-value-only", "rallypoint/run/group/leader"]);
        // Its name, and what tells its process from every other.
        let (leader, _) = leader.trim().rsplit_once(' ').expect("both are there");
        names.iter().position(|name| name == leader).expect("one of them leads")
    }

    /// Lets that time pass, in which nobody says a word and nobody has much to do.
    pub(super) fn is_calm_for(&self, time: Duration) {
        let busy = || -> Vec<Duration> { self.group.iter().map(Process::processor_time).collect() };
        let (before, began) = (busy(), Instant::now());
        std::thread::sleep(time);
        for ((process, before), after) in self.group.iter().zip(before).zip(busy()) {
            assert_eq!(process.said(), Vec::<Value>::new());
            let (used, passed) = (after - before, began.elapsed());
            assert!(used < passed / 4, "it spins: {used:?} in {passed:?}");
        }
    }

    /// All are told soon that one has died, which is no longer of the group.
    pub(super) fn one_dies(&mut self, which: usize) {
        self.group.remove(which).kill();
        for process in &self.group {
            let change = process.next_within("change", SOON);
            assert!(change["change"].as_str().unwrap().starts_with("Died"), "{change}");
        }
    }
}

pub(super) fn ranks(rounds: &[Value]) -> Vec<u64> {
    rounds.iter().map(|round| round["rank"].as_u64().unwrap()).collect()
}

pub(super) fn change(line: &Value) -> &str {
    line["change"].as_str().unwrap()
}
