//! The listener, and what a connection may cost.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rallypoint_etcd::v3::Client;
use rallypoint_server::ServerError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::Config;
use crate::feed::Feeds;
use crate::http::{Site, peer, router};

/// For a TLS handshake, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD: usize = 16 << 10;
/// A browser has few requests under way.
const STREAMS: u32 = 32;
/// A viewer that takes nothing for so long is gone.
const UNSENT: Duration = Duration::from_secs(30);
/// How long open requests may go on after it was told to stop.
const STOP: Duration = Duration::from_secs(1);
/// Until the next try after the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running dashboard. Dropped, it stops at once.
#[derive(Debug)]
pub struct Dashboard {
    address: SocketAddr,
    url: String,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Dashboard {
    /// Listens where the configuration says and serves in the background, on the tokio runtime this is called in. It reads
    /// from the etcd of the client, which need not be there yet.
    pub fn bind(config: &Config, client: &Client) -> Result<Dashboard, ServerError> {
        let tls = config.tls.as_ref().map(rallypoint_server::Tls::acceptor).transpose()?;
        let listener = listen(config.listen)?;
        let address =
            listener.local_addr().map_err(|source| ServerError::Listen { address: config.listen, source })?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (stop, stopping) = watch::channel(false);
        let site = Site::new(config, Feeds::new(client), stopping.clone());
        let door = Door { router: router(&site), tls, stopping };
        let task = tokio::spawn(door.serve(listener, config.max_connections));
        Ok(Dashboard { address, url: format!("{scheme}://{address}/"), stop, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to open in a browser.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops it, and waits until open requests have ended or had their time to.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // It ends by a panic at worst.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Dashboard {
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
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })
}

/// Waits until it is to stop.
async fn told(stopping: &mut watch::Receiver<bool>) {
    // An error means that whoever could tell is gone.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

#[derive(Clone)]
struct Door {
    router: Router,
    tls: Option<TlsAcceptor>,
    stopping: watch::Receiver<bool>,
}

impl Door {
    async fn serve(mut self, listener: TcpListener, most: usize) {
        let room = Arc::new(Semaphore::new(most));
        let mut tasks = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = told(&mut self.stopping) => break,
                Some(_) = tasks.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, from)) => match Arc::clone(&room).try_acquire_owned() {
                    Ok(permit) => {
                        let door = self.clone();
                        tasks.spawn(async move {
                            door.connection(socket, from).await;
                            drop(permit);
                        });
                    }
                    Err(_) => tracing::debug!("too many connections: one is turned away"),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection in");
                    // The system is out of something; a loop would only keep it from recovering.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(STOP, ended).await.is_err() {
            tracing::debug!("viewers were cut off");
        }
    }

    async fn connection(self, socket: TcpStream, from: SocketAddr) {
        // Both fail only on a connection that is gone.
        let _ = socket.set_nodelay(true);
        let unsent = u32::try_from(UNSENT.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&socket, unsent);
        let Some(tls) = self.tls.clone() else { return self.speak(socket, from).await };
        match timeout(HANDSHAKE, tls.accept(socket)).await {
            Ok(Ok(socket)) => self.speak(socket, from).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn speak<S>(mut self, socket: S, from: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE).max_buf_size(HEAD);
        http.http2()
            .timer(TokioTimer::new())
            .max_header_list_size(HEAD as u32)
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(UNSENT)
            .keep_alive_timeout(HANDSHAKE);
        let router = self.router.clone();
        let asks = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&asks);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(peer(from));
            let mut router = router.clone();
            async move {
                Ok::<_, Infallible>(
                    router
                        .call(request.map(axum::body::Body::new))
                        .await
                        .unwrap_or_else(|never| match never {}),
                )
            }
        });
        let connection = http.serve_connection(TokioIo::new(socket), service);
        tokio::pin!(connection);
        // Until its first bytes hyper waits for ever to learn which HTTP it is, and each takes a place.
        let silence = async {
            tokio::time::sleep(HANDSHAKE).await;
            if asks.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = silence => return tracing::debug!("a connection asked for nothing"),
            () = told(&mut self.stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended badly");
        }
    }
}
