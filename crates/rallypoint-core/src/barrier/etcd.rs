//! The few words of etcd's v2 API that the machine speaks.

use std::time::Duration;

use super::Record;

/// A node's place in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionRank {
    /// The version.
    pub version: u64,
    /// The rank in it.
    pub rank: usize,
}

/// What the machine wants etcd to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Read the record.
    ReadRecord,
    /// Write a record where none is.
    CreateRecord {
        /// The record.
        record: Record,
        /// When it goes by itself; if not, it stays.
        ttl: Option<Duration>,
    },
    /// Write a record over this one: the fence that keeps late writes out.
    SwapRecord {
        /// The record.
        record: Record,
        /// The one it is to replace, and its index. Both are compared: after etcd lost data, another record can have
        /// the same index.
        over: (Record, u64),
        /// When it goes by itself; if not, it stays.
        ttl: Option<Duration>,
    },
    /// Remove this record.
    DeleteRecord {
        /// The record and its index.
        over: (Record, u64),
    },
    /// Make the folder of the run and its version counter, where they are missing.
    MakeRun {
        /// Where the counter begins.
        counter: u64,
    },
    /// Whether the folder of the run is there.
    FindRun,
    /// Put off the end of the run's folder. Not every etcd can.
    RenewRun,
    /// Read the version counter.
    ReadCounter,
    /// Write the version counter over the one of this index.
    SwapCounter {
        /// The number.
        version: u64,
        /// The index of the one it is to replace.
        over: u64,
    },
    /// Anything that it answers: whether it is there is all that is asked.
    Greet,
    /// Make the folder of a version where none is.
    MakeVersion {
        /// The version.
        version: u64,
    },
    /// The keep-alives that are in the folder of a version.
    ListMembers {
        /// The version.
        version: u64,
    },
    /// How the keep-alive of a place went, from this index on: etcd's history says.
    ReadEnding {
        /// The place.
        place: VersionRank,
        /// The first index that counts.
        from: u64,
    },
    /// Write this node's keep-alive. Refused if another node's is there.
    WriteKeepAlive(VersionRank),
    /// Put off the end of this node's keep-alive. Refused if it is gone, or another node's.
    RenewKeepAlive(VersionRank),
    /// Let this node's keep-alive end after [`GRACE`](super::GRACE). Refused if it is gone, or another node's.
    ExpireKeepAlive(VersionRank),
    /// Remove this node's keep-alive. Refused if it is gone, or another node's.
    DeleteKeepAlive(VersionRank),
}

/// What came of a [`Request`].
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The record, to a read.
    Record(View),
    /// It was carried out, at this index.
    Done {
        /// The index.
        index: u64,
    },
    /// It was not carried out, because what it is about is not as the request wants it.
    Refused,
    /// The version counter and its index, if there is one.
    Counter(Option<(u64, u64)>),
    /// Whether the folder of the run is there.
    Run(bool),
    /// The keep-alives of a version.
    Members {
        /// By rank.
        members: Vec<KeepAlive>,
        /// The index from which on their next change counts.
        next: u64,
    },
    /// How a keep-alive went.
    Ending(Ending),
}

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nobody knows whether it was carried out, or ever will be.
    Unknown,
}

/// The record, if there is one, with its index; and the index from which on its next change counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct View {
    /// The record and its index.
    pub record: Option<(Record, u64)>,
    /// The index at which there was none before. It tells one version from another of the same number, which can
    /// be after etcd lost its data: writes over a record leave it as it is.
    pub created: u64,
    /// Where to watch from.
    pub next: u64,
}

/// A keep-alive that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAlive {
    /// Whose.
    pub rank: usize,
    /// The node's name, if it runs this code: then it is told of every change. PyTorch's nodes leave their
    /// keep-alives empty, and must see a number waiting.
    pub node: Option<String>,
}

/// The ranks of PyTorch's nodes among them.
pub(super) fn torch_ranks(members: &[KeepAlive]) -> impl Iterator<Item = usize> {
    members.iter().filter(|member| member.node.is_none()).map(|member| member.rank)
}

/// How a keep-alive went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its time was over: the node died, or could not renew it.
    Expired,
    /// Its node removed it.
    Deleted,
    /// The history does not say.
    Unknown,
}

/// What a watch is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// The record.
    Record,
    /// The record, and all keep-alives of a version.
    Version(u64),
    /// The keep-alives of these ranks of a version.
    Members {
        /// The version.
        version: u64,
        /// The ranks.
        ranks: Vec<usize>,
    },
}

/// What happened to what is watched.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// The record was written, or removed.
    Record(View),
    /// A keep-alive is gone.
    Gone {
        /// Whose.
        rank: usize,
        /// How.
        ending: Ending,
    },
    /// A folder above is gone with all that was in it.
    FolderGone,
    /// The server does not keep what happened since that index, or has never come to it: read afresh.
    Cleared,
    /// No server could be asked.
    Failed,
}
