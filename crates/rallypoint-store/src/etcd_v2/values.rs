//! Writing and removing values.

use std::collections::HashMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use rallypoint_etcd::Error;
use rallypoint_etcd::v2::{Action, Delete, Get, Put, Watched};

use super::layout::Slot;
use super::once::{Base, Mark, Swap, Trouble, Write, is_refused};
use super::{AT_ONCE, EtcdV2Store, Losses, too_large};
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

impl EtcdV2Store {
    /// One write without a condition, where nothing goes wrong.
    pub(super) async fn set_value(
        &self,
        what: &'static str,
        key: &[u8],
        value: &[u8],
        deadline: Deadline,
    ) -> Result<()> {
        let slot = self.slot(key);
        let text = slot.encode(key, value);
        let write = Write { what, key, path: &slot.path, text: &text, mark: None, ttl: None };
        let before = self.once().index_before(&slot.path, deadline).await?;
        match self.once().client(deadline).put(&slot.path, Put::value(&text)).await {
            Ok(reply) => {
                self.once().saw_reply(&reply);
                Ok(())
            }
            Err(error) => self.set_in_doubt(&write, before, error, deadline).await,
        }
        .map_err(too_large(key, value.len()))
    }

    /// Goes on after `error` left open whether `write` was carried out. The index of the server was `before`
    /// at some time before the write.
    async fn set_in_doubt(
        &self,
        write: &Write<'_>,
        before: u64,
        error: Error,
        deadline: Deadline,
    ) -> Result<()> {
        let mut trouble = Trouble::new(write.what, write.key, deadline);
        let mut losses = Losses::default();
        trouble.pause(error).await?;
        loop {
            let (node, index) = match self.once().find(write.path, Get::new(), deadline).await {
                Ok(found) => found,
                Err(error) => return Err(trouble.give_up(error)),
            };
            let last_change = node.as_ref().map_or(index, |node| node.modified_index);
            let is_written = |text: Option<&str>| text == Some(write.text);
            if is_written(node.as_ref().and_then(|node| node.value.as_deref())) {
                return Ok(());
            }
            // Something else is there. Written before it, or not at all?
            let when = (before + 1, last_change);
            let happened = self
                .once()
                .happened(write.path, when, deadline, |event| is_written(event.node.value.as_deref()));
            match happened.await {
                Ok(Some(true)) => return Ok(()),
                Ok(Some(false)) => {}
                Ok(None) => return Err(trouble.unknown()),
                Err(error) => return Err(trouble.give_up(error)),
            }
            let base = Base { since: last_change, text: node.and_then(|node| node.value) };
            match self.once().swap(write, &base, deadline).await? {
                Swap::Done(_) => return Ok(()),
                Swap::Lost(_) => losses.pause(write.what, write.key, deadline).await?,
            }
        }
    }

    pub(super) async fn append_value(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let deadline = self.timeout.deadline(None);
        let slot = self.slot(key);
        let mut losses = Losses::default();
        loop {
            let base = self.once().base(&slot.path, deadline).await?;
            let mut whole = current(&slot, key, &base)?.unwrap_or_default();
            whole.extend_from_slice(value);
            let text = slot.encode(key, &whole);
            let mark = Some(Mark::new());
            let write = Write { what: "append", key, path: &slot.path, text: &text, mark, ttl: None };
            let swap = self.once().swap(&write, &base, deadline).await;
            match swap.map_err(too_large(key, whole.len()))? {
                Swap::Done(_) => return Ok(()),
                Swap::Lost(_) => losses.pause("append", key, deadline).await?,
            }
        }
    }

    pub(super) async fn compare_and_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>> {
        let deadline = self.timeout.deadline(None);
        let slot = self.slot(key);
        let text = slot.encode(key, desired);
        // Another that writes the same text leaves the same value behind: no need to tell the two apart.
        let write = Write { what: "compare_set", key, path: &slot.path, text: &text, mark: None, ttl: None };
        let mut losses = Losses::default();
        loop {
            let base = self.once().base(&slot.path, deadline).await?;
            match current(&slot, key, &base)? {
                Some(value) if value != expected => return Ok(value),
                None if !expected.is_empty() => return Ok(expected.to_vec()),
                _ => {}
            }
            let swap = self.once().swap(&write, &base, deadline).await;
            match swap.map_err(too_large(key, desired.len()))? {
                Swap::Done(_) => return Ok(desired.to_vec()),
                Swap::Lost(_) => losses.pause("compare_set", key, deadline).await?,
            }
        }
    }

    pub(super) async fn delete_value(&self, key: &[u8]) -> Result<bool> {
        let deadline = self.timeout.deadline(None);
        let slot = self.slot(key);
        loop {
            let (node, _) = self.once().find(&slot.path, Get::new(), deadline).await?;
            let Some(node) = node.filter(|node| !node.dir) else { return Ok(false) };
            if self.delete_at(key, &slot, node.modified_index, deadline).await? {
                return Ok(true);
            }
            if deadline.is_over() {
                return Err(deadline.missed("delete_key", &[key]));
            }
        }
    }

    /// Removes what was written at `index`; says whether it did.
    ///
    /// Removals have no mark: of two clients that remove the same value at the same time, one of which lost the
    /// reply, both may think that they did it.
    async fn delete_at(&self, key: &[u8], slot: &Slot, index: u64, deadline: Deadline) -> Result<bool> {
        let mut trouble = Trouble::new("delete_key", key, deadline);
        loop {
            let client = self.once().client(deadline);
            let error = match client.delete(&slot.path, Delete::key().prev_index(index)).await {
                Ok(reply) => {
                    self.once().saw_reply(&reply);
                    return Ok(true);
                }
                Err(error) => error,
            };
            if !is_refused(&error) {
                trouble.pause(error).await?;
            } else if !trouble.in_doubt() {
                return Ok(false);
            } else {
                // It changed after that index: either this removed it, or something made this fail.
                return match client.watch(&slot.path, index + 1).past().await {
                    Ok(Some(Watched::Event(event))) => Ok(event.action == Action::CompareAndDelete),
                    Ok(None | Some(Watched::Cleared)) => Err(trouble.unknown()),
                    Err(error) => Err(trouble.give_up(error)),
                };
            }
        }
    }

    pub(super) async fn set_many(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        if keys.len() != values.len() {
            return Err(StoreError::LengthMismatch { keys: keys.len(), values: values.len() });
        }
        let deadline = self.timeout.deadline(None);
        let last: HashMap<&[u8], &[u8]> = keys.iter().copied().zip(values.iter().copied()).collect();
        let writes: Vec<_> =
            last.into_iter().map(|(key, value)| self.set_value("multi_set", key, value, deadline)).collect();
        stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await
    }
}

/// The value that is there.
fn current(slot: &Slot, key: &[u8], base: &Base) -> Result<Option<Vec<u8>>> {
    base.text.as_deref().map(|text| slot.decode(key, text)).transpose()
}
