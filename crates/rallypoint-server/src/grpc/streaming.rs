//! Streams of messages, both ways.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Streaming};
use tonic_prost::ProstDecoder;

use super::Reply;
use super::body::Bounded;
use super::rope::{PREFIX, Rope};
use crate::admission::{Share, counted};
use crate::handled::Handling;

/// Buffers start small: most messages are, and ten thousand watches have one each.
const BUFFER: usize = 512;
const YIELD: usize = 32 << 10;

/// A message to be sent, and what was taken for it if it is large. There is one at a time on a stream.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) message: Rope,
    pub(super) share: Option<Arc<Share>>,
}

impl Outgoing {
    /// One that is too small to be counted.
    pub(super) fn small(message: &impl Message) -> Self {
        Outgoing { message: Rope::of(message), share: None }
    }
}

/// Answers a stream of messages with another.
///
/// As from etcd, the headers go out with the first answer and not before: there are clients that take them for the
/// sign that their watch is there.
pub(super) async fn serve<B, In, S>(
    request: Request<Bounded<B>>,
    handle: impl FnOnce(Streaming<In>) -> S,
) -> Reply
where
    Bounded<B>: Body<Data = Bytes> + Send + 'static,
    <Bounded<B> as Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    In: Message + Default + Send + 'static,
    S: Stream<Item = Result<Outgoing, Status>> + Send + 'static,
{
    if let Err(status) = super::unary::check_encoding(request.headers()) {
        return super::unary::refusal(status);
    }
    let decoder = ProstDecoder::new(BufferSettings::new(BUFFER, YIELD));
    // The size of a message is bounded by its body, which knows the right error.
    let inbound = Streaming::new_request(decoder, request.into_body(), None, Some(usize::MAX));
    let mut messages = Messages { next: None, stream: Some(handle(inbound).boxed()), handling: None };
    poll_fn(|cx| messages.poll_next(cx)).await;
    let mut response = Response::new(http_body_util::Either::Right(messages));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// A body of messages, with the end that gRPC says in trailers.
pub(crate) struct Messages {
    /// What is being sent.
    next: Option<Result<Outgoing, Status>>,
    /// None when it has ended.
    stream: Option<BoxStream<'static, Result<Outgoing, Status>>>,
    /// Told how it ends.
    handling: Option<Handling>,
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Messages {
    /// One with nothing in it.
    pub(super) fn ended() -> Self {
        Messages { next: None, stream: None, handling: None }
    }

    /// From now on it is told what is sent and how it ends. What is to be sent first is there already.
    pub(super) fn tell(&mut self, handling: Handling) {
        if let Some(Ok(first)) = &self.next {
            handling.meter.sent(first.message.length().saturating_sub(PREFIX));
        }
        self.handling = Some(handling);
    }

    /// Waits until there is something to send: a message, or the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.next.is_none()
            && let Some(stream) = &mut self.stream
        {
            let next = ready!(stream.poll_next_unpin(cx)).unwrap_or_else(|| Err(Status::ok("")));
            if let (Ok(sending), Some(handling)) = (&next, &self.handling) {
                handling.meter.sent(sending.message.length());
            }
            self.next = Some(next.and_then(|Outgoing { message, share }| {
                let too_long = || Status::resource_exhausted("the message is longer than gRPC allows");
                Ok(Outgoing { message: message.framed().ok_or_else(too_long)?, share })
            }));
        }
        Poll::Ready(())
    }
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            ready!(self.poll_next(cx));
            match self.next.take() {
                Some(Ok(mut sending)) => {
                    let Some(piece) = sending.message.next_piece() else { continue };
                    let piece = match &sending.share {
                        Some(share) => counted(piece, Arc::clone(share)),
                        None => piece,
                    };
                    self.next = Some(Ok(sending));
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                Some(Err(status)) => {
                    self.stream = None;
                    if let Some(handling) = self.handling.take() {
                        handling.end(status.code());
                    }
                    let mut trailers = HeaderMap::with_capacity(2);
                    // It fails for a message that no header can hold, and there is none.
                    let _ = status.add_header(&mut trailers);
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                None => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.stream.is_none()
    }
}
