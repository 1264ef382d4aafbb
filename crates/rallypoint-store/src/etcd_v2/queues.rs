//! Queues: directories of items in order.
//!
//! An item is `<id>.<base64 of the value>`; by the id its pusher finds it again when the reply was lost. To pop
//! is to write a claim over the item, `!<id>`, which only one can; the claim is then removed, or ends with its
//! TTL if its owner is gone. A removal alone would not tell two that pop the same item apart.

use std::time::Duration;

use rallypoint_etcd::v2::{Delete, Get, Node, Put};
use tracing::debug;
use uuid::Uuid;

use super::layout::decode;
use super::once::{Base, Swap, Trouble, Write, text};
use super::waiting::appears;
use super::{EtcdV2Store, too_large};
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

/// How long a claim stays, if its owner does not remove it.
const CLAIM: Duration = Duration::from_secs(3600);

impl EtcdV2Store {
    /// The directory of the queue `key`.
    pub(super) fn queue(&self, key: &[u8]) -> String {
        self.shared.layout.queue(key, |path| self.once().takes(path))
    }

    /// The items of the queue `key` that nobody has claimed, first in first, and the index of the look.
    pub(super) async fn items(&self, key: &[u8], deadline: Deadline) -> Result<(Vec<Node>, u64)> {
        let (directory, index) = self.once().find(&self.queue(key), Get::new().sorted(), deadline).await?;
        let mut items = directory.map(|directory| directory.nodes).unwrap_or_default();
        items.retain(|item| !item.dir && !text(item).starts_with('!'));
        Ok((items, index))
    }

    pub(super) async fn push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push_once(key, value).await.map_err(too_large(key, value.len()))
    }

    async fn push_once(&self, key: &[u8], value: &[u8]) -> Result<()> {
        use base64::Engine;
        let deadline = self.timeout.deadline(None);
        let queue = self.queue(key);
        let id = Uuid::new_v4().simple().to_string();
        let item = format!("{id}.{}", base64::engine::general_purpose::STANDARD.encode(value));
        let before = self.once().index_before(&queue, deadline).await?;
        let mut trouble = Trouble::new("queue_push", key, deadline);
        loop {
            match self.once().client(deadline).push(&queue, Put::value(&item)).await {
                Ok(reply) => {
                    self.once().saw_reply(&reply);
                    return Ok(());
                }
                Err(error) => trouble.pause(error).await?,
            }
            if trouble.in_doubt() {
                match self.was_pushed(&queue, &item, before, deadline).await {
                    Ok(Some(true)) => return Ok(()),
                    Ok(Some(false)) => {}
                    Ok(None) => return Err(trouble.unknown()),
                    Err(error) => return Err(trouble.give_up(error)),
                }
            }
        }
    }

    /// Whether `item` got into the queue, though it may have been popped since.
    async fn was_pushed(
        &self,
        queue: &str,
        item: &str,
        before: u64,
        deadline: Deadline,
    ) -> Result<Option<bool>, rallypoint_etcd::Error> {
        let (directory, index) = self.once().find(queue, Get::new(), deadline).await?;
        let items = directory.map(|directory| directory.nodes).unwrap_or_default();
        if items.iter().any(|node| text(node) == item) {
            return Ok(Some(true));
        }
        self.once().happened(queue, (before + 1, index), deadline, |event| text(&event.node) == item).await
    }

    pub(super) async fn pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        let deadline = self.timeout.deadline(None);
        loop {
            let (items, index) = self.items(key, deadline).await?;
            for item in &items {
                if let Some(value) = self.claim(key, item, deadline).await? {
                    return Ok(value);
                }
            }
            if !items.is_empty() {
                continue;
            }
            if !block {
                return Err(StoreError::QueueEmpty { key: key.to_vec() });
            }
            let watcher = self.once().client(deadline).watch(&self.queue(key), index + 1).recursive();
            deadline.wait(appears(watcher)).await.ok_or_else(|| deadline.missed("queue_pop", &[key]))??;
        }
    }

    /// The value of `item`, unless somebody else takes it first.
    async fn claim(&self, key: &[u8], item: &Node, deadline: Deadline) -> Result<Option<Vec<u8>>> {
        let held = text(item);
        let Some((_, value)) = held.split_once('.') else {
            let problem = format!("{:?} is not an item of a queue", item.key);
            return Err(StoreError::Corrupt { key: key.to_vec(), problem });
        };
        let value = decode(key, value)?;
        let claim = format!("!{}", Uuid::new_v4().simple());
        let base = Base { since: item.modified_index, text: Some(held.to_owned()) };
        let write =
            Write { what: "queue_pop", key, path: &item.key, text: &claim, mark: None, ttl: Some(CLAIM) };
        let Swap::Done(_) = self.once().swap(&write, &base, deadline).await? else { return Ok(None) };
        if let Err(error) =
            self.once().client(deadline).delete(&item.key, Delete::key().prev_value(&claim)).await
        {
            debug!(%error, "a claim is left to its TTL");
        }
        Ok(Some(value))
    }
}
