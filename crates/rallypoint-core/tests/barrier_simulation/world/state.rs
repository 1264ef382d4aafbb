//! How things stand.

use rallypoint_core::barrier::{Place, Status};

use super::{Brain, LOSS_SHOWS, Life, Process, World};

impl World {
    pub(super) fn is_living(&self, node: usize) -> bool {
        matches!(self.nodes[node].life, Life::Going | Life::Met(_))
    }

    /// Those who live and can be expected to meet. A node of PyTorch's that works on in a version that is over never
    /// learns it.
    pub(super) fn living(&self) -> Vec<&Process> {
        let version = self.server.record().filter(|record| record.status == Status::Final);
        let version = version.and_then(|record| record.version);
        let zombie = |node: &Process| match (&node.brain, node.life) {
            (Brain::Torch(_), Life::Met(place)) => Some(place.version) != version,
            _ => false,
        };
        let nodes = self.nodes.iter();
        nodes.filter(|node| matches!(node.life, Life::Going | Life::Met(_)) && !zombie(node)).collect()
    }

    /// Whether all is as it should be.
    pub(super) fn is_well(&self) -> bool {
        let living = self.living();
        if self.server.record().is_some_and(|record| record.status == Status::Closed) {
            return living.is_empty();
        }
        // Too few to meet wait for more.
        let waits = |node: &&Process| node.life == Life::Going;
        self.is_steady() || living.len() < self.plan.min && living.iter().all(waits)
    }

    /// Whether a group is whole, and everybody in it who can.
    pub(super) fn is_steady(&self) -> bool {
        let away = |node: &Process| node.stalled_until > self.now || node.cut_until > self.now;
        // Versions of two histories have the same numbers for a while.
        let two_histories = self.lost_at.is_some_and(|at| self.now < at + LOSS_SHOWS);
        if !self.is_up() || two_histories || self.nodes.iter().any(away) {
            return false;
        }
        let Some(record) = self.server.record() else { return false };
        let Some(version) = record.version else { return false };
        let living = self.living();
        let met = living.iter().filter_map(|node| match node.life {
            Life::Met(place) => Some(place),
            _ => None,
        });
        let kept = (0..record.joined()).all(|rank| self.server.is_kept(Place { version, rank }));
        record.status == Status::Final
            && record.waiting == Some(0)
            && kept
            && !living.iter().any(|node| node.told && node.life != Life::Going)
            && met.clone().all(|place| place.version == version)
            && met.count() == living.len().min(self.plan.max)
            && record.joined() == living.len().min(self.plan.max)
    }

    /// Once nothing goes wrong any more, those who live meet.
    pub(super) fn judge_the_end(&self) -> Result<(), String> {
        if self.is_well() {
            return Ok(());
        }
        let living = self.living();
        let at_work = living.iter().filter(|node| matches!(node.life, Life::Met(_))).count();
        let record = self.server.record();
        Err(format!("{at_work} of {} living nodes are at work; record: {record:?}", living.len()))
    }
}
