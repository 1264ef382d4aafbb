//! Every change of a range of keys with what was before it, as long as the server goes on telling.

use super::entry::Change;
use super::range::KeyRange;
use super::requests::Requests;
use super::watch_hub::{Subscription, WatchHub};
use crate::Result;

/// The changes of a range of keys from a revision on. Unlike a [`Watch`](super::Watch) it does not heal: when it ends, its
/// owner knows up to which revision it was told, and asks whether the rest can still be had.
#[derive(Debug)]
pub struct Changes(Subscription);

impl Changes {
    pub(super) fn new(requests: &Requests, hub: &WatchHub, range: &KeyRange, from: i64) -> Self {
        let on_server = range.under(requests.settings().prefix.as_bytes());
        Changes(hub.subscribe(on_server, Some(from), true))
    }

    /// The next changes, those of a revision always together. None at the end: the stream was cut, etcd has compacted
    /// what is next, it is behind the revision, or the reader was too slow. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<Change>>> {
        self.0.messages.recv().await.transpose()
    }
}
