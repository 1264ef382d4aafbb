//! Whether there is room on the disk for more.
//!
//! Nothing is added while less than the slack is free: deletes need room too, since the engine writes before it frees.
//! What is deleted is free for others within the engine's file, though the disk has no more than before; so how much the
//! data weighs counts as well.

/// Bytes of the disk that are left for deletes and compactions.
pub(crate) const SLACK: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct Room {
    is_full: bool,
    /// What all data weighed when there was too little room for more.
    limit: Option<usize>,
    is_scarce: bool,
}

impl Room {
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether there may soon be too little.
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_full || self.is_scarce
    }

    /// Looks at the bytes that are free, and at the weight of all data if that matters; whether it is full now.
    pub(crate) fn look(&mut self, free: u64, weight: impl FnOnce() -> usize) -> bool {
        self.is_scarce = free < 2 * SLACK;
        if free >= 2 * SLACK {
            *self = Room::default();
        } else if self.is_full {
            let weight = weight();
            self.is_full = self.limit.is_none_or(|limit| weight > limit - limit / 8);
        } else if free < SLACK {
            let weight = weight();
            if self.limit.is_none_or(|limit| weight >= limit) {
                self.ran_out(weight);
            }
        }
        self.is_full
    }

    /// A write has found no room, and all data weighs so much without it.
    pub(crate) fn ran_out(&mut self, weight: usize) {
        *self = Room { is_full: true, limit: Some(weight), ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_below_the_slack_until_twice_that_is_free_or_an_eighth_is_gone() {
        let mut room = Room::default();
        assert!(!room.look(2 * SLACK, || unreachable!("it does not matter")) && !room.is_scarce());
        assert!(!room.look(SLACK, || unreachable!("it does not matter")) && room.is_scarce());
        assert!(room.look(SLACK - 1, || 800));
        assert!(room.look(SLACK + 1, || 800) && room.look(SLACK + 1, || 701));
        // What was deleted can be used, and no more.
        assert!(!room.look(0, || 700) && !room.look(0, || 799) && room.look(0, || 800));
        assert!(!room.look(2 * SLACK, || 800) && !room.look(SLACK, || 900));
        room.ran_out(400);
        assert!(room.is_full() && room.look(0, || 351) && !room.look(0, || 350));
    }
}
