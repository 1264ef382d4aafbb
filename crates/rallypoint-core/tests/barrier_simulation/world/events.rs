//! What happens in a world, and what goes wrong in it.

use std::time::Duration;

use rallypoint_core::barrier::{Failure, Record, Reply, Request, Update, VersionRank};

#[derive(Debug, Clone)]
pub(super) enum Message {
    Request(Request),
    Compare { old: Record, new: Option<Record>, ttl: Option<Duration> },
}

/// How often a request is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    Once,
    Twice,
    /// The second time.
    Again,
}

/// When a reply was so, in which history, and whether the folder was there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) at: Duration,
    pub(super) history: u32,
    pub(super) folder: bool,
}

#[derive(Debug)]
pub(super) enum Event {
    Wake {
        node: usize,
        wake: u64,
    },
    Arrive {
        node: usize,
        id: u64,
        message: Message,
        heard: bool,
        times: Times,
        sent: Duration,
        /// Which life of the server it was sent in: what is on its way ends with it.
        life: u32,
    },
    Answer {
        node: usize,
        id: u64,
        reply: Result<Reply, Failure>,
        seen: Seen,
    },
    Tell {
        node: usize,
        watch: u64,
        update: Update,
        next: u64,
        /// When that was so.
        at: Duration,
    },
    /// A watch cannot be answered, as the server is away or behind.
    Unanswered {
        watch: u64,
    },
    Program {
        node: usize,
        place: VersionRank,
    },
    Renew {
        node: usize,
        place: VersionRank,
    },
    Fault(Fault),
    Second,
    Tick,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Start {
        torch: bool,
    },
    Crash(usize),
    Stall(usize),
    Cut(usize),
    Leave(usize),
    Outage(Duration),
    Refuse,
    RefuseNoMore,
    Snapshot,
    Lose {
        restored: bool,
    },
    /// Who waits in vain gives up, and is started again.
    GiveUp,
    Close,
}
