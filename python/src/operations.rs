//! What a store can do, for a thread that waits and for an event loop that does not.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use rallypoint::{EtcdSettings, EtcdStore, EtcdV2Store};
use rallypoint_store::{Result, Store, StoreError};

use crate::completions::{into_python, start};
use crate::connection::Api;
use crate::error;
use crate::key::{Bytes, Several, Time};
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

impl Results {
    /// Waits for an operation, or starts it.
    pub(crate) fn of<T, E, F>(
        self,
        py: Python<'_>,
        operation: F,
        into_error: fn(Python<'_>, &E) -> PyErr,
    ) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        E: Send + 'static,
        F: Future<Output = std::result::Result<T, E>> + Send + 'static,
    {
        match self {
            Results::AreWaitedFor => {
                into_python(py, wait(py, operation)?.map_err(|problem| into_error(py, &problem))?)
            }
            Results::AreFutures => start(py, operation, into_error),
        }
    }
}

/// The operations of `Store`, which waits for each, and of `AsyncStore`, which gives a future of it.
#[pyclass(frozen, subclass, weakref, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Operations {
    results: Results,
    /// A store that belongs to a round of a rendezvous has none, and stays in its process.
    source: Option<Source>,
    /// None when it is closed.
    opened: Mutex<Option<OfProcess<AnyStore>>>,
}

impl Operations {
    pub(crate) fn new(results: Results, source: Option<Source>, store: AnyStore) -> Self {
        Operations { results, source, opened: Mutex::new(Some(OfProcess::new(store))) }
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
            let opened = opened.as_ref().ok_or_else(|| error::closed(py, "store"))?;
            if let Some(store) = opened.get() {
                return Ok(AnyStore::clone(store));
            }
            opened.look().map(|store| store.timeout())
        };
        let Some(source) = &self.source else { return Err(error::store(py, &StoreError::Forked)) };
        let store = wait(py, source.open(timeout))?.map_err(|problem| error::store(py, &problem))?;
        let mut opened = self.opened.lock().expect("no code panics while it holds this lock");
        *opened = Some(OfProcess::new(AnyStore::clone(&store)));
        Ok(store)
    }

    fn run<T, F>(&self, py: Python<'_>, operation: impl FnOnce(AnyStore) -> F) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.finish(py, operation(self.store(py)?))
    }

    fn finish<T, F>(&self, py: Python<'_>, operation: F) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.results.of(py, operation, error::store)
    }
}

