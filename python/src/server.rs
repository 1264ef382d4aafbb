//! An etcd to start.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rallypoint::EtcdSettings;
use rallypoint::server::{EtcdServer as Server, EtcdServerOptions};

use crate::client::Client;
use crate::error;
use crate::key::Time;
use crate::runtime::{OfProcess, wait};

/// A server of etcd's protocols on a free port of this machine: the etcd that `TORCHELASTIC_ETCD_BINARY_PATH` names or
/// the first on the `PATH`; the embedded server where there is none, or where `embedded` asks for it.
///
/// A `with` statement starts it, and stops it at its end. It ends with this process, too, however that ends.
///
/// Args:
///     data_dir (str | PathLike | None): Where the data is kept; a temporary folder, which is removed with it, if
///         it is not given.
///     binary (str | PathLike | None): The etcd to start.
///     embedded (bool): Whether to start the embedded server, whatever etcd there is.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct EtcdServer {
    data_dir: Option<PathBuf>,
    binary: Option<PathBuf>,
    embedded: bool,
    running: Mutex<Option<OfProcess<Server>>>,
}

impl EtcdServer {
    fn look<T>(&self, at: impl FnOnce(&Server) -> T) -> PyResult<T> {
        let running = self.running.lock().expect("no code panics while it holds this lock");
        running
            .as_ref()
            .and_then(OfProcess::look)
            .map(at)
            .ok_or_else(|| PyRuntimeError::new_err("the etcd server is not running: call start() first"))
    }
}

#[pymethods]
impl EtcdServer {
    #[new]
    #[pyo3(signature = (data_dir=None, *, binary=None, embedded=false))]
    fn new(data_dir: Option<PathBuf>, binary: Option<PathBuf>, embedded: bool) -> Self {
        EtcdServer { data_dir, binary, embedded, running: Mutex::new(None) }
    }

    /// Starts it and waits until it answers.
    ///
    /// Args:
    ///     timeout (timedelta | float | None): How long each try may take, in seconds if it is a number. The default is 60.
    ///     num_retries (int | None): How often to try. The default is 3.
    ///
    /// Raises:
    ///     ServerError: It cannot be started.
    ///     RuntimeError: It runs already.
    #[pyo3(signature = (timeout=None, num_retries=None))]
    fn start(&self, py: Python<'_>, timeout: Option<Time>, num_retries: Option<u32>) -> PyResult<()> {
        if self.look(|_| ()).is_ok() {
            return Err(PyRuntimeError::new_err("the etcd server runs already"));
        }
        let mut options = EtcdServerOptions::default();
        (options.data_dir, options.binary) = (self.data_dir.clone(), self.binary.clone());
        options.timeout = timeout.map_or(options.timeout, |time| time.0);
        options.tries = num_retries.unwrap_or(options.tries);
        let embedded = self.embedded;
        let starting =
            async move { if embedded { Server::start_embedded() } else { Server::start(options).await } };
        let server = wait(py, starting)?.map_err(|problem| error::server(py, &problem))?;
        let mut running = self.running.lock().expect("no code panics while it holds this lock");
        *running = Some(OfProcess::new(server));
        Ok(())
    }

    /// Stops it and waits until it is gone, and the folder that it made with it. If it does not run, nothing happens.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let running = {
            let mut running = self.running.lock().expect("no code panics while it holds this lock");
            running.take()
        };
        // In a process forked off there is nothing to stop: the server is its parent's.
        match running.and_then(|mut running| running.take()) {
            Some(server) => wait(py, server.stop()),
            None => Ok(()),
        }
    }

    /// The host that it listens on.
    ///
    /// Returns:
    ///     str: The host.
    ///
    /// Raises:
    ///     RuntimeError: It is not running.
    fn get_host(&self) -> PyResult<&'static str> {
        self.look(Server::host)
    }

    /// The port that it listens on.
    ///
    /// Returns:
    ///     int: The port.
    ///
    /// Raises:
    ///     RuntimeError: It is not running.
    fn get_port(&self) -> PyResult<u16> {
        self.look(Server::port)
    }

    /// Host and port, as clients want them.
    ///
    /// Returns:
    ///     str: "127.0.0.1:2379", for example.
    ///
    /// Raises:
    ///     RuntimeError: It is not running.
    fn get_endpoint(&self) -> PyResult<String> {
        self.look(Server::endpoint)
    }

    /// bool: Whether it is the embedded server. If it does not run, a RuntimeError.
    #[getter]
    fn is_embedded(&self) -> PyResult<bool> {
        self.look(Server::is_embedded)
    }

    /// A client of it.
    ///
    /// Returns:
    ///     Client: The client.
    ///
    /// Raises:
    ///     RuntimeError: It is not running.
    ///     StoreConnectionError: It does not answer.
    fn get_client(&self, py: Python<'_>) -> PyResult<Client> {
        let settings =
            EtcdSettings::new(&self.get_endpoint()?).map_err(|problem| error::settings(&problem))?;
        Client::connect(py, settings)
    }

    fn __enter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if this.get().look(|_| ()).is_err() {
            this.get().start(this.py(), None, None)?;
        }
        Ok(this)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.stop(py)
    }
}
