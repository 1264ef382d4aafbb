//! The listener, a task for each connection, and the way to stop.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::hub::Hub;
use crate::{Limits, Machine};

/// How many connections may wait to be accepted: all ranks come at one time. The system may allow fewer.
const BACKLOG: u32 = 16 << 10;

/// How long it waits when no connection can be accepted, which is mostly for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How often those are looked for who have connected and not said what they are. They have once to twice this time.
///
/// Clients say it at once. But PyTorch's looks up a name before that, which can take it many seconds.
const LATE: Duration = Duration::from_secs(30);

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

/// A store that clients of PyTorch's `TCPStore` can use. Dropped, it stops.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    /// Its port is open. Dropped, the first closes it; the second is heard of when it is closed.
    open: Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
    /// Dropped, it ends the task.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl TcpStoreServer {
    /// Serves an empty store at this address; port 0 is one that is free. It runs on the runtime it is called in.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        TcpStoreServer::bind_with(address, Limits::default())
    }

    /// As [`bind`](TcpStoreServer::bind), with other limits.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind_with(address: SocketAddr, limits: Limits) -> Result<Self, BindError> {
        let (listener, bound) = listen(address).map_err(|source| BindError { address, source })?;
        Ok(TcpStoreServer::start(listener, bound, Machine::new(limits)))
    }

    /// Serves an empty store to the workers of one round, on a socket that listens already.
    ///
    /// # Errors
    ///
    /// If the socket cannot be used.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn for_round(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let bound = listener.local_addr()?;
        Ok(TcpStoreServer::start(listener, bound, Machine::new(Limits::default()).of_one_attempt()))
    }

    fn start(listener: TcpListener, address: SocketAddr, machine: Machine) -> Self {
        let ((close, asked), (done, closed)) = (oneshot::channel(), oneshot::channel());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(listener, Arc::new(Hub::new(machine)), (asked, done), stopped));
        TcpStoreServer { address, open: Some((close, closed)), stop, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes its port, and waits until it is. Those who are connected are served until it stops.
    pub async fn close_port(&mut self) {
        if let Some((close, closed)) = self.open.take() {
            drop(close);
            let _ = closed.await;
        }
    }

    /// Stops it, and waits until its port and all its connections are closed.
    pub async fn stop(self) {
        drop((self.open, self.stop));
        // A task that has panicked holds nothing either.
        let _ = self.task.await;
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // The next round may want the port while connections of the last are still in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

async fn serve(
    listener: TcpListener,
    hub: Arc<Hub>,
    (close, closed): (oneshot::Receiver<()>, oneshot::Sender<()>),
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    let goes_on = tokio::select! {
        _ = &mut stopped => false,
        _ = close => true,
        never = accept(&listener, &hub, &mut connections) => match never {},
    };
    drop((listener, closed));
    if goes_on {
        tokio::select! {
            _ = stopped => {}
            () = async { while connections.join_next().await.is_some() {} } => {}
        }
    }
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener, hub: &Arc<Hub>, connections: &mut JoinSet<()>) -> Infallible {
    // It is said once, until one has come in again.
    let mut said = false;
    let mut late = tokio::time::interval(LATE);
    loop {
        tokio::select! {
            _ = late.tick() => hub.end_late(),
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, address)) => {
                    said = false;
                    // Requests and replies are small, and somebody waits for each.
                    let _ = socket.set_nodelay(true);
                    let hub = Arc::clone(hub);
                    connections.spawn(async move { hub.serve(socket, address).await });
                }
                Err(error) => {
                    if !mem::replace(&mut said, true) {
                        tracing::warn!("the worker store cannot accept a connection: {error}");
                    }
                    if hub.make_room() {
                        // Its descriptor is free when its task has ended.
                        connections.join_next().await;
                    } else {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            },
        }
    }
}
