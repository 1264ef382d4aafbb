//! A member of the last round, and what has become of it.
//!
//! ```text
//!                      it says so, or its place does              the group is told
//!        ┌───────────────────────────────────────▶ Left { told: no } ───────────────▶ Left { told: yes }
//!   Here(asked?)
//!        └── dead, replaced, or asks for a round ─▶ Lost { gone } ◀─▶ its key is gone, or there again
//! ```

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Member {
    pub(in super::super) rank: usize,
    pub(in super::super) incarnation: u64,
    pub(super) fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The others count on it. If its key is gone, it is missing, and is asked whether it is there.
    Here(Asked),
    /// The process has left in good order. `told`: the others know.
    Left { told: bool },
    /// The others were told that the group has lost it. `gone`: it has not come back, and who comes by its name is a
    /// newcomer.
    Lost { gone: bool },
}

/// Whether a member whose key is gone was asked if it is there. etcd may have ended a lease that was refreshed in time:
/// it does so at times when its own leader was stopped and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Asked {
    No,
    /// The request is under way.
    Asking,
    At(Duration),
    /// It had the time to answer, and its key is read once more: the watch may lag behind. From then on, by which the
    /// answer is known from one to an earlier look.
    Looking {
        since: Duration,
        /// The look before took too long. An etcd that is always slow must not hide the dead.
        again: bool,
    },
    /// etcd took so long for that look that it may have been away, and with it the way to answer. It has that time again.
    Again(Duration),
}

/// For a member to answer, by registering again.
pub(super) const ANSWER: Duration = Duration::from_millis(500);

impl Member {
    pub(in super::super) fn new(rank: usize, incarnation: u64) -> Self {
        Member { rank, incarnation, fate: Fate::Here(Asked::No) }
    }

    /// One whose place says that it has left.
    pub(in super::super) fn that_left(rank: usize, incarnation: u64) -> Self {
        Member { rank, incarnation, fate: Fate::Left { told: false } }
    }

    pub(super) fn has_left(&self) -> bool {
        matches!(self.fate, Fate::Left { .. })
    }

    /// Whether the others know that they have lost it.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.fate, Fate::Left { told: true } | Fate::Lost { .. })
    }

    pub(super) fn asked(&self) -> Option<Asked> {
        if let Fate::Here(asked) = self.fate { Some(asked) } else { None }
    }

    /// When it has had the time to answer.
    pub(super) fn answer_due(&self) -> Option<Duration> {
        if let Fate::Here(Asked::At(at) | Asked::Again(at)) = self.fate { Some(at + ANSWER) } else { None }
    }

    /// It is looked for.
    pub(super) fn look(&mut self, since: Duration) {
        if let Fate::Here(asked) = &mut self.fate {
            *asked = Asked::Looking { since, again: matches!(asked, Asked::Again(_)) };
        }
    }

    /// Whether it is looked for since then, and whether once more.
    pub(super) fn looked_for_again(&self, then: Duration) -> Option<bool> {
        match self.fate {
            Fate::Here(Asked::Looking { since, again }) if since == then => Some(again),
            _ => None,
        }
    }

    pub(super) fn ask(&mut self, asked: Asked) {
        if let Fate::Here(was) = &mut self.fate {
            *was = asked;
        }
    }

    pub(super) fn leaves(&mut self) {
        if !self.has_left() {
            self.fate = Fate::Left { told: self.is_told() };
        }
    }

    /// The others are told that the group has lost it. `gone`: its key is not there.
    pub(super) fn is_lost(&mut self, gone: bool) {
        self.fate = if self.has_left() { Fate::Left { told: true } } else { Fate::Lost { gone } };
    }

    /// Its key is gone.
    pub(super) fn key_is_gone(&mut self) {
        if let Fate::Lost { gone } = &mut self.fate {
            *gone = true;
        }
    }

    /// A key stands under its name, of the process of that number.
    pub(super) fn key_is_there(&mut self, incarnation: u64) {
        match &mut self.fate {
            Fate::Here(asked) => *asked = Asked::No,
            Fate::Lost { gone } => *gone &= incarnation != self.incarnation,
            Fate::Left { .. } => {}
        }
    }
}
