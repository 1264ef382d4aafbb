//! Waiting: a look at the key, and where it is missing a watch on just that key, from the look on.

use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use rallypoint_etcd::v2::{Get, Node, Watched, Watcher};

use super::{AT_ONCE, EtcdV2Store};
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

impl EtcdV2Store {
    /// The value of `key`; waits for it to be there.
    pub(super) async fn await_value(
        &self,
        what: &'static str,
        key: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let slot = self.slot(key);
        loop {
            let (node, index) = self.once().find(&slot.path, Get::new(), deadline).await?;
            if let Some(text) = node.as_ref().and_then(value) {
                return slot.decode(key, text);
            }
            let watcher = self.once().client(deadline).watch(&slot.path, index + 1);
            let appeared =
                deadline.wait(appears(watcher)).await.ok_or_else(|| deadline.missed(what, &[key]))?;
            if let Some(node) = appeared? {
                return slot.decode(key, value(&node).unwrap_or_default());
            }
        }
    }

    /// Waits until `key` is there, or a queue of that name that is not empty.
    async fn await_key(&self, key: &[u8], deadline: Deadline) -> Result<()> {
        let slot = self.slot(key);
        let queue = self.queue(key);
        while let Some((value_at, queue_at)) = self.missing(key, deadline).await? {
            let client = self.once().client(deadline);
            let appeared = async {
                tokio::select! {
                    value = appears(client.watch(&slot.path, value_at + 1)) => value,
                    item = appears(client.watch(&queue, queue_at + 1).recursive()) => item,
                }
            };
            if deadline.wait(appeared).await.ok_or_else(|| deadline.missed("wait", &[key]))??.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// If `key` is not there, nor a queue of that name: the indexes of the two looks.
    async fn missing(&self, key: &[u8], deadline: Deadline) -> Result<Option<(u64, u64)>> {
        let (node, value_at) = self.once().find(&self.slot(key).path, Get::new(), deadline).await?;
        if node.as_ref().and_then(value).is_some() {
            return Ok(None);
        }
        let (items, queue_at) = self.items(key, deadline).await?;
        Ok(items.is_empty().then_some((value_at, queue_at)))
    }

    pub(super) async fn await_all(&self, keys: &[&[u8]], deadline: Deadline) -> Result<()> {
        let waits: Vec<_> = keys.iter().map(|key| self.await_key(key, deadline)).collect();
        gather("wait", deadline, stream::iter(waits).buffered(AT_ONCE)).await.map(|_| ())
    }

    pub(super) async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let deadline = self.timeout.deadline(None);
        let waits: Vec<_> = keys.iter().map(|key| self.await_value("multi_get", key, deadline)).collect();
        gather("multi_get", deadline, stream::iter(waits).buffered(AT_ONCE)).await
    }

    pub(super) async fn all_there(&self, keys: &[&[u8]], deadline: Deadline) -> Result<bool> {
        let looks: Vec<_> = keys.iter().map(|key| self.missing(key, deadline)).collect();
        let looks = stream::iter(looks).buffer_unordered(AT_ONCE);
        looks.try_all(|missing| async move { missing.is_none() }).await
    }
}

/// The value of a node; a directory or a removed key has none.
fn value(node: &Node) -> Option<&str> {
    node.value.as_deref().filter(|_| !node.dir)
}

/// The next value that is written where `watcher` looks; none if it is time to look again, as the history since then is gone
/// or may be another one.
pub(super) async fn appears(mut watcher: Watcher) -> Result<Option<Node>> {
    loop {
        match watcher.next_or_look().await {
            Ok(Some(Watched::Event(event))) if !event.action.removes() && value(&event.node).is_some() => {
                return Ok(Some(event.node));
            }
            Ok(Some(Watched::Event(_))) => {}
            Ok(Some(Watched::Cleared) | None) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// All results, or the first error; of timeouts one that names every key that is missing.
async fn gather<T>(
    what: &'static str,
    deadline: Deadline,
    results: impl Stream<Item = Result<T>>,
) -> Result<Vec<T>> {
    let mut results = std::pin::pin!(results);
    let mut found = Vec::new();
    let mut missing: Vec<Vec<u8>> = Vec::new();
    while let Some(result) = results.next().await {
        match result {
            Ok(value) => found.push(value),
            Err(StoreError::Timeout { keys, .. }) => missing.extend(keys),
            Err(error) => return Err(error),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    missing.dedup();
    Err(deadline.missed(what, &missing.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}
