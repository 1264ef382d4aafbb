//! The changes of a key since an index, across cuts and restarts.

use rallypoint_core::Backoff;

use super::{Client, Code, Response};
use crate::{ErrorKind, Result};

/// What a [`Watcher`] comes back with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// A change.
    Event(Box<Response>),
    /// The server no longer keeps the changes since that index (it keeps the last thousand of all keys): read
    /// the key, and watch from the index after that read's.
    Cleared,
}

/// Every change of a key, one after the other.
///
/// The watcher knows the index that it waits from, so a connection that breaks costs nothing: it asks again
/// from there. A future of [`next`](Watcher::next) can be dropped without losing a change.
#[derive(Debug, Clone)]
pub struct Watcher {
    client: Client,
    key: String,
    recursive: bool,
    from: u64,
}

impl Watcher {
    pub(super) fn new(client: Client, key: &str, from: u64) -> Self {
        Watcher { client, key: key.to_owned(), recursive: false, from }
    }

    /// Whatever changes under the directory, too; but not keys whose name begins with `_`.
    #[must_use]
    pub fn recursive(self) -> Self {
        Watcher { recursive: true, ..self }
    }

    /// The index that the next change will have, at least.
    #[must_use]
    pub fn from(&self) -> u64 {
        self.from
    }

    /// The next change. Waits for it however long it takes; fails when no server can be asked for as long as
    /// the client retries.
    pub async fn next(&mut self) -> Result<Watched> {
        let mut backoff = Backoff::default();
        loop {
            let began = tokio::time::Instant::now();
            match self.client.poll(&self.key, self.recursive, self.from).await {
                Ok(Some(event)) => {
                    self.from = self.from.max(event.node.modified_index + 1);
                    return Ok(Watched::Event(Box::new(event)));
                }
                // A server that hangs up at once would otherwise be asked without end.
                Ok(None) => {
                    let pause = backoff.next(fastrand::f64());
                    tokio::time::sleep(pause.saturating_sub(began.elapsed())).await;
                }
                Err(error) if error.kind() == ErrorKind::V2(Code::EventIndexCleared) => {
                    return Ok(Watched::Cleared);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
