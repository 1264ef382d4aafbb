//! One connection to a server, and the replies as bytes.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::time::Duration;

use rallypoint_tcpstore::wire::{MAGIC, READY, Request};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// When a peer whose machine is gone without a word is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// A connection on which the server has answered.
#[derive(Debug)]
pub(super) struct Connection(TcpStream);

impl Connection {
    pub(super) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(SILENCE / 2).with_interval(SILENCE / 6).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(SILENCE))?;
        let mut connection = Connection(stream);
        // PyTorch's client sends a ping here, which servers before torch 2.5 do not know. A check they all do.
        connection.send(&[Request::Validate(MAGIC), Request::Check(Vec::new())]).await?;
        match connection.byte().await? {
            READY => Ok(connection),
            _ => Err(other_protocol()),
        }
    }

    /// Whether the server has not ended it. Nothing comes unasked, so anything but silence is an end.
    pub(super) fn is_open(&self) -> bool {
        let peeked = SockRef::from(&self.0).peek(&mut [MaybeUninit::uninit()]);
        peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    pub(super) async fn send(&mut self, requests: &[Request<'_>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.write(&mut bytes));
        self.0.write_all(&bytes).await.map_err(plainly)
    }

    /// One byte. It can be given up and asked for again.
    pub(super) async fn byte(&mut self) -> io::Result<u8> {
        self.0.read_u8().await.map_err(plainly)
    }

    pub(super) async fn number(&mut self) -> io::Result<i64> {
        self.0.read_i64_le().await.map_err(plainly)
    }

    /// A number that cannot be negative.
    pub(super) async fn count(&mut self) -> io::Result<u64> {
        u64::try_from(self.number().await?).map_err(|_| other_protocol())
    }

    /// A key or value.
    pub(super) async fn string(&mut self) -> io::Result<Vec<u8>> {
        let length = self.count().await?;
        let mut bytes = Vec::new();
        // It grows with what comes, whatever the length says.
        let read = (&mut self.0).take(length).read_to_end(&mut bytes).await.map_err(plainly)?;
        if read as u64 == length { Ok(bytes) } else { Err(ended()) }
    }
}

pub(super) fn other_protocol() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "what answers there is no TCPStore")
}

pub(super) fn ended() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the server has ended the connection")
}

/// Whether the server has ended the connection, as it does with a request that it refuses.
pub(super) fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

/// An end of the connection is told as such, whichever call met it.
fn plainly(error: io::Error) -> io::Error {
    if is_end(&error) { ended() } else { error }
}
