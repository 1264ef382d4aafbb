//! The listener: one port for HTTP/2 and HTTP/1.1, in the clear or over TLS, until it is told to stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::admission::Budget;
use crate::connections::{Connections, Front};
use crate::grpc::Grpc;
use crate::identity::Identity;
use crate::mvcc::{Retention, Store};
use crate::shared::{Settings, Shared};
use crate::state::{Limits, State};
use crate::stopped::stopped;
use crate::{Config, ServerError, files, http as http1, metrics, tls, v2};

/// What etcd adds to the size of a request for the size of a message.
const MESSAGE_OVERHEAD: usize = 512 << 10;
/// Connections that may wait to be taken in: all nodes of a job come at once. The system may allow less.
const BACKLOG: u32 = 4096;

/// A running server. Dropped, it stops at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    url: String,
    stop: watch::Sender<bool>,
    open: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens where the configuration says and serves in the background, on the tokio runtime this is
    /// called in. On return it can be connected to.
    pub fn bind(config: Config) -> Result<Server, ServerError> {
        let listener = listen(config.listen)?;
        let (stop, mut told) = watch::channel(false);
        let prepared = Prepared::new(listener, config)?;
        let (address, url) = (prepared.address, prepared.url.clone());
        let (connections, open) = watch::channel(0);
        let task = tokio::spawn(prepared.run(async move { stopped(&mut told).await }, connections));
        Ok(Server { address, url, stop, open, task })
    }

    /// Serves on a listener until `shutdown` is there and open requests have ended, or had their time to.
    pub async fn serve(
        listener: TcpListener,
        config: Config,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServerError> {
        Prepared::new(listener, config)?.run(shutdown, watch::Sender::new(0)).await;
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients connect, as `host:port`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Where clients connect, with `http://` or `https://`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until nobody is connected.
    pub async fn left_alone(&self) {
        self.left_with(0).await;
    }

    /// Waits until at most `own` connections are open: those of the program that the server is in.
    pub async fn left_with(&self, own: usize) {
        // An error means that it has ended, and with it all connections.
        let _ = self.open.clone().wait_for(|open| *open <= own).await;
    }

    /// Stops it, and waits until open requests have ended or had their time to.
    pub async fn stop(mut self) -> Result<(), ServerError> {
        self.stop.send_replace(true);
        (&mut self.task).await.map_err(|source| ServerError::Ended { source })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let bound = (|| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    })();
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address, source },
        _ => ServerError::Listen { address, source },
    })
}

/// All that can fail is done.
struct Prepared {
    listener: TcpListener,
    address: SocketAddr,
    url: String,
    tls: Option<TlsAcceptor>,
    config: Config,
}

impl Prepared {
    fn new(listener: TcpListener, config: Config) -> Result<Self, ServerError> {
        let address =
            listener.local_addr().map_err(|source| ServerError::Listen { address: config.listen, source })?;
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Prepared { listener, address, url: format!("{scheme}://{address}"), tls, config })
    }

    /// Tells `open` how many connections there are.
    async fn run(self, shutdown: impl Future<Output = ()>, open: watch::Sender<usize>) {
        let Prepared { listener, address, url, tls, config } = self;
        tracing::info!(%address, "serving etcd's v3 and v2 protocols; all data is in memory and ends with this process");
        let (stop, stopping) = watch::channel(false);
        let (front, shared, v2) = front(url, &config, stopping.clone());
        let budget = Budget::new(config.inflight_bytes, files::connections_within(config.max_connections));
        let connections = Connections { front, tls, budget, stopping };
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = shutdown => {}
            () = shared.expire_leases() => {}
            () = connections.accept(&listener, &mut tasks, &open) => {}
        }

        drop(listener);
        stop.send_replace(true);
        shared.write(|state| state.hub.close());
        v2.close();
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(config.stop_timeout, ended).await.is_err() {
            tracing::debug!(%address, "requests were cut off");
        }
    }
}

/// What answers requests, and the two halves behind it.
fn front(
    url: String,
    config: &Config,
    stopping: watch::Receiver<bool>,
) -> (Front, Arc<Shared>, Arc<http1::Service>) {
    let client_urls = if config.advertise.is_empty() { vec![url] } else { config.advertise.clone() };
    let identity = Identity::new(config.name.clone(), client_urls);
    let limits = Limits {
        request_bytes: config.max_request_bytes,
        txn_ops: config.max_txn_ops,
        quota_bytes: config.quota_bytes,
    };
    let retention = Retention { changes: config.history_changes, bytes: config.history_bytes };
    let message_bytes = config.max_request_bytes + MESSAGE_OVERHEAD;
    let settings = Settings {
        quota_bytes: config.quota_bytes,
        fragment_bytes: message_bytes,
        progress_interval: config.progress_interval,
    };
    let v2_store = v2::Limits { nodes: config.quota_bytes, ..v2::Limits::default() };
    let (store, v2_store) = match config.numbering.origin(SystemTime::now()) {
        None => (Store::new(retention), v2::Store::new(v2_store)),
        Some(origin) => {
            let store = Store::starting_at(retention, origin.cast_signed());
            (store, v2::Store::starting_at(v2_store, origin))
        }
    };
    let shared = Arc::new(Shared::new(State::new(limits, store), identity.clone(), settings));
    let (numbers, quota) = (Arc::clone(&shared), Arc::clone(&shared));
    let v3 = http1::V3 {
        metrics: Box::new(move || metrics::v3(&numbers)),
        is_full: Box::new(move || quota.read(State::is_full)),
    };
    let v2 = http1::Service::start(Arc::new(identity), v3, http1::Limits::default(), v2_store);
    let grpc = Grpc::new(Arc::clone(&shared), message_bytes, stopping);
    (Front::new(grpc, http1::router(Arc::clone(&v2))), shared, v2)
}
