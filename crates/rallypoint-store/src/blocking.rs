//! The store for threads that have no async runtime.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Result, StoreError};
use crate::store::Store;

/// A [`Store`] whose operations block the calling thread.
///
/// All of a process's blocking stores share one runtime; a process forked off gets its own, and must open its
/// stores anew.
///
/// ```
/// use rallypoint_store::{BlockingStore, MemoryStore};
///
/// let store = BlockingStore::open(async { Ok(MemoryStore::new()) })?;
/// store.set(b"greeting", b"hello")?;
/// assert_eq!(store.get(b"greeting")?, b"hello");
/// # Ok::<(), rallypoint_store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct BlockingStore {
    store: Box<dyn Store>,
    runtime: Arc<Runtime>,
    /// The process whose threads the runtime has.
    process: u32,
}

impl BlockingStore {
    /// Opens a store on the shared runtime, where its connections then live.
    pub fn open<S: Store + 'static>(opening: impl Future<Output = Result<S>>) -> Result<Self> {
        let runtime = shared_runtime();
        let store = Box::new(block_on(&runtime, opening)?);
        Ok(BlockingStore { store, runtime, process: std::process::id() })
    }

    fn run<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        // The runtime's threads did not come along: it would wait for ever.
        if self.process != std::process::id() {
            return Err(StoreError::Forked);
        }
        block_on(&self.runtime, operation)
    }

    /// See [`Store::set`].
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.run(self.store.set(key, value))
    }

    /// See [`Store::get`].
    pub fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.run(self.store.get(key))
    }

    /// See [`Store::add`].
    pub fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        self.run(self.store.add(key, delta))
    }

    /// See [`Store::wait`].
    pub fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        self.run(self.store.wait(keys, timeout))
    }

    /// See [`Store::check`].
    pub fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        self.run(self.store.check(keys))
    }

    /// See [`Store::compare_set`].
    pub fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.run(self.store.compare_set(key, expected, desired))
    }

    /// See [`Store::delete_key`].
    pub fn delete_key(&self, key: &[u8]) -> Result<bool> {
        self.run(self.store.delete_key(key))
    }

    /// See [`Store::num_keys`].
    pub fn num_keys(&self) -> Result<u64> {
        self.run(self.store.num_keys())
    }

    /// See [`Store::list_keys`].
    pub fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        self.run(self.store.list_keys())
    }

    /// See [`Store::append`].
    pub fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.run(self.store.append(key, value))
    }

    /// See [`Store::multi_get`].
    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        self.run(self.store.multi_get(keys))
    }

    /// See [`Store::multi_set`].
    pub fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        self.run(self.store.multi_set(keys, values))
    }

    /// See [`Store::queue_push`].
    pub fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.run(self.store.queue_push(key, value))
    }

    /// See [`Store::queue_pop`].
    pub fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        self.run(self.store.queue_pop(key, block))
    }

    /// See [`Store::queue_len`].
    pub fn queue_len(&self, key: &[u8]) -> Result<u64> {
        self.run(self.store.queue_len(key))
    }

    /// See [`Store::barrier`].
    pub fn barrier(&self, key: &[u8], world_size: u64, timeout: Option<Duration>) -> Result<()> {
        self.run(self.store.barrier(key, world_size, timeout))
    }

    /// See [`Store::timeout`].
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    /// See [`Store::set_timeout`].
    pub fn set_timeout(&self, timeout: Duration) {
        self.store.set_timeout(timeout);
    }
}

impl Clone for BlockingStore {
    fn clone(&self) -> Self {
        BlockingStore {
            store: self.store.clone_store(),
            runtime: Arc::clone(&self.runtime),
            process: self.process,
        }
    }
}

fn block_on<T>(runtime: &Runtime, future: impl Future<Output = Result<T>>) -> Result<T> {
    if Handle::try_current().is_ok() {
        return Err(StoreError::BlockingInAsync);
    }
    runtime.block_on(future)
}

/// The runtime that all blocking stores of this process share, for others that block. A process forked off gets
/// its own.
///
/// # Panics
///
/// If the system has no room for two threads.
pub fn shared_runtime() -> Arc<Runtime> {
    static SHARED: Mutex<Option<(u32, Arc<Runtime>)>> = Mutex::new(None);
    let mut shared = SHARED.lock().expect("no code panics while it holds this lock");
    let process = std::process::id();
    if let Some((owner, runtime)) = &*shared
        && *owner == process
    {
        return Arc::clone(runtime);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("rallypoint")
        .enable_all()
        .build()
        .expect("a process that cannot start two threads cannot go on");
    let runtime = Arc::new(runtime);
    // The threads of a runtime that was forked along do not exist here: it can only be forgotten.
    std::mem::forget(shared.replace((process, Arc::clone(&runtime))));
    runtime
}
