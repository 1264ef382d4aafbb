//! Rounds that fail one after the other, and make no progress, or little: then it is the program, or what all nodes share, and
//! another round only burns time, whoever has restarts left.

use std::time::Duration;

use super::{Cause, Verdict};
use crate::failure::Exit;

/// How many rounds in a row may hang before the run is closed, where nothing else is said. A crash costs seconds, and whoever gives
/// many restarts may want them all; each round that hangs costs all nodes the whole timeout.
pub const DEFAULT_HUNG_ROUNDS: u32 = 5;

/// How many rounds in a row may fail before the run is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedRounds {
    /// So many.
    pub most: u32,
    /// A round whose workers worked for longer has made progress.
    pub within: Duration,
    /// Only those count that ended with a hang.
    pub only_hung: bool,
}

/// The rounds of a run, as far as this node was in them.
#[derive(Debug, Default)]
pub(crate) struct CrashLoop {
    in_a_row: u32,
}

impl CrashLoop {
    /// What comes after a round, where those before it count too; `own` is how a worker of this node failed first, if one did.
    pub(crate) fn after(
        &mut self,
        rules: Option<FailedRounds>,
        ran: Duration,
        own: Option<Exit>,
        verdict: Verdict,
    ) -> Verdict {
        let Verdict::Regroup { cost, cause } = verdict else { return verdict };
        let failed = match &cause {
            Cause::Own => own,
            Cause::Other(notice) => notice.exit(),
            Cause::Group(_) | Cause::CutOff(_) => None,
        };
        match self.round_is_over(rules, ran, failed) {
            Some(rounds) => Verdict::GiveUp { rounds, cause },
            None => Verdict::Regroup { cost, cause },
        }
    }

    /// A round is over whose workers ran for so long; `failed` is how one of them did, on whichever node. How many have failed in a
    /// row, if these are too many.
    pub(crate) fn round_is_over(
        &mut self,
        rules: Option<FailedRounds>,
        ran: Duration,
        failed: Option<Exit>,
    ) -> Option<u32> {
        let rules = rules?;
        let silent = match failed {
            // It was waited for until the timeout, and that is no work.
            Some(Exit::Hung(seconds)) => Duration::from_secs(seconds),
            _ => Duration::ZERO,
        };
        let counts = failed.is_some_and(|exit| !rules.only_hung || matches!(exit, Exit::Hung(_)));
        if ran.saturating_sub(silent) > rules.within {
            self.in_a_row = 0;
        } else if counts {
            self.in_a_row += 1;
        }
        (counts && self.in_a_row >= rules.most).then_some(self.in_a_row)
    }
}

#[cfg(test)]
mod tests {
    use rallypoint_rendezvous::GroupChange;

    use super::*;

    const RULES: FailedRounds = FailedRounds { most: 3, within: Duration::from_secs(60), only_hung: false };
    const FAILED: Option<Exit> = Some(Exit::ExitCode(1));

    #[test]
    fn only_rounds_that_fail_soon_and_one_after_the_other_count() {
        let (soon, late) = (Duration::from_secs(5), Duration::from_secs(61));
        let mut rounds = CrashLoop::default();
        let mut over = |ran, failed| rounds.round_is_over(Some(RULES), ran, failed);
        assert_eq!([over(soon, FAILED), over(soon, FAILED), over(late, FAILED)], [None; 3]);
        // A node that comes or dies in between is no failure, and no progress either.
        assert_eq!([over(soon, FAILED), over(soon, FAILED), over(soon, None)], [None; 3]);
        assert_eq!(over(soon, FAILED), Some(3));
        assert_eq!(CrashLoop::default().round_is_over(None, soon, FAILED), None);
    }

    #[test]
    fn the_last_of_them_ends_the_run_whatever_is_left_and_a_close_is_no_more_than_that() {
        let again = |cause| Verdict::Regroup { cost: 1, cause };
        let mut rounds = CrashLoop::default();
        let mut after = |verdict| rounds.after(Some(RULES), Duration::ZERO, FAILED, verdict);
        let died = || Cause::Group(GroupChange::Died { node: "c".into(), rank: Some(2) });
        for cause in [Cause::Own, died(), Cause::Own] {
            assert_eq!(after(again(cause.clone())), again(cause));
        }
        assert_eq!(after(Verdict::Close), Verdict::Close);
        assert_eq!(after(again(Cause::Own)), Verdict::GiveUp { rounds: 3, cause: Cause::Own });
    }

    #[test]
    fn a_round_that_hangs_counts_by_the_time_in_which_it_worked() {
        let over = |rules: FailedRounds, rounds: [(u64, Option<Exit>); 4]| {
            let mut row = CrashLoop::default();
            rounds.map(|(ran, exit)| row.round_is_over(Some(rules), Duration::from_secs(ran), exit))
        };
        let hung = Some(Exit::Hung(600));
        assert_eq!(
            over(RULES, [(612, hung), (605, hung), (650, hung), (661, hung)]),
            [None, None, Some(3), None]
        );
        // If nobody says so, what fails otherwise is left to the restarts.
        let hangs = FailedRounds { only_hung: true, ..RULES };
        assert_eq!(
            over(hangs, [(612, hung), (612, hung), (5, FAILED), (612, hung)]),
            [None, None, None, Some(3)]
        );
        assert_eq!(over(hangs, [(5, FAILED); 4]), [None; 4]);
    }
}