#[pymethods]
impl Operations {
    /// Stores `value` under `key`, over whatever was there.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///     value (str | bytes): The value.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    ///     StoreValueError: The value is larger than etcd takes.
    fn set(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.set(&key.0, &value.0).await)
    }

    /// Reads the value of `key`; waits for it to be there.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///
    /// Returns:
    ///     bytes: The value.
    ///
    /// Raises:
    ///     StoreTimeoutError: The key was not there within the timeout.
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn get(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.get(&key.0).await)
    }

    /// Adds `value` to the number under `key`, 0 if there is none. Every sum is returned to one caller only.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///     value (int): What to add; may be below 0.
    ///
    /// Returns:
    ///     int: The sum.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    ///     StoreValueError: The value under `key` is not a number.
    fn add(&self, py: Python<'_>, key: Bytes, value: i64) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.add(&key.0, value).await)
    }

    /// Waits until all of `keys` are there.
    ///
    /// Args:
    ///     keys (Sequence[str | bytes]): The keys.
    ///     timeout (timedelta | float | None): How long to wait, in seconds if it is a number; as long as `timeout` of
    ///         the store says, if it is not given.
    ///
    /// Raises:
    ///     StoreTimeoutError: They were not all there within the timeout. It names those that are missing.
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    #[pyo3(signature = (keys, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Several, timeout: Option<Time>) -> PyResult<Py<PyAny>> {
        let timeout = timeout.map(|time| time.0);
        self.run(py, async move |store: AnyStore| store.wait(&keys.slices(), timeout).await)
    }

    /// Tells whether all of `keys` are there now.
    ///
    /// Args:
    ///     keys (Sequence[str | bytes]): The keys.
    ///
    /// Returns:
    ///     bool: True if they are.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn check(&self, py: Python<'_>, keys: Several) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.check(&keys.slices()).await)
    }

    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///     expected (str | bytes): The value that must be there.
    ///     desired (str | bytes): The value to store.
    ///
    /// Returns:
    ///     bytes: The value after the call; where there is none, `expected`.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    ///     StoreValueError: The value is larger than etcd takes.
    fn compare_set(
        &self,
        py: Python<'_>,
        key: Bytes,
        expected: Bytes,
        desired: Bytes,
    ) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.compare_set(&key.0, &expected.0, &desired.0).await)
    }

    /// Removes `key`.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///
    /// Returns:
    ///     bool: Whether it was there.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    fn delete_key(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.delete_key(&key.0).await)
    }

    /// Counts the keys of this store.
    ///
    /// Returns:
    ///     int: Their number, without queues.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn num_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.num_keys().await)
    }

    /// Lists the keys of this store.
    ///
    /// Returns:
    ///     list[bytes]: All keys, sorted, without queues.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.list_keys().await)
    }

    /// Puts `value` at the end of the value of `key`.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///     value (str | bytes): The value.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    ///     StoreValueError: The value is larger than etcd takes.
    fn append(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.append(&key.0, &value.0).await)
    }

    /// Reads the values of `keys`; waits for all of them to be there.
    ///
    /// Args:
    ///     keys (Sequence[str | bytes]): The keys.
    ///
    /// Returns:
    ///     list[bytes]: The values, in the order of the keys.
    ///
    /// Raises:
    ///     StoreTimeoutError: They were not all there within the timeout.
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn multi_get(&self, py: Python<'_>, keys: Several) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.multi_get(&keys.slices()).await)
    }

    /// Stores each value under its key.
    ///
    /// Args:
    ///     keys (Sequence[str | bytes]): The keys.
    ///     values (Sequence[str | bytes]): As many values.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    ///     StoreValueError: There are more keys than values, or fewer, or a value is larger than etcd takes.
    fn multi_set(&self, py: Python<'_>, keys: Several, values: Several) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.multi_set(&keys.slices(), &values.slices()).await)
    }

    /// Puts `value` at the end of the queue `key`.
    ///
    /// Args:
    ///     key (str | bytes): The queue.
    ///     value (str | bytes): The value.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    ///     StoreValueError: The value is larger than etcd takes.
    fn queue_push(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.queue_push(&key.0, &value.0).await)
    }

    /// Takes the value at the head of the queue `key`.
    ///
    /// Args:
    ///     key (str | bytes): The queue.
    ///     block (bool): Whether to wait for a value if there is none.
    ///
    /// Returns:
    ///     bytes: The value. Nobody else gets it.
    ///
    /// Raises:
    ///     StoreTimeoutError: No value came within the timeout.
    ///     QueueEmptyError: The queue is empty, and `block` is False.
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
    #[pyo3(signature = (key, block=true))]
    fn queue_pop(&self, py: Python<'_>, key: Bytes, block: bool) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.queue_pop(&key.0, block).await)
    }

    /// Counts the values in the queue `key`.
    ///
    /// Args:
    ///     key (str | bytes): The queue.
    ///
    /// Returns:
    ///     int: Their number.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn queue_len(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, async move |store: AnyStore| store.queue_len(&key.0).await)
    }

    /// Waits until `world_size` callers have come to the barrier `key`. A barrier that is open stays open.
    ///
    /// Args:
    ///     key (str | bytes): The barrier.
    ///     world_size (int): How many must come.
    ///     timeout (timedelta | float | None): How long to wait, in seconds if it is a number; as long as `timeout` of
    ///         the store says, if it is not given.
    ///
    /// Raises:
    ///     StoreTimeoutError: Too few came within the timeout.
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     OutcomeUnknownError: The reply was lost, and whether it was carried out cannot be found out.
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

    /// timedelta: How long operations wait, and go on trying while etcd does not answer.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<Duration> {
        Ok(self.store(py)?.timeout())
    }

    /// Sets how long operations of this store wait; clones keep theirs.
    ///
    /// Args:
    ///     timeout (timedelta | float): That time, in seconds if it is a number.
    fn set_timeout(&self, py: Python<'_>, timeout: Time) -> PyResult<()> {
        self.store(py)?.set_timeout(timeout.0);
        Ok(())
    }

    /// Closes the store: the connection ends with the operations that are under way. Later ones raise a `StoreError`; a
    /// second `close` does nothing. The data stays in etcd, and clones stay open.
    fn close(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let opened = self.opened.lock().expect("no code panics while it holds this lock").take();
        drop(opened);
        self.finish(py, async { Ok(()) })
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
