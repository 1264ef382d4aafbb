//! The server that answers Prometheus.
//!
//! It stands beside a training job, so it can cost next to nothing: a few connections at a time, one request on each, each
//! within a few seconds. Whoever wants more is hung up on.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::{ListenAddress, text};

/// Connections at a time. A Prometheus needs one, and there are seldom more than two.
const CONNECTIONS: usize = 16;
/// For the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// For a connection from its beginning to its end.
const WHOLE: Duration = Duration::from_secs(15);
/// The longest head that is read.
const HEAD_BYTES: usize = 16 << 10;
/// Until the next try after the system had no room for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// What is answered with.
type Text = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers `GET /metrics`, and `GET /healthz` with `ok`. Dropped, it is gone.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// Nobody can ask for metrics.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be served at {address}: {}", because(.source))]
pub struct CannotListen {
    /// Where.
    pub address: ListenAddress,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

fn because(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use, as by another launcher on this machine; HOST:FIRST-LAST takes the first free of several, HOST:0 any".to_owned(),
        _ => error.to_string(),
    }
}

impl Listener {
    /// Listens at the first free port of `address`, and answers with what `text` says.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start(
        address: &ListenAddress,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, CannotListen> {
        let failed = |source| CannotListen { address: address.clone(), source };
        let listener = bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Listener { address, task: tokio::spawn(serve(listener, Arc::new(text))) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn bind(address: &ListenAddress) -> io::Result<TcpListener> {
    let mut failed = io::Error::from(io::ErrorKind::AddrInUse);
    for port in address.ports() {
        match TcpListener::bind((address.host(), port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => failed = error,
            Err(error) => return Err(error),
        }
    }
    Err(failed)
}

async fn serve(listener: TcpListener, text: Text) {
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) if connections.len() < CONNECTIONS => {
                    connections.spawn(tokio::time::timeout(WHOLE, connection(socket, Arc::clone(&text))));
                }
                Ok(_) => tracing::debug!("too many ask for metrics: one is turned away"),
                Err(error) => {
                    tracing::debug!(%error, "nobody can ask for metrics");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(socket: TcpStream, text: Text) {
    let answer = service_fn(move |request| {
        let answer = answer(&request, &text);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        // So that whoever is done makes room.
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a request for metrics ended badly");
    }
}

fn answer(request: &Request<Incoming>, text: &Text) -> Response<Full<Bytes>> {
    let known = matches!(request.uri().path(), "/metrics" | "/healthz");
    let read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, body) = match request.uri().path() {
        _ if !known => (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n".to_owned()),
        _ if !read => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::OK, text()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(text::CONTENT_TYPE));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn listener() -> Listener {
        Listener::start(&"127.0.0.1:0".parse().unwrap(), || "guests 3\n".to_owned()).await.unwrap()
    }

    /// What comes back for these bytes, until the connection ends.
    async fn said(address: SocketAddr, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // It may hang up on us before all is written.
        let _ = socket.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn metrics_are_told_to_who_asks_for_them() {
        let listener = listener().await;
        let answer = said(listener.address(), b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nguests 3\n"),
            "{answer}"
        );
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        let answer = said(listener.address(), b"GET /healthz HTTP/1.0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("ok\n"), "{answer}");
        let answer = said(listener.address(), b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
        assert!(
            said(listener.address(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.starts_with("HTTP/1.1 404 ")
        );
    }

    #[tokio::test]
    async fn junk_ends_its_connection_alone() {
        let listener = listener().await;
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &vec![b'x'; 1 << 20], b"\r\n\r\n"].concat();
        for junk in [b"\0\xff\r\n\r\n".as_slice(), b"\x16\x03\x01\x02\0\x01", b"", &long] {
            let mut socket = TcpStream::connect(listener.address()).await.unwrap();
            let _ = socket.write_all(junk).await;
            drop(socket);
        }
        let answer = said(listener.address(), &long).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        let answer = said(listener.address(), b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.ends_with("guests 3\n"), "{answer}");
    }

    /// Those who connect and say nothing are few at a time, and not for long.
    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_hung_up_on() {
        let listener = listener().await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS + 8 {
            silent.push(TcpStream::connect(listener.address()).await.unwrap());
        }
        let began = tokio::time::Instant::now();
        for socket in &mut silent {
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
        }
        assert!(began.elapsed() <= WHOLE, "{:?}", began.elapsed());
        let answer = said(listener.address(), b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.ends_with("guests 3\n"), "{answer}");
    }

    #[tokio::test]
    async fn of_several_ports_the_first_free_one_is_taken() {
        let taken = listener().await;
        let port = taken.address().port();
        let address: ListenAddress = format!("127.0.0.1:{port}").parse().unwrap();
        let error = Listener::start(&address, String::new).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("metrics cannot be served at 127.0.0.1:{port}: the port is in use")),
            "{error}"
        );
        let address: ListenAddress = format!("127.0.0.1:{port}-{}", port.saturating_add(20)).parse().unwrap();
        let other = Listener::start(&address, String::new).await.unwrap();
        assert!(other.address().port() > port);
        drop(taken);
        tokio::task::yield_now().await;
        // Gone with its handle.
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }
}
