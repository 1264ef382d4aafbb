//! Connections: how they are taken in, what they may cost, and what speaks on them.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::{FutureExt as _, future};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::admission::{Account, Budget};
use crate::authority::WithoutAuthority;
use crate::fair::Fair;
use crate::grpc::{self, Grpc, ReplyBody};
use crate::hang_up::ReadAhead;
use crate::stopped::stopped;
use crate::tls::{Certificates, common_name};
use crate::traffic::{Method, Traffic};

/// Requests on one connection at a time. Every watch may be one of its own.
const MAX_STREAMS: u32 = 1 << 14;
/// What a client may send ahead on all streams together. h2 takes half of it for the number of small frames that it
/// holds, and thousands of watches may be opened at once; with its own default it would be 2,200.
const CONNECTION_WINDOW: u32 = 3 << 20;
/// A client that is silent for so long is asked whether it is still there, as etcd does.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Until the next try after the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Tells the two protocols apart. A gateway has only one.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    grpc: Option<Grpc>,
    http: axum::Router,
    traffic: Arc<Traffic>,
}

type Answer = http::Response<Either<ReplyBody, axum::body::Body>>;

impl Front {
    pub(crate) fn new(grpc: Option<Grpc>, http: axum::Router, traffic: Arc<Traffic>) -> Self {
        Front { grpc, http, traffic }
    }

    /// Where what is held for clients is counted.
    pub(crate) fn holds(&self, budget: &Arc<Budget>) {
        self.traffic.holds(Arc::clone(budget));
    }

    /// Small and free to move, so that hyper's part of a request is too.
    fn call(
        &self,
        mut request: http::Request<Incoming>,
        account: &Account,
        certificate: Option<&Arc<str>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + Unpin + use<> {
        if let Some(grpc) = self.grpc.as_ref().filter(|_| Grpc::is_for_us(&request)) {
            let (method, traffic) = (Method::grpc(request.uri().path()), Arc::clone(&self.traffic));
            let handling = traffic.handled.start(request.uri().path());
            let reply = grpc.call(request, account, certificate, handling.as_ref());
            return future::Either::Left(reply.map(move |mut reply| {
                traffic.answered(method, &reply);
                if let Some(handling) = handling {
                    grpc::handled(handling, &mut reply);
                }
                Ok(reply.map(Either::Left))
            }));
        }
        let (mut http, traffic) = (self.http.clone(), Arc::clone(&self.traffic));
        let method = Method::http(request.uri().path());
        request.extensions_mut().insert(account.clone());
        let answer = async move {
            let answer = http.call(request.map(axum::body::Body::new)).await?;
            traffic.answered(method, &answer);
            Ok(answer.map(Either::Right))
        };
        future::Either::Right(answer.boxed())
    }
}

/// How long connections may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// For the first byte, and for a TLS handshake, which an idle connection never ends.
    pub(crate) handshake: Duration,
    /// For the first request.
    pub(crate) request: Duration,
}

/// Takes connections in and serves them.
pub(crate) struct Connections {
    pub(crate) times: Times,
    pub(crate) front: Front,
    pub(crate) tls: Option<Arc<Certificates>>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Connections {
    /// Never ends by itself. Tells `open` how many connections there are.
    pub(crate) async fn accept(
        &self,
        listener: &TcpListener,
        tasks: &mut JoinSet<()>,
        open: &watch::Sender<usize>,
    ) {
        loop {
            open.send_replace(tasks.len());
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => match self.budget.open() {
                        Ok(account) => {
                            let tls = self.tls.as_ref().map(|certificates| certificates.acceptor());
                            let (front, stopping) = (self.front.clone(), self.stopping.clone());
                            tasks.spawn(connection(socket, front, tls, account, self.times, stopping));
                        }
                        Err(_) => tracing::warn!("too many connections: one is turned away"),
                    },
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

/// Serves a connection until it ends, or is to make room for others.
async fn connection(
    socket: TcpStream,
    front: Front,
    tls: Option<TlsAcceptor>,
    account: Account,
    times: Times,
    mut stopping: watch::Receiver<bool>,
) {
    // Answers are small and waited for. It fails only on a connection that is gone.
    let _ = socket.set_nodelay(true);
    let served = async {
        let first_byte = tokio::time::timeout(times.handshake, socket.readable());
        let is_there = tokio::select! {
            readable = first_byte => readable.is_ok(),
            () = stopped(&mut stopping) => false,
        };
        if !is_there {
            return;
        }
        let Some(tls) = tls else {
            return speak(socket, front, account.clone(), None, times, stopping).await;
        };
        let handshake = tokio::time::timeout(times.handshake, tls.accept(socket));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = stopped(&mut stopping) => return,
        };
        match accepted {
            Ok(Ok(socket)) => {
                // It was checked: without an authority nobody is asked for one.
                let shown = socket.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let certificate = shown.and_then(common_name);
                speak(socket, front, account.clone(), certificate, times, stopping).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    };
    tokio::select! {
        () = served => {}
        () = account.pushed_out() => {}
    }
}

/// Speaks on one connection until it ends, or until the server stops and its requests have ended.
async fn speak<S>(
    socket: S,
    front: Front,
    account: Account,
    certificate: Option<Arc<str>>,
    times: Times,
    mut stopping: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = auto::Builder::new(InPlace);
    // Who has closed its half still gets what it asked for; who waits for a change is seen to hang up by `ReadAhead`.
    http.http1().timer(TokioTimer::new()).header_read_timeout(times.request).half_close(true);
    http.http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let of_requests = account.clone();
    let service = service_fn(move |request| front.call(request, &of_requests, certificate.as_ref()));
    let (socket, hung_up) = ReadAhead::new(Fair::new(socket));
    let connection = http.serve_connection(TokioIo::new(WithoutAuthority::new(socket)), service);
    tokio::pin!(connection);
    let silent = async {
        tokio::time::sleep(times.request).await;
        if account.has_asked() {
            future::pending::<()>().await;
        }
    };
    let served = future::poll_fn(|cx| match connection.as_mut().poll(cx) {
        // All that could be said is said, and nobody is there for the rest.
        Poll::Pending if hung_up.is_true() => Poll::Ready(Ok(())),
        polled => polled,
    });
    let ended = tokio::select! {
        ended = served => ended,
        () = silent => {
            connection.as_mut().graceful_shutdown();
            // Who does not answer that either is not waited for.
            tokio::time::timeout(times.handshake, connection).await.unwrap_or(Ok(()))
        }
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
