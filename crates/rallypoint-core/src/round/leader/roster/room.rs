//! Whom the next round has room for: not who is kept out, and where only whole segments are seated, those that make some.

use std::num::NonZeroUsize;

use super::super::super::exclusion::Exclusions;
use super::racks::Racks;
use super::{Class, Roster};

/// Those who are ready for the next round, and the newcomers among them, by rack.
#[derive(Debug)]
pub(super) struct Segments {
    ready: Racks,
    newcomers: Racks,
}

impl Segments {
    pub(super) fn new(size: NonZeroUsize) -> Self {
        Segments { ready: Racks::new(size), newcomers: Racks::new(size) }
    }

    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.newcomers.clear();
    }
}

impl Roster {
    /// Who is kept out from now on. Members who are, the group has lost. It is counted anew for all, and seldom.
    pub(in super::super) fn keep_out(&mut self, exclusions: &Exclusions) {
        self.exclusions = exclusions.clone();
        self.count_all();
        self.look_at_all();
    }

    /// Whether a node is kept out of the run.
    pub(in super::super) fn is_kept_out(&self, id: &str) -> bool {
        let host = self.nodes.get(id).map_or("", |node| node.record.host.as_str());
        self.exclusions.of(id, host).is_some()
    }

    /// Counts one that is ready for the next round by its rack.
    pub(super) fn count_rack(&mut self, id: &str, class: Class, count: fn(&mut Racks, &str)) {
        let (Some(segments), Some(node)) = (&mut self.segments, self.nodes.get(id)) else { return };
        if matches!(class, Class::Survivor | Class::Newcomer) {
            count(&mut segments.ready, &node.record.rack);
        }
        if class == Class::Newcomer {
            count(&mut segments.newcomers, &node.record.rack);
        }
    }

    /// Nodes that a round could be formed of now: all that are ready, or those of them that make whole segments.
    pub(in super::super) fn seatable(&self) -> usize {
        let seatable = self.segments.as_ref().map_or(self.joined(), |segments| segments.ready.in_segments());
        seatable.min(self.settings.max_nodes)
    }

    /// Newcomers that the next round has a use for, and the others.
    pub(super) fn useful(&self) -> (usize, usize) {
        let newcomers = self.count(Class::Newcomer);
        let room = self.settings.max_nodes.saturating_sub(self.survivors() + self.outstanding());
        // The segments of a whole group are whole: others come to it only as whole ones. While nodes meet, whoever is
        // there may yet make one.
        let useful = match &self.segments {
            Some(segments) if self.is_whole() && !self.plan.is_empty() => segments.newcomers.in_segments(),
            _ => newcomers,
        };
        (useful.min(room), newcomers - useful.min(room))
    }
}
