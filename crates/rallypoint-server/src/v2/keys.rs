//! Whoever holds the keys, as the HTTP side sees it.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;

use super::memory::Listing;
use super::stats::Stats;
use super::wire::{Error, Event, Request};
use crate::prometheus::Page;

/// Whoever holds the keys: a tree in memory, or a cluster behind a gateway.
pub(crate) trait Keys: fmt::Debug + Send + Sync {
    /// Carries out a request of a client, who may have shown a password.
    fn apply(&self, request: Request, login: Option<Login>) -> BoxFuture<'_, Result<Answered, Error>>;

    /// The id of the cluster that answers; 0 while it is not known.
    fn cluster_id(&self) -> u64;

    /// The release of etcd that clients are told of.
    fn version(&self) -> String;

    /// Why it is not well, if it is not.
    fn ill(&self) -> BoxFuture<'_, Option<String>>;

    /// What has been done so far.
    fn counts(&self) -> Counts;

    /// Adds what else there is to say of it.
    fn metrics(&self, page: &mut Page);
}

/// Who a client says it is.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What a request is answered with, and the indices at that moment.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) index: u64,
    pub(crate) raft_index: u64,
    pub(crate) raft_term: u64,
}

/// What a request is answered with.
pub(crate) enum Answer {
    Event(Arc<Event>),
    /// A read, which is yet to be made an event.
    Listing(Listing),
    Watch(Events),
}

/// The events of a watch. They end when it was told all it asked for, or was cut off; dropped, the watch ends.
pub(crate) type Events = BoxStream<'static, Arc<Event>>;

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Event(event) => f.debug_tuple("Event").field(event).finish(),
            Answer::Listing(_) => f.write_str("Listing"),
            Answer::Watch(_) => f.write_str("Watch"),
        }
    }
}

/// Counts since the start, and watchers of now.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    pub(crate) stats: Stats,
    /// Who waits.
    pub(crate) watchers: u64,
    /// Who was cut off because it did not read.
    pub(crate) cut: u64,
}
