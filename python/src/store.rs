//! The store for threads.

use std::future::Future;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint::EtcdSettings;
use rallypoint_store::{Result, StoreError};

use crate::connection::{self, Api};
use crate::error;
use crate::key::{Bytes, Time, list};
use crate::operation::{self, AnyStore};
use crate::runtime::{OfProcess, wait};

/// A store that the nodes of a job share, kept in etcd.
///
/// All stores with the same prefix share their data. Keys and values are `bytes`, or `str`, which is stored as
/// UTF-8; what is read is `bytes`. Operations that wait release the GIL, and Ctrl-C interrupts them. A process
/// forked off may go on using it.
///
/// `timeout` is how long operations wait, a `timedelta` or seconds. `api` is "v3", the fast one, or "v2", whose data
/// are those of PyTorch's `EtcdStore`. Further options say how to connect: the files `cacert`, `cert` and `key`;
/// `user` and `password`; `etcd_prefix`, which is put before every key; `connect_timeout`, `request_timeout` and
/// `retry_timeout`.
#[pyclass(frozen, module = "rallypoint", weakref)]
#[derive(Debug)]
pub(crate) struct Store {
    /// How it was opened, for a process forked off, which opens it anew. A store that belongs to a round of a
    /// rendezvous has none.
    source: Option<Source>,
    opened: Mutex<OfProcess<AnyStore>>,
}

#[derive(Debug, Clone)]
struct Source {
    api: Api,
    settings: EtcdSettings,
    prefix: String,
}

impl Source {
    fn open(self) -> impl Future<Output = Result<AnyStore>> {
        operation::open(self.api, self.settings, self.prefix)
    }
}

impl Store {
    /// The store of a round of a rendezvous.
    pub(crate) fn of_round(store: AnyStore) -> Self {
        Store::new(None, store)
    }

    fn new(source: Option<Source>, store: AnyStore) -> Self {
        Store { source, opened: Mutex::new(OfProcess::new(store)) }
    }

    /// The open store of this process.
    ///
    /// The lock is never held while the GIL is not: a thread that waited for it with the GIL would stop the one
    /// that has it, and a fork could find it locked.
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<AnyStore> {
        let timeout = {
            let opened = self.opened.lock().expect("no code panics while it holds this lock");
            if let Some(store) = opened.get() {
                return Ok(AnyStore::clone(store));
            }
            opened.look().map(|store| store.timeout())
        };
        let Some(source) = self.source.clone() else { return Err(error::store(py, &StoreError::Forked)) };
        let store = wait(py, source.open())?.map_err(|problem| error::store(py, &problem))?;
        if let Some(timeout) = timeout {
            store.set_timeout(timeout);
        }
        let mut opened = self.opened.lock().expect("no code panics while it holds this lock");
        *opened = OfProcess::new(AnyStore::clone(&store));
        Ok(store)
    }

