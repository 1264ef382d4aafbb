//! Every event of a range of keys, or a fresh read; never a silent gap.

use rallypoint_core::Backoff;
use tracing::debug;

use super::entry::{Entry, Event};
use super::range::KeyRange;
use super::requests::{Requests, revision_of};
use super::watch_hub::{Subscription, WatchHub};
use crate::Result;

/// What a watch has to tell.
#[derive(Debug, Clone)]
pub enum WatchUpdate {
    /// What happened, in order, nothing left out.
    Events(Vec<Event>),
    /// What is there at `revision`. It stands for the events that can no longer be had: etcd compacted them
    /// away, or the reader was too slow. Events from the next revision on follow.
    Snapshot {
        /// The revision of the read.
        revision: i64,
        /// All keys of the range.
        entries: Vec<Entry>,
    },
}

/// A watch on a range of keys. It heals by itself and ends when dropped.
#[derive(Debug)]
pub struct Watch {
    requests: Requests,
    range: KeyRange,
    subscription: Subscription,
}

impl Watch {
    pub(super) fn new(requests: Requests, hub: &WatchHub, range: KeyRange, from: Option<i64>) -> Self {
        let subscription = hub.subscribe(range.under(requests.settings().prefix.as_bytes()), from);
        Watch { requests, range, subscription }
    }

    /// Waits for the next update, through cuts and elections, without an end of its own: put a timeout around
    /// it. An error is one that waiting does not mend. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<WatchUpdate> {
        match self.subscription.messages.recv().await {
            Some(Ok(events)) => Ok(WatchUpdate::Events(events)),
            Some(Err(error)) => Err(error.key(self.range.start.clone())),
            // In a box, as it is rare, and somebody may wait for thousands of watches.
            None => Box::pin(self.read_afresh()).await,
        }
    }

    async fn read_afresh(&mut self) -> Result<WatchUpdate> {
        let mut backoff = Backoff::default();
        let mut answer = loop {
            match self.requests.read(&self.range).await {
                Ok(answer) => break answer,
                Err(error) if error.is_transient() => {
                    debug!(%error, "reading afresh");
                    tokio::time::sleep(backoff.next(fastrand::f64())).await;
                }
                Err(error) => return Err(error),
            }
        };
        let revision = revision_of(answer.header())?;
        let on_server = self.range.under(self.requests.settings().prefix.as_bytes());
        self.subscription = self.subscription.hub.subscribe(on_server, Some(revision + 1));
        let entries = answer.take_kvs().into_iter().map(Entry::from).collect();
        Ok(WatchUpdate::Snapshot { revision, entries })
    }
}
