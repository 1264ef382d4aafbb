//! The embedded server that one node starts for all of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rallypoint::Endpoint;
use rallypoint::server::{Config, OnDemand, Server, Tls};
use rallypoint_rendezvous::native::token;

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
    is_everywhere: bool,
    server: Mutex<Option<OfProcess<Server>>>,
}

impl LocalServer {
    fn new(server: Server) -> Self {
        let is_everywhere = server.address().ip().is_unspecified();
        LocalServer {
            endpoint: server.endpoint(),
            is_everywhere,
            server: Mutex::new(Some(OfProcess::new(server))),
        }
    }
}

/// What a server asks for, in the words of the native backend.
fn config(options: &BTreeMap<String, String>) -> PyResult<Config> {
    let mut config = Config::default();
    config.token = token(options).map_err(|problem| PyValueError::new_err(problem.to_string()))?;
    let file = |names: [&str; 2]| names.iter().find_map(|name| options.get(*name)).map(PathBuf::from);
    let files = (file(["cacert", "ca_cert"]), file(["cert", "ssl_cert"]), file(["key", "ssl_cert_key"]));
    if let ((Some(ca), Some(cert), Some(key)), None | Some("https")) =
        (files, options.get("protocol").map(String::as_str))
    {
        let mut tls = Tls::new(cert, key);
        tls.client_ca_file = Some(ca);
        config.tls = Some(tls);
    }
    Ok(config)
}

#[pymethods]
impl LocalServer {
    /// On a free port of the loopback address, for who has the token of the options, if they have one.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "it is made of what Python hands over")]
    fn alone(py: Python<'_>, options: BTreeMap<String, String>) -> PyResult<Self> {
        let mut config = config(&options)?;
        config.listen = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        config.tls = None;
        let starting = async { Server::bind(config) };
        let server = wait(py, starting)?.map_err(|problem| error::server(py, &problem))?;
        Ok(LocalServer::new(server))
    }

    /// At `endpoint`, if that is on this machine and nothing listens there: the server, or none, and whether the
    /// endpoint is on this machine. It asks for what the options say.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "it is made of what Python hands over")]
    fn on_demand(
        py: Python<'_>,
        endpoint: &str,
        options: BTreeMap<String, String>,
    ) -> PyResult<(Option<Self>, bool)> {
        let endpoint: Endpoint = endpoint.parse().map_err(|problem| error::settings(&problem))?;
        let config = config(&options)?;
        let found = wait(py, Server::on_demand(&endpoint, &config))?
            .map_err(|problem| error::server(py, &problem))?;
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

    /// Whether it listens on all addresses of this machine.
    #[getter]
    fn is_everywhere(&self) -> bool {
        self.is_everywhere
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
