//! One message in, one message out, without what the general case needs: most requests are of this kind, have
//! come in whole when they are seen, and are answered on the spot.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, Ready, ready as done};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body, Frame};
use prost::Message;
use tonic::Status;

use super::body::{ANSWER_BYTES, Bounded};
use super::call::{Call, OwnedCall};
use super::rope::{PREFIX, Rope};
use super::{Messages, Reply};
use crate::admission::{Account, Share, counted};
use crate::auth::Caller;
use crate::durable::Ticket;
use crate::mvcc::Error;
use crate::shared::Shared;

/// What answers the message of a request.
pub(super) type Handler = fn(Call<'_>, Bytes) -> Answering;

/// An answer that is there, or takes some steps. Large, but most often there at once.
pub(super) type Answering = Either<Ready<Result<Whole, Status>>, BoxFuture<'static, Result<Whole, Status>>>;

/// A reply that is there, or will be.
pub(crate) type Replying = Either<Ready<Reply>, BoxFuture<'static, Reply>>;

/// Reads the message, has it answered, and sends the answer.
pub(super) fn serve<B>(
    headers: &HeaderMap,
    body: Bounded<B>,
    shared: &Arc<Shared>,
    caller: Caller,
    handle: Handler,
) -> Replying
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(status) = check_encoding(headers) {
        return Either::Left(done(refusal(status)));
    }
    let mut request = OneMessage::new(body);
    // Whoever waits for it polls it again, with a waker of its own.
    if let Poll::Ready(message) = request.poll(&mut Context::from_waker(Waker::noop())) {
        let answering = match message {
            Ok(message) => handle(Call { shared, account: request.body.account(), caller: &caller }, message),
            Err(status) => at_once(Err(status)),
        };
        return match answering {
            Either::Left(answer) => Either::Left(done(reply(answer.into_inner()))),
            // The request stays counted for as long as it takes.
            Either::Right(later) => Either::Right(async move { (reply(later.await), request).0 }.boxed()),
        };
    }
    let shared = Arc::clone(shared);
    let later = async move {
        let time = shared.settings.request_timeout;
        let message = tokio::time::timeout(time, poll_fn(|cx| request.poll(cx))).await;
        let late = || Err(Status::deadline_exceeded(format!("no message within {time:?}")));
        match message.unwrap_or_else(|_| late()) {
            Ok(message) => {
                let call = Call { shared: &shared, account: request.body.account(), caller: &caller };
                reply(handle(call, message).await)
            }
            Err(status) => refusal(status),
        }
    };
    Either::Right(later.boxed())
}

/// Decodes a message, hands it over and encodes the answer.
pub(super) fn answer<In, Out>(
    call: Call<'_>,
    message: Bytes,
    handle: impl FnOnce(In) -> Result<Out, Status>,
) -> Answering
where
    In: Message + Default,
    Out: Message,
{
    let answer = decode(message).and_then(handle);
    at_once(answer.and_then(|answer| Ok(Whole::new(Rope::of(&answer), call.account)?)))
}

/// The same, for an answer that waits for a ticket where there is one.
pub(super) fn answer_kept<In, Out>(
    call: Call<'_>,
    message: Bytes,
    handle: impl FnOnce(In) -> (Result<Out, Status>, Option<Ticket>),
) -> Answering
where
    In: Message + Default,
    Out: Message,
{
    let (answer, ticket) = match decode(message) {
        Ok(message) => handle(message),
        Err(status) => (Err(status), None),
    };
    once_kept(answer.and_then(|answer| Ok(Whole::new(Rope::of(&answer), call.account)?)), ticket)
}

/// The same, for an answer that takes some steps, or has to wait.
pub(super) fn answer_later<In, Out, F>(
    call: Call<'_>,
    message: Bytes,
    handle: impl FnOnce(OwnedCall, In) -> F,
) -> Answering
where
    In: Message + Default,
    Out: Message,
    F: Future<Output = Result<Out, Status>> + Send + 'static,
{
    let request = match decode(message) {
        Ok(request) => request,
        Err(status) => return at_once(Err(status)),
    };
    let (account, answering) = (call.account.clone(), handle(call.owned(), request));
    Either::Right(async move { Ok(Whole::new(Rope::of(&answering.await?), &account)?) }.boxed())
}

/// An answer that is given once all that it tells of is on disk.
pub(super) fn once_kept(answer: Result<Whole, Status>, ticket: Option<Ticket>) -> Answering {
    let Some(ticket) = ticket else { return at_once(answer) };
    let later = async move {
        ticket.kept().await?;
        answer
    };
    Either::Right(later.boxed())
}

pub(super) fn decode<In: Message + Default>(message: Bytes) -> Result<In, Status> {
    In::decode(message).map_err(|error| Status::internal(error.to_string()))
}

pub(super) fn at_once(answer: Result<Whole, Status>) -> Answering {
    Either::Left(done(answer))
}

/// A reply that says no.
pub(super) fn refusal(status: Status) -> Reply {
    // The status is in the headers, and there is nothing behind them.
    status.into_http::<tonic::body::Body>().map(|_| http_body_util::Either::Right(Messages::ended()))
}

