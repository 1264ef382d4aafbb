//! Queues: a key for each item, named so that etcd's order of keys is the order of arrival.

use rallypoint_etcd::v3::api::{Compare, CompareOp, GetOptions, TxnOp};
use rallypoint_etcd::v3::{Entry, revision_of};

use uuid::Uuid;

use super::once::{Outcome, Write};
use super::wait::next_put;
use super::{EtcdStore, Losses, entry, is_missing};
use crate::error::{Result, StoreError};

impl EtcdStore {
    pub(super) async fn push(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let deadline = self.timeout.deadline(None);
        // The revision now is later than that of every push that has returned, whoever's it was.
        let look = GetOptions::new().with_count_only();
        let now = self.client(deadline).get(self.layout().queue(name), Some(look)).await?;
        let revision = revision_of(now.header())?;
        // Drawn by the system: two processes that were one before a fork would draw the same.
        let random = Uuid::new_v4().as_u128();
        let item = self.layout().item(name, revision, random);
        let write = Write {
            what: "queue_push",
            key: name,
            when: vec![is_missing(&item)],
            then: vec![self.put(item, value)],
            otherwise: vec![],
            lean: true,
        };
        match self.write(write, name.len() + value.len(), deadline).await? {
            Outcome::Done(_) | Outcome::DoneEarlier(_) => Ok(()),
            Outcome::Refused(..) => Err(StoreError::Corrupt {
                key: name.to_vec(),
                problem: "two items of the queue drew the same random name".to_owned(),
            }),
        }
    }

    pub(super) async fn pop(&self, name: &[u8], block: bool) -> Result<Vec<u8>> {
        let deadline = self.timeout.deadline(None);
        let queue = self.layout().items(name);
        let head = || queue.get_options().with_limit(1);
        let mut losses = Losses::default();

        let mut answer = self.client(deadline).get(queue.start(), Some(head())).await?;
        let mut revision = revision_of(answer.header())?;
        let mut first = answer.take_kvs().pop().map(Entry::from);
        loop {
            let Some(item) = first else {
                if !block {
                    return Err(StoreError::QueueEmpty { key: name.to_vec() });
                }
                let mut watch = self.shared.client.watch(queue.clone(), revision + 1);
                first = Some(self.until("queue_pop", &[name], deadline, next_put(&mut watch)).await?);
                continue;
            };
            let write = Write {
                what: "queue_pop",
                key: name,
                when: vec![Compare::mod_revision(item.key.clone(), CompareOp::Equal, item.mod_revision)],
                then: vec![TxnOp::delete(item.key.clone(), None)],
                otherwise: vec![TxnOp::get(queue.start(), Some(head()))],
                lean: false,
            };
            match self.write(write, name.len(), deadline).await? {
                Outcome::Done(_) | Outcome::DoneEarlier(_) => return Ok(item.value),
                Outcome::Refused(answers, at) => {
                    revision = at;
                    first = entry(answers.first());
                    losses.pause(deadline, "queue_pop", name).await?;
                }
            }
        }
    }
}
