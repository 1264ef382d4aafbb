//! The node that made a version have enough nodes waits for more, and then fixes them.
//!
//! ```text
//! Open ──── the time is over, or all of the version before are back and nobody came for a moment ────► freeze
//!  └── half a TTL has passed ──► refresh ──► Open
//! ```

use std::time::Duration;

use super::LAST_CALL_TTL;

/// How long nobody must have joined before a last call ends early: those who waited are on their way.
const SETTLE: Duration = Duration::from_millis(150);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct LastCall {
    pub(super) until: Duration,
    /// When the record last got a TTL of this node.
    refreshed: Duration,
    /// How many nodes there were, and since when.
    joined: usize,
    since: Duration,
    before: Before,
}

/// Whether all members of the version before are back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It is time to look at the keep-alives of this version.
    Unknown(u64),
    Away(u64),
    /// All are back.
    Back,
    /// There was no version before, or it cannot tell: a node of PyTorch's lets its keep-alive run out, so that
    /// it is gone does not say that the node is back.
    Nothing,
}

/// What comes next.
pub(super) enum Next {
    /// List the keep-alives of this version, then [`LastCall::listed`].
    List(u64),
    Freeze,
    Refresh,
    /// Wait for a change; of the keep-alives of a version, too.
    Wait {
        members_of: Option<u64>,
        until: Duration,
    },
}

impl LastCall {
    pub(super) fn new(now: Duration, time: Duration, joined: usize, before: Option<u64>) -> Self {
        let until = now.saturating_add(time);
        let before = before.map_or(Before::Nothing, Before::Unknown);
        LastCall { until, refreshed: now, joined, since: now, before }
    }

    /// What comes next, with so many nodes in the record.
    pub(super) fn next(&mut self, now: Duration, joined: usize) -> Next {
        if joined != self.joined {
            (self.joined, self.since) = (joined, now);
        }
        if let Before::Unknown(version) = self.before {
            return Next::List(version);
        }
        let early = self.before == Before::Back;
        let end = if early { self.until.min(self.since + SETTLE) } else { self.until };
        let refresh = self.refreshed + LAST_CALL_TTL / 2;
        if now >= end {
            return Next::Freeze;
        }
        if now >= refresh {
            return Next::Refresh;
        }
        let members_of = match self.before {
            Before::Away(version) => Some(version),
            _ => None,
        };
        Next::Wait { members_of, until: end.min(refresh) }
    }

    pub(super) fn refreshed(&mut self, now: Duration) {
        self.refreshed = now;
    }

    /// The keep-alives of the version before: whether none is left, and whether some were PyTorch's.
    pub(super) fn listed(&mut self, all_back: bool, mixed: bool) {
        if let Before::Unknown(version) = self.before {
            self.before = match (mixed, all_back) {
                (true, _) => Before::Nothing,
                (false, true) => Before::Back,
                (false, false) => Before::Away(version),
            };
        }
    }

    /// A keep-alive of the version before is gone.
    pub(super) fn look_again(&mut self) {
        if let Before::Away(version) = self.before {
            self.before = Before::Unknown(version);
        }
    }
}
