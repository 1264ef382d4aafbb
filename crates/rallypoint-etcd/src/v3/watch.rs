//! Every event of a range of keys, or a fresh read; never a silent gap.

use etcd_client::GetOptions;
use rallypoint_core::Backoff;
use tokio::sync::mpsc;
use tracing::debug;

use super::client::Client;
use super::client::revision_of;
use super::entry::{Entry, Event};
use super::watch_hub::WatchHub;
use crate::Result;

/// How many messages may lie between the hub and a slow reader. Beyond that the reader gets a fresh read
/// instead, so that nobody's memory grows with somebody else's writes.
pub(super) const BACKLOG: usize = 1024;

/// The keys from `start` up to `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub(super) start: Vec<u8>,
    /// Empty for the key `start` alone.
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// One key.
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        KeyRange { start: key.into(), end: Vec::new() }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                break;
            }
        }
        // Nothing is left of 0xff 0xff...: every key from there on.
        if end.is_empty() {
            end.push(0);
        }
        KeyRange { start, end }
    }

    /// The range under `prefix`, as it is on the server.
    pub(super) fn under(&self, prefix: &[u8]) -> KeyRange {
        let mut start = [prefix, &self.start].concat();
        // There is no empty key: the first that can be is the one before all others.
        if start.is_empty() {
            start.push(0);
        }
        if prefix.is_empty() {
            return KeyRange { start, end: self.end.clone() };
        }
        let end = match self.end.as_slice() {
            [] => Vec::new(),
            [0] => KeyRange::prefix(prefix).end,
            end => [prefix, end].concat(),
        };
        KeyRange { start, end }
    }

    /// Options to read it with.
    #[must_use]
    pub fn get_options(&self) -> GetOptions {
        if self.end.is_empty() { GetOptions::new() } else { GetOptions::new().with_range(self.end.clone()) }
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> &[u8] {
        &self.start
    }
}

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
    client: Client,
    range: KeyRange,
    subscription: Subscription,
}

/// What the hub sends to a watch. The channel's end means: read afresh.
pub(super) type Messages = mpsc::Receiver<Result<Vec<Event>>>;

/// A place in the hub, given back when dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) hub: WatchHub,
    pub(super) id: i64,
    pub(super) messages: Messages,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.cancel(self.id);
    }
}

impl Watch {
    pub(super) fn new(client: Client, hub: &WatchHub, range: KeyRange, from: Option<i64>) -> Self {
        let subscription = hub.subscribe(range.under(client.settings().prefix.as_bytes()), from);
        Watch { client, range, subscription }
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
            match self.client.read(&self.range).await {
                Ok(answer) => break answer,
                Err(error) if error.is_transient() => {
                    debug!(%error, "reading afresh");
                    tokio::time::sleep(backoff.next(fastrand::f64())).await;
                }
                Err(error) => return Err(error),
            }
        };
        let revision = revision_of(answer.header())?;
        let on_server = self.range.under(self.client.settings().prefix.as_bytes());
        self.subscription = self.subscription.hub.subscribe(on_server, Some(revision + 1));
        let entries = answer.take_kvs().into_iter().map(Entry::from).collect();
        Ok(WatchUpdate::Snapshot { revision, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_ends_right_after_it() {
        for (prefix, end) in
            [(&b"a"[..], &b"b"[..]), (b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
        {
            assert_eq!(KeyRange::prefix(prefix).end, end, "{prefix:?}");
        }
    }

    #[test]
    fn ranges_stay_within_the_clients_prefix() {
        assert_eq!(KeyRange::key("k").under(b"p/"), KeyRange::key("p/k"));
        assert_eq!(KeyRange::prefix("k").under(b"p/"), KeyRange { start: b"p/k".into(), end: b"p/l".into() });
        assert_eq!(KeyRange::prefix("").under(b"p/"), KeyRange::prefix("p/"));
        assert_eq!(KeyRange::prefix("").under(b""), KeyRange { start: b"\0".into(), end: b"\0".into() });
    }
}
