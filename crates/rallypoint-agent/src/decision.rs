//! What to do when something happens on a node, and what it costs. No process, no clock, no socket.
//!
//! ```text
//!                 its workers have succeeded             all nodes' have
//!   Working ─────────────────────────────────▶ Finishing ───────────────┐
//!      │                                            │                   │
//!      │  a worker failed, or a node tells of one   │                   │
//!      ├──────────────────────▶ Settling ◀──────────┤                   │
//!      │                           │                │                   ▼
//!      │                           │ all have answered, a node died, or time is up
//!      │                           └────────────────┼───────────────▶ Over
//!      └── the group changed, a signal came, or the node is cut off ────┘
//! ```
//!
//! While it settles, the nodes find out what came first: a failure is told to all, all answer, and who has failed
//! earlier says so before it answers. If all have answered, none is dead, and the earliest failure is the cause. A node
//! that is dead does not answer: its death is told by the group, and is the cause of whatever failed with it.
//! A node that failed first and has no restarts left may be told to leave rather than to close the run: then it is
//! `Exhausted` until it is known whether the others can do without it.
//! `docs/launcher.md` has the table of all this for people.

use rallypoint_rendezvous::GroupChange;
use rustix::process::Signal;

use crate::fence::CutOff;
use crate::notice::Notice;

/// What may be done on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// This node's place in the round.
    pub(crate) node: usize,
    /// How often its workers may still be started again.
    pub(crate) restarts_left: u32,
    pub(crate) when_exhausted: WhenExhausted,
}

/// What a node does whose worker failed first when it has no restarts left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenExhausted {
    /// It closes the run, as torchrun does.
    #[default]
    Close,
    /// It leaves, where the others can go on without it.
    Leave,
    /// It leaves in the same way, and is kept out of the run from then on.
    Exclude,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// All workers of this node have ended well.
    Succeeded,
    /// Those of all nodes have.
    AllSucceeded,
    /// etcd does not say whether they have.
    NoWord,
    /// A worker of this node has failed.
    Failed,
    /// A node tells of its failure, or that it leaves or meets again.
    Notice(Notice),
    /// All nodes of the round have answered.
    AllAnswered,
    /// What the rendezvous tells of the group.
    Changed(GroupChange),
    /// The end was asked for.
    Asked(Signal),
    /// The time for all of them to answer, or for a death to be noticed, is over.
    TimeUp,
    /// etcd does not answer this node, and its round does not stand any more, or nobody says that it does.
    CutOff(CutOff),
    /// Whether the others can do without this node.
    CanBeSpared(bool),
}

/// Where a round stands on this node. In all but the first two, its workers are to be stopped.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stage {
    /// Workers run.
    Working,
    /// They have finished; those of others may not have.
    Finishing,
    /// Something failed, and the nodes find out what came first.
    Settling {
        /// The earliest that was told.
        first: Option<Notice>,
    },
    /// This node failed first and has no restarts left; it leaves if it can be spared.
    Exhausted,
    /// It is over.
    Over(Verdict),
}

/// What comes after a round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// The run has succeeded.
    Succeed {
        /// As far as this node knows: nobody says whether the others have finished.
        without_word: bool,
    },
    /// The nodes meet again.
    Regroup {
        /// What that costs this node of its restarts.
        cost: u32,
        /// Why.
        cause: Cause,
    },
    /// This node's restarts are used up: the run is closed.
    Close,
    /// This node's restarts are used up: it leaves, and the others go on.
    Leave,
    /// Somebody has closed the run.
    Closed {
        /// Why.
        reason: String,
        /// What had failed before.
        first: Option<Notice>,
    },
    /// This node ends because it was told to.
    Stop(Signal),
}

/// Why nodes meet again.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cause {
    /// A worker of this node failed first.
    Own,
    /// Another node failed first, or leaves.
    Other(Notice),
    /// The group changed.
    Group(GroupChange),
    /// This node is cut off.
    CutOff(CutOff),
}

impl Cause {
    /// As metrics have it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Cause::Own => "worker_failed",
            Cause::Other(notice) if notice.is_leave() => "node_left",
            Cause::Other(_) => "other_node_failed",
            Cause::Group(GroupChange::Died { .. }) => "node_died",
            Cause::Group(GroupChange::Left { .. }) => "node_left",
            Cause::Group(GroupChange::MemberReplaced { .. }) => "node_replaced",
            Cause::Group(GroupChange::MemberKeptOut { .. } | GroupChange::KeptOut { .. }) => "node_excluded",
            Cause::Group(GroupChange::Waiting { .. }) => "node_waiting",
            Cause::Group(_) => "other",
            Cause::CutOff(_) => "cut_off",
        }
    }
}