    fn run<T, F>(&self, py: Python<'_>, operation: impl FnOnce(AnyStore) -> F) -> PyResult<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        wait(py, operation(self.store(py)?))?.map_err(|problem| error::store(py, &problem))
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (endpoint, prefix, timeout=None, api=Api::V3, **options))]
    fn open(
        py: Python<'_>,
        endpoint: &str,
        prefix: String,
        timeout: Option<Time>,
        api: Api,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let source = Source { api, settings: connection::settings(endpoint, options)?, prefix };
        let store = wait(py, source.clone().open())?.map_err(|problem| error::store(py, &problem))?;
        if let Some(Time(timeout)) = timeout {
            store.set_timeout(timeout);
        }
        Ok(Store::new(Some(source), store))
    }

    /// Stores `value` under `key`, over whatever was there.
    fn set(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.run(py, |store| operation::set(store, key.0, value.0))
    }

    /// The value of `key`; waits for it to be there.
    fn get(&self, py: Python<'_>, key: Bytes) -> PyResult<Vec<u8>> {
        self.run(py, |store| operation::get(store, key.0))
    }

    /// Adds `value` to the number under `key`, 0 if there is none, and returns the sum.
    fn add(&self, py: Python<'_>, key: Bytes, value: i64) -> PyResult<i64> {
        self.run(py, |store| operation::add(store, key.0, value))
    }

    /// Waits until all of `keys` are there, for `timeout` if given.
    #[pyo3(signature = (keys, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Vec<Bytes>, timeout: Option<Time>) -> PyResult<()> {
        self.run(py, |store| operation::wait(store, list(keys), timeout.map(|time| time.0)))
    }

    /// Whether all of `keys` are there now.
    fn check(&self, py: Python<'_>, keys: Vec<Bytes>) -> PyResult<bool> {
        self.run(py, |store| operation::check(store, list(keys)))
    }

    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
    ///
    /// Returns the value after the call; where there is none, `expected`.
    fn compare_set(&self, py: Python<'_>, key: Bytes, expected: Bytes, desired: Bytes) -> PyResult<Vec<u8>> {
        self.run(py, |store| operation::compare_set(store, key.0, expected.0, desired.0))
    }

    /// Removes `key`; says whether it was there.
    fn delete_key(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        self.run(py, |store| operation::delete_key(store, key.0))
    }

    /// The number of keys.
    fn num_keys(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, operation::num_keys)
    }

    /// All keys, sorted.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Vec<Vec<u8>>> {
        self.run(py, operation::list_keys)
    }

    /// Puts `value` at the end of the value of `key`.
    fn append(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.run(py, |store| operation::append(store, key.0, value.0))
    }

    /// The values of `keys`, in their order; waits for all of them.
    fn multi_get(&self, py: Python<'_>, keys: Vec<Bytes>) -> PyResult<Vec<Vec<u8>>> {
        self.run(py, |store| operation::multi_get(store, list(keys)))
    }

    /// Stores each value under its key.
    fn multi_set(&self, py: Python<'_>, keys: Vec<Bytes>, values: Vec<Bytes>) -> PyResult<()> {
        self.run(py, |store| operation::multi_set(store, list(keys), list(values)))
    }

    /// Puts `value` at the end of the queue `key`.
    fn queue_push(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.run(py, |store| operation::queue_push(store, key.0, value.0))
    }

    /// Takes the value at the head of the queue `key`; with `block` it waits for one.
    #[pyo3(signature = (key, block=true))]
    fn queue_pop(&self, py: Python<'_>, key: Bytes, block: bool) -> PyResult<Vec<u8>> {
        self.run(py, |store| operation::queue_pop(store, key.0, block))
    }

    /// The length of the queue `key`.
    fn queue_len(&self, py: Python<'_>, key: Bytes) -> PyResult<u64> {
        self.run(py, |store| operation::queue_len(store, key.0))
    }

    /// Waits until `world_size` callers have come to the barrier `key`, for `timeout` if given.
    #[pyo3(signature = (key, world_size, timeout=None))]
    fn barrier(&self, py: Python<'_>, key: Bytes, world_size: u64, timeout: Option<Time>) -> PyResult<()> {
        self.run(py, |store| operation::barrier(store, key.0, world_size, timeout.map(|time| time.0)))
    }

    /// How long operations wait.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<std::time::Duration> {
        Ok(self.store(py)?.timeout())
    }

    /// Sets how long operations of this store wait; clones keep theirs.
    fn set_timeout(&self, py: Python<'_>, timeout: Time) -> PyResult<()> {
        self.store(py)?.set_timeout(timeout.0);
        Ok(())
    }

    /// Another handle on the same data, with a timeout of its own.
    fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        let store = self.store(py)?.clone_store();
        Ok(Store::new(self.source.clone(), store.into()))
    }

    fn __repr__(&self) -> String {
        match &self.source {
            Some(Source { api, settings, prefix }) => {
                format!("<rallypoint.Store {prefix:?} at {} ({})>", settings.endpoints, api.name())
            }
            None => "<rallypoint.Store of a round>".to_owned(),
        }
    }
}
