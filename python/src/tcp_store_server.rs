//! A store for workers to meet at.

use std::net::SocketAddr;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rallypoint::tcpstore::TcpStoreServer as Server;

use crate::error;
use crate::runtime::{OfProcess, wait};

/// A store that clients of PyTorch's `TCPStore` can use, served by this process. It is empty at first, and ends when it is
/// stopped, at the end of a `with` statement, and with this process.
///
/// Args:
///     address (str): Host and port to listen on, such as "127.0.0.1:0"; port 0 is one that is free.
///
/// Raises:
///     ValueError: That is no host and port.
///     ServerError: It cannot listen there.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct TcpStoreServer {
    address: SocketAddr,
    server: Mutex<Option<OfProcess<Server>>>,
}

#[pymethods]
impl TcpStoreServer {
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<Self> {
        let found = wait(py, tokio::net::lookup_host(address))?;
        let found = found.and_then(|mut all| all.next().ok_or_else(|| std::io::ErrorKind::NotFound.into()));
        let listen = found.map_err(|problem| {
            PyValueError::new_err(format!("{address:?} is no host and port to listen at: {problem}"))
        })?;
        let server =
            wait(py, async move { Server::bind(listen) })?.map_err(|problem| error::server(py, &problem))?;
        Ok(TcpStoreServer { address: server.local_addr(), server: Mutex::new(Some(OfProcess::new(server))) })
    }

    /// str: The address that it listens on.
    #[getter]
    fn host(&self) -> String {
        self.address.ip().to_string()
    }

    /// int: The port that it listens on.
    #[getter]
    fn port(&self) -> u16 {
        self.address.port()
    }

    /// Stops it, and waits until its port and all its connections are closed. A second `stop` does nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let server = {
            let mut server = self.server.lock().expect("no code panics while it holds this lock");
            server.take()
        };
        // In a process forked off there is nothing to stop: the server is its parent's.
        match server.and_then(|mut server| server.take()) {
            Some(server) => wait(py, server.stop()),
            None => Ok(()),
        }
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.stop(py)
    }
}
