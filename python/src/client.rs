//! A small client of etcd v3.

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
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct Client(OfProcess<V3>);

impl Client {
    pub(crate) fn connect(py: Python<'_>, settings: EtcdSettings) -> PyResult<Self> {
        let connected = wait(py, V3::connect(settings))?;
        Ok(Client(OfProcess::new(connected.map_err(|problem| error::etcd(py, &problem))?)))
    }

    fn run<T: Send, F>(&self, py: Python<'_>, request: impl FnOnce(V3) -> F) -> PyResult<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let Some(client) = self.0.get() else {
            let forked = Error::new(ErrorKind::Settings, "request")
                .because("the client was made in another process, before a fork: make one in this process");
            return Err(error::etcd(py, &forked));
        };
        wait(py, request(client.clone()))?.map_err(|problem| error::etcd(py, &problem))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (endpoint, **options))]
    fn new(py: Python<'_>, endpoint: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Client::connect(py, connection::settings(endpoint, options)?)
    }

    /// The value of `key`, or `None`.
    fn get(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<Vec<u8>>> {
        self.run(py, async |client: V3| {
            let mut found = client.get(key.0, None).await?.take_kvs();
            Ok(found.pop().map(|found| Entry::from(found).value))
        })
    }

    /// Writes `value` to `key`.
    fn put(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.run(py, async |client: V3| client.put(key.0, value.0, None).await.map(|_| ()))
    }

    /// Deletes `key`; says whether it was there.
    fn delete(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        self.run(py, async |client: V3| Ok(client.delete(key.0, None).await?.deleted() > 0))
    }

    /// The keys that begin with `prefix`, and their values.
    #[pyo3(signature = (prefix=None))]
    fn list(&self, py: Python<'_>, prefix: Option<Bytes>) -> PyResult<Vec<(Vec<u8>, Vec<u8>)>> {
        self.run(py, async |client: V3| {
            let range = KeyRange::prefix(prefix.map(|prefix| prefix.0).unwrap_or_default());
            let found = client.read(&range).await?.take_kvs().into_iter();
            Ok(found.map(Entry::from).map(|entry| (entry.key, entry.value)).collect())
        })
    }
}
