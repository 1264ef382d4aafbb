//! Several etcd servers that form one cluster.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Etcd, EtcdBuilder, Host, Version};

/// Elections take about a second; a loaded machine must not fail a test.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// A real etcd cluster on loopback, or on machines of a [`Network`](crate::Network).
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Etcd>,
}

impl Cluster {
    /// Starts `size` servers and waits until each answers.
    #[must_use]
    pub fn start(version: Version, size: usize) -> Self {
        Self::start_with(&Etcd::builder(version), size)
    }

    /// Starts `size` servers, each as the builder says, and waits until each answers.
    #[must_use]
    pub fn start_with(builder: &EtcdBuilder, size: usize) -> Self {
        Self::start_as((0..size).map(|_| builder.clone()))
    }

    fn start_as(builders: impl Iterator<Item = EtcdBuilder>) -> Self {
        let named = builders.enumerate().map(|(i, builder)| builder.prepare(&format!("node{i}")));
        let mut nodes: Vec<Etcd> = named.collect();
        let entries: Vec<String> = nodes.iter().map(Etcd::peer_entry).collect();
        for node in &mut nodes {
            node.join_cluster(&entries.join(","));
            node.launch();
        }
        for node in &mut nodes {
            node.wait_ready();
        }
        Cluster { nodes }
    }

    /// Starts one server on each of these machines, as the builder says, and waits until each answers.
    #[must_use]
    pub fn start_on(builder: &EtcdBuilder, hosts: &[Host]) -> Self {
        Self::start_as(hosts.iter().map(|host| builder.clone().on(host)))
    }

    /// Kills all members that run, and starts them on the same data: longer without an answer than an election takes.
    pub fn restart_all(&mut self) {
        self.restart_with(|_| {});
    }

    /// Kills all that run, does something to each, and starts them.
    pub(crate) fn restart_with(&mut self, change: impl Fn(&Etcd)) {
        self.nodes.iter_mut().for_each(Etcd::kill);
        self.nodes.iter().for_each(change);
        self.nodes.iter_mut().for_each(Etcd::launch);
        self.nodes.iter_mut().for_each(Etcd::wait_ready);
    }

    /// Where clients connect, separated by commas.
    #[must_use]
    pub fn endpoints(&self) -> String {
        self.nodes.iter().map(Etcd::endpoint).collect::<Vec<_>>().join(",")
    }

    /// One of the servers.
    pub fn node(&mut self, index: usize) -> &mut Etcd {
        &mut self.nodes[index]
    }

    /// All of the servers.
    #[must_use]
    pub fn nodes(&self) -> &[Etcd] {
        &self.nodes
    }

    /// Which of the running servers leads; waits for an election to end.
    #[must_use]
    pub fn leader(&self) -> usize {
        self.leads(|_| true)
    }

    /// Which of the others leads; waits until one does. One that was cut off believes in itself for a second.
    #[must_use]
    pub fn leader_but(&self, not: usize) -> usize {
        self.leads(|leader| leader != not)
    }

    fn leads(&self, will_do: impl Fn(usize) -> bool) -> usize {
        let deadline = Instant::now() + ELECTION_TIMEOUT;
        loop {
            // A leader that was paused believes in itself for a moment, so two claims are none.
            let mut claims = (0..self.nodes.len()).filter(|&i| self.nodes[i].claims_to_lead());
            if let (Some(leader), None) = (claims.next(), claims.next())
                && will_do(leader)
            {
                return leader;
            }
            assert!(Instant::now() < deadline, "the cluster has no leader after {ELECTION_TIMEOUT:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
