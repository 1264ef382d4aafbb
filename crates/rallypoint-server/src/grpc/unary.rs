//! One message in, one message out, without what the general case needs: most requests are of this kind, have
//! come in whole when they are seen, and are answered on the spot.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, Ready, ready as done};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body, Frame};
use prost::Message;
use tonic::Status;

use super::Reply;
use super::body::{Bounded, Budget, PREFIX, Share};
use crate::shared::Shared;

/// What answers the message of a request.
pub(super) type Handler = fn(&Shared, &Arc<Budget>, Bytes) -> Result<Whole, Status>;

/// A reply that is there, or will be.
pub(crate) type Replying = Either<Ready<Reply>, BoxFuture<'static, Reply>>;

/// Reads the message, has it answered, and sends the answer.
pub(super) fn serve<B>(
    headers: &HeaderMap,
    body: Bounded<B>,
    shared: &Arc<Shared>,
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
        return Either::Left(done(reply(message, shared, request.body.budget(), handle)));
    }
    let shared = Arc::clone(shared);
    let later = async move {
        let message = poll_fn(|cx| request.poll(cx)).await;
        reply(message, &shared, request.body.budget(), handle)
    };
    Either::Right(later.boxed())
}

/// Decodes a message, hands it over and encodes the answer.
pub(super) fn answer<In, Out>(
    message: Bytes,
    budget: &Arc<Budget>,
    handle: impl FnOnce(In) -> Result<Out, Status>,
) -> Result<Whole, Status>
where
    In: Message + Default,
    Out: Message,
{
    let message = In::decode(message).map_err(|error| Status::internal(error.to_string()))?;
    Whole::new(&handle(message)?, budget)
}

/// A reply that says no.
pub(super) fn refusal(status: Status) -> Reply {
    status.into_http::<tonic::body::Body>().map(http_body_util::Either::Right)
}

fn reply(message: Result<Bytes, Status>, shared: &Shared, budget: &Arc<Budget>, handle: Handler) -> Reply {
    match message.and_then(|message| handle(shared, budget, message)) {
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
fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
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

/// The body of an answer: its message, and the good end that gRPC says in trailers. Its part of the budget is
/// held until it is sent or given up.
#[derive(Debug)]
pub(crate) struct Whole {
    message: Option<Bytes>,
    is_ended: bool,
    _share: Option<Share>,
}

impl Whole {
    fn new(message: &impl Message, budget: &Arc<Budget>) -> Result<Self, Status> {
        let length = message.encoded_len();
        let Ok(prefix) = u32::try_from(length) else {
            return Err(Status::resource_exhausted(format!(
                "the answer has {length} bytes, more than gRPC allows"
            )));
        };
        let share = Share::for_answer(budget, length)?;
        let mut bytes = BytesMut::with_capacity(PREFIX + length);
        bytes.put_u8(0);
        bytes.put_u32(prefix);
        message.encode(&mut bytes).expect("there is room for it");
        Ok(Whole { message: Some(bytes.freeze()), is_ended: false, _share: share })
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
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
        let body = Bounded::new(Pieces(pieces), Arc::new(Budget::new(1 << 20, 100))).unwrap();
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
