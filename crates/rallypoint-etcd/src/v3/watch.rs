//! Every event of a range of keys, or a fresh read; never a silent gap.

use std::time::Duration;

use rallypoint_core::Backoff;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::entry::{Entry, Event};
use super::range::KeyRange;
use super::requests::{Requests, revision_of};
use super::watch_hub::{Subscription, WatchHub};
use crate::{Error, ErrorKind, Result};

/// After an error, which waiting does not mend, somebody may still mend it.
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);

/// A server whose watches are behind its reads, or that ends them at once, is not read again and again without a pause.
const AFTER_A_READ: Duration = Duration::from_millis(100);

/// What a watch has to tell.
#[derive(Debug, Clone)]
pub enum WatchUpdate {
    /// What happened, in order, nothing left out.
    Events(Vec<Event>),
    /// What is there at `revision`. It stands for everything before, told or not, and its revision may be lower than
    /// one that was told: the stream was cut, and whoever answers now may have lost data or been restored; or etcd
    /// compacted the events away; or the reader was too slow. Events from the next revision on follow.
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
    hub: WatchHub,
    range: KeyRange,
    source: Source,
    /// No fresh read before then.
    not_before: Instant,
}

/// Where the next update comes from.
#[derive(Debug)]
enum Source {
    Stream(Subscription),
    Reading(Reading),
}

/// A fresh read, by a task of its own: it gets on while its owner looks at other things, and starts over for nobody.
#[derive(Debug)]
struct Reading(JoinHandle<Result<Fresh>>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What was read, and the watch from there on.
#[derive(Debug)]
struct Fresh {
    revision: i64,
    entries: Vec<Entry>,
    then: Subscription,
}

impl Watch {
    pub(super) fn new(requests: Requests, hub: &WatchHub, range: KeyRange, from: Option<i64>) -> Self {
        let on_server = range.under(requests.settings().prefix.as_bytes());
        let source = Source::Stream(hub.subscribe(on_server, from, false));
        Watch { requests, hub: hub.clone(), range, source, not_before: Instant::now() }
    }

    /// Waits for the next update, through cuts and elections, without an end of its own: put a timeout around
    /// it. An error is one that waiting does not mend; the call after it looks again, a second later. Dropping the
    /// future loses nothing, and costs no time.
    pub async fn next(&mut self) -> Result<WatchUpdate> {
        loop {
            match &mut self.source {
                Source::Stream(subscription) => match subscription.messages.recv().await {
                    Some(Ok(changes)) => {
                        let events = changes.into_iter().map(|change| change.event).collect();
                        return Ok(WatchUpdate::Events(events));
                    }
                    Some(Err(error)) => return Err(self.failed(error)),
                    None => self.read_afresh(),
                },
                Source::Reading(reading) => {
                    let down = |_| Error::new(ErrorKind::Interrupted, "watch").because("the runtime ends");
                    let read = (&mut reading.0).await.map_err(down).and_then(|read| read);
                    match read {
                        Ok(Fresh { revision, entries, then }) => {
                            self.source = Source::Stream(then);
                            self.not_before = Instant::now() + AFTER_A_READ;
                            return Ok(WatchUpdate::Snapshot { revision, entries });
                        }
                        Err(error) => return Err(self.failed(error)),
                    }
                }
            }
        }
    }

    fn failed(&mut self, error: Error) -> Error {
        self.not_before = Instant::now() + AFTER_AN_ERROR;
        self.read_afresh();
        error.key(self.range.under(self.requests.settings().prefix.as_bytes()).start())
    }

    fn read_afresh(&mut self) {
        let not_before = self.not_before.max(self.hub.not_before());
        let read = read(self.requests.clone(), self.hub.clone(), self.range.clone(), not_before);
        self.source = Source::Reading(Reading(tokio::spawn(read)));
    }
}

async fn read(requests: Requests, hub: WatchHub, range: KeyRange, not_before: Instant) -> Result<Fresh> {
    sleep_until(not_before).await;
    let mut backoff = Backoff::default();
    let mut answer = loop {
        match requests.read(&range).await {
            Ok(answer) => break answer,
            Err(error) if error.is_transient() => {
                debug!(%error, "reading afresh");
                sleep(backoff.next(fastrand::f64())).await;
            }
            Err(error) => return Err(error),
        }
    };
    let revision = revision_of(answer.header())?;
    // At once, whatever its owner does meanwhile: the longer after the read, the less is it one history.
    let on_server = range.under(requests.settings().prefix.as_bytes());
    let then = hub.subscribe(on_server, Some(revision + 1), false);
    let entries = answer.take_kvs().into_iter().map(Entry::from).collect();
    Ok(Fresh { revision, entries, then })
}
