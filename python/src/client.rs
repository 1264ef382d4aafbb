//! A small client of etcd v3.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint::EtcdSettings;
use rallypoint::etcd::v3::{Client as V3, Entry, KeyRange};
use rallypoint::etcd::{Error, ErrorKind, Result};

use crate::connection;
use crate::error;
use crate::key::Bytes;
use crate::runtime::{OfProcess, wait};

/// A client of etcd's v3 API: keys and values, to look into an etcd and to prepare one.
///
/// At the end of a `with` statement it is closed.
///
/// Args:
///     endpoint (str): The etcd servers, with commas: "etcd1:2379,etcd2:2379".
///     **options: How to connect: see `Store`.
///
/// Raises:
///     ValueError: An endpoint, or settings, that cannot work.
///     TypeError: There is no such option.
///     StoreConnectionError: etcd cannot be reached, or does not let us in.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Client {
    /// None when it is closed.
    opened: Mutex<Option<OfProcess<V3>>>,
}

impl Client {
    pub(crate) fn connect(py: Python<'_>, settings: EtcdSettings) -> PyResult<Self> {
        let connected = wait(py, V3::connect(settings))?;
        let client = OfProcess::new(connected.map_err(|problem| error::etcd(py, &problem))?);
        Ok(Client { opened: Mutex::new(Some(client)) })
    }

    fn run<T: Send, F>(&self, py: Python<'_>, request: impl FnOnce(V3) -> F) -> PyResult<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let client = {
            let opened = self.opened.lock().expect("no code panics while it holds this lock");
            opened.as_ref().ok_or_else(|| error::closed(py, "client"))?.get().cloned()
        };
        let Some(client) = client else {
            let forked = Error::new(ErrorKind::Settings, "request")
                .because("the client was made in another process, before a fork: make one in this process");
            return Err(error::etcd(py, &forked));
        };
        wait(py, request(client))?.map_err(|problem| error::etcd(py, &problem))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (endpoint, **options))]
    fn new(py: Python<'_>, endpoint: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Client::connect(py, connection::settings(endpoint, options)?)
    }

    /// Reads the value of `key`.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///
    /// Returns:
    ///     bytes | None: The value; None if there is no such key.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn get(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<Vec<u8>>> {
        self.run(py, async |client: V3| {
            let mut found = client.get(key.0, None).await?.take_kvs();
            Ok(found.pop().map(|found| Entry::from(found).value))
        })
    }

    /// Writes `value` to `key`, over whatever was there.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///     value (str | bytes): The value.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    ///     StoreValueError: The value is larger than etcd takes.
    fn put(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.run(py, async |client: V3| client.put(key.0, value.0, None).await.map(|_| ()))
    }

    /// Deletes `key`.
    ///
    /// Args:
    ///     key (str | bytes): The key.
    ///
    /// Returns:
    ///     bool: Whether it was there.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    fn delete(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        self.run(py, async |client: V3| Ok(client.delete(key.0, None).await?.deleted() > 0))
    }

    /// Reads the keys that begin with `prefix`, and their values.
    ///
    /// Args:
    ///     prefix (str | bytes | None): What the keys begin with; all keys if it is not given.
    ///
    /// Returns:
    ///     list[tuple[bytes, bytes]]: Keys and values, sorted by key.
    ///
    /// Raises:
    ///     StoreConnectionError: etcd cannot be reached, or does not let us in.
    #[pyo3(signature = (prefix=None))]
    fn list(&self, py: Python<'_>, prefix: Option<Bytes>) -> PyResult<Vec<(Vec<u8>, Vec<u8>)>> {
        self.run(py, async |client: V3| {
            let range = KeyRange::prefix(prefix.map(|prefix| prefix.0).unwrap_or_default());
            let found = client.read(&range).await?.take_kvs().into_iter();
            Ok(found.map(Entry::from).map(|entry| (entry.key, entry.value)).collect())
        })
    }

    /// Closes the connection. Later operations raise a `StoreError`; a second `close` does nothing.
    fn close(&self) {
        let opened = self.opened.lock().expect("no code panics while it holds this lock").take();
        drop(opened);
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }
}
