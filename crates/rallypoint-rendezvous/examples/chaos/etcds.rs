//! The three etcds, and how harm is done to them.

use std::path::{Path, PathBuf};

use rallypoint_testkit::{Cluster, Etcd, Network, Version};

use crate::step::{Step, Which};

pub(crate) const ETCDS: usize = 3;

pub(crate) struct Etcds {
    cluster: Cluster,
    /// The one that something is being done to, and the one it is cut from.
    victim: usize,
    other: usize,
    folder: tempfile::TempDir,
    has_snapshot: bool,
}

impl Etcds {
    /// On the first machines of the network.
    pub(crate) fn start(network: &Network) -> Self {
        let builder = Etcd::builder(Version::V35)
            .unsafe_no_fsync()
            .arg("--quota-backend-bytes=8388608")
            .arg("--auto-compaction-mode=revision")
            .arg("--auto-compaction-retention=2000");
        let cluster = Cluster::start_on(&builder, &network.hosts()[..ETCDS]);
        let folder = tempfile::tempdir().unwrap();
        Etcds { cluster, victim: 0, other: 0, folder, has_snapshot: false }
    }

    pub(crate) fn endpoints(&self) -> String {
        self.cluster.endpoints()
    }

    /// What etcdctl says.
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        self.cluster.nodes()[0].etcdctl(args)
    }

    pub(crate) fn revision(&self) -> u64 {
        let answer = self.ask(&["get", "none", "--write-out=fields"]);
        answer.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap().parse().unwrap()
    }

    /// Copies what the servers said to `log.etcd0` and so on.
    pub(crate) fn keep_logs(&self, log: &Path) {
        for (number, etcd) in self.cluster.nodes().iter().enumerate() {
            let _ = std::fs::copy(etcd.dir().join("log"), log.with_extension(format!("etcd{number}")));
        }
    }

    fn snapshot(&self) -> PathBuf {
        self.folder.path().join("snapshot")
    }

    pub(crate) fn snapshot_if_none(&mut self) {
        if !self.has_snapshot {
            self.cluster.nodes()[0].save(&self.snapshot());
            self.has_snapshot = true;
        }
    }

    pub(crate) fn forget_snapshot(&mut self) {
        self.has_snapshot = false;
        let _ = std::fs::remove_file(self.snapshot());
    }

    fn which(&self, which: Which) -> usize {
        let leader = self.cluster.leader();
        match which {
            Which::Leader => leader,
            Which::Follower => (leader + 1) % ETCDS,
        }
    }

    pub(crate) fn harm(&mut self, network: &Network, step: &Step) {
        let victim = self.victim;
        match step {
            Step::KillEtcd(which) => {
                self.victim = self.which(*which);
                self.cluster.node(self.victim).kill();
            }
            Step::RestartEtcd => self.cluster.node(victim).restart(),
            Step::StopEtcd(which) => {
                self.victim = self.which(*which);
                self.cluster.node(self.victim).pause();
            }
            Step::ContinueEtcd => self.cluster.node(victim).resume(),
            Step::CutEtcd(which) => {
                self.victim = self.which(*which);
                network.host(self.victim).cut();
            }
            Step::MendEtcd => network.host(victim).mend(),
            Step::CutFollowerFromLeader => {
                (self.other, self.victim) = (self.which(Which::Leader), self.which(Which::Follower));
                network.host(self.victim).cut_from(&network.host(self.other));
            }
            Step::MendFollowerToLeader => {
                network.host(victim).mend_to(&network.host(self.other));
            }
            Step::StopAllEtcds => (0..ETCDS).for_each(|index| self.cluster.node(index).pause()),
            Step::ContinueAllEtcds => (0..ETCDS).for_each(|index| self.cluster.node(index).resume()),
            Step::RestartAllEtcds => self.cluster.restart_all(),
            Step::Compact => {
                let revision = self.revision().to_string();
                // It may have been compacted that far already.
                let _ = self.cluster.nodes()[0].try_etcdctl(&["compact", "--physical", &revision]);
            }
            Step::FillDisk => self.cluster.nodes()[0].exhaust_space(),
            Step::FreeDisk => self.cluster.nodes()[0].free_space(),
            Step::AskForPasswords => {
                let etcd = &self.cluster.nodes()[0];
                for args in [
                    &["user", "add", "root:root"][..],
                    &["user", "grant-role", "root", "root"],
                    &["auth", "enable"],
                ] {
                    // The user may be there from before.
                    let _ = etcd.try_etcdctl(args);
                }
            }
            Step::AskForNoPasswords => self.cluster.nodes()[0].ask_for_no_passwords(),
            Step::LoseData => self.cluster.restart_empty(),
            Step::Restore => self.cluster.restore(&self.snapshot()),
            Step::RestoreAhead => self.cluster.restore_ahead(&self.snapshot(), 1_000_000),
            Step::OthersWrite => {
                for n in 0..60 {
                    let _ = self.ask(&["put", "other", &n.to_string()]);
                }
            }
            _ => unreachable!("{step:?} is nothing that is done to etcd"),
        }
    }
}
