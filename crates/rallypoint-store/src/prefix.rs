//! A store within a store.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::store::Store;

/// Another store, with `<prefix>/` before every key. The timeout is the other store's.
#[derive(Debug)]
pub struct PrefixStore {
    prefix: Vec<u8>,
    store: Box<dyn Store>,
}

impl PrefixStore {
    /// The keys of `store` under `prefix`.
    pub fn new(prefix: impl Into<Vec<u8>>, store: Box<dyn Store>) -> Self {
        let mut prefix = prefix.into();
        prefix.push(b'/');
        PrefixStore { prefix, store }
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    fn keys(&self, keys: &[&[u8]]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| self.key(key)).collect()
    }
}

/// The borrowed form that [`Store`] takes lists of keys in.
fn borrowed(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

#[async_trait]
impl Store for PrefixStore {
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.set(&self.key(key), value).await
    }

    async fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.store.get(&self.key(key)).await
    }

    async fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        self.store.add(&self.key(key), delta).await
    }

    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        self.store.wait(&borrowed(&self.keys(keys)), timeout).await
    }

    async fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        self.store.check(&borrowed(&self.keys(keys))).await
    }

    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, desired).await
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool> {
        self.store.delete_key(&self.key(key)).await
    }

    /// The number of keys of the whole store beneath, as c10d's `PrefixStore` has it.
    async fn num_keys(&self) -> Result<u64> {
        self.store.num_keys().await
    }

    async fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        let keys = self.store.list_keys().await?;
        Ok(keys
            .iter()
            .filter_map(|key| key.strip_prefix(self.prefix.as_slice()))
            .map(<[u8]>::to_vec)
            .collect())
    }

    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.append(&self.key(key), value).await
    }

    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        self.store.multi_get(&borrowed(&self.keys(keys))).await
    }

    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        self.store.multi_set(&borrowed(&self.keys(keys)), values).await
    }

    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.queue_push(&self.key(key), value).await
    }

    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        self.store.queue_pop(&self.key(key), block).await
    }

    async fn queue_len(&self, key: &[u8]) -> Result<u64> {
        self.store.queue_len(&self.key(key)).await
    }

    fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.store.set_timeout(timeout);
    }

    fn clone_store(&self) -> Box<dyn Store> {
        Box::new(PrefixStore { prefix: self.prefix.clone(), store: self.store.clone_store() })
    }

    async fn barrier(&self, key: &[u8], world_size: u64, timeout: Option<Duration>) -> Result<()> {
        self.store.barrier(&self.key(key), world_size, timeout).await
    }
}
