//! The store for asyncio.

use std::future::Future;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint_store::{Result, StoreError};

use crate::completions::start;
use crate::connection::{self, Api};
use crate::error;
use crate::key::{Bytes, Time, list};
use crate::operation::{self, AnyStore};
use crate::runtime::OfProcess;

/// A store that the nodes of a job share, kept in etcd, for asyncio: `await store.get("key")`.
///
/// What is cancelled ends. For the arguments see `Store`.
#[pyclass(frozen, module = "rallypoint", weakref)]
#[derive(Debug)]
pub(crate) struct AsyncStore(OfProcess<AnyStore>);

impl AsyncStore {
    fn run<T, F>(&self, py: Python<'_>, operation: impl FnOnce(AnyStore) -> F) -> PyResult<Py<PyAny>>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let store = AnyStore::clone(self.store(py)?);
        start(py, operation(store), error::store)
    }

    fn store(&self, py: Python<'_>) -> PyResult<&AnyStore> {
        self.0.get().ok_or_else(|| error::store(py, &StoreError::Forked))
    }
}

#[pymethods]
impl AsyncStore {
    /// Connects, and opens the store under `prefix`.
    #[staticmethod]
    #[pyo3(signature = (endpoint, prefix, timeout=None, api=Api::V3, **options))]
    fn connect(
        py: Python<'_>,
        endpoint: &str,
        prefix: String,
        timeout: Option<Time>,
        api: Api,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let settings = connection::settings(endpoint, options)?;
        let opening = async move {
            let store = operation::open(api, settings, prefix).await?;
            if let Some(Time(timeout)) = timeout {
                store.set_timeout(timeout);
            }
            Ok(AsyncStore(OfProcess::new(store)))
        };
        start(py, opening, error::store)
    }

    /// Stores `value` under `key`, over whatever was there.
    fn set(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::set(store, key.0, value.0))
    }

    /// The value of `key`; waits for it to be there.
    fn get(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::get(store, key.0))
    }

    /// Adds `value` to the number under `key`, 0 if there is none, and returns the sum.
    fn add(&self, py: Python<'_>, key: Bytes, value: i64) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::add(store, key.0, value))
    }

    /// Waits until all of `keys` are there, for `timeout` if given.
    #[pyo3(signature = (keys, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Vec<Bytes>, timeout: Option<Time>) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::wait(store, list(keys), timeout.map(|time| time.0)))
    }

    /// Whether all of `keys` are there now.
    fn check(&self, py: Python<'_>, keys: Vec<Bytes>) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::check(store, list(keys)))
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
        self.run(py, |store| operation::compare_set(store, key.0, expected.0, desired.0))
    }

    /// Removes `key`; says whether it was there.
    fn delete_key(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::delete_key(store, key.0))
    }

    /// The number of keys.
    fn num_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, operation::num_keys)
    }

    /// All keys, sorted.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, operation::list_keys)
    }

    /// Puts `value` at the end of the value of `key`.
    fn append(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::append(store, key.0, value.0))
    }

    /// The values of `keys`, in their order; waits for all of them.
    fn multi_get(&self, py: Python<'_>, keys: Vec<Bytes>) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::multi_get(store, list(keys)))
    }

    /// Stores each value under its key.
    fn multi_set(&self, py: Python<'_>, keys: Vec<Bytes>, values: Vec<Bytes>) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::multi_set(store, list(keys), list(values)))
    }

    /// Puts `value` at the end of the queue `key`.
    fn queue_push(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::queue_push(store, key.0, value.0))
    }

    /// Takes the value at the head of the queue `key`; with `block` it waits for one.
    #[pyo3(signature = (key, block=true))]
    fn queue_pop(&self, py: Python<'_>, key: Bytes, block: bool) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::queue_pop(store, key.0, block))
    }

    /// The length of the queue `key`.
    fn queue_len(&self, py: Python<'_>, key: Bytes) -> PyResult<Py<PyAny>> {
        self.run(py, |store| operation::queue_len(store, key.0))
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
        Ok(AsyncStore(OfProcess::new(self.store(py)?.clone_store().into())))
    }
}
