//! How things stand.

use rallypoint_core::barrier::{Place, Status};

use super::{Brain, LOSS_SHOWS, Life, Process, World};

impl World {
    pub(super) fn is_living(&self, node: usize) -> bool {
        matches!(self.nodes[node].life, Life::Going | Life::Met(_))
    }

    /// Those who live and can be expected to meet. A node of PyTorch's that works on in a version that is over never
    /// learns it; nor does one whose version etcd has lost, if others have made one of the same number.
    pub(super) fn living(&self) -> Vec<&Process> {
        let version = self.server.record().filter(|record| record.status == Status::Final);
        let version = version.and_then(|record| record.version);
        let works_on = |node: &Process| match (&node.brain, node.life) {
            (Brain::Torch(_), Life::Met(place)) => Some(place.version) != version || self.is_doubled(node),
            _ => false,
        };
        let nodes = self.nodes.iter();
        nodes.filter(|node| matches!(node.life, Life::Going | Life::Met(_)) && !works_on(node)).collect()
    }

    /// Whether this is a node of PyTorch's in a version that etcd has lost, and nodes have met in one of the same
    /// number since. It keeps the keep-alive of whoever has its rank there, dead or alive.
    fn is_doubled(&self, node: &Process) -> bool {
        let Life::Met(place) = node.life else { return false };
        let torch = matches!(node.brain, Brain::Torch(_));
        torch && node.met_in != self.truth.history() && self.truth.has_met(place.version)
    }

    /// Whether the keep-alive of that place is there, or is one that nobody puts back: PyTorch's nodes do not, when
    /// etcd has lost theirs, and go on. Ours know whose is PyTorch's if they have seen it.
    fn is_kept(&self, place: Place) -> bool {
        let is_torch = |node: &Process| matches!(node.brain, Brain::Torch(_));
        let in_group = |node: &&Process| {
            matches!(node.life, Life::Met(other) if other.version == place.version) && !is_torch(node)
        };
        let goes_on = |node: &Process| {
            let known = |other: &Process| other.listed_in == Some(node.met_in);
            is_torch(node)
                && node.life == Life::Met(place)
                && node.met_in != self.truth.history()
                && self.nodes.iter().filter(in_group).all(known)
        };
        self.server.is_kept(place) || self.nodes.iter().any(goes_on)
    }

    /// Whether all is as it should be.
    pub(super) fn is_well(&self) -> bool {
        let living = self.living();
        if self.server.record().is_some_and(|record| record.status == Status::Closed) {
            return living.is_empty();
        }
        // What PyTorch's nodes do among themselves is theirs.
        let torch = |node: &&Process| matches!(node.brain, Brain::Torch(_));
        if living.iter().all(torch) || self.nodes.iter().any(|node| self.is_doubled(node)) {
            return true;
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
        // Who comes to a group with a keep-alive less makes it meet again.
        let spares = living.len() > self.plan.max;
        let mut places = (0..record.joined()).map(|rank| Place { version, rank });
        let kept = places.all(|place| if spares { self.server.is_kept(place) } else { self.is_kept(place) });
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
