//! Waiting: a look, and where something is missing a watch on just that, from the revision of the look on.

use std::future::{Future, pending};
use std::time::Duration;

use futures::stream::{FuturesUnordered, TryStreamExt};
use rallypoint_etcd::v3::api::{Txn, TxnOp, TxnOpResponse};
use rallypoint_etcd::v3::{Entry, Event, KeyRange, Repeat, Watch, WatchUpdate, revision_of};

use rallypoint_etcd::{Error, ErrorKind};

use super::EtcdStore;
use super::value::Stored;
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

/// Keys asked about in one transaction, with two questions each; etcd takes 128.
const PER_REQUEST: usize = 60;

/// How often somebody who waits looks whether the lease of the store is still there.
const LOOK: Duration = Duration::from_secs(4);

impl EtcdStore {
    pub(super) async fn wait_value(
        &self,
        what: &'static str,
        key: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let (found, revision) = self.read(key, deadline).await?;
        let entry = match found {
            Some(entry) => entry,
            None => {
                let arrival = self.await_value(key, revision + 1);
                self.until(what, &[key], deadline, arrival).await?
            }
        };
        Ok(Stored::parse(key, &entry.value, entry.version)?.into_value())
    }

    /// The first value of `key` from revision `from` on.
    pub(super) async fn await_value(&self, key: &[u8], from: i64) -> Result<Entry> {
        let mut watch = self.shared.client.watch(KeyRange::key(self.layout().value(key)), from);
        next_put(&mut watch).await
    }

    /// What `arrival` gives, unless the deadline or the end of the store's lease comes first.
    pub(super) async fn until<T>(
        &self,
        what: &'static str,
        keys: &[&[u8]],
        deadline: Deadline,
        arrival: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let lease_ends = async {
            match self.shared.lease {
                // In a box, as most have none.
                Some(lease) => Box::pin(self.lease_gone(lease, what, keys)).await,
                None => pending().await,
            }
        };
        let either = async {
            tokio::select! {
                arrived = arrival => arrived,
                gone = lease_ends => Err(gone),
            }
        };
        deadline.wait(either).await.unwrap_or_else(|| Err(deadline.missed(what, keys)))
    }

    /// Waits for the end of the lease that the keys hang on: then nobody can write what is waited for.
    async fn lease_gone(&self, lease: i64, what: &'static str, keys: &[&[u8]]) -> StoreError {
        let mut missed = false;
        loop {
            let pause = if missed { LOOK / 4 } else { LOOK };
            tokio::time::sleep(pause.mul_f64(0.75 + 0.25 * fastrand::f64())).await;
            let missing = matches!(self.shared.client.lease_left(lease).await, Ok(None));
            // Twice: a leader that was just elected may not have come to the grant yet.
            if std::mem::replace(&mut missed, missing) && missing {
                let key = keys.first().map(|key| key.to_vec()).unwrap_or_default();
                let source = Error::new(ErrorKind::LeaseNotFound, "lease time to live");
                return StoreError::LeaseGone { what, key, lease, source };
            }
        }
    }

    /// Which of `keys` are not there, and the revision of the look.
    pub(super) async fn missing<'a>(
        &self,
        keys: &[&'a [u8]],
        deadline: Deadline,
    ) -> Result<(Vec<&'a [u8]>, i64)> {
        let count = |range: &KeyRange| {
            let options = range.get_options().with_count_only();
            TxnOp::get(range.start(), Some(options))
        };
        let mut missing = Vec::new();
        let mut revision = i64::MAX;
        for keys in keys.chunks(PER_REQUEST) {
            let questions: Vec<TxnOp> = keys
                .iter()
                .flat_map(|key| {
                    let value = KeyRange::key(self.layout().value(key));
                    let queue = self.layout().items(key);
                    [count(&value), count(&queue)]
                })
                .collect();
            let txn = || Txn::new().and_then(questions.as_slice());
            let answer = self.client(deadline).txn(keys[0], Repeat::Safe, txn).await?;
            revision = revision.min(revision_of(answer.header())?);
            let there = |answers: &[TxnOpResponse]| {
                answers.iter().any(|answer| matches!(answer, TxnOpResponse::Get(read) if read.count() > 0))
            };
            let answers = answer.op_responses();
            missing
                .extend(keys.iter().zip(answers.chunks(2)).filter(|(_, a)| !there(a)).map(|(key, _)| *key));
        }
        Ok((missing, revision))
    }

    pub(super) async fn wait_all(&self, keys: &[&[u8]], deadline: Deadline) -> Result<()> {
        let (missing, revision) = self.missing(keys, deadline).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let arrivals: FuturesUnordered<_> =
            missing.iter().map(|key| self.appears(key, revision + 1)).collect();
        match self.until("wait", &missing, deadline, arrivals.try_collect::<()>()).await {
            // Some may have come in the meantime: name only those that have not.
            Err(StoreError::Timeout { .. }) => match self.missing(&missing, deadline).await?.0 {
                still if still.is_empty() => Ok(()),
                still => Err(deadline.missed("wait", &still)),
            },
            result => result,
        }
    }

    /// Waits for a value or a queue item named `key`, from revision `from` on.
    async fn appears(&self, key: &[u8], from: i64) -> Result<()> {
        let client = &self.shared.client;
        let mut value = client.watch(KeyRange::key(self.layout().value(key)), from);
        let mut queue = client.watch(self.layout().items(key), from);
        tokio::select! {
            put = next_put(&mut value) => put.map(|_| ()),
            put = next_put(&mut queue) => put.map(|_| ()),
        }
    }
}

/// The next entry that is written, or that a fresh read finds.
pub(super) async fn next_put(watch: &mut Watch) -> Result<Entry> {
    loop {
        let entry = match watch.next().await? {
            WatchUpdate::Events(events) => events.into_iter().find_map(|event| match event {
                Event::Put(entry) => Some(entry),
                Event::Delete { .. } => None,
            }),
            WatchUpdate::Snapshot { entries, .. } => entries.into_iter().next(),
        };
        if let Some(entry) = entry {
            return Ok(entry);
        }
    }
}
