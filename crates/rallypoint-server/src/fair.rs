//! Turns: a connection that has much to say lets others speak in between.
//!
//! A connection is one task, which goes on for as long as there is something to read. A client that sends thousands of
//! requests at once would have all of them answered before anybody else's next one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are read in one turn: some hundred small requests, which take a few milliseconds.
const TURN: usize = 32 << 10;

/// Bytes that are read at once. hyper doubles its buffer, up to 400 kB for each connection and for as long as it lasts,
/// whenever a read fills it; at first it has 8 KiB.
const READ: usize = (8 << 10) - 1;

/// A connection whose reader pauses after each turn. What it has to write goes out before the next.
#[derive(Debug)]
pub(crate) struct Fair<S> {
    inner: S,
    left: usize,
}

impl<S> Fair<S> {
    pub(crate) fn new(inner: S) -> Self {
        Fair { inner, left: TURN }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Fair<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            self.left = TURN;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let room = buf.remaining().min(READ);
        let mut some = ReadBuf::new(buf.initialize_unfilled_to(room));
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut some));
        let came = some.filled().len();
        buf.advance(came);
        self.left = self.left.saturating_sub(came);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Fair<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn it_reads_no_more_at_once_than_a_small_buffer_has() {
        let mut fair = Fair::new(&[1; 1 << 20][..]);
        let mut buffer = vec![0; 1 << 20];
        let mut buf = ReadBuf::new(&mut buffer);
        assert!(Pin::new(&mut fair).poll_read(&mut Context::from_waker(Waker::noop()), &mut buf).is_ready());
        assert_eq!(buf.filled(), [1; READ]);
    }

    #[test]
    fn it_pauses_after_each_turn_and_loses_nothing() {
        let sent: Vec<u8> = (0..3 * TURN + 100).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut fair = Fair::new(&sent[..]);
        let (mut read, mut pauses) = (Vec::new(), 0);
        while read.len() < sent.len() {
            let mut buffer = [0; 1000];
            let mut buf = ReadBuf::new(&mut buffer);
            match Pin::new(&mut fair).poll_read(&mut Context::from_waker(Waker::noop()), &mut buf) {
                Poll::Ready(done) => done.map(|()| read.extend_from_slice(buf.filled())).unwrap(),
                Poll::Pending => pauses += 1,
            }
        }
        assert!(read == sent && pauses >= 2, "{pauses}");
    }
}
