//! The changes of a key since an index, across cuts and restarts.

use std::time::Duration;

use rallypoint_core::Backoff;

use super::{Client, Code, Response};
use crate::{ErrorKind, Result};

/// How long one poll lasts. A server that hangs is noticed when the next one begins.
const LONG_POLL: Duration = Duration::from_secs(20);

/// How long a poll is waited for that is about the past. The server has looked when it begins to answer, and
/// sends what it found right after; the rest is for a slow network, as silence is taken for an answer.
const PAST: Duration = Duration::from_secs(5);

/// What one poll comes to.
pub(super) enum Polled {
    Event(Box<Response>),
    /// Nothing happened.
    Quiet,
    /// The answer broke off: something may have happened.
    Cut,
    /// The server has not come to that index: it has lost data, or lags behind the others.
    Behind,
}

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
/// from there. A future of [`next`](Watcher::next) can be dropped without losing a change. That holds as long as the server
/// has its data; who must know of that loss, too, takes [`next_or_look`](Watcher::next_or_look).
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
        loop {
            if let Some(watched) = self.within(LONG_POLL).await? {
                return Ok(watched);
            }
        }
    }

    /// The next change, or none when it is time to look at the key again: the connection broke, or nothing came for a
    /// while. The server may have lost its data since, and others may have brought its index past this one: what was
    /// written meanwhile is then no change since that index, and no watch tells of it.
    pub async fn next_or_look(&mut self) -> Result<Option<Watched>> {
        match self.poll(LONG_POLL).await? {
            Told::Watched(watched) => Ok(Some(watched)),
            Told::Quiet => Ok(None),
            Told::Cut => {
                // A server that hangs up at once would otherwise be asked without end.
                tokio::time::sleep(Backoff::default().next(fastrand::f64())).await;
                Ok(None)
            }
        }
    }

    /// The next change, if it has happened already.
    pub async fn past(&mut self) -> Result<Option<Watched>> {
        self.within(PAST).await
    }

    /// The next change, if it comes within `time` after the server began to answer.
    async fn within(&mut self, time: Duration) -> Result<Option<Watched>> {
        let mut backoff = Backoff::default();
        loop {
            match self.poll(time).await? {
                Told::Watched(watched) => return Ok(Some(watched)),
                Told::Quiet => return Ok(None),
                // A server that hangs up at once would otherwise be asked without end.
                Told::Cut => tokio::time::sleep(backoff.next(fastrand::f64())).await,
            }
        }
    }

    async fn poll(&mut self, time: Duration) -> Result<Told> {
        match self.client.poll(&self.key, self.recursive, self.from, time).await {
            Ok(Polled::Event(event)) => {
                self.from = self.from.max(event.node.modified_index + 1);
                Ok(Told::Watched(Watched::Event(event)))
            }
            Ok(Polled::Quiet) => Ok(Told::Quiet),
            Ok(Polled::Cut) => Ok(Told::Cut),
            Ok(Polled::Behind) => Ok(Told::Watched(Watched::Cleared)),
            Err(error) if error.kind() == ErrorKind::V2(Code::EventIndexCleared) => {
                Ok(Told::Watched(Watched::Cleared))
            }
            Err(error) => Err(error),
        }
    }
}

/// What one poll tells.
enum Told {
    Watched(Watched),
    Quiet,
    Cut,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_core::EtcdSettings;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::Get;
    use super::*;

    /// The end of a poll that began before a silence was taken for an answer.
    #[tokio::test]
    async fn a_poll_that_hears_nothing_is_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = Client::connect_lazily(EtcdSettings::new(&address.to_string()).unwrap()).unwrap();
        let poll = async {
            // Its answer begins; after that the server says nothing.
            let mut polling = listener.accept().await.unwrap().0;
            let _ = polling.read(&mut [0; 4096]).await.unwrap();
            let head = "HTTP/1.1 200 OK\r\nX-Etcd-Index: 7\r\nTransfer-Encoding: chunked\r\n\r\n";
            polling.write_all(head.as_bytes()).await.unwrap();
            let asked = client.retrying_for(Duration::from_secs(1)).get("key", Get::new()).await;
            assert_eq!(asked.unwrap_err().kind(), ErrorKind::Timeout);
            assert!(client.why_silent().is_some());
            polling
        };
        let (polled, _polling) =
            tokio::join!(client.poll("key", false, 8, Duration::from_millis(1_500)), poll);
        assert!(matches!(polled, Ok(Polled::Quiet)));
        assert_eq!(client.why_silent().as_deref(), Some("no answer in time"));
    }
}
