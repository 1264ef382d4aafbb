//! From the record that says `setup` to the version that others can join.
//!
//! ```text
//! Counting ── number counted up ──► Making ── folder made ──► publish
//!    ▲  └─ no counter ─► make run ──┐   │
//!    └──────────────────────────────┴───┘ the number is somebody else's
//! ```

use super::etcd::{Failure, Reply, Request};
use super::record::Record;

/// A number that others took is counted up again so many times.
const TRIES: u32 = 8;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Creating {
    /// The index of the record that says so.
    pub(super) over: u64,
    /// The latest version that this node has seen.
    last: u64,
    tries: u32,
}

/// What comes next.
pub(super) enum Next {
    Ask(Request),
    /// Write this record over the one that says `setup`.
    Publish(Record),
    GiveUp,
}

impl Creating {
    pub(super) fn new(over: u64, last: u64) -> (Self, Request) {
        (Creating { over, last, tries: 0 }, Request::ReadCounter)
    }

    pub(super) fn reply(&mut self, request: &Request, reply: &Result<Reply, Failure>) -> Next {
        match (request, reply) {
            (Request::ReadCounter, Ok(Reply::Counter(Some((version, index))))) => {
                // A counter that is behind is one of a server that lost its data.
                let version = (*version).max(self.last) + 1;
                Next::Ask(Request::SwapCounter { version, over: *index })
            }
            (Request::ReadCounter, Ok(Reply::Counter(None))) => {
                Next::Ask(Request::MakeRun { counter: self.last })
            }
            (Request::MakeRun { .. }, Ok(Reply::Done { .. })) => Next::Ask(Request::ReadCounter),
            (Request::SwapCounter { version, .. }, Ok(Reply::Done { .. })) => {
                Next::Ask(Request::MakeVersion { version: *version })
            }
            (Request::MakeVersion { version }, Ok(Reply::Done { .. })) => {
                Next::Publish(Record::joinable(*version))
            }
            // The number, or the folder, is somebody else's; or it is ours and nobody told us. A number that
            // nobody uses does no harm.
            (
                Request::SwapCounter { .. } | Request::MakeVersion { .. },
                Ok(Reply::Refused) | Err(Failure::Unknown),
            ) if self.tries < TRIES => {
                self.tries += 1;
                Next::Ask(Request::ReadCounter)
            }
            _ => Next::GiveUp,
        }
    }
}
