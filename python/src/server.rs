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
/// A real etcd keeps its data in `data_dir`; without one in a temporary folder, which goes with it. It ends when it is
/// stopped, and with this process, however that ends.
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

    /// Starts it and waits until it answers, for `timeout` in each of `num_retries` tries.
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

    /// Stops it and waits until it is gone, and the folder that it made with it.
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

    /// Where it listens.
    fn get_host(&self) -> PyResult<&'static str> {
        self.look(Server::host)
    }

    /// The port it listens on.
    fn get_port(&self) -> PyResult<u16> {
        self.look(Server::port)
    }

    /// Host and port, as clients want them.
    fn get_endpoint(&self) -> PyResult<String> {
        self.look(Server::endpoint)
    }

    /// Whether it is the embedded server.
    #[getter]
    fn is_embedded(&self) -> PyResult<bool> {
        self.look(Server::is_embedded)
    }

    /// A client of it.
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
