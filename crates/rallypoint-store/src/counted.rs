//! A store whose operations are counted.

use std::time::Duration;

use async_trait::async_trait;
use rallypoint_metrics::Store as Metrics;

use crate::error::Result;
use crate::store::Store;

/// Another store, whose operations are counted by kind.
#[derive(Debug)]
pub struct CountedStore {
    store: Box<dyn Store>,
    metrics: Metrics,
}

impl CountedStore {
    /// The same store, counted there.
    pub fn new(store: Box<dyn Store>, metrics: Metrics) -> Self {
        CountedStore { store, metrics }
    }
}

#[async_trait]
impl Store for CountedStore {
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.metrics.operation("set");
        self.store.set(key, value).await
    }

    async fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.metrics.operation("get");
        self.store.get(key).await
    }

    async fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        self.metrics.operation("add");
        self.store.add(key, delta).await
    }

    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        self.metrics.operation("wait");
        self.store.wait(keys, timeout).await
    }

    async fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        self.metrics.operation("check");
        self.store.check(keys).await
    }

    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.metrics.operation("compare_set");
        self.store.compare_set(key, expected, desired).await
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool> {
        self.metrics.operation("delete_key");
        self.store.delete_key(key).await
    }

    async fn num_keys(&self) -> Result<u64> {
        self.metrics.operation("num_keys");
        self.store.num_keys().await
    }

    async fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        self.metrics.operation("list_keys");
        self.store.list_keys().await
    }

    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.metrics.operation("append");
        self.store.append(key, value).await
    }

    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        self.metrics.operation("multi_get");
        self.store.multi_get(keys).await
    }

    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        self.metrics.operation("multi_set");
        self.store.multi_set(keys, values).await
    }

    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.metrics.operation("queue_push");
        self.store.queue_push(key, value).await
    }

    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        self.metrics.operation("queue_pop");
        self.store.queue_pop(key, block).await
    }

    async fn queue_len(&self, key: &[u8]) -> Result<u64> {
        self.metrics.operation("queue_len");
        self.store.queue_len(key).await
    }

    fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.store.set_timeout(timeout);
    }

    fn clone_store(&self) -> Box<dyn Store> {
        Box::new(CountedStore { store: self.store.clone_store(), metrics: self.metrics.clone() })
    }

    async fn barrier(&self, key: &[u8], world_size: u64, timeout: Option<Duration>) -> Result<()> {
        self.metrics.operation("barrier");
        self.store.barrier(key, world_size, timeout).await
    }
}
