//! A store in the memory of one process: the contract in its plainest form, for tests and single-process jobs.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::deadline::{Deadline, Timeout};
use crate::error::{Result, StoreError};
use crate::store::{Store, parse_number};

/// A store in memory. Clones share the data.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> rallypoint_store::Result<()> {
/// use rallypoint_store::{MemoryStore, Store};
///
/// let store = MemoryStore::new();
/// store.set(b"greeting", b"hello").await?;
/// assert_eq!(store.get(b"greeting").await?, b"hello");
/// assert_eq!(store.add(b"visits", 2).await?, 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    timeout: Timeout,
}

#[derive(Debug, Default)]
struct Shared {
    data: Mutex<Data>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Data {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
}

impl Data {
    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        MemoryStore::default()
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.shared.data.lock().expect("no code panics while it holds this lock")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Data) -> T) -> T {
        let result = change(&mut self.data());
        self.shared.changed.notify_waiters();
        result
    }

    /// Tries `attempt` after every change until it gives something; `None` at the deadline.
    async fn until<T>(&self, deadline: Deadline, attempt: impl Fn(&mut Data) -> Option<T>) -> Option<T> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // Listening begins before the look, or a change between the two would be missed.
            changed.as_mut().enable();
            if let Some(found) = attempt(&mut self.data()) {
                return Some(found);
            }
            deadline.wait(changed).await?;
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(|data| data.values.insert(key.to_vec(), value.to_vec()));
        Ok(())
    }

    async fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        let deadline = self.timeout.deadline(None);
        let found = self.until(deadline, |data| data.values.get(key).cloned()).await;
        found.ok_or_else(|| deadline.missed("get", &[key]))
    }

    async fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        self.change(|data| {
            let old = data.values.get(key).map_or(Ok(0), |value| parse_number(key, value))?;
            let sum = old.wrapping_add(delta);
            data.values.insert(key.to_vec(), sum.to_string().into_bytes());
            Ok(sum)
        })
    }

    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        let deadline = self.timeout.deadline(timeout);
        let all = self.until(deadline, |data| keys.iter().all(|key| data.has(key)).then_some(())).await;
        all.ok_or_else(|| {
            let data = self.data();
            let missing: Vec<&[u8]> = keys.iter().copied().filter(|key| !data.has(key)).collect();
            deadline.missed("wait", &missing)
        })
    }

    async fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        let data = self.data();
        Ok(keys.iter().all(|key| data.has(key)))
    }

    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Ok(self.change(|data| match data.values.get(key) {
            Some(value) if value != expected => value.clone(),
            None if !expected.is_empty() => expected.to_vec(),
            _ => {
                data.values.insert(key.to_vec(), desired.to_vec());
                desired.to_vec()
            }
        }))
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool> {
        Ok(self.change(|data| data.values.remove(key).is_some()))
    }

    async fn num_keys(&self) -> Result<u64> {
        Ok(self.data().values.len() as u64)
    }

    async fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.data().values.keys().cloned().collect())
    }

    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(|data| data.values.entry(key.to_vec()).or_default().extend_from_slice(value));
        Ok(())
    }

    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let deadline = self.timeout.deadline(None);
        let all = |data: &mut Data| keys.iter().map(|key| data.values.get(*key).cloned()).collect();
        self.until(deadline, all).await.ok_or_else(|| {
            let data = self.data();
            let missing: Vec<&[u8]> =
                keys.iter().copied().filter(|key| !data.values.contains_key(*key)).collect();
            deadline.missed("multi_get", &missing)
        })
    }

    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        if keys.len() != values.len() {
            return Err(StoreError::LengthMismatch { keys: keys.len(), values: values.len() });
        }
        self.change(|data| {
            data.values.extend(keys.iter().zip(values).map(|(key, value)| (key.to_vec(), value.to_vec())));
        });
        Ok(())
    }

    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(|data| data.queues.entry(key.to_vec()).or_default().push_back(value.to_vec()));
        Ok(())
    }

    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        let pop = |data: &mut Data| {
            let queue = data.queues.get_mut(key)?;
            let head = queue.pop_front();
            if queue.is_empty() {
                data.queues.remove(key);
            }
            head
        };
        if !block {
            return pop(&mut self.data()).ok_or_else(|| StoreError::QueueEmpty { key: key.to_vec() });
        }
        let deadline = self.timeout.deadline(None);
        self.until(deadline, pop).await.ok_or_else(|| deadline.missed("queue_pop", &[key]))
    }

    async fn queue_len(&self, key: &[u8]) -> Result<u64> {
        Ok(self.data().queues.get(key).map_or(0, VecDeque::len) as u64)
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
