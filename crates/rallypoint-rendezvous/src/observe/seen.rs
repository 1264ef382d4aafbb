//! What was seen of a node's rendezvous: its phase, and who was lost.

use std::collections::BTreeSet;
use std::time::SystemTime;

use rallypoint_metrics::{Phase, Rendezvous as Metrics};
use tokio::time::Instant;

use crate::handler::GroupChange;
use crate::progress::Progress;

/// Phases on one way that are told.
const LONGEST_WAY: usize = 64;

/// What was seen of a node's rendezvous.
#[derive(Debug)]
pub(super) struct Seen {
    metrics: Metrics,
    phase: Phase,
    since: Instant,
    /// Members of the last round whose loss is counted. The same one is told of when it happens, and when the nodes meet again.
    lost: BTreeSet<String>,
    /// The phases since a round was asked for, each with its beginning.
    way: Vec<(Phase, SystemTime)>,
    /// The last that was told of nodes that wait is that there are some.
    told_waiting: bool,
}

/// A node's way to its place in a round.
#[derive(Debug)]
pub(super) struct Way {
    /// When it asked for a round.
    pub(super) asked: SystemTime,
    /// When it had its place.
    pub(super) joined: SystemTime,
    marks: Vec<(Phase, SystemTime)>,
}

impl Way {
    /// What it was in meanwhile, from when to when.
    pub(super) fn phases(&self) -> impl Iterator<Item = (Phase, SystemTime, SystemTime)> {
        let ends = self.marks.iter().skip(1).map(|(_, at)| *at).chain([self.joined]);
        self.marks.iter().zip(ends).map(|((phase, start), end)| (*phase, *start, end))
    }
}

impl Seen {
    pub(super) fn new(metrics: Metrics) -> Self {
        Seen {
            metrics,
            phase: Phase::Idle,
            since: Instant::now(),
            lost: BTreeSet::new(),
            way: Vec::new(),
            told_waiting: false,
        }
    }

    /// The phase it is in.
    #[cfg(test)]
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    fn enter(&mut self, phase: Phase) {
        if phase != self.phase {
            let lasted = self.since.elapsed();
            (self.phase, self.since) = (phase, Instant::now());
            let now = SystemTime::now();
            self.metrics.enter(phase, now, lasted);
            // A spare comes and goes; its way is not to grow for ever.
            if self.way.len() < LONGEST_WAY {
                self.way.push((phase, now));
            }
        }
    }

    /// A round is asked for. Who gave up waiting and asks again goes on where it was.
    pub(super) fn asked(&mut self) {
        if !matches!(self.phase, Phase::Registering | Phase::Waiting | Phase::LastCall | Phase::Spare) {
            self.way.clear();
            self.enter(Phase::Registering);
            self.metrics.placeless();
        }
    }

    /// etcd has taken that this node wants a round.
    pub(super) fn registered(&mut self) {
        if self.phase == Phase::Registering {
            self.enter(Phase::Waiting);
        }
    }

    /// How far the wait for a round has come.
    pub(super) fn progress(&mut self, progress: &Progress) {
        self.enter(match progress {
            Progress { spare: true, .. } => Phase::Spare,
            Progress { last_call: Some(_), .. } => Phase::LastCall,
            // Nothing is told of this round yet.
            Progress { joined: 0, .. } => self.phase,
            _ => Phase::Waiting,
        });
    }

    /// This node has its place.
    pub(super) fn joined(&mut self, round: u64, rank: usize, members: usize) -> Way {
        let joined = SystemTime::now();
        let marks = std::mem::take(&mut self.way);
        let asked = marks.first().map_or(joined, |(_, at)| *at);
        self.enter(Phase::Working);
        // Those who waited are in it.
        if self.told_waiting {
            self.others(0);
        }
        self.metrics.joined(round, rank, members);
        self.lost.clear();
        Way { asked, joined, marks }
    }

    /// There is no round for it.
    pub(super) fn failed(&mut self) {
        self.enter(Phase::Idle);
        self.metrics.not_joined();
    }

    pub(super) fn left(&mut self) {
        self.enter(Phase::Idle);
        self.metrics.placeless();
    }