/// One round on one node.
#[derive(Debug)]
pub(crate) struct Decision {
    rules: Rules,
    stage: Stage,
}

impl Decision {
    pub(crate) fn new(rules: Rules) -> Self {
        Decision { rules, stage: Stage::Working }
    }

    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// What comes next, once that is decided.
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        if let Stage::Over(verdict) = &self.stage { Some(verdict) } else { None }
    }

    /// Whether somebody whom etcd answers has said that the round is over.
    pub(crate) fn is_known_to_be_over(&self) -> bool {
        match self.verdict() {
            Some(
                Verdict::Regroup { cause: Cause::Group(_) | Cause::Other(_), .. } | Verdict::Closed { .. },
            ) => true,
            Some(Verdict::Regroup { cause: Cause::CutOff(CutOff::MovedOn { known, .. }), .. }) => *known,
            _ => false,
        }
    }

    /// Some of the restarts that were used may have come back.
    pub(crate) fn restarts_left(&mut self, restarts_left: u32) {
        self.rules.restarts_left = restarts_left;
    }

    /// Takes note of what happened.
    pub(crate) fn handle(&mut self, event: Event) {
        let stage = std::mem::replace(&mut self.stage, Stage::Working);
        self.stage = self.next(stage, event);
    }

    fn next(&self, stage: Stage, event: Event) -> Stage {
        match (stage, event) {
            // Nothing takes back what is decided, but the end can be asked for at any time.
            (_, Event::Asked(signal)) => Stage::Over(Verdict::Stop(signal)),
            (over @ Stage::Over(_), _) => over,

            (Stage::Working, Event::Succeeded) => Stage::Finishing,
            // Whoever is done has done its part, though nobody can be asked about the others.
            (Stage::Finishing, event @ (Event::AllSucceeded | Event::NoWord)) => {
                Stage::Over(Verdict::Succeed { without_word: event == Event::NoWord })
            }

            // Whatever failed here, others may have met again before.
            (Stage::Working | Stage::Settling { .. } | Stage::Exhausted, Event::CutOff(why)) => {
                regroup(0, Cause::CutOff(why))
            }
            (Stage::Exhausted, Event::CanBeSpared(true)) => Stage::Over(Verdict::Leave),
            (Stage::Exhausted, Event::CanBeSpared(false)) => Stage::Over(Verdict::Close),
            (Stage::Exhausted, Event::Changed(GroupChange::Closed { reason })) => {
                Stage::Over(Verdict::Closed { reason, first: None })
            }
            // What came first is known.
            (Stage::Exhausted, _) => Stage::Exhausted,

            (Stage::Working | Stage::Finishing, Event::Failed) => Stage::Settling { first: None },
            // Who leaves or meets again has answered by that; there is nothing to find out.
            (_, Event::Notice(notice)) if !notice.is_failure() => regroup(0, Cause::Other(notice)),
            (_, Event::Notice(notice)) => Stage::Settling { first: Some(notice) },
            (Stage::Settling { first }, Event::AllAnswered | Event::TimeUp) => self.settled(first),

            (stage, Event::Changed(change)) => changed(stage, change),
            (stage, _) => stage,
        }
    }

    /// What came first is known, as well as it can be.
    fn settled(&self, first: Option<Notice>) -> Stage {
        match first {
            Some(notice) if notice.node != self.rules.node => regroup(0, Cause::Other(notice)),
            // Its own, even if it could not tell anybody.
            _ if self.rules.restarts_left > 0 => regroup(1, Cause::Own),
            _ if self.rules.when_exhausted == WhenExhausted::Close => Stage::Over(Verdict::Close),
            _ => Stage::Exhausted,
        }
    }
}

fn regroup(cost: u32, cause: Cause) -> Stage {
    Stage::Over(Verdict::Regroup { cost, cause })
}

