//! How things stand.

use std::collections::BTreeSet;

use rallypoint_core::barrier::{Status, VersionRank};

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
        is_torch(node) && node.met_in != self.truth.history() && self.truth.has_met(place.version)
    }

    /// Whether the keep-alive of that place is there, or the group must go on without it: one of PyTorch's nodes that
    /// went with the folder nobody puts back. Ours know it if they looked at the members while it was there, and have seen
    /// the end of the folder; and who comes to a full group makes it meet again. When its owner met does not matter: it may
    /// have heard that the version is final after the keep-alive was gone.
    fn is_kept(&self, place: VersionRank) -> bool {
        let ours = |node: &&Process| {
            matches!(node.life, Life::Met(other) if other.version == place.version) && !is_torch(node)
        };
        let works = |node: &Process| is_torch(node) && node.life == Life::Met(place);
        let goes_on = |was_there: &BTreeSet<u32>| {
            let knows = |node: &Process| {
                node.listed_in.is_some_and(|history| was_there.contains(&history))
                    && node.folder_gone_in == self.truth.history()
            };
            self.nodes.iter().any(works)
                && self.nodes.iter().filter(ours).all(knows)
                && self.living().len() <= self.plan.max
        };
        self.server.is_kept(place) || self.truth.went_with_folder(place).is_some_and(goes_on)
    }

    /// Whether ours are at work in a version that etcd had lost, in which only PyTorch's nodes are missing. Nobody can
    /// tell whether those live, or have gone on to another version before that was lost, too.
    fn is_put_back(&self) -> bool {
        let Some(record) = self.server.record().filter(|record| record.status == Status::Final) else {
            return false;
        };
        let Some(version) = record.version else { return false };
        let was_torch = |place: VersionRank| {
            let mut wrote = self.nodes.iter().flat_map(|node| &node.wrote);
            wrote.any(|(wrote, history)| *wrote == place && *history != self.truth.history())
        };
        let mut places = (0..record.joined()).map(|rank| VersionRank { version, rank });
        let living = self.living();
        let mut ours = living.iter().filter(|node| !is_torch(node));
        record.waiting == Some(0)
            && places.all(|place| self.server.is_kept(place) || was_torch(place))
            && ours.all(|node| matches!(node.life, Life::Met(place) if place.version == version))
    }

    /// Whether all is as it should be.
    pub(super) fn is_well(&self) -> bool {
        let living = self.living();
        if self.server.record().is_some_and(|record| record.status == Status::Closed) {
            return living.is_empty();
        }
        // What PyTorch's nodes do among themselves is theirs.
        if living.iter().all(|node| is_torch(node)) || self.nodes.iter().any(|node| self.is_doubled(node)) {
            return true;
        }
        // Too few to meet wait for more.
        let waits = |node: &&Process| node.life == Life::Going;
        self.is_steady() || self.is_put_back() || living.len() < self.plan.min && living.iter().all(waits)
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
        let kept = (0..record.joined()).all(|rank| self.is_kept(VersionRank { version, rank }));
        // Who is in a version that etcd has lost, and whose place another one has in the next of that number, is in none.
        let ousted = |node: &&Process| match node.life {
            Life::Met(place) => !is_torch(node) && self.server.is_taken(place, &node.name),
            _ => false,
        };
        record.status == Status::Final
            && record.waiting == Some(0)
            && kept
            && !living.iter().any(ousted)
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

fn is_torch(node: &Process) -> bool {
    matches!(node.brain, Brain::Torch(_))
}
