//! Rounds that fail one after the other, each soon after its start: then it is the program, or what all nodes share, and another
//! round only burns time, whoever has restarts left.

use std::time::Duration;

/// How many rounds in a row may fail before the run is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedRounds {
    /// So many.
    pub most: u32,
    /// A round whose workers ran for longer has made progress.
    pub within: Duration,
}

/// The rounds of a run, as far as this node was in them.
#[derive(Debug, Default)]
pub(crate) struct CrashLoop {
    in_a_row: u32,
}

impl CrashLoop {
    /// A round is over whose workers ran for so long; `failed`, because one of them did, on whichever node. How many have failed
    /// in a row, if these are too many.
    pub(crate) fn round_is_over(
        &mut self,
        rules: Option<FailedRounds>,
        ran: Duration,
        failed: bool,
    ) -> Option<u32> {
        let rules = rules?;
        if ran > rules.within {
            self.in_a_row = 0;
        } else if failed {
            self.in_a_row += 1;
        }
        (failed && self.in_a_row >= rules.most).then_some(self.in_a_row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rounds_that_fail_soon_and_one_after_the_other_count() {
        let rules = Some(FailedRounds { most: 3, within: Duration::from_secs(60) });
        let (soon, late) = (Duration::from_secs(5), Duration::from_secs(61));
        let mut rounds = CrashLoop::default();
        let mut over = |ran, failed| rounds.round_is_over(rules, ran, failed);
        assert_eq!([over(soon, true), over(soon, true), over(late, true)], [None; 3]);
        // A node that comes or dies in between is no failure, and no progress either.
        assert_eq!([over(soon, true), over(soon, true), over(soon, false)], [None; 3]);
        assert_eq!(over(soon, true), Some(3));
        assert_eq!(CrashLoop::default().round_is_over(None, soon, true), None);
    }
}