    /// Its group is no longer as it was.
    pub(super) fn changed(&mut self, change: &GroupChange) {
        self.count(change);
        if self.phase == Phase::Working {
            self.enter(Phase::Changed);
        }
    }

    /// So many nodes wait to get in.
    pub(super) fn others(&mut self, waiting: usize) {
        self.told_waiting = waiting > 0;
        self.metrics.others(waiting, 0);
    }

    /// Who of the last round was there no more.
    pub(super) fn lost(&mut self, lost: &[GroupChange]) {
        lost.iter().for_each(|change| self.count(change));
    }

    fn count(&mut self, change: &GroupChange) {
        let (node, why) = match change {
            GroupChange::Died { node, .. } => (node, "died"),
            GroupChange::Left { node, .. } => (node, "left"),
            GroupChange::MemberReplaced { node, .. } => (node, "replaced"),
            GroupChange::MemberKeptOut { node, .. } => (node, "excluded"),
            _ => return,
        };
        if self.lost.insert(node.clone()) {
            self.metrics.lost(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rallypoint_metrics::Metrics;

    use super::*;

    fn died(node: &str) -> GroupChange {
        GroupChange::Died { node: node.to_owned(), rank: None }
    }

    #[tokio::test(start_paused = true)]
    async fn phases_follow_each_other_and_their_times_are_told() {
        let metrics = Metrics::default();
        let mut seen = Seen::new(metrics.rendezvous.clone());
        seen.asked();
        tokio::time::advance(Duration::from_secs(2)).await;
        seen.progress(&Progress { joined: 0, ..Progress::default() });
        assert_eq!(seen.phase(), Phase::Registering);
        seen.registered();
        seen.progress(&Progress { joined: 1, ..Progress::default() });
        tokio::time::advance(Duration::from_secs(5)).await;
        // A wait that is begun again goes on.
        seen.asked();
        assert_eq!(seen.phase(), Phase::Waiting);
        seen.progress(&Progress { joined: 2, last_call: Some(Duration::ZERO), ..Progress::default() });
        let way = seen.joined(7, 1, 2);
        let phases: Vec<Phase> = way.phases().map(|(phase, ..)| phase).collect();
        assert_eq!(phases, [Phase::Registering, Phase::Waiting, Phase::LastCall]);
        assert!(way.phases().all(|(_, start, end)| way.asked <= start && start <= end && end <= way.joined));
        let text = metrics.text();
        for line in [
            "rallypoint_phase{phase=\"working\"} 1",
            "rallypoint_phase{phase=\"waiting\"} 0",
            "rallypoint_phase_duration_seconds_sum{phase=\"registering\"} 2.0",
            "rallypoint_phase_duration_seconds_sum{phase=\"waiting\"} 5.0",
            "rallypoint_phase_duration_seconds_count{phase=\"last_call\"} 1",
            "rallypoint_round 7",
            "rallypoint_node_rank 1",
            "rallypoint_members 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        seen.changed(&died("b"));
        assert_eq!(seen.phase(), Phase::Changed);
        seen.asked();
        assert!(metrics.text().contains("rallypoint_node_rank -1\n"));
    }

    #[tokio::test]
    async fn those_who_wait_are_told_of_until_the_nodes_have_met() {
        let metrics = Metrics::default();
        let mut seen = Seen::new(metrics.rendezvous.clone());
        seen.others(2);
        assert!(metrics.text().contains("rallypoint_waiting_nodes 2\n"));
        seen.joined(2, 0, 4);
        assert!(metrics.text().contains("rallypoint_waiting_nodes 0\n"));
    }

    #[tokio::test]
    async fn a_death_is_counted_once_whoever_tells_of_it() {
        let metrics = Metrics::default();
        let mut seen = Seen::new(metrics.rendezvous.clone());
        seen.joined(1, 0, 3);
        seen.changed(&died("b"));
        seen.lost(&[died("b"), died("c")]);
        seen.joined(2, 0, 1);
        // In the next round it may die again.
        seen.changed(&died("b"));
        let text = metrics.text();
        assert!(text.contains("rallypoint_lost_members_total{why=\"died\"} 3\n"), "{text}");
    }
}
