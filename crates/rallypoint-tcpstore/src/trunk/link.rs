//! The socket of a trunk at the server, with TLS or not. Nothing here waits.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

/// How much is read from the socket before others have a turn, where it is TLS. Records are read one after the other.
const RECORDS: usize = 8;

/// A socket of a trunk.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: TcpStream,
    tls: Option<Box<ServerConnection>>,
}

impl Link {
    pub(crate) fn new(socket: TcpStream, tls: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        let tls = tls.map(|config| ServerConnection::new(Arc::clone(config)).map(Box::new));
        Ok(Link { socket, tls: tls.transpose().map_err(io::Error::other)? })
    }

    /// Reads what is there into `buffer`, and hands it over part by part. False if the other side is done.
    pub(crate) fn read(&mut self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else {
            let Some(count) = not_now(self.socket.read(buffer))? else { return Ok(true) };
            take(&buffer[..count]);
            return Ok(count > 0);
        };
        for _ in 0..RECORDS {
            match not_now(tls.read_tls(&mut self.socket))? {
                None => break,
                Some(0) => return Ok(false),
                Some(_) => {}
            }
            if let Err(error) = tls.process_new_packets() {
                // It is told why, as far as the socket takes that.
                let _ = tls.write_tls(&mut self.socket);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            loop {
                match not_now(tls.reader().read(buffer))? {
                    None => break,
                    Some(0) => return Ok(false),
                    Some(count) => take(&buffer[..count]),
                }
            }
        }
        Ok(true)
    }

    /// Writes as much as is taken without waiting; how much that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return Ok(not_now(self.socket.write(bytes))?.unwrap_or(0)) };
        let mut taken = 0;
        loop {
            // Its own buffer has a bound, and takes nothing beyond.
            taken += tls.writer().write(&bytes[taken..])?;
            if !tls.wants_write() || not_now(tls.write_tls(&mut self.socket))?.is_none() {
                return Ok(taken);
            }
        }
    }

    /// Whether something that was taken has not left.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}

/// None if that cannot be done now without waiting.
fn not_now(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
