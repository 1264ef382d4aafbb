//! What a node's handler asks of its task, and what that tells it.

use rallypoint_core::round::{CloseOutcome, Joined, Lost, Refusal};
use tokio::sync::oneshot;

use super::reach::Complaint;
use crate::handler::GroupChange;

/// What the handler asks of the task.
#[derive(Debug)]
pub(super) enum Command {
    Join {
        port: u16,
        done: oneshot::Sender<Result<Joined, NoRound>>,
    },
    Close {
        reason: String,
        done: oneshot::Sender<CloseOutcome>,
    },
    Leave {
        departing: Departing,
        done: oneshot::Sender<()>,
    },
    /// The time is over: is it that etcd does not do what this node asks?
    Complain {
        done: oneshot::Sender<Option<Complaint>>,
    },
}

/// Whether a node that leaves may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departing {
    ForNow,
    ForGood,
    /// For good, as too few nodes have come.
    InVain,
}

/// Why there is no round.
#[derive(Debug)]
pub(super) enum NoRound {
    Refused(Refusal),
    /// etcd does not let this node in.
    Etcd(Complaint),
    /// etcd has done nothing for a spare for as long as that waits.
    InVain(Complaint),
    /// The node was told to leave.
    Left,
}

/// What the task tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// The last round that this node was in, and its plan.
    pub(super) round: u64,
    pub(super) plan: String,
    /// Why the group is no longer as it was then.
    pub(super) change: Option<GroupChange>,
    /// Whom it has lost since, the first few.
    pub(super) lost: Vec<Lost>,
}
