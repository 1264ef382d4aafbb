//! What is done in an episode.

use std::time::Duration;

use fastrand::Rng;

use crate::step::{Step, Which};
use crate::times::LEASE;

/// The faults of an episode.
#[derive(Debug, Clone, Default)]
pub(crate) struct Episode {
    pub(crate) name: String,
    pub(crate) steps: Vec<(Duration, Step)>,
    pub(crate) faults: usize,
}

impl Episode {
    /// What a seed has in store. `names`: the nodes, the leader first.
    pub(crate) fn new(seed: u64, number: u64, names: &[String]) -> Self {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number));
        let mut episode = Episode::default();
        let mut names = names.to_vec();
        let (nodes, etcds) = match random.u32(..12) {
            0..=2 => (random.usize(1..=3), 0),
            3..=6 => (0, 1),
            7..=9 => (random.usize(1..=2), 1),
            _ => {
                episode.leader_dies_on_the_way(&mut random, &mut names);
                (0, random.usize(..2))
            }
        };
        for _ in 0..etcds {
            episode.etcd_fault(&mut random);
        }
        for _ in 0..nodes {
            // The leader, where it was not taken yet, half of the time.
            let index = if random.bool() { 0 } else { random.usize(..names.len()) };
            let name = names.remove(index);
            episode.node_fault(&mut random, name);
        }
        episode.steps.sort_by_key(|(at, _)| *at);
        episode
    }

    fn begin(&mut self, name: &str) {
        self.faults += 1;
        if !self.name.is_empty() {
            self.name += ", ";
        }
        self.name += name;
    }

    fn step(&mut self, at: Duration, step: Step) {
        self.steps.push((at, step));
    }

    fn leader_dies_on_the_way(&mut self, random: &mut Rng, names: &mut Vec<String>) {
        let (leader, other) = (names.remove(0), names.remove(0));
        self.begin(&format!("{leader} leads and dies while a round forms"));
        let at = millis(random, 0, 300);
        self.step(Duration::ZERO, Step::Order(other, "meet"));
        self.step(at, Step::Kill(leader.clone()));
        self.step(at + millis(random, 0, 5000), Step::Start(leader.clone()));
    }

    fn node_fault(&mut self, random: &mut Rng, name: String) {
        let (at, time) = (millis(random, 0, 4000), millis(random, 100, 6000));
        let end = at + time;
        let kind = random.u32(..14);
        let what = match kind {
            0..=2 => "killed",
            3..=4 => "stopped",
            5 => "cut",
            6 => "lost",
            7..=8 => "left",
            9..=10 => "asks",
            11 => "hangs",
            _ => "replaced",
        };
        self.begin(&format!("{name} {what}"));
        match kind {
            0..=2 => {
                self.step(at, Step::Kill(name.clone()));
                self.step(end, Step::Start(name.clone()));
            }
            3..=4 => {
                self.step(at, Step::Stop(name.clone()));
                self.step(end, Step::Continue(name.clone()));
            }
            5..=6 => {
                let cut = if kind == 5 { Step::Cut(name.clone()) } else { Step::Lose(name.clone()) };
                self.step(at, cut);
                self.step(end, Step::Mend(name.clone()));
            }
            7..=8 => {
                self.step(at, Step::Order(name.clone(), "leave"));
                self.step(end, Step::Start(name.clone()));
            }
            9..=10 => self.step(at, Step::Order(name.clone(), "meet")),
            11 => {
                self.step(at, Step::Order(name.clone(), "hang"));
                self.step(end, Step::Order(name.clone(), "go"));
            }
            _ => self.step(at, Step::Replace(name)),
        }
    }

    fn etcd_fault(&mut self, random: &mut Rng) {
        let (at, time) = (millis(random, 0, 2500), millis(random, 200, 7000));
        let end = at + time;
        let which = if random.bool() { Which::Leader } else { Which::Follower };
        match random.u32(..19) {
            0 | 1 => {
                self.begin(&format!("etcd's {which:?} killed"));
                self.step(at, Step::KillEtcd(which));
                self.step(end, Step::RestartEtcd);
            }
            2 | 3 => {
                self.begin(&format!("etcd's {which:?} stopped"));
                self.step(at, Step::StopEtcd(which));
                self.step(end, Step::ContinueEtcd);
            }
            4 | 5 => {
                self.begin(&format!("etcd's {which:?} cut"));
                self.step(at, Step::CutEtcd(which));
                self.step(end, Step::MendEtcd);
            }
            6 => {
                self.begin("a follower cut from etcd's leader");
                self.step(at, Step::CutFollowerFromLeader);
                self.step(end, Step::MendFollowerToLeader);
            }
            7 => {
                self.begin("all etcds stopped");
                self.step(at, Step::StopAllEtcds);
                self.step(end, Step::ContinueAllEtcds);
            }
            8 => {
                self.begin("all etcds killed");
                self.step(at, Step::RestartAllEtcds);
            }
            9 => {
                self.begin("history compacted");
                self.step(at, Step::Compact);
                self.step(end, Step::Compact);
            }
            10 => {
                self.begin("no space");
                self.step(at, Step::FillDisk);
                self.step(end, Step::FreeDisk);
            }
            11 => {
                self.begin("passwords asked for");
                self.step(at, Step::AskForPasswords);
                self.step(end, Step::AskForNoPasswords);
            }
            12 | 13 => {
                self.begin("data lost");
                self.lose(at, Step::LoseData, random);
            }
            14 => {
                self.begin("a snapshot restored");
                self.lose(at, Step::Restore, random);
            }
            15 => {
                self.begin("a snapshot restored with higher revisions");
                self.lose(at, Step::RestoreAhead, random);
            }
            kind => {
                let newcomer = kind < 18;
                self.begin(if newcomer { "all nodes cut, a newcomer" } else { "all nodes cut" });
                // Longer than a lease, most of the time.
                let end = end + LEASE;
                self.step(at, Step::CutAllNodes);
                if newcomer {
                    self.step(end, Step::Newcomer);
                }
                self.step(end + Duration::from_millis(1), Step::MendAllNodes);
            }
        }
    }

    fn lose(&mut self, at: Duration, step: Step, random: &mut Rng) {
        // Others may have written before the nodes are back.
        let cut = random.bool();
        if cut {
            self.step(at, Step::CutAllNodes);
        }
        self.step(at + Duration::from_millis(1), step);
        if cut {
            self.step(at + Duration::from_millis(2), Step::OthersWrite);
            self.step(at + Duration::from_millis(3), Step::MendAllNodes);
        }
    }
}

fn millis(random: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.u64(from..to))
}
