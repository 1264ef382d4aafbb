//! A member of the last round, and what has become of it.
//!
//! ```text
//!                      it says so, or its place does              the group is told
//!        ┌───────────────────────────────────────▶ Left { told: no } ───────────────▶ Left { told: yes }
//!   Here(asked?)
//!        └── dead, replaced, or asks for a round ─▶ Lost { gone } ◀─▶ its key is gone, or there again
//! ```
//!
//! Who was taken for dead, and is there again before anybody was told of that, is here.

use std::time::Duration;

use super::super::super::record::NodeRecord;

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Member {
    pub(in super::super) rank: usize,
    pub(in super::super) incarnation: u64,
    /// When the process was started: see [`NodeRecord::since`]. 0 if that is not known.
    pub(in super::super) since: u64,
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
    /// It was asked then, or looked for, and has some time to answer.
    At(Duration, Looks),
    /// Its key is read once more: the watch may lag behind. From then on, by which the answer is known from one to an
    /// earlier look.
    Looking(Duration, Looks),
}

impl Asked {
    /// It was asked then.
    pub(in super::super) fn at(now: Duration) -> Self {
        Asked::At(now, Looks::default())
    }
}

/// How often a member was looked for in vain. A pause of etcd takes away the time to answer, and the look in the middle
/// of that time tells of it: for a member there is always some of it in which etcd answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) struct Looks {
    quick: u8,
    /// Those for which etcd took so long that it may have been away.
    slow: u8,
}

/// For a member to answer, by registering again, until the next look.
pub(super) const ANSWER: Duration = Duration::from_millis(250);
/// A look that takes longer is slow.
pub(super) const SLOW: Duration = Duration::from_millis(125);

impl Looks {
    /// One more, in vain, that took so long.
    fn and_one_of(self, took: Duration) -> Self {
        let Looks { quick, slow } = self;
        if took > SLOW { Looks { quick, slow: slow + 1 } } else { Looks { quick: quick + 1, slow } }
    }

    /// Whether there is nobody. An etcd that is always slow must not hide the dead.
    fn are_enough(self) -> bool {
        self.quick >= 2 || self.quick + self.slow >= 4
    }
}

impl Member {
    pub(in super::super) fn new(rank: usize, incarnation: u64) -> Self {
        Member { rank, incarnation, since: 0, fate: Fate::Here(Asked::No) }
    }

    /// The process that says this.
    pub(in super::super) fn of(rank: usize, said: &NodeRecord) -> Self {
        Member { since: said.since, ..Member::new(rank, said.incarnation) }
    }

    /// One whose place says that it has left.
    pub(in super::super) fn that_left(rank: usize, incarnation: u64) -> Self {
        Member { fate: Fate::Left { told: false }, ..Member::new(rank, incarnation) }
    }

    pub(super) fn has_left(&self) -> bool {
        matches!(self.fate, Fate::Left { .. })
    }

    /// Whether the others know that they have lost it.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.fate, Fate::Left { told: true } | Fate::Lost { .. })
    }

    /// Whether it has left, or is lost and was not there again.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.fate, Fate::Left { .. } | Fate::Lost { gone: true })
    }

    pub(super) fn asked(&self) -> Option<Asked> {
        if let Fate::Here(asked) = self.fate { Some(asked) } else { None }
    }

    /// When it has had the time to answer.
    pub(super) fn answer_due(&self) -> Option<Duration> {
        if let Fate::Here(Asked::At(at, _)) = self.fate { Some(at + ANSWER) } else { None }
    }

    /// It is looked for.
    pub(super) fn look(&mut self, since: Duration) {
        if let Fate::Here(asked) = &mut self.fate {
            let looks = if let Asked::At(_, looks) = asked { *looks } else { Looks::default() };
            *asked = Asked::Looking(since, looks);
        }
    }

    /// Whether it is looked for since then.
    pub(super) fn is_looked_for(&self, then: Duration) -> bool {
        matches!(self.fate, Fate::Here(Asked::Looking(since, _)) if since == then)
    }

    /// The look is over, and it was not there. Whether that was the last one.
    pub(super) fn is_given_up(&mut self, now: Duration) -> bool {
        let Fate::Here(Asked::Looking(since, looks)) = self.fate else { return false };
        let looks = looks.and_one_of(now.saturating_sub(since));
        self.fate = Fate::Here(Asked::At(now, looks));
        looks.are_enough()
    }

    /// The look had no answer.
    pub(super) fn look_failed(&mut self, now: Duration) {
        if let Fate::Here(Asked::Looking(_, looks)) = self.fate {
            self.fate = Fate::Here(Asked::At(now, looks));
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

    /// It was taken for dead, that was told to nobody, and it is there. It may have come to leave.
    pub(super) fn is_back(&mut self) {
        self.fate = if self.has_left() { Fate::Left { told: false } } else { Fate::Here(Asked::No) };
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
