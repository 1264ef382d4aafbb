//! Bounds on what is held for clients: each message they send, all that have not come in whole, and large
//! answers that they do not read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Status;

use crate::mvcc::Error;

/// Before each message of gRPC: a flag, and the length in four bytes.
pub(super) const PREFIX: usize = 5;
/// Roughly the memory of a request besides its messages.
const REQUEST_BYTES: usize = 4096;

/// Answers below it are not counted: there are only so many requests.
const SMALL_BYTES: usize = 4096;

/// Memory that requests of all clients together may take, and the answers to them.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
    message_bytes: usize,
}

impl Budget {
    /// Of so many bytes in all, and so many for one message.
    pub(crate) fn new(bytes: usize, message_bytes: usize) -> Self {
        Budget { left: AtomicUsize::new(bytes), message_bytes }
    }

    fn take(&self, bytes: usize) -> Result<(), Status> {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| Error::TooManyRequests.into())
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// For an answer of so many bytes, if that is worth counting.
    pub(super) fn for_answer(budget: &Arc<Budget>, bytes: usize) -> Result<Option<Self>, Status> {
        if bytes <= SMALL_BYTES {
            return Ok(None);
        }
        budget.take(bytes)?;
        Ok(Some(Share { budget: Arc::clone(budget), bytes }))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The body of a request, as far as its messages are within bounds.
#[derive(Debug)]
pub(crate) struct Bounded<B> {
    inner: B,
    budget: Arc<Budget>,
    /// Taken from the budget.
    taken: usize,
    prefix: [u8; PREFIX],
    /// Of the prefix, how many bytes came.
    prefix_read: usize,
    /// Of the message, how many bytes are still to come.
    message_left: usize,
}

impl<B> Bounded<B> {
    pub(super) fn new(inner: B, budget: Arc<Budget>) -> Result<Self, Status> {
        budget.take(REQUEST_BYTES)?;
        Ok(Bounded {
            inner,
            budget,
            taken: REQUEST_BYTES,
            prefix: [0; PREFIX],
            prefix_read: 0,
            message_left: 0,
        })
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Follows the messages through a piece of the body.
    fn account(&mut self, mut piece: &[u8]) -> Result<(), Status> {
        let whole = piece.len();
        let mut completed = false;
        while !piece.is_empty() {
            if self.message_left > 0 {
                let read = piece.len().min(self.message_left);
                self.message_left -= read;
                piece = &piece[read..];
            } else {
                let read = piece.len().min(PREFIX - self.prefix_read);
                self.prefix[self.prefix_read..self.prefix_read + read].copy_from_slice(&piece[..read]);
                self.prefix_read += read;
                piece = &piece[read..];
                if self.prefix_read < PREFIX {
                    break;
                }
                self.prefix_read = 0;
                let [_, length @ ..] = self.prefix;
                self.message_left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                let max = self.budget.message_bytes;
                if self.message_left > max {
                    let length = self.message_left;
                    return Err(Status::resource_exhausted(format!(
                        "grpc: received message larger than max ({length} vs. {max})"
                    )));
                }
            }
            completed |= self.message_left == 0 && self.prefix_read == 0;
        }
        if completed {
            // What came before is on its way to a handler. The rest of the piece is small.
            self.budget.give_back(self.taken - REQUEST_BYTES);
            self.taken = REQUEST_BYTES;
        } else {
            self.budget.take(whole)?;
            self.taken += whole;
        }
        Ok(())
    }
}

impl<B> Body for Bounded<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx)).map(|frame| {
            let frame = frame.map_err(Into::into)?;
            if let Some(piece) = frame.data_ref() {
                self.account(piece)?;
            }
            Ok(frame)
        });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for Bounded<B> {
    fn drop(&mut self) {
        self.budget.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    fn bounded(bytes: usize, message_bytes: usize) -> Bounded<()> {
        Bounded::new((), Arc::new(Budget::new(bytes, message_bytes))).unwrap()
    }

    #[test]
    fn messages_within_bounds_pass_however_they_are_cut() {
        let sent: Vec<u8> = [0, 1, 10, 0, 100].into_iter().flat_map(message).collect();
        for piece in 1..sent.len() {
            let mut body = bounded(REQUEST_BYTES + 200, 100);
            for piece in sent.chunks(piece) {
                body.account(piece).unwrap();
            }
            assert_eq!((body.message_left, body.prefix_read, body.taken), (0, 0, REQUEST_BYTES));
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_by_its_prefix() {
        let status = bounded(1 << 20, 100).account(&message(101)[..PREFIX]).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.message(), "grpc: received message larger than max (101 vs. 100)");
    }

    #[test]
    fn messages_that_never_end_use_up_the_budget_until_they_are_dropped() {
        let budget = Arc::new(Budget::new(2 * REQUEST_BYTES + 1000, 2000));
        let mut one = Bounded::new((), Arc::clone(&budget)).unwrap();
        one.account(&message(2000)[..800]).unwrap();
        let mut two = Bounded::new((), Arc::clone(&budget)).unwrap();
        assert_eq!(two.account(&message(2000)[..800]).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert!(Bounded::new((), Arc::clone(&budget)).is_err());
        drop(one);
        two.account(&message(2000)[..800]).unwrap();
        drop(two);
        assert_eq!(budget.left.load(Ordering::Relaxed), 2 * REQUEST_BYTES + 1000);
    }
}