fn reply(answer: Result<Whole, Status>) -> Reply {
    match answer {
        Ok(answer) => {
            let mut response = Response::new(http_body_util::Either::Left(answer));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(header::CONTENT_TYPE, grpc);
            response
        }
        Err(status) => refusal(status),
    }
}

/// Compressed messages are not understood, and no client sends any that was not told to.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        Some(encoding) if encoding != "identity" => Err(Status::unimplemented(format!(
            "grpc: Decompressor is not installed for grpc-encoding {encoding:?}"
        ))),
        _ => Ok(()),
    }
}

/// A request of one message, as far as it has come.
#[derive(Debug)]
struct OneMessage<B> {
    body: Bounded<B>,
    first: Bytes,
    /// Used when there is more than one piece.
    all: BytesMut,
}

impl<B> OneMessage<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn new(body: Bounded<B>) -> Self {
        OneMessage { body, first: Bytes::new(), all: BytesMut::new() }
    }

    /// The message, once the client has said all it had to say.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while !self.body.is_end_stream() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { break };
            match frame.map(Frame::into_data) {
                Ok(Ok(piece)) if self.first.is_empty() => self.first = piece,
                Ok(Ok(piece)) => {
                    if self.all.is_empty() {
                        self.all.extend_from_slice(&self.first);
                    }
                    // What follows the message is not read.
                    if message(&self.all).is_none() {
                        self.all.extend_from_slice(&piece);
                    }
                }
                // Trailers of a client mean nothing.
                Ok(Err(_)) => {}
                Err(error) => return Poll::Ready(Err(Status::from_error(error))),
            }
        }
        let (first, all) = (mem::take(&mut self.first), mem::take(&mut self.all));
        let bytes = if all.is_empty() { first } else { all.freeze() };
        Poll::Ready(match bytes.first() {
            None => Err(Status::internal("Missing request message.")),
            Some(0) => message(&bytes)
                .map(|message| bytes.slice_ref(message))
                .ok_or_else(|| Status::internal("Unexpected EOF decoding stream.")),
            Some(flag) => {
                Err(Status::internal(format!("grpc: compressed flag {flag} set without a compression")))
            }
        })
    }
}

/// The message after its prefix, if it is there whole.
fn message(bytes: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = bytes.split_first_chunk::<PREFIX>()?;
    let [_, length @ ..] = *prefix;
    rest.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)
}

/// The body of an answer: its message, and the good end that gRPC says in trailers.
///
/// It is counted from before it is built until its last byte has left, or is given up.
#[derive(Debug)]
pub(crate) struct Whole {
    message: Rope,
    /// Of the message, before any of it was sent.
    pub(super) bytes: usize,
    share: Arc<Share>,
    is_ended: bool,
}

impl Whole {
    pub(super) fn new(message: Rope, account: &Account) -> Result<Self, Error> {
        let bytes = ANSWER_BYTES + message.length();
        if bytes > account.capacity() {
            return Err(Error::AnswerTooLarge);
        }
        Self::within(message, account.take(bytes)?)
    }

    /// The same, of what was taken already.
    pub(super) fn within(message: Rope, share: Share) -> Result<Self, Error> {
        let bytes = message.length();
        let message = message.framed().ok_or(Error::AnswerTooLarge)?;
        Ok(Whole { message, bytes, share: Arc::new(share), is_ended: false })
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(piece) = self.message.next_piece() {
            let piece = counted(piece, Arc::clone(&self.share));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if mem::replace(&mut self.is_ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A body in pieces.
    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn read(bytes: &[u8], size: usize) -> Result<Bytes, Status> {
        let pieces = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        let body = Bounded::new(Pieces(pieces), Account::alone(1 << 20), 100, None).unwrap();
        match OneMessage::new(body).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(message) => message,
            Poll::Pending => unreachable!("all pieces are there"),
        }
    }

    #[test]
    fn a_message_is_the_same_however_it_is_cut() {
        let sent = [&b"\0\0\0\0\x06abcdef"[..], b"\0\0\0\0\x03one", b"\0\0\0\0\x04more"].concat();
        for size in 1..=sent.len() {
            assert_eq!(read(&sent, size).unwrap(), "abcdef", "in pieces of {size}");
        }
        assert_eq!(read(&[0; 5], 2).unwrap(), "");
    }

    #[test]
    fn what_is_not_a_message_is_an_error() {
        for (sent, problem) in [
            (&b""[..], "Missing"),
            (b"\0\0\0", "Unexpected EOF"),
            (b"\0\0\0\0\x02a", "Unexpected EOF"),
            (b"\x01\0\0\0\x01a", "compressed"),
            (b"\0\0\0\0\x65a", "larger than max (101 vs. 100)"),
        ] {
            for size in 1..=sent.len().max(1) {
                let status = read(sent, size).unwrap_err();
                assert!(status.message().contains(problem), "{status:?}");
            }
        }
    }
}
