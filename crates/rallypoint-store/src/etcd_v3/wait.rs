//! Waiting: a look, and where something is missing a watch on just that, from the revision of the look on.

use futures::stream::{FuturesUnordered, TryStreamExt};
use rallypoint_etcd::v3::api::{Txn, TxnOp, TxnOpResponse};
use rallypoint_etcd::v3::{Entry, Event, KeyRange, Repeat, Watch, WatchUpdate, revision_of};

use super::EtcdStore;
use super::value::Stored;
use crate::deadline::Deadline;
use crate::error::Result;

/// Keys asked about in one transaction, with two questions each; etcd takes 128.
const PER_REQUEST: usize = 60;

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
            None => self.await_value(what, key, revision + 1, deadline).await?,
        };
        Ok(Stored::parse(key, &entry.value, entry.version)?.into_value())
    }

    /// The first value of `key` from revision `from` on.
    pub(super) async fn await_value(
        &self,
        what: &'static str,
        key: &[u8],
        from: i64,
        deadline: Deadline,
    ) -> Result<Entry> {
        let mut watch = self.shared.client.watch(KeyRange::key(self.layout().value(key)), from);
        deadline.wait(next_put(&mut watch)).await.ok_or_else(|| deadline.missed(what, &[key]))?
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
        match deadline.wait(arrivals.try_collect::<()>()).await {
            Some(result) => result,
            // Some may have come in the meantime: name only those that have not.
            None => match self.missing(&missing, deadline).await?.0 {
                still if still.is_empty() => Ok(()),
                still => Err(deadline.missed("wait", &still)),
            },
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
