//! What of the other nodes can wait while workers save.

use std::time::SystemTime;

use rallypoint_rendezvous::GroupChange;

/// Workers have been told that they can save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saving {
    /// Until then.
    pub(super) until: SystemTime,
    /// Those of this node listen, and have not saved yet.
    pub(super) here: bool,
}

impl Saving {
    /// Whether workers of this node are left to save, whatever becomes of other nodes: what those need of each other fails by
    /// itself, and who writes a checkpoint needs nobody.
    pub(crate) fn is_here(&self) -> bool {
        self.here && SystemTime::now() < self.until
    }

    /// Whether a change of the group can wait. Who wants to get in waits until all meet again anyhow; but a group that has met
    /// without this node, or is closed, is not waited for.
    pub(crate) fn puts_off(&self, change: &GroupChange) -> bool {
        match change {
            GroupChange::Waiting { .. } => SystemTime::now() < self.until,
            change => change.is_a_loss() && self.is_here(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_saves_is_stopped_for_nobody_else_before_the_deadline() {
        let now = SystemTime::now();
        let soon = now + Duration::from_secs(60);
        let died = GroupChange::Died { node: "n".into(), rank: Some(1) };
        let (waiting, closed) =
            (GroupChange::Waiting { count: 1 }, GroupChange::Closed { reason: String::new() });
        let off = |until, here| {
            [&waiting, &died, &closed, &GroupChange::Excluded]
                .map(|change| Saving { until, here }.puts_off(change))
        };
        assert_eq!(off(soon, true), [true, true, false, false]);
        assert_eq!(off(soon, false), [true, false, false, false], "there is nothing left to save");
        assert_eq!(off(now, true), [false; 4], "the time is over");
    }
}
