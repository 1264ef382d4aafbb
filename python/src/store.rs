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
/// Keys and values are `bytes`, or `str`, which is stored as UTF-8; what is read is `bytes`. Operations that wait release
/// the GIL, and Ctrl-C interrupts them. A process forked off may go on using it. At the end of a `with` statement the
/// store is closed.
///
/// Args:
///     endpoint (str): The etcd servers, with commas: "etcd1:2379,etcd2:2379".
///     prefix (str): Where in etcd the data is. All stores with the same prefix share it.
///     timeout (timedelta | float | None): How long operations wait, in seconds if it is a number. The default is 300.
///     api (str): "v3", the fast one, or "v2", whose data are those of PyTorch's `EtcdStore`.
///     cacert, cert, key (str | PathLike | None): Files for TLS: the authority, this client's certificate and its key.
///     user, password (str | None): For an etcd that asks for them.
///     etcd_prefix (str | None): Put before every key.
///     connect_timeout, request_timeout, retry_timeout (timedelta | float | None): To reach an etcd (5), for one try of a
///         request (5), and for a request with its retries (30).
///
/// Raises:
///     ValueError: An endpoint, or settings, that cannot work.
///     TypeError: There is no such option.
///     StoreConnectionError: etcd cannot be reached, or does not let us in.
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
    #[pyo3(
        signature = (endpoint, prefix, timeout=None, api=Api::V3, **options),
        text_signature = "(endpoint, prefix, timeout=None, api='v3', **options)"
    )]
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
    ///
    /// Returns:
    ///     Store: That handle.
    fn clone<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Bound::new(this.py(), Store::over(this.as_super().get().clone(this.py())?))
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(this: &Bound<'_, Self>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        this.call_method0("close").map(|_| ())
    }
}

/// A store that the nodes of a job share, kept in etcd, for asyncio: `await store.get("key")`.
///
/// `connect` makes one. Every operation gives an `asyncio.Future` of what that of `Store` returns; one that is cancelled
/// ends. At the end of an `async with` statement the store is closed.
#[pyclass(frozen, extends = Operations, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct AsyncStore;

impl AsyncStore {
    /// The store of a round of a rendezvous.
    pub(crate) fn of_round(py: Python<'_>, store: AnyStore) -> PyResult<Py<Self>> {
        Py::new(py, AsyncStore::over(Operations::new(Results::AreFutures, None, store)))
    }

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
    /// Connects, and opens the store under `prefix`. For the arguments, and what it raises, see `Store`.
    ///
    /// Returns:
    ///     asyncio.Future[AsyncStore]: The store.
    #[staticmethod]
    #[pyo3(
        signature = (endpoint, prefix, timeout=None, api=Api::V3, **options),
        text_signature = "(endpoint, prefix, timeout=None, api='v3', **options)"
    )]
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

    /// Another handle on the same data, with a timeout of its own. This one is not a future.
    ///
    /// Returns:
    ///     AsyncStore: That handle.
    fn clone<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Bound::new(this.py(), AsyncStore::over(this.as_super().get().clone(this.py())?))
    }

    fn __aenter__(this: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, store) = (this.py(), this.unbind());
        start(py, async move { Ok(store) }, error::store)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        this: &Bound<'py, Self>,
        _exception: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        this.call_method0("close")
    }
}
