//! Bounds on what clients send: each message, and all that have not come in whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Status;

use super::rope::PREFIX;
use crate::admission::{Account, Share};
use crate::handled::Meter;
use crate::mvcc::Error;

/// Roughly the memory of a request besides its messages: measured, with many.
pub(super) const REQUEST_BYTES: usize = 1536;
/// Roughly the memory of an answer besides its message: the stream, its task, its headers and trailers, and what an
/// allocator loses on all of them.
pub(super) const ANSWER_BYTES: usize = 6 << 10;

/// The body of a request, as far as its messages are within bounds.
#[derive(Debug)]
pub(crate) struct Bounded<B> {
    inner: B,
    account: Account,
    /// For the request, and for what came of a message.
    share: Share,
    /// Bytes that a message may have.
    max_bytes: usize,
    prefix: [u8; PREFIX],
    /// Of the prefix, how many bytes came.
    prefix_read: usize,
    /// Of the message, how many bytes are still to come.
    message_left: usize,
    message_bytes: usize,
    meter: Option<Meter>,
}

impl<B> Bounded<B> {
    /// Of a method that is not known nothing is counted but what it holds.
    pub(super) fn new(
        inner: B,
        account: Account,
        max_bytes: usize,
        meter: Option<Meter>,
    ) -> Result<Self, Status> {
        let share = account.take(REQUEST_BYTES).map_err(Error::from)?;
        let (prefix, prefix_read, message_left, message_bytes) = ([0; PREFIX], 0, 0, 0);
        Ok(Bounded {
            inner,
            account,
            share,
            max_bytes,
            prefix,
            prefix_read,
            message_left,
            message_bytes,
            meter,
        })
    }

    /// Whom it is counted for.
    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Follows the messages through a piece of the body.
    fn follow(&mut self, mut piece: &[u8]) -> Result<(), Status> {
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
                self.message_bytes = self.message_left;
                let max = self.max_bytes;
                if self.message_left > max {
                    let length = self.message_left;
                    return Err(Status::resource_exhausted(format!(
                        "grpc: received message larger than max ({length} vs. {max})"
                    )));
                }
            }
            if self.message_left == 0 && self.prefix_read == 0 {
                completed = true;
                self.meter.iter().for_each(|meter| meter.received(self.message_bytes));
            }
        }
        if completed {
            // What came before is on its way to a handler. The rest of the piece is small.
            self.share.shrink_to(REQUEST_BYTES);
        } else {
            self.share.grow(whole).map_err(Error::from)?;
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
                self.follow(piece)?;
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
        Bounded::new((), Account::alone(bytes), message_bytes, None).unwrap()
    }

    #[test]
    fn messages_within_bounds_pass_however_they_are_cut() {
        let sent: Vec<u8> = [0, 1, 10, 0, 100].into_iter().flat_map(message).collect();
        for piece in 1..sent.len() {
            let mut body = bounded(REQUEST_BYTES + 200, 100);
            for piece in sent.chunks(piece) {
                body.follow(piece).unwrap();
            }
            assert_eq!((body.message_left, body.prefix_read), (0, 0));
            // What is left of the budget is all but the request's own.
            body.account.take(200).unwrap();
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_by_its_prefix() {
        let status = bounded(1 << 20, 100).follow(&message(101)[..PREFIX]).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.message(), "grpc: received message larger than max (101 vs. 100)");
    }

    #[test]
    fn messages_that_never_end_use_up_the_budget_until_they_are_dropped() {
        let account = Account::alone(2 * REQUEST_BYTES + 1000);
        let mut one = Bounded::new((), account.clone(), 2000, None).unwrap();
        one.follow(&message(2000)[..800]).unwrap();
        let mut two = Bounded::new((), account.clone(), 2000, None).unwrap();
        assert_eq!(two.follow(&message(2000)[..800]).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert!(Bounded::new((), account.clone(), 2000, None).is_err());
        drop(one);
        two.follow(&message(2000)[..800]).unwrap();
        drop(two);
        account.take(2 * REQUEST_BYTES + 1000).unwrap();
    }
}
