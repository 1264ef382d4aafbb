//! How a connection to an endpoint is made.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};
use tower::util::MapResponse;

use crate::tls::Pem;

/// etcd drops clients that ping more often than every 5 s, or while they have no request under way.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// After this silence TCP looks whether the other side is there.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// Makes connections to one endpoint.
pub(super) struct Dial {
    endpoint: Endpoint,
    tls: Option<HttpConnector>,
}

impl Dial {
    pub(super) fn new(url: &str, pem: Option<&Pem>, connect_timeout: Duration) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(url.to_owned())?
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(false);
        if url.starts_with("https:") {
            let mut tcp = HttpConnector::new();
            tcp.enforce_http(false);
            tcp.set_nodelay(true);
            tcp.set_keepalive(Some(TCP_KEEPALIVE));
            tcp.set_connect_timeout(Some(connect_timeout));
            return Ok(Dial { endpoint: endpoint.tls_config(tls_config(pem))?, tls: Some(tcp) });
        }
        let endpoint = endpoint.connect_timeout(connect_timeout).tcp_keepalive(Some(TCP_KEEPALIVE));
        Ok(Dial { endpoint, tls: None })
    }

    /// A connection that is there.
    pub(super) async fn connect(&self) -> Result<Channel, Error> {
        match &self.tls {
            None => self.endpoint.connect().await,
            Some(tcp) => {
                self.endpoint.connect_with_connector(MapResponse::new(tcp.clone(), HearOut::new)).await
            }
        }
    }

    /// One that is made with the first request, and made again when it was lost.
    pub(super) fn connect_lazily(&self) -> Channel {
        match &self.tls {
            None => self.endpoint.connect_lazy(),
            Some(tcp) => {
                self.endpoint.connect_with_connector_lazy(MapResponse::new(tcp.clone(), HearOut::new))
            }
        }
    }
}

fn tls_config(pem: Option<&Pem>) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new();
    match pem.and_then(|pem| pem.ca.as_ref()) {
        Some(ca) => config = config.ca_certificate(Certificate::from_pem(ca)),
        None => config = config.with_native_roots(),
    }
    if let Some((cert, key)) = pem.and_then(|pem| pem.identity.as_ref()) {
        config = config.identity(Identity::from_pem(cert, key));
    }
    config
}

/// A connection whose other side is heard to the end, also when it no longer takes what we write.
///
/// With TLS 1.3 our side of the handshake is over before the server has looked at our certificate. One that does not like
/// it says so and closes, while we are writing our first request: that write fails, and the reason would lie there unread.
struct HearOut<T> {
    inner: T,
    /// The other side takes nothing more. Whoever reads sees the end of the connection.
    unheard: bool,
}

impl<T> HearOut<T> {
    fn new(inner: T) -> Self {
        HearOut { inner, unheard: false }
    }

    fn hear_out<O>(&mut self, written: Poll<io::Result<O>>, as_if: O) -> Poll<io::Result<O>> {
        match written {
            Poll::Ready(Err(error)) if is_closed(&error) => {
                self.unheard = true;
                Poll::Ready(Ok(as_if))
            }
            written => written,
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<T: Read + Unpin> Read for HearOut<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for HearOut<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.unheard {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.hear_out(written, buf.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.hear_out(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let whole = bufs.iter().map(|buf| buf.len()).sum();
        if self.unheard {
            return Poll::Ready(Ok(whole));
        }
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.hear_out(written, whole)
    }
}
