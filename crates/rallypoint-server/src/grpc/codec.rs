//! From HTTP to a function on streams of messages and back.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::stream::{BoxStream, Peekable};
use futures::{FutureExt as _, Stream, StreamExt as _};
use http::{Request, Response};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, Streaming};
use tonic::server::Grpc;
use tonic_prost::{ProstDecoder, ProstEncoder};
use tower_service::Service;

use super::body::Bounded;

/// Protocol buffers, with buffers that start small: most messages are, and ten thousand watches have one each.
struct Proto<In, Out>(PhantomData<(In, Out)>);

const BUFFERS: (usize, usize) = (512, 32 * 1024);

impl<In, Out> Codec for Proto<In, Out>
where
    In: Message + Default + Send + 'static,
    Out: Message + Send + 'static,
{
    type Encode = Out;
    type Decode = In;
    type Encoder = ProstEncoder<Out>;
    type Decoder = ProstDecoder<In>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFERS.0, BUFFERS.1))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFERS.0, BUFFERS.1))
    }
}

/// A function as tonic wants it.
struct Handler<F>(Option<F>);

impl<F, In, Out, S> Service<tonic::Request<Streaming<In>>> for Handler<F>
where
    F: FnOnce(Streaming<In>) -> S,
    Out: Send + 'static,
    S: Stream<Item = Result<Out, Status>> + Send + 'static,
{
    type Response = tonic::Response<Peekable<BoxStream<'static, Result<Out, Status>>>>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<Streaming<In>>) -> Self::Future {
        let handle = self.0.take().expect("a handler is made for one call");
        let mut answers = handle(request.into_inner()).boxed().peekable();
        let primed = async move {
            Pin::new(&mut answers).peek().await;
            Ok(tonic::Response::new(answers))
        };
        primed.boxed()
    }
}

/// Answers a stream of messages with one.
///
/// As from etcd, the headers go out with the first answer and not before: there are clients that take them for the
/// sign that their watch is there.
pub(super) async fn streaming<B, In, Out, S>(
    request: Request<Bounded<B>>,
    handle: impl FnOnce(Streaming<In>) -> S + Send,
) -> Response<Body>
where
    Bounded<B>: http_body::Body + Send + 'static,
    <Bounded<B> as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    In: Message + Default + Send + 'static,
    Out: Message + Send + 'static,
    S: Stream<Item = Result<Out, Status>> + Send + 'static,
{
    grpc::<In, Out>().streaming(Handler(Some(handle)), request).await
}

/// The size of a message is bounded by its body, which knows the right error.
fn grpc<In, Out>() -> Grpc<Proto<In, Out>>
where
    In: Message + Default + Send + 'static,
    Out: Message + Send + 'static,
{
    Grpc::new(Proto(PhantomData)).apply_max_message_size_config(Some(usize::MAX), Some(usize::MAX))
}
