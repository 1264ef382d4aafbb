//! The listener: one port for HTTP/2 and HTTP/1.1, in the clear or over TLS, until it is told to stop.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use futures::{FutureExt as _, future};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::authority::Nameless;
use crate::grpc::{Budget, Grpc, ReplyBody};
use crate::identity::Identity;
use crate::mvcc::{Retention, Store};
use crate::shared::{Settings, Shared};
use crate::state::{Limits, State};
use crate::stopped::stopped;
use crate::{Config, ServerError, http as http1, metrics, tls, v2};

/// What etcd adds to the size of a request for the size of a message.
const MESSAGE_OVERHEAD: usize = 512 << 10;
/// Requests on one connection at a time. Every watch may be one of its own.
const MAX_STREAMS: u32 = 1 << 16;
/// For a TLS handshake, which an idle connection never ends.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that is silent for so long is asked whether it is still there, as etcd does.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Until the next try after the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
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
        let connections = Connections { front, tls, stopping };
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
    let budget = Arc::new(Budget::new(config.inflight_bytes, message_bytes));
    let numbers = Arc::clone(&shared);
    let v2_limits = http1::Limits::within(config.inflight_bytes);
    let v3_metrics = Arc::new(move || metrics::v3(&numbers));
    let v2 = http1::Service::start(Arc::new(identity), v3_metrics, v2_limits, v2_store);
    let grpc = Grpc::new(Arc::clone(&shared), budget, stopping);
    (Front { grpc, http: http1::router(Arc::clone(&v2)) }, shared, v2)
}

/// Tells the two protocols apart.
#[derive(Debug, Clone)]
struct Front {
    grpc: Grpc,
    http: axum::Router,
}

type Answer = http::Response<Either<ReplyBody, axum::body::Body>>;

impl Front {
    /// Small and free to move, so that hyper's part of a request is too.
    fn call(
        &self,
        request: http::Request<Incoming>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + Unpin + use<> {
        if Grpc::is_for_us(&request) {
            let reply = self.grpc.call(request);
            return future::Either::Left(reply.map(|reply| Ok(reply.map(Either::Left))));
        }
        let mut http = self.http.clone();
        let answer = async move {
            let answer = http.call(request.map(axum::body::Body::new)).await?;
            Ok(answer.map(Either::Right))
        };
        future::Either::Right(answer.boxed())
    }
}

/// Takes connections in and serves them.
struct Connections {
    front: Front,
    tls: Option<TlsAcceptor>,
    stopping: watch::Receiver<bool>,
}

impl Connections {
    /// Never ends by itself.
    async fn accept(&self, listener: &TcpListener, tasks: &mut JoinSet<()>, open: &watch::Sender<usize>) {
        loop {
            open.send_replace(tasks.len());
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => {
                        tasks.spawn(connection(socket, self.front.clone(), self.tls.clone(), self.stopping.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection in");
                        // The system is out of something; a loop would only keep it from recovering.
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}

async fn connection(
    socket: TcpStream,
    front: Front,
    tls: Option<TlsAcceptor>,
    mut stopping: watch::Receiver<bool>,
) {
    // Answers are small and waited for. It fails only on a connection that is gone.
    let _ = socket.set_nodelay(true);
    match tls {
        None => speak(socket, front, stopping).await,
        Some(tls) => {
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(socket));
            let accepted = tokio::select! {
                accepted = handshake => accepted,
                () = stopped(&mut stopping) => return,
            };
            match accepted {
                Ok(Ok(socket)) => speak(socket, front, stopping).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            }
        }
    }
}

/// Serves one connection until it ends, or until the server stops and its requests have ended.
async fn speak<S>(socket: S, front: Front, mut stopping: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = auto::Builder::new(InPlace);
    http.http1().timer(TokioTimer::new());
    http.http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let service = service_fn(move |request| front.call(request));
    let connection = http.serve_connection(TokioIo::new(Nameless::new(socket)), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Runs a request where it came in, and makes a task of it only if it has to wait.
///
/// Most have come in whole and are answered at once; a task for each would cost more than its answer.
#[derive(Debug, Clone, Copy)]
struct InPlace;

impl<F> hyper::rt::Executor<F> for InPlace
where
    F: Future<Output = ()> + Send + Unpin + 'static,
{
    fn execute(&self, mut request: F) {
        // The task polls it again, with a waker of its own.
        if Pin::new(&mut request).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(request);
        }
    }
}
