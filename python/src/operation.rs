//! What a store can do, in a form that a thread and an event loop can both wait for.

use std::sync::Arc;
use std::time::Duration;

use rallypoint::{EtcdSettings, EtcdStore, EtcdV2Store};
use rallypoint_store::{Result, Store};

use crate::connection::Api;

/// A store as Python holds it.
pub(crate) type AnyStore = Arc<dyn Store>;

/// The store under `prefix`.
pub(crate) async fn open(api: Api, settings: EtcdSettings, prefix: String) -> Result<AnyStore> {
    Ok(match api {
        Api::V2 => Arc::new(EtcdV2Store::connect(settings, &prefix).await?),
        Api::V3 => Arc::new(EtcdStore::connect(settings, &prefix).await?),
    })
}

fn borrowed(list: &[Vec<u8>]) -> Vec<&[u8]> {
    list.iter().map(Vec::as_slice).collect()
}

pub(crate) async fn set(store: AnyStore, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
    store.set(&key, &value).await
}

pub(crate) async fn get(store: AnyStore, key: Vec<u8>) -> Result<Vec<u8>> {
    store.get(&key).await
}

pub(crate) async fn add(store: AnyStore, key: Vec<u8>, delta: i64) -> Result<i64> {
    store.add(&key, delta).await
}

pub(crate) async fn wait(store: AnyStore, keys: Vec<Vec<u8>>, timeout: Option<Duration>) -> Result<()> {
    store.wait(&borrowed(&keys), timeout).await
}

pub(crate) async fn check(store: AnyStore, keys: Vec<Vec<u8>>) -> Result<bool> {
    store.check(&borrowed(&keys)).await
}

pub(crate) async fn compare_set(
    store: AnyStore,
    key: Vec<u8>,
    expected: Vec<u8>,
    desired: Vec<u8>,
) -> Result<Vec<u8>> {
    store.compare_set(&key, &expected, &desired).await
}

pub(crate) async fn delete_key(store: AnyStore, key: Vec<u8>) -> Result<bool> {
    store.delete_key(&key).await
}

pub(crate) async fn num_keys(store: AnyStore) -> Result<u64> {
    store.num_keys().await
}

pub(crate) async fn list_keys(store: AnyStore) -> Result<Vec<Vec<u8>>> {
    store.list_keys().await
}

pub(crate) async fn append(store: AnyStore, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
    store.append(&key, &value).await
}

pub(crate) async fn multi_get(store: AnyStore, keys: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    store.multi_get(&borrowed(&keys)).await
}

pub(crate) async fn multi_set(store: AnyStore, keys: Vec<Vec<u8>>, values: Vec<Vec<u8>>) -> Result<()> {
    store.multi_set(&borrowed(&keys), &borrowed(&values)).await
}

pub(crate) async fn queue_push(store: AnyStore, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
    store.queue_push(&key, &value).await
}

pub(crate) async fn queue_pop(store: AnyStore, key: Vec<u8>, block: bool) -> Result<Vec<u8>> {
    store.queue_pop(&key, block).await
}

pub(crate) async fn queue_len(store: AnyStore, key: Vec<u8>) -> Result<u64> {
    store.queue_len(&key).await
}

pub(crate) async fn barrier(
    store: AnyStore,
    key: Vec<u8>,
    world_size: u64,
    timeout: Option<Duration>,
) -> Result<()> {
    store.barrier(&key, world_size, timeout).await
}
