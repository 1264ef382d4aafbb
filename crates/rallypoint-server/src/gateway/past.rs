//! A watch that begins before the gateway's own memory does: etcd has the past until it is compacted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use rallypoint_etcd::v3::api::GetOptions;
use rallypoint_etcd::v3::{Change, Changes, Client, KeyRange, revision_of};
use rallypoint_etcd::{Error as EtcdError, ErrorKind};
use tokio::time::sleep;

use super::feed::{Aside, Wanted};
use super::layout;
use super::translate::{by_revision, translate};
use crate::v2::{Clock, Event, Events};

/// Before changes are asked for again after they ended.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Whether changes can be had from a revision on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// They can.
    Kept,
    /// They are compacted away, or the cluster has lost its data.
    Gone,
}

/// Whether all that comes after `last` can be had.
pub(super) async fn rest_after(client: &Client, last: u64) -> Result<Rest, EtcdError> {
    let revision = i64::try_from(last).unwrap_or(i64::MAX);
    let now = revision_of(client.get(layout::ACTION, None).await?.header())?;
    if now < revision {
        return Ok(Rest::Gone);
    }
    // There is no revision before the first.
    let then = GetOptions::new().with_revision(revision.max(1));
    match client.get(layout::ACTION, Some(then)).await {
        Err(error) if error.kind() == ErrorKind::Compacted => Ok(Rest::Gone),
        read => read.map(|_| Rest::Kept),
    }
}

/// Whether changes did not come because they are too large for one message.
pub(super) fn is_too_large(error: &EtcdError) -> bool {
    matches!(error.kind(), ErrorKind::Rejected | ErrorKind::TooLarge)
}

/// A watch of its own, for one client.
pub(super) struct Past {
    pub(super) client: Client,
    pub(super) wanted: Wanted,
    /// The first index after the client had asked.
    pub(super) asked_before: u64,
    pub(super) clock: Arc<Clock>,
    /// Given back with it.
    pub(super) aside: Aside,
}

impl Past {
    pub(super) fn events(self) -> Events {
        let reading = Reading {
            next: self.wanted.since,
            past: self,
            changes: None,
            told: VecDeque::new(),
            done: false,
        };
        stream::unfold(reading, |mut reading| async {
            let event = reading.event().await?;
            Some((event, reading))
        })
        .boxed()
    }
}

struct Reading {
    past: Past,
    /// The first revision that was not read yet.
    next: u64,
    changes: Option<Changes>,
    told: VecDeque<Arc<Event>>,
    done: bool,
}

impl Reading {
    async fn event(&mut self) -> Option<Arc<Event>> {
        loop {
            if self.done {
                return None;
            }
            if let Some(event) = self.told.pop_front() {
                self.done = !self.past.wanted.stream;
                return Some(event);
            }
            let from = i64::try_from(self.next).unwrap_or(i64::MAX);
            let client = &self.past.client;
            let changes = self.changes.get_or_insert_with(|| client.changes(&KeyRange::prefix(""), from));
            match changes.next().await {
                Ok(Some(changes)) => {
                    self.take(&changes);
                    continue;
                }
                // Its client can come back, and is told that this past is not to be had.
                Err(error) if is_too_large(&error) => {
                    self.past.aside.cannot_read_from(self.next);
                    return None;
                }
                _ => {}
            }
            self.changes = None;
            sleep(PAUSE).await;
            match rest_after(client, self.next - 1).await {
                Ok(Rest::Kept) => {}
                // Its client can come back, and is told that the past is cleared.
                Ok(Rest::Gone) => return None,
                Err(error) if error.is_transient() => {}
                Err(_) => return None,
            }
        }
    }

    fn take(&mut self, changes: &[Change]) {
        let Past { wanted, asked_before, clock, .. } = &self.past;
        let from = self.next;
        for (revision, changes) in by_revision(changes).filter(|(revision, _)| *revision >= from) {
            let told = translate(revision, changes, clock.now()).told.into_iter();
            let told = told.filter(|told| told.concerns(&wanted.path, wanted.recursive, *asked_before));
            self.told.extend(told.map(|told| told.event));
            self.next = revision + 1;
        }
    }
}
