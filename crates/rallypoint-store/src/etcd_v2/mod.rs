//! The store on the v2 wire, which PyTorch's `EtcdStore` reads and writes too.
//!
//! - `layout`: where keys and queues are, and how values are written.
//! - `once`: writes that are carried out once, even when a reply is lost.
//! - `values`, `counters`, `queues`, `waiting`: the operations.

mod counters;
mod layout;
mod once;
mod queues;
mod values;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_core::EtcdSettings;
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v2::{Client, Get, MAX_FORM};

use self::counters::Counters;
use self::layout::{Layout, Slot};
use self::once::Once;
use crate::deadline::{Deadline, Timeout};
use crate::error::{Result, StoreError};
use crate::store::Store;

/// What the server takes, key and value together: a form of that size, in base64. Values with many `+` in their
/// base64 reach it earlier.
const LIMIT: usize = MAX_FORM / 4 * 3;

/// Requests of one operation that are under way at a time. Each has a connection to itself.
const AT_ONCE: usize = 32;

/// A store on the v2 wire of etcd. Clones share the data and the connections.
///
/// Its data are those of PyTorch's `EtcdStore`, byte for byte: each reads what the other wrote, adds on one
/// counter mix, and each wakes the other's waiters. Unlike PyTorch's it reads and watches only the keys asked
/// for, and keeps keys apart whose base64 has a slash.
///
/// The v2 API writes one key at a time, so `multi_set` and `multi_get` are atomic for each key, not for all.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_core::EtcdSettings;
/// use rallypoint_store::{EtcdV2Store, Store};
///
/// let settings = EtcdSettings::new("etcd1,etcd2,etcd3")?;
/// let store = EtcdV2Store::connect(settings, "/torch/elastic/store").await?;
/// let arrived = store.add(b"arrived", 1).await?;
/// store.set(format!("address/{arrived}").as_bytes(), b"10.0.0.7:29500").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct EtcdV2Store {
    shared: Arc<Shared>,
    timeout: Timeout,
}

#[derive(Debug)]
struct Shared {
    layout: Layout,
    once: Once,
    counters: Counters,
}

impl EtcdV2Store {
    /// Connects, and opens the store under `prefix`.
    pub async fn connect(settings: EtcdSettings, prefix: &str) -> Result<Self> {
        Ok(EtcdV2Store::new(Client::connect(settings).await?, prefix))
    }

    /// The store under `prefix`. All stores with the same prefix share their data.
    #[must_use]
    pub fn new(client: Client, prefix: &str) -> Self {
        let shared =
            Shared { layout: Layout::new(prefix), once: Once::new(client), counters: Counters::default() };
        EtcdV2Store { shared: Arc::new(shared), timeout: Timeout::default() }
    }

    /// The same store, with another timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        self.timeout.set(timeout);
        self
    }

    fn once(&self) -> &Once {
        &self.shared.once
    }

    /// Where `key` is.
    fn slot(&self, key: &[u8]) -> Slot {
        self.shared.layout.slot(key, |path| self.once().takes(path))
    }

    /// The keys that are there.
    async fn keys(&self) -> Result<Vec<Vec<u8>>> {
        let deadline = self.timeout.deadline(None);
        let layout = &self.shared.layout;
        let (directory, _) = self.once().find(layout.keys(), Get::new(), deadline).await?;
        let nodes = directory.map(|directory| directory.nodes).unwrap_or_default();
        let files = nodes.iter().filter(|node| !node.dir);
        Ok(files.filter_map(|node| layout.key_of(node.name(), once::text(node))).collect())
    }
}

/// Names the limit where a write of `size` bytes was too large.
fn too_large<'a>(key: &'a [u8], size: usize) -> impl FnOnce(StoreError) -> StoreError + 'a {
    move |error| match error {
        StoreError::Etcd(source) if source.kind() == ErrorKind::TooLarge => StoreError::TooLarge {
            key: key.to_vec(),
            size: key.len() + size,
            limit: LIMIT,
            source: source.into(),
        },
        error => error,
    }
}

/// Races lost to other writers of the same key.
#[derive(Debug, Default)]
struct Losses(u32);

impl Losses {
    /// No pause at first: the loser knows what the winner wrote, or is about to look.
    async fn pause(&mut self, what: &'static str, key: &[u8], deadline: Deadline) -> Result<()> {
        self.0 += 1;
        if deadline.is_over() {
            return Err(deadline.missed(what, &[key]));
        }
        if self.0 > 2 {
            let most = Duration::from_millis(u64::from(self.0.min(20)));
            tokio::time::sleep(most.mul_f64(fastrand::f64())).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Store for EtcdV2Store {
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.set_value("set", key, value, self.timeout.deadline(None)).await
    }

    async fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.await_value("get", key, self.timeout.deadline(None)).await
    }

    async fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        self.add_number(key, delta).await
    }

    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        self.await_all(keys, self.timeout.deadline(timeout)).await
    }

    async fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        self.all_there(keys, self.timeout.deadline(None)).await
    }

    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.compare_and_set(key, expected, desired).await
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool> {
        self.delete_value(key).await
    }

    async fn num_keys(&self) -> Result<u64> {
        Ok(self.keys().await?.len() as u64)
    }

    async fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.keys().await?;
        keys.sort();
        Ok(keys)
    }

    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.append_value(key, value).await
    }

    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        self.get_many(keys).await
    }

    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        self.set_many(keys, values).await
    }

    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(key, value).await
    }

    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        self.pop(key, block).await
    }

    async fn queue_len(&self, key: &[u8]) -> Result<u64> {
        Ok(self.items(key, self.timeout.deadline(None)).await?.0.len() as u64)
    }

    fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    fn clone_store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}
