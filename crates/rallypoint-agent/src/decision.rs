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
//! that is dead does not answer: its death is told by the group, and is the cause of whatever failed with it. One that had
//! answered died after that, and its death is the cause of nothing that was told before.
//! A node that failed first and has no restarts left may be told to leave rather than to close the run: then it is
//! `Exhausted` until it is known whether the others can do without it. One that cannot start its workers is `Unable`.
//! Where too many rounds have failed in a row, what came first ends the run (`crash_loop`).
//! `docs/launcher.md` has the table of all this for people.

mod crash_loop;

use rallypoint_core::text::{count, plain};
use rallypoint_rendezvous::GroupChange;
use rustix::process::Signal;

pub(crate) use self::crash_loop::CrashLoop;
pub use self::crash_loop::{DEFAULT_HUNG_ROUNDS, FailedRounds};
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
    /// A node was gone before that took what the workers need along.
    Without(GroupChange),
    /// A node has died that had answered this failure.
    DiedAfter(Notice),
    /// The end was asked for.
    Asked(Signal),
    /// The time for all of them to answer, or for a death to be noticed, is over.
    TimeUp,
    /// This node cannot start its workers; why.
    CannotStart(String),
    /// etcd does not answer this node, and its round does not stand any more, or nobody says that it does.
    CutOff(CutOff),
    /// The same, and etcd was there after what is known to have failed first.
    CutOffAfter(CutOff),
    /// Whether the others can do without this node.
    CanBeSpared(bool),
}

/// Where a round stands on this node. In all but the first two, no worker is to run.
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
    /// This node cannot start its workers: it tells the others why, and ends.
    Unable {
        /// In its words.
        why: String,
    },
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
    /// Too many rounds have failed one after the other: the run is closed.
    GiveUp {
        /// So many.
        rounds: u32,
        /// Why the last of them is over.
        cause: Cause,
    },
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

/// Where the server is that the nodes meet on, for nodes that are to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerIs {
    /// On none of them.
    Elsewhere,
    /// On the one that asks.
    Here,
    /// On another node of this host, all of which are to go.
    OnHost(String),
}

/// What counts when a node asks whether the others can do without it, and without those that go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spared {
    pub(crate) server: ServerIs,
    /// How many nodes are there besides.
    pub(crate) remain: usize,
    /// How many the group needs.
    pub(crate) min_nodes: usize,
}

impl Spared {
    /// Why they cannot, if so.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.server {
            ServerIs::Here => {
                return Err("the nodes meet on the server of this one, which ends with it".to_owned());
            }
            ServerIs::OnHost(host) => {
                return Err(format!(
                    "the nodes meet on the server of another node of host {}, which would be excluded too",
                    plain(host)
                ));
            }
            ServerIs::Elsewhere => {}
        }
        if self.remain < self.min_nodes {
            let needed = count(self.min_nodes, "node");
            return Err(format!("the group needs {needed}, and would have {}", self.remain));
        }
        Ok(())
    }
}

/// Whether a node may leave so as the `departures`th of a run, or why not; `most` may.
pub(crate) fn may_leave(departures: i64, most: u32) -> Result<(), String> {
    match departures <= i64::from(most) {
        true => Ok(()),
        false => Err(format!("{} may leave a run, and as many have", count(most as usize, "node"))),
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
            (done @ (Stage::Over(_) | Stage::Unable { .. }), _) => done,
            (_, Event::CannotStart(why)) => Stage::Unable { why },

            (Stage::Working, Event::Succeeded) => Stage::Finishing,
            // Whoever is done has done its part, though nobody can be asked about the others.
            (Stage::Finishing, event @ (Event::AllSucceeded | Event::NoWord)) => {
                Stage::Over(Verdict::Succeed { without_word: event == Event::NoWord })
            }

            // The round stood after that, so nothing that is not known came first.
            (Stage::Settling { first }, Event::CutOffAfter(_)) => self.settled(first),
            // Whatever failed here, others may have met again before.
            (
                Stage::Working | Stage::Settling { .. } | Stage::Exhausted,
                Event::CutOff(why) | Event::CutOffAfter(why),
            ) => regroup(0, Cause::CutOff(why)),
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
            (_, Event::Notice(notice) | Event::DiedAfter(notice)) => Stage::Settling { first: Some(notice) },
            (Stage::Settling { first }, Event::AllAnswered | Event::TimeUp) => self.settled(first),

            (Stage::Settling { .. }, Event::Without(change)) => regroup(0, Cause::Group(change)),
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
        // Somebody wants in, or has settled a moment earlier; or etcd has lost the round since. What came first is still worth
        // knowing, and the nodes tell each other directly.
        GroupChange::Waiting { .. } | GroupChange::Left { .. } | GroupChange::StateLost
            if matches!(stage, Stage::Settling { .. }) =>
        {
            stage
        }
        // Those who wait are in time for nothing, unless somebody who still works meets again.
        GroupChange::Waiting { .. } if stage == Stage::Finishing => stage,
        // A death is the cause of what failed with it.
        change => regroup(0, Cause::Group(change)),
    }
}

#[cfg(test)]
mod tests;
