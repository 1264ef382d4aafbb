//! How often what was done.

use super::wire::Action;

/// Counts since the start.
#[derive(Debug, Default, Clone)]
pub(crate) struct Stats {
    counts: [Count; Action::ALL.len()],
    /// Watches asked for.
    pub(crate) watches: u64,
}

/// How often one thing went well and how often it failed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Count {
    pub(crate) success: u64,
    pub(crate) fail: u64,
}

impl Stats {
    pub(crate) fn count(&mut self, action: Action, success: bool) {
        let count = &mut self.counts[action as usize];
        *if success { &mut count.success } else { &mut count.fail } += 1;
    }

    /// Counted by somebody else.
    pub(crate) fn set_success(&mut self, action: Action, success: u64) {
        self.counts[action as usize].success = success;
    }

    pub(crate) fn of(&self, action: Action) -> Count {
        self.counts[action as usize]
    }
}
