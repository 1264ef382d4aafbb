//! What a store can do, for a thread that waits and for an event loop that does not.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use rallypoint::{EtcdSettings, EtcdStore, EtcdV2Store};
use rallypoint_store::{Result, Store, StoreError};

use crate::completions::start;
use crate::connection::Api;
use crate::error;
use crate::key::{Bytes, Time, slices};
use crate::runtime::{OfProcess, wait};

/// A store as Python holds it.
pub(crate) type AnyStore = Arc<dyn Store>;

/// How a store was opened, for a process forked off, which opens it anew.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) api: Api,
    pub(crate) settings: EtcdSettings,
    pub(crate) prefix: String,
}

impl Source {
    /// The store, whose operations wait for `timeout`.
    pub(crate) async fn open(&self, timeout: Option<Duration>) -> Result<AnyStore> {
        let settings = self.settings.clone();
        let store: AnyStore = match self.api {
            Api::V2 => Arc::new(EtcdV2Store::connect(settings, &self.prefix).await?),
            Api::V3 => Arc::new(EtcdStore::connect(settings, &self.prefix).await?),
        };
        if let Some(timeout) = timeout {
            store.set_timeout(timeout);
        }
        Ok(store)
    }
}

/// What a caller gets of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Results {
    /// Its result, once that is there.
    AreWaitedFor,
    /// An `asyncio.Future` of it.
    AreFutures,
}

/// The operations of `Store`, which waits for each, and of `AsyncStore`, which gives a future of it.
#[pyclass(frozen, subclass, weakref, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Operations {
    results: Results,
    /// A store that belongs to a round of a rendezvous has none, and stays in its process.
    source: Option<Source>,
    opened: Mutex<OfProcess<AnyStore>>,
}

impl Operations {
    pub(crate) fn new(results: Results, source: Option<Source>, store: AnyStore) -> Self {
        Operations { results, source, opened: Mutex::new(OfProcess::new(store)) }
    }

    /// The same on a handle of its own.
    pub(crate) fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        let store = self.store(py)?.clone_store();
        Ok(Operations::new(self.results, self.source.clone(), store.into()))
    }

    /// The open store of this process. One forked off waits here until it has connected, even for asyncio.
    ///
    /// The lock is never held while the GIL is not: a thread that waited for it with the GIL would stop the one
    /// that has it, and a fork could find it locked.
    fn store(&self, py: Python<'_>) -> PyResult<AnyStore> {
        let timeout = {
            let opened = self.opened.lock().expect("no code panics while it holds this lock");
            if let Some(store) = opened.get() {
                return Ok(AnyStore::clone(store));
            }
            opened.look().map(|store| store.timeout())
        };
        let Some(source) = &self.source else { return Err(error::store(py, &StoreError::Forked)) };
        let store = wait(py, source.open(timeout))?.map_err(|problem| error::store(py, &problem))?;
        let mut opened = self.opened.lock().expect("no code panics while it holds this lock");
        *opened = OfProcess::new(AnyStore::clone(&store));
        Ok(store)
    }

    fn run<T, F>(&self, py: Python<'_>, operation: impl FnOnce(AnyStore) -> F) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let operation = operation(self.store(py)?);
        match self.results {
            Results::AreWaitedFor => {
                wait(py, operation)?.map_err(|problem| error::store(py, &problem))?.into_py_any(py)
            }
            Results::AreFutures => start(py, operation, error::store),
        }
    }
}

#[pymethods]
impl Operations {
    /// Stores `value` under `key`, over whatever was there.
    fn set(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.set(&key.0, &value.0).await)
    }

    /// The value of `key`; waits for it to be there.
    fn get(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.get(&key.0).await)
    }

    /// Adds `value` to the number under `key`, 0 if there is none, and returns the sum.
    fn add(&self, py: Python<'_>, key: Bytes, value: i64) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.add(&key.0, value).await)
    }

    /// Waits until all of `keys` are there, for `timeout` if given.
    #[pyo3(signature = (keys, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Vec<Bytes>, timeout: Option<Time>) -> PyResult<Py<PyAny>> {
        let timeout = timeout.map(|time| time.0);
        self.run(py, async move |store: AnyStore| store.wait(&slices(&keys), timeout).await)
    }

    /// Whether all of `keys` are there now.
    fn check(&self, py: Python<'_>, keys: Vec<Bytes>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.check(&slices(&keys)).await)
    }

    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
    ///
    /// Returns the value after the call; where there is none, `expected`.
    fn compare_set(
        &self,
        py: Python<'_>,
        key: Bytes,
        expected: Bytes,
        desired: Bytes,
    ) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.compare_set(&key.0, &expected.0, &desired.0).await)
    }

    /// Removes `key`; says whether it was there.
    fn delete_key(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.delete_key(&key.0).await)
    }

    /// The number of keys.
    fn num_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.num_keys().await)
    }

    /// All keys, sorted.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.list_keys().await)
    }

    /// Puts `value` at the end of the value of `key`.
    fn append(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.append(&key.0, &value.0).await)
    }

    /// The values of `keys`, in their order; waits for all of them.
    fn multi_get(&self, py: Python<'_>, keys: Vec<Bytes>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.multi_get(&slices(&keys)).await)
    }

    /// Stores each value under its key.
    fn multi_set(&self, py: Python<'_>, keys: Vec<Bytes>, values: Vec<Bytes>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.multi_set(&slices(&keys), &slices(&values)).await)
    }

    /// Puts `value` at the end of the queue `key`.
    fn queue_push(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.queue_push(&key.0, &value.0).await)
    }

    /// Takes the value at the head of the queue `key`; with `block` it waits for one.
    #[pyo3(signature = (key, block=true))]
    fn queue_pop(&self, py: Python<'_>, key: Bytes, block: bool) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.queue_pop(&key.0, block).await)
    }

    /// The length of the queue `key`.
    fn queue_len(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.queue_len(&key.0).await)
    }

    /// Waits until `world_size` callers have come to the barrier `key`, for `timeout` if given.
    #[pyo3(signature = (key, world_size, timeout=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        key: Bytes,
        world_size: u64,
        timeout: Option<Time>,
    ) -> PyResult<Py<PyAny>> {
        let timeout = timeout.map(|time| time.0);
        self.run(py, async move |store: AnyStore| store.barrier(&key.0, world_size, timeout).await)
    }

    /// How long operations wait.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<Duration> {
        Ok(self.store(py)?.timeout())
    }

    /// Sets how long operations of this store wait; clones keep theirs.
    fn set_timeout(&self, py: Python<'_>, timeout: Time) -> PyResult<()> {
        self.store(py)?.set_timeout(timeout.0);
        Ok(())
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        let name = this.get_type().name()?;
        Ok(match &this.get().source {
            Some(Source { api, settings, prefix }) => {
                format!("<rallypoint.{name} {prefix:?} at {} ({})>", settings.endpoints, api.name())
            }
            None => format!("<rallypoint.{name} of a round>"),
        })
    }
}
