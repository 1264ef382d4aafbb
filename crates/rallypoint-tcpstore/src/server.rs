//! The server: its port, its threads, and the way to stop.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use rallypoint_metrics::WorkerStore as Metrics;
use socket2::{Domain, Socket, Type};
use tokio::sync::oneshot;

use crate::control::{Control, control};
use crate::sockets::{self, Admission, Doors};
use crate::{Limits, Machine, Secret, StoreTls};

/// How many connections may wait to be accepted: all ranks come at one time. The system may allow fewer.
const BACKLOG: i32 = 16 << 10;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the workers' store at {address}")]
pub struct BindError {
    /// The address that was asked for.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// A store that clients of PyTorch's `TCPStore` can use, on threads of its own. Dropped, it stops.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    control: Control,
    /// Is heard of when the threads have ended.
    ended: oneshot::Receiver<()>,
}

impl TcpStoreServer {
    /// Serves an empty store at this address; port 0 is one that is free.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        TcpStoreServer::bind_with(address, Limits::default())
    }

    /// As [`bind`](TcpStoreServer::bind), with other limits.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    pub fn bind_with(address: SocketAddr, limits: Limits) -> Result<Self, BindError> {
        TcpStoreServer::bind_on_threads(address, limits, sockets::usual_threads())
    }

    /// As [`bind_with`](TcpStoreServer::bind_with), with so many threads that serve; up to 16. Without, there is one for each four
    /// cores, and no more than 4. One more takes connections in.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    pub fn bind_on_threads(address: SocketAddr, limits: Limits, threads: usize) -> Result<Self, BindError> {
        let started = listen(address).and_then(|clients| {
            TcpStoreServer::start(Doors { clients, agents: None }, Machine::new(limits), threads)
        });
        started.map_err(|source| BindError { address, source })
    }

    /// Serves an empty store to the workers of one round, on a socket that listens already.
    ///
    /// # Errors
    ///
    /// If the socket cannot be used.
    pub fn for_round(listener: TcpListener) -> io::Result<Self> {
        TcpStoreServer::for_round_counting(listener, Metrics::default())
    }

    /// The same, and counts messages and connections.
    ///
    /// # Errors
    ///
    /// If the socket cannot be used.
    pub fn for_round_counting(listener: TcpListener, metrics: Metrics) -> io::Result<Self> {
        let machine = Machine::new(Limits::default()).of_one_attempt();
        let doors = Doors { clients: listener, agents: None };
        TcpStoreServer::start(doors, machine.counting(metrics), sockets::usual_threads())
    }

    /// The same, where each node has a [`StoreProxy`](crate::StoreProxy): workers of this node come to `own`, and to `agents`
    /// come the agents of other nodes, if they know the secret and, with TLS, show a certificate.
    ///
    /// # Errors
    ///
    /// If one of the sockets cannot be used.
    pub fn for_round_of_proxies(
        own: TcpListener,
        agents: TcpListener,
        secret: Secret,
        tls: Option<&StoreTls>,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let machine = Machine::new(Limits::default()).of_one_attempt();
        let admission = Admission { secret, tls: tls.map(|tls| Arc::clone(&tls.server)) };
        let doors = Doors { clients: own, agents: Some((agents, admission)) };
        TcpStoreServer::start(doors, machine.counting(metrics), sockets::usual_threads())
    }

    fn start(doors: Doors, machine: Machine, threads: usize) -> io::Result<Self> {
        let address = doors.clients.local_addr()?;
        let (control, orders) = control()?;
        let (end, ended) = oneshot::channel::<()>();
        sockets::start(machine, threads, doors, orders, end)?;
        Ok(TcpStoreServer { address, control, ended })
    }

    /// Where it listens for clients.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes its ports, and waits until they are. Those who are connected are served until it stops.
    pub async fn close_port(&mut self) {
        self.control.close_port().await;
    }

    /// Stops it, and waits until its port and all its connections are closed.
    pub async fn stop(self) {
        drop(self.control);
        // A thread that has panicked holds nothing either.
        let _ = self.ended.await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // The next round may want the port while connections of the last are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
