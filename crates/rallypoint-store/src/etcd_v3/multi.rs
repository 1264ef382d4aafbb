//! Many keys at once, in as few requests as etcd's limits allow.

use std::collections::BTreeMap;

use futures::stream::{FuturesOrdered, TryStreamExt};
use rallypoint_etcd::v3::api::{Txn, TxnOp, TxnOpResponse};
use rallypoint_etcd::v3::{Entry, Repeat, revision_of};

use super::EtcdStore;
use super::once::Write;
use super::value::{Stored, plain};
use crate::error::{Result, StoreError};

/// etcd takes 128 operations in a transaction; one is for the record of the write.
const PER_REQUEST: usize = 120;
/// Bytes of keys and values in one request, well within what etcd takes.
const BYTES_PER_REQUEST: usize = 1 << 20;

impl EtcdStore {
    pub(super) async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let deadline = self.timeout.deadline(None);
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(PER_REQUEST) {
            let reads: Vec<TxnOp> =
                keys.iter().map(|key| TxnOp::get(self.layout().value(key), None)).collect();
            let txn = || Txn::new().and_then(reads.as_slice());
            let answer = self.client(deadline).txn(keys[0], Repeat::Safe, txn).await?;
            let from = revision_of(answer.header())? + 1;
            let found = answer.op_responses().into_iter().map(|answer| match answer {
                TxnOpResponse::Get(mut read) => read.take_kvs().pop().map(Entry::from),
                _ => None,
            });
            let found: Vec<(&[u8], Option<Entry>)> = keys.iter().copied().zip(found).collect();
            let missing: Vec<&[u8]> =
                found.iter().filter(|(_, entry)| entry.is_none()).map(|(key, _)| *key).collect();
            let chunk: FuturesOrdered<_> = found
                .into_iter()
                .map(|(key, entry)| async move {
                    let entry = match entry {
                        Some(entry) => entry,
                        None => self.await_value(key, from).await?,
                    };
                    Ok::<_, StoreError>(Stored::parse(key, &entry.value, entry.version)?.into_value())
                })
                .collect();
            values.extend(self.until("multi_get", &missing, deadline, chunk.try_collect::<Vec<_>>()).await?);
        }
        Ok(values)
    }

    /// Atomic as far as one request reaches.
    pub(super) async fn set_many(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        if keys.len() != values.len() {
            return Err(StoreError::LengthMismatch { keys: keys.len(), values: values.len() });
        }
        let deadline = self.timeout.deadline(None);
        // etcd refuses a key that is written twice in one transaction.
        let pairs: BTreeMap<&[u8], &[u8]> = keys.iter().copied().zip(values.iter().copied()).collect();
        let mut pairs = pairs.into_iter().peekable();
        while let Some(&(first, _)) = pairs.peek() {
            let (mut puts, mut bytes) = (Vec::new(), 0);
            while let Some((key, value)) = pairs.next_if(|(key, value)| {
                puts.is_empty()
                    || (puts.len() < PER_REQUEST && bytes + key.len() + value.len() <= BYTES_PER_REQUEST)
            }) {
                bytes += key.len() + value.len();
                puts.push(self.put(self.layout().value(key), plain(value)));
            }
            let write = Write {
                what: "multi_set",
                key: first,
                when: vec![],
                then: puts,
                otherwise: vec![],
                lean: true,
            };
            self.write_always(write, bytes, deadline).await?;
        }
        Ok(())
    }
}
