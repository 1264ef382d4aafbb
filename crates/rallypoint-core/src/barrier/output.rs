//! What the machine wants done, and what it has to tell.

use std::time::Duration;

use super::etcd::{Request, VersionRank, Watched};

/// What whoever drives a [`Node`](super::Node) has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send this, and tell [`Node::handle_reply`](super::Node::handle_reply) what came of it.
    Request {
        /// Its number.
        id: u64,
        /// What to send.
        request: Box<Request>,
    },
    /// Watch this from that index on, instead of what this watch was on before.
    Watch {
        /// The watch.
        id: WatchId,
        /// What.
        keys: Watched,
        /// The first index of interest.
        from: u64,
    },
    /// Watch no more.
    Unwatch(WatchId),
    /// Tell the program above.
    Event(NodeEvent),
}

/// The watches of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WatchId {
    /// On the record.
    Record,
    /// On the keep-alives of the next members by rank.
    Members,
}

/// What a node has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// A version with this node in it is final.
    Joined {
        /// Where.
        place: VersionRank,
        /// With how many.
        world: usize,
    },
    /// The group of that version is no longer as it was.
    Changed(Change),
    /// Something that etcd lost is there again, and the group goes on.
    Recovered(Loss),
    /// The wait goes on.
    Progress {
        /// The version that is being formed, where there is one.
        version: Option<u64>,
        /// Nodes that are in it.
        joined: usize,
        /// What is left of the last call that this node waits out.
        last_call: Option<Duration>,
        /// The group is full.
        spare: bool,
    },
    /// The time that the node had for its way is over. It goes on: whoever drives it tells it to leave.
    OutOfTime {
        /// For how long etcd has not answered, if it has not answered the last that this node asked of it.
        silent: Option<Duration>,
    },
    /// The run is closed: there will be no version for this node.
    Refused {
        /// Why, in the words of who closed it; empty where it did not say.
        reason: String,
    },
    /// What [`Node::close`](super::Node::close) asked for is done.
    Closed,
    /// Nothing of this node is in etcd any more, or it ends by itself.
    Left,
}

/// What etcd had lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// This node's keep-alive: it could not be renewed in time.
    KeepAlive,
    /// Everything: the folder of the run ended, or the server began anew.
    Everything,
    /// What was written last: the server holds an earlier state.
    Latest,
}

/// Why a group is no longer as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nodes wait to get in.
    Waiting(usize),
    /// A member died.
    Died {
        /// Its name, where that is known.
        node: String,
        /// The place it had.
        rank: usize,
    },
    /// A member left; or, where it has no rank, somebody asks for a new version.
    Left {
        /// Its name, where that is known.
        node: String,
        /// The place it had.
        rank: Option<usize>,
    },
    /// The version is another one, without this node.
    Excluded,
    /// The run is over.
    Closed {
        /// Why, in the words of who closed it; empty where it did not say.
        reason: String,
    },
}

impl Change {
    /// Whether it is to be told after `before`: the number waiting may change, and what is worse outweighs it.
    #[must_use]
    pub fn outweighs(&self, before: Option<&Change>) -> bool {
        let weight = |change: &Change| match change {
            Change::Waiting(_) => 1,
            Change::Left { rank: None, .. } => 2,
            Change::Left { .. } | Change::Died { .. } => 3,
            Change::Excluded => 4,
            Change::Closed { .. } => 5,
        };
        before.is_none_or(|before| {
            weight(self) > weight(before) || weight(self) == 1 && weight(before) == 1 && self != before
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worse_stays_told() {
        let died = Change::Died { node: "n".into(), rank: 1 };
        let asks = Change::Left { node: String::new(), rank: None };
        assert!(Change::Waiting(1).outweighs(None));
        assert!(Change::Waiting(2).outweighs(Some(&Change::Waiting(1))));
        assert!(!Change::Waiting(2).outweighs(Some(&Change::Waiting(2))));
        assert!(died.outweighs(Some(&Change::Waiting(2))));
        assert!(!asks.outweighs(Some(&died)) && !died.outweighs(Some(&died)));
        assert!(Change::Closed { reason: String::new() }.outweighs(Some(&Change::Excluded)));
    }
}
