//! What the machine wants done, and what it has to tell.

use std::time::Duration;

use super::etcd::{Request, Watched};
use super::exclusion::Exclusion;
use super::record::{Corrupt, Lost, Why};

/// What whoever drives a [`Node`](super::Node) has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this, and tell [`Node::handle_reply`](super::Node::handle_reply) what came of it.
    Request {
        /// Its number.
        id: u64,
        /// What to send.
        request: Request,
    },
    /// Watch these keys, instead of what this watch was on before.
    ///
    /// Where etcd refuses that, tell [`Node::handle_watch_refused`](super::Node::handle_watch_refused).
    Watch {
        /// The watch.
        id: WatchId,
        /// Its keys.
        keys: Watched,
        /// The first revision of interest. If there is none: from now on, and the first update, which may be empty,
        /// tells that the watch has begun.
        from: Option<i64>,
    },
    /// Watch no more.
    Unwatch(WatchId),
    /// Refresh this lease from now on, and tell [`Node::handle_renewed`](super::Node::handle_renewed) of each
    /// refresh that was answered, and [`Node::handle_refused`](super::Node::handle_refused) of each that was refused.
    Keep(i64),
    /// Refresh it no more.
    Forget(i64),
    /// Tell the program above.
    Event(NodeEvent),
}

/// The watches of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WatchId {
    /// The keys of the group.
    Group,
    /// This node's place.
    Rank,
    /// All nodes; only the leader's.
    Nodes,
}

/// What a node has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// A round with this node in it is complete.
    Joined(Joined),
    /// The group of that round is no longer as it was.
    Changed(Change),
    /// The wait goes on.
    Progress {
        /// Nodes that are ready, as far as is known.
        joined: usize,
        /// Of those, the ones that a round could have now, where only whole segments are seated.
        seatable: Option<usize>,
        /// What is left of the last call.
        last_call: Option<Duration>,
        /// There are more nodes than places.
        spare: bool,
    },
    /// This node is kept out, and waits until it is let in again.
    KeptOut(Exclusion),
    /// There will be no round for this node.
    Refused(Refusal),
    /// What became of [`Node::close`](super::Node::close).
    Closed(CloseOutcome),
    /// Nothing of this node is in etcd any more.
    Left,
}

/// What became of a wish to close the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseOutcome {
    /// It is closed by this.
    Closed,
    /// It was closed already.
    AlreadyClosed,
    /// Only a member of the last round can close it.
    NotAMember,
}

/// A completed round, as one of its members sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its number.
    pub round: u64,
    /// Its plan, which no other round has.
    pub plan: String,
    /// This node's place.
    pub rank: usize,
    /// The number of nodes.
    pub world_size: usize,
    /// Where rank 0 is.
    pub address: String,
    /// The port there.
    pub port: u16,
    /// What the round's data hangs on.
    pub lease: i64,
    /// Members of the round before that were there no more, the first few.
    pub without: Vec<Lost>,
}

/// Why a group is no longer as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nodes wait to get in.
    Waiting(usize),
    /// A member died.
    Died {
        /// Its name.
        node: String,
        /// The place it had.
        rank: usize,
    },
    /// Another process has a member's name: it was started again, or elsewhere.
    MemberReplaced {
        /// Its name.
        node: String,
        /// The place it had.
        rank: usize,
    },
    /// A member left, or asks for a new round.
    Left {
        /// Its name.
        node: String,
        /// The place it had.
        rank: usize,
    },
    /// A member was excluded from the run.
    MemberKeptOut {
        /// Its name.
        node: String,
        /// The place it had.
        rank: usize,
    },
    /// The others went on without this node.
    Excluded,
    /// This node was excluded from the run: there is no round for it until it is let in again.
    KeptOut(Exclusion),
    /// The run is over.
    Closed(String),
    /// Another process has this node's name now, and with it its seat.
    Replaced {
        /// Where that one is.
        by: String,
    },
    /// What etcd had of this round is gone: the run's lease has ended, or etcd itself has lost data.
    StateLost,
    /// The run's record in etcd cannot be read.
    Corrupt(Corrupt),
}

impl Change {
    /// What a member at work is told of the loss of another.
    #[must_use]
    pub fn of_loss(lost: &Lost) -> Self {
        let (node, rank) = (lost.node.clone(), lost.rank);
        match lost.why {
            Why::Died => Change::Died { node, rank },
            Why::Replaced => Change::MemberReplaced { node, rank },
            Why::Excluded => Change::MemberKeptOut { node, rank },
            Why::Left | Why::Killed | Why::Again | Why::Late | Why::Other => Change::Left { node, rank },
        }
    }
}

/// Why there will be no round for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The run is over.
    Closed(String),
    /// The run has other settings.
    Mismatch {
        /// Which.
        setting: &'static str,
        /// This node's value.
        ours: String,
        /// The run's value.
        theirs: String,
    },
    /// Another process has this node's name now.
    Replaced {
        /// Where that one is.
        by: String,
    },
    /// What stands in etcd cannot be read.
    Corrupt(Corrupt),
    /// This node is kept out of the run.
    Excluded(Exclusion),
}
