//! Notices a client that hangs up while its request waits.
//!
//! A client may close its half and read its answers: it gets all of them. One that waits for a change, or for a key,
//! will never come back for it, and hyper would hold its watch until the change comes, which may be never: with
//! `half_close` it looks for the end only between requests, and without it drops the answer that it is writing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that is read before somebody asks for it. Behind more than this the end is not seen.
const AHEAD: usize = 4 << 10;

/// A connection that reads a little ahead whenever its owner has written all and does not read.
#[derive(Debug)]
pub(crate) struct ReadAhead<S> {
    inner: S,
    /// What was read and nobody has asked for yet.
    ahead: Vec<u8>,
    /// The owner waits to read since the last flush: it sees the end by itself.
    owner_reads: bool,
    /// The end was found by reading ahead.
    ended: bool,
    hung_up: HungUp,
}

/// Whether a client has hung up, and all that was written is on its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct HungUp(Arc<AtomicBool>);

impl HungUp {
    pub(crate) fn is_true(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, to: bool) {
        self.0.store(to, Ordering::Relaxed);
    }
}

impl<S> ReadAhead<S> {
    pub(crate) fn new(inner: S) -> (Self, HungUp) {
        let hung_up = HungUp::default();
        (
            ReadAhead {
                inner,
                ahead: Vec::new(),
                owner_reads: false,
                ended: false,
                hung_up: hung_up.clone(),
            },
            hung_up,
        )
    }
}

impl<S: AsyncRead + Unpin> ReadAhead<S> {
    fn look_ahead(&mut self, cx: &mut Context<'_>) {
        while self.ahead.len() < AHEAD && !self.ended {
            let mut buffer = [0; AHEAD];
            let mut buf = ReadBuf::new(&mut buffer[..AHEAD - self.ahead.len()]);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => self.ahead.extend_from_slice(buf.filled()),
                Poll::Ready(_) => self.ended = true,
                Poll::Pending => return,
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() && !self.ended {
            let read = Pin::new(&mut self.inner).poll_read(cx, buf);
            self.owner_reads = read.is_pending();
            return read;
        }
        let taken = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..taken]);
        self.ahead.drain(..taken);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.hung_up.set(false);
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.hung_up.set(false);
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        if !std::mem::take(&mut self.owner_reads) {
            self.look_ahead(cx);
        }
        self.hung_up.set(self.ended);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn the_end_is_seen_behind_bytes_that_nobody_has_asked_for_and_they_are_not_lost() {
        let (mut client, server) = tokio::io::duplex(64);
        let (mut server, hung_up) = ReadAhead::new(server);
        client.write_all(b"more").await.unwrap();
        server.flush().await.unwrap();
        assert!(!hung_up.is_true());
        drop(client);
        server.flush().await.unwrap();
        assert!(hung_up.is_true());
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"more");
    }

    #[tokio::test]
    async fn an_owner_that_reads_is_left_to_see_the_end_itself() {
        let (client, server) = tokio::io::duplex(64);
        let (mut server, hung_up) = ReadAhead::new(server);
        let mut byte = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut server).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending());
        drop(client);
        server.flush().await.unwrap();
        assert!(!hung_up.is_true());
        assert_eq!(server.read(&mut byte).await.unwrap(), 0);
    }
}
