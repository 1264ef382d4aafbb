//! The one connection of a proxy to the server.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::table::Table;
use super::{ProxyError, Upstream};
use crate::trunk::frame::{Broken, Frames};
use crate::trunk::handshake::{GREETING, Guest, WELCOME};

/// How long one try may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Between tries.
const AGAIN: Duration = Duration::from_millis(200);
/// A server that is gone without a word is noticed after a few of these.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How much is read or written at a time.
const CHUNK: usize = 64 << 10;

/// A connection on which the server has let this node in.
pub(super) type Trunk = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Why a try came to nothing.
enum Failure {
    /// It may go well the next time.
    Unreachable(String),
    TurnedAway(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // TLS says so, and says it again.
            io::ErrorKind::InvalidData => Failure::TurnedAway(format!("TLS: {error}")),
            _ => Failure::Unreachable(error.to_string()),
        }
    }
}

/// Connects, and is let in.
pub(super) async fn connect(upstream: &Upstream, patience: Duration) -> Result<Trunk, ProxyError> {
    let place = upstream.to_string();
    let until = Instant::now() + patience;
    loop {
        let limit = ATTEMPT.min(until.saturating_duration_since(Instant::now()));
        let tried = tokio::time::timeout(limit, attempt(upstream)).await;
        let why = match tried {
            Ok(Ok(trunk)) => return Ok(trunk),
            Ok(Err(Failure::TurnedAway(why))) => return Err(ProxyError::TurnedAway { place, why }),
            Ok(Err(Failure::Unreachable(why))) => why,
            Err(_) => format!("no answer within {} s", limit.as_secs_f64()),
        };
        if Instant::now() + AGAIN >= until {
            let why = format!("{why} (tried for {} s)", patience.as_secs_f64());
            return Err(ProxyError::Unreachable { place, why });
        }
        tracing::debug!("the workers' store at {place} does not answer yet: {why}");
        tokio::time::sleep(AGAIN).await;
    }
}

async fn attempt(upstream: &Upstream) -> Result<Trunk, Failure> {
    let socket = TcpStream::connect((upstream.host.as_str(), upstream.port)).await?;
    let _ = socket.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
    let mut trunk: Trunk = match &upstream.tls {
        None => Box::new(socket),
        Some(tls) => {
            let name = ServerName::try_from(upstream.host.clone())
                .map_err(|_| Failure::TurnedAway(format!("no certificate can be for {}", upstream.host)))?;
            Box::new(TlsConnector::from(tls.client.clone()).connect(name, socket).await?)
        }
    };
    let mut greeting = [0; GREETING];
    trunk.read_exact(&mut greeting).await?;
    let guest = Guest::new(&greeting)
        .ok_or_else(|| Failure::TurnedAway("what answers there is no store of Rallypoint's".to_owned()))?;
    trunk.write_all(&guest.answer(&upstream.secret)).await?;
    trunk.flush().await?;
    let mut welcome = [0; WELCOME];
    // It closes the connection of who does not know the secret.
    let other_round = || Failure::TurnedAway("its secret is that of another round".to_owned());
    match trunk.read_exact(&mut welcome).await {
        Ok(_) if guest.is_welcome(&welcome, &upstream.secret) => Ok(trunk),
        Ok(_) => Err(other_round()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(other_round()),
        Err(error) => Err(error.into()),
    }
}

/// Why a connection to the server is lost.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("it was closed there")]
    Closed,
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Broken(#[from] Broken),
}

/// Carries frames both ways until the connection is lost.
pub(super) async fn carry(trunk: Trunk, table: &Table, frames: mpsc::Receiver<Vec<u8>>) -> Lost {
    let (from, to) = tokio::io::split(trunk);
    let lost = tokio::select! {
        lost = read(from, table) => lost,
        lost = write(to, frames) => lost.map(|never| match never {}),
    };
    match lost {
        Ok(never) => match never {},
        Err(lost) => lost,
    }
}

type Never = std::convert::Infallible;

async fn read(mut from: impl AsyncRead + Unpin, table: &Table) -> Result<Never, Lost> {
    let (mut frames, mut buffer) = (Frames::default(), vec![0; CHUNK]);
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) => return Err(Lost::Closed),
            // It is not said in TLS that it ends.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Lost::Closed),
            read => read?,
        };
        frames.read(&buffer[..count], |stream, frame| table.take(stream, frame))?;
    }
}

async fn write(mut to: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Vec<u8>>) -> Result<Never, Lost> {
    let mut buffer = Vec::new();
    loop {
        // The table has a sender for as long as this runs.
        buffer.extend(frames.recv().await.ok_or(Lost::Closed)?);
        while buffer.len() < CHUNK
            && let Ok(more) = frames.try_recv()
        {
            buffer.extend(more);
        }
        to.write_all(&buffer).await?;
        to.flush().await?;
        buffer.clear();
        buffer.shrink_to(2 * CHUNK);
    }
}
