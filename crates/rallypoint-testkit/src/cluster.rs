//! Several etcd servers that form one cluster.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Etcd, EtcdBuilder, Version};

/// Elections take about a second; a loaded machine must not fail a test.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// A real etcd cluster on loopback.
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
        let mut nodes: Vec<Etcd> = (0..size).map(|i| builder.clone().prepare(&format!("node{i}"))).collect();
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
        let deadline = Instant::now() + ELECTION_TIMEOUT;
        loop {
            // A leader that was paused believes in itself for a moment, so two claims are none.
            let mut claims = (0..self.nodes.len()).filter(|&i| self.nodes[i].claims_to_lead());
            if let (Some(leader), None) = (claims.next(), claims.next()) {
                return leader;
            }
            assert!(Instant::now() < deadline, "the cluster has no leader after {ELECTION_TIMEOUT:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
