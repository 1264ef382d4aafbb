//! The embedded server that one node starts for all of them.

use std::sync::Mutex;

use pyo3::prelude::*;
use rallypoint::Endpoint;
use rallypoint::server::{Config, OnDemand, Server};

use crate::error;
use crate::key::Time;
use crate::runtime::{OfProcess, wait};

/// The client of this process's own handler has one.
const OWN_CONNECTIONS: usize = 1;

/// The embedded server, started where a run is to meet and nothing listens.
#[pyclass(frozen, module = "rallypoint")]
#[derive(Debug)]
pub(crate) struct LocalServer {
    endpoint: String,
    server: Mutex<Option<OfProcess<Server>>>,
}

impl LocalServer {
    fn new(server: Server) -> Self {
        LocalServer { endpoint: server.endpoint(), server: Mutex::new(Some(OfProcess::new(server))) }
    }
}

#[pymethods]
impl LocalServer {
    /// On a free port of the loopback address.
    #[staticmethod]
    fn alone(py: Python<'_>) -> PyResult<Self> {
        let listen = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let starting = async { Server::bind(Config::on(listen)) };
        let server = wait(py, starting)?.map_err(|problem| error::server(py, &problem))?;
        Ok(LocalServer::new(server))
    }

    /// At `endpoint`, if that is on this machine and nothing listens there: the server, or none, and whether the
    /// endpoint is on this machine.
    #[staticmethod]
    fn on_demand(py: Python<'_>, endpoint: &str) -> PyResult<(Option<Self>, bool)> {
        let endpoint: Endpoint = endpoint.parse().map_err(|problem| error::settings(&problem))?;
        let found = wait(py, Server::on_demand(&endpoint))?.map_err(|problem| error::server(py, &problem))?;
        Ok(match found {
            OnDemand::Started(server) => (Some(LocalServer::new(server)), true),
            OnDemand::Taken => (None, true),
            OnDemand::Elsewhere => (None, false),
        })
    }

    /// Host and port, as clients want them.
    #[getter]
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits until nobody but this process is connected, for `patience` at most, and stops it.
    fn stop(&self, py: Python<'_>, patience: Time) -> PyResult<()> {
        let server = {
            let mut server = self.server.lock().expect("no code panics while it holds this lock");
            server.take()
        };
        let Some(server) = server.and_then(|mut server| server.take()) else { return Ok(()) };
        wait(py, async move {
            // Both end well, or it does not matter: the process is about to end.
            let _ = tokio::time::timeout(patience.0, server.left_with(OWN_CONNECTIONS)).await;
            let _ = server.stop().await;
        })
    }
}
