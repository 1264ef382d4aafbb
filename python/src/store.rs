//! The store for threads and the store for asyncio. What they can do is in `operations`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::completions::start;
use crate::connection::{self, Api};
use crate::error;
use crate::key::Time;
use crate::operations::{AnyStore, Operations, Results, Source};
use crate::runtime::wait;

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
#[pyclass(frozen, extends = Operations, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Store;

impl Store {
    /// The store of a round of a rendezvous.
    pub(crate) fn of_round(py: Python<'_>, store: AnyStore) -> PyResult<Py<Self>> {
        Py::new(py, Store::over(Operations::new(Results::AreWaitedFor, None, store)))
    }

    fn over(operations: Operations) -> PyClassInitializer<Self> {
        PyClassInitializer::from(operations).add_subclass(Store)
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
    ) -> PyResult<PyClassInitializer<Self>> {
        let source = Source { api, settings: connection::settings(endpoint, options)?, prefix };
        let opened = wait(py, source.open(timeout.map(|time| time.0)))?;
        let store = opened.map_err(|problem| error::store(py, &problem))?;
        Ok(Store::over(Operations::new(Results::AreWaitedFor, Some(source), store)))
    }

    /// Another handle on the same data, with a timeout of its own.
    fn clone<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Bound::new(this.py(), Store::over(this.as_super().get().clone(this.py())?))
    }
}

/// A store that the nodes of a job share, kept in etcd, for asyncio: `await store.get("key")`.
///
/// What is cancelled ends. For the arguments see `Store`.
#[pyclass(frozen, extends = Operations, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct AsyncStore;

impl AsyncStore {
    fn over(operations: Operations) -> PyClassInitializer<Self> {
        PyClassInitializer::from(operations).add_subclass(AsyncStore)
    }
}

/// What becomes an [`AsyncStore`] on the event loop's thread.
struct Opened(Source, AnyStore);

impl<'py> IntoPyObject<'py> for Opened {
    type Target = AsyncStore;
    type Output = Bound<'py, AsyncStore>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let Opened(source, store) = self;
        Bound::new(py, AsyncStore::over(Operations::new(Results::AreFutures, Some(source), store)))
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
        let source = Source { api, settings: connection::settings(endpoint, options)?, prefix };
        let opening = async move {
            let store = source.open(timeout.map(|time| time.0)).await?;
            Ok(Opened(source, store))
        };
        start(py, opening, error::store)
    }

    /// Another handle on the same data, with a timeout of its own.
    fn clone<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Bound::new(this.py(), AsyncStore::over(this.as_super().get().clone(this.py())?))
    }
}
