//! How long a node waits before it looks or tries again: the more others are at it, the longer.

use std::time::Duration;

/// About what it takes a server to carry out one write of the record while others want to write it too.
const SLOT: Duration = Duration::from_millis(4);

/// From so many nodes on, they keep out of each other's way.
const CROWD: usize = 8;

/// The longest a node looks away from a record that many change.
const LOOK_AWAY: Duration = Duration::from_secs(1);

/// The longest a node waits for its turn to join, before its first try.
const LONGEST_ENTRY: Duration = Duration::from_millis(250);

/// Counts what went wrong in a row. `random` is from 0 up to 1.
#[derive(Debug, Default)]
pub(super) struct Pace {
    losses: u32,
}

impl Pace {
    pub(super) fn succeeded(&mut self) {
        self.losses = 0;
    }

    /// After something failed that may go better soon.
    pub(super) fn after_failure(&mut self, random: f64) -> Duration {
        self.losses += 1;
        let ceiling = Duration::from_millis(50) * (1 << self.losses.min(5));
        ceiling.mul_f64(0.25 + 0.75 * random)
    }

    /// After a race lost to others, of whom there may be `rivals`. Whoever loses on and on has no rivals: what it
    /// wants is refused for another reason.
    pub(super) fn after_race(&mut self, rivals: usize, random: f64) -> Duration {
        self.losses += 1;
        let window = SLOT * (1 << self.losses.min(10)).min(slots(rivals.max(1)));
        let least = if self.losses > 10 { Duration::from_millis(50) } else { Duration::ZERO };
        window.mul_f64(random) + least
    }

    /// For a turn after `before` others.
    pub(super) fn turn(&mut self, before: usize, random: f64) -> Duration {
        self.losses += 1;
        let turns = slots(before).saturating_add(self.losses - 1);
        (SLOT * turns).mul_f64(0.9 + 0.2 * random)
    }
}

pub(super) fn is_crowd(nodes: usize) -> bool {
    nodes >= CROWD
}

/// Before the first try to get in, beside so many others.
pub(super) fn before_entry(rivals: usize, random: f64) -> Duration {
    (SLOT * slots(rivals) / 2).min(LONGEST_ENTRY).mul_f64(random)
}

/// While so many others change what this node would look at: each look costs the server as much as a change.
pub(super) fn look_away(crowd: usize, random: f64) -> Duration {
    (SLOT * slots(crowd)).mul_f64(0.5 + 0.5 * random).min(LOOK_AWAY)
}

fn slots(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
