//! The server: its port, its thread, and the way to stop.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;

use rallypoint_metrics::WorkerStore as Metrics;
use socket2::{Domain, Socket, Type};
use tokio::sync::oneshot;

use crate::control::{Control, control};
use crate::sockets::Sockets;
use crate::{Limits, Machine};

/// How many connections may wait to be accepted: all ranks come at one time. The system may allow fewer.
const BACKLOG: i32 = 16 << 10;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve a worker store at {address}")]
pub struct BindError {
    /// The address that was asked for.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// A store that clients of PyTorch's `TCPStore` can use, on a thread of its own. Dropped, it stops.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    control: Control,
    /// Is heard of when the thread has ended.
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
        let started = listen(address).and_then(|door| TcpStoreServer::start(door, Machine::new(limits)));
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
        TcpStoreServer::start(listener, machine.counting(metrics))
    }

    fn start(listener: TcpListener, machine: Machine) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (control, orders) = control()?;
        let sockets = Sockets::new(machine, listener, &orders)?;
        let (end, ended) = oneshot::channel();
        let serve = move || {
            // Dropped last, also if it panics.
            let _end: oneshot::Sender<()> = end;
            sockets.serve(orders);
        };
        thread::Builder::new().name("worker-store".to_owned()).spawn(serve)?;
        Ok(TcpStoreServer { address, control, ended })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes its port, and waits until it is. Those who are connected are served until it stops.
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
