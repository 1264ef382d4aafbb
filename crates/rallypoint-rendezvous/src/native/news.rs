//! The machine's news of a group, in the words that all backends share.

use rallypoint_core::round::{Change, Corrupt, Exclusion, Lost, Why};

use crate::handler::{GroupChange, moment};

/// What a member at work is told of its round.
pub(super) fn change(change: Change) -> GroupChange {
    match change {
        Change::Waiting(count) => GroupChange::Waiting { count },
        Change::Died { node, rank } => GroupChange::Died { node, rank: Some(rank) },
        Change::MemberReplaced { node, rank } => GroupChange::MemberReplaced { node, rank: Some(rank) },
        Change::Left { node, rank } => GroupChange::Left { node, rank: Some(rank) },
        Change::MemberKeptOut { node, rank } => GroupChange::MemberKeptOut { node, rank: Some(rank) },
        Change::Excluded => GroupChange::Excluded,
        Change::KeptOut(Exclusion { reason, until_ms, .. }) => {
            GroupChange::KeptOut { reason, until: until_ms.map(moment) }
        }
        Change::Closed(reason) => GroupChange::Closed { reason },
        Change::Replaced { by } => GroupChange::Replaced { by },
        Change::StateLost => GroupChange::StateLost,
        Change::Corrupt(Corrupt { key, problem }) => {
            GroupChange::Corrupt { problem: format!("{key}: {problem}") }
        }
    }
}

/// A member that is there no more.
pub(super) fn loss(Lost { node, rank, why }: Lost) -> GroupChange {
    match why {
        Why::Replaced => GroupChange::MemberReplaced { node, rank: Some(rank) },
        Why::Left | Why::Killed => GroupChange::Left { node, rank: Some(rank) },
        Why::Excluded => GroupChange::MemberKeptOut { node, rank: Some(rank) },
        Why::Died | Why::Again | Why::Late | Why::Other => GroupChange::Died { node, rank: Some(rank) },
    }
}