fn changed(stage: Stage, change: GroupChange) -> Stage {
    let first = if let Stage::Settling { first } = &stage { first.clone() } else { None };
    match change {
        GroupChange::Closed { reason } => Stage::Over(Verdict::Closed { reason, first }),
        // Somebody wants in, or has settled a moment earlier. What came first is still worth knowing.
        GroupChange::Waiting { .. } | GroupChange::Left { .. } if matches!(stage, Stage::Settling { .. }) => {
            stage
        }
        // Those who wait are in time for nothing, unless somebody who still works meets again.
        GroupChange::Waiting { .. } if stage == Stage::Finishing => stage,
        // A death is the cause of what failed with it.
        change => regroup(0, Cause::Group(change)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::failure::{Exit, Failure};
    use crate::notice::{Leaving, Restarts};

    const OURS: usize = 1;
    const THEIRS: usize = 2;

    fn failed(node: usize) -> Notice {
        let failure = Failure {
            rank: node * 8,
            local_rank: 0,
            host: format!("host{node}"),
            pid: 7,
            exit: Exit::ExitCode(1),
            time: Some(SystemTime::UNIX_EPOCH),
            error: None,
            stderr: Vec::new(),
            log: None,
            hint: None,
        };
        Notice::failed(node, failure, Some(Restarts { left: 1, max: 1, leaves: false }))
    }

    fn leaves() -> Notice {
        Notice { at: SystemTime::UNIX_EPOCH, ..Notice::leaves(THEIRS, "host2", Leaving::Asked) }
    }

    fn died() -> GroupChange {
        GroupChange::Died { node: "c".into(), rank: Some(2) }
    }

    fn left() -> GroupChange {
        GroupChange::Left { node: "c".into(), rank: Some(2) }
    }

    fn closed() -> GroupChange {
        GroupChange::Closed { reason: "enough".into() }
    }

    /// What the events lead to, on a node that may start its workers again so often.
    fn after(restarts_left: u32, events: impl IntoIterator<Item = Event>) -> Stage {
        let rules = Rules { node: OURS, restarts_left, when_exhausted: WhenExhausted::Close };
        under(rules, events)
    }

    fn under(rules: Rules, events: impl IntoIterator<Item = Event>) -> Stage {
        let mut decision = Decision::new(rules);
        events.into_iter().for_each(|event| decision.handle(event));
        decision.stage().clone()
    }

    fn over(restarts_left: u32, events: impl IntoIterator<Item = Event>) -> Verdict {
        match after(restarts_left, events) {
            Stage::Over(verdict) => verdict,
            stage => panic!("not decided: {stage:?}"),
        }
    }

    fn free(cause: Cause) -> Verdict {
        Verdict::Regroup { cost: 0, cause }
    }

    #[test]
    fn work_that_is_done_succeeds_when_all_have_done_theirs_or_nobody_can_be_asked() {
        assert_eq!(after(0, [Event::Succeeded]), Stage::Finishing);
        for (event, without_word) in [(Event::AllSucceeded, false), (Event::NoWord, true)] {
            assert_eq!(over(0, [Event::Succeeded, event]), Verdict::Succeed { without_word });
        }
        assert_eq!(
            over(0, [Event::Succeeded, Event::Changed(died())]),
            free(Cause::Group(died())),
            "those who work need this node"
        );
    }

    #[test]
    fn a_failure_costs_the_node_that_failed_first_and_nobody_else() {
        let own = [Event::Failed, Event::Notice(failed(OURS)), Event::AllAnswered];
        assert_eq!(over(2, own.clone()), Verdict::Regroup { cost: 1, cause: Cause::Own });
        assert_eq!(over(0, own), Verdict::Close);
        for restarts_left in [0, 2] {
            let heard = [Event::Notice(failed(THEIRS)), Event::AllAnswered];
            assert_eq!(over(restarts_left, heard), free(Cause::Other(failed(THEIRS))));
            let echo = [Event::Failed, Event::Notice(failed(THEIRS)), Event::AllAnswered];
            assert_eq!(over(restarts_left, echo), free(Cause::Other(failed(THEIRS))));
        }
    }

    #[test]
    fn a_node_without_restarts_leaves_if_it_was_told_to_and_can_be_spared() {
        let own = [Event::Failed, Event::Notice(failed(OURS)), Event::AllAnswered];
        let after = |restarts_left, more: &[Event]| {
            let rules = Rules { node: OURS, restarts_left, when_exhausted: WhenExhausted::Leave };
            under(rules, own.iter().chain(more).cloned())
        };
        assert_eq!(after(1, &[]), regroup(1, Cause::Own));
        assert_eq!(after(0, &[]), Stage::Exhausted);
        assert_eq!(after(0, &[Event::CanBeSpared(true)]), Stage::Over(Verdict::Leave));
        assert_eq!(after(0, &[Event::CanBeSpared(false)]), Stage::Over(Verdict::Close));
        // The others meet again meanwhile, and one of them may die.
        assert_eq!(after(0, &[Event::Changed(left()), Event::Changed(died())]), Stage::Exhausted);
        let reason = "enough".to_owned();
        assert_eq!(
            after(0, &[Event::Changed(closed())]),
            Stage::Over(Verdict::Closed { reason, first: None })
        );
        assert_eq!(after(0, &[Event::Asked(Signal::TERM)]), Stage::Over(Verdict::Stop(Signal::TERM)));
    }

    #[test]
    fn restarts_that_came_back_count() {
        let mut decision =
            Decision::new(Rules { node: OURS, restarts_left: 0, when_exhausted: WhenExhausted::Close });
        decision.handle(Event::Failed);
        decision.restarts_left(2);
        decision.handle(Event::TimeUp);
        assert_eq!(decision.verdict(), Some(&Verdict::Regroup { cost: 1, cause: Cause::Own }));
    }

    #[test]
    fn a_node_that_is_cut_off_meets_again_and_pays_nothing() {
        let why = || CutOff::MovedOn { rank: 2, known: true };
        let cut = free(Cause::CutOff(why()));
        for before in [vec![], vec![Event::Failed], vec![Event::Failed, Event::Notice(failed(OURS))]] {
            assert_eq!(over(0, before.into_iter().chain([Event::CutOff(why())])), cut);
        }
        assert_eq!(after(0, [Event::Succeeded, Event::CutOff(why())]), Stage::Finishing, "no worker runs");
    }

    #[test]
    fn a_death_is_the_cause_of_what_failed_with_it() {
        for stage in [vec![], vec![Event::Failed], vec![Event::Failed, Event::Notice(failed(OURS))]] {
            let events = stage.into_iter().chain([Event::Changed(died())]);
            assert_eq!(over(0, events), free(Cause::Group(died())));
        }
    }

    #[test]
    fn a_failure_that_nobody_answers_is_its_own_cause_after_a_while() {
        assert_eq!(after(0, [Event::Failed]), Stage::Settling { first: None });
        assert_eq!(over(0, [Event::Failed, Event::TimeUp]), Verdict::Close);
        assert_eq!(over(1, [Event::Failed, Event::TimeUp]), Verdict::Regroup { cost: 1, cause: Cause::Own });
    }

    #[test]
    fn who_leaves_says_so_and_costs_nobody_anything() {
        assert_eq!(over(0, [Event::Notice(leaves())]), free(Cause::Other(leaves())));
        assert_eq!(over(0, [Event::Failed, Event::Notice(leaves())]), free(Cause::Other(leaves())));
        let again = Notice { at: SystemTime::UNIX_EPOCH, ..Notice::regroups(THEIRS, "host2", "why".into()) };
        assert_eq!(over(0, [Event::Failed, Event::Notice(again.clone())]), free(Cause::Other(again)));
    }

    #[test]
    fn what_comes_first_is_waited_for_even_where_others_meet_again() {
        let settling = after(0, [Event::Failed, Event::Changed(left())]);
        assert_eq!(settling, Stage::Settling { first: None });
        assert_eq!(over(0, [Event::Changed(left())]), free(Cause::Group(left())));
        let waiting = GroupChange::Waiting { count: 1 };
        assert_eq!(over(0, [Event::Changed(waiting.clone())]), free(Cause::Group(waiting.clone())));
        assert_eq!(after(0, [Event::Succeeded, Event::Changed(waiting)]), Stage::Finishing);
    }

    #[test]
    fn a_close_ends_it_with_the_failure_before_it() {
        let reason = || "enough".to_owned();
        assert_eq!(over(3, [Event::Changed(closed())]), Verdict::Closed { reason: reason(), first: None });
        assert_eq!(
            over(3, [Event::Notice(failed(THEIRS)), Event::Changed(closed())]),
            Verdict::Closed { reason: reason(), first: Some(failed(THEIRS)) }
        );
    }

    #[test]
    fn a_signal_comes_before_everything_and_nothing_else_changes_a_verdict() {
        let asked = || Event::Asked(Signal::TERM);
        for before in [vec![], vec![Event::Succeeded], vec![Event::Failed], vec![Event::Changed(died())]] {
            assert_eq!(over(1, before.into_iter().chain([asked()])), Verdict::Stop(Signal::TERM));
        }
        assert_eq!(over(1, [asked(), Event::Failed, Event::TimeUp]), Verdict::Stop(Signal::TERM));
        assert_eq!(
            over(1, [Event::Changed(died()), Event::Failed, Event::Notice(failed(OURS))]),
            free(Cause::Group(died()))
        );
    }
}
