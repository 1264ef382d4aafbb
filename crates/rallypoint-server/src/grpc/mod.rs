//! The v3 protocol: a table of methods, and a thin shell around each.

mod admin;
mod answer;
mod auth;
mod body;
mod call;
mod election;
mod hash;
mod kv;
mod lease;
mod line;
mod lock;
mod methods;
mod pause;
mod reflection;
mod rope;
mod snapshot;
mod status;
mod streaming;
mod unary;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{Either, ready};
use http::{Request, Response, header};
use tonic::{Code, Status};

use body::Bounded;
use call::OwnedCall;
pub(crate) use streaming::Messages;
pub(crate) use unary::{Replying, Whole};

use crate::admission::Account;
use crate::auth::Caller;
use crate::handled::Handling;
use crate::shared::Shared;

/// An answer of one message, or of a stream of them.
pub(crate) type ReplyBody = http_body_util::Either<Whole, Messages>;
pub(crate) type Reply = Response<ReplyBody>;

/// Counts how a call has ended; that of a stream when it does.
pub(crate) fn handled(handling: Handling, reply: &mut Reply) {
    match (Status::from_header_map(reply.headers()), reply.body_mut()) {
        (Some(status), _) => handling.end(status.code()),
        (None, http_body_util::Either::Right(messages)) => messages.tell(handling),
        (None, http_body_util::Either::Left(whole)) => {
            handling.meter.sent(whole.bytes);
            handling.end(Code::Ok);
        }
    }
}

/// Answers gRPC requests.
#[derive(Debug, Clone)]
pub(crate) struct Grpc {
    shared: Arc<Shared>,
    /// Bytes that a message of a client may have.
    message_bytes: usize,
    /// Becomes true when the server stops.
    stopping: tokio::sync::watch::Receiver<bool>,
}

impl Grpc {
    pub(crate) fn new(
        shared: Arc<Shared>,
        message_bytes: usize,
        stopping: tokio::sync::watch::Receiver<bool>,
    ) -> Self {
        Grpc { shared, message_bytes, stopping }
    }

    /// Whether a request is one of gRPC's: etcd tells them from the others in the same way.
    pub(crate) fn is_for_us<B>(request: &Request<B>) -> bool {
        request.version() == http::Version::HTTP_2
            && request
                .headers()
                .get(header::CONTENT_TYPE)
                .is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"))
    }

    /// Bytes that a message of a client may have.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Answers a request, which is held for this account, comes over a connection with this certificate, and is counted.
    pub(crate) fn call<B>(
        &self,
        request: Request<B>,
        account: &Account,
        certificate: Option<&Arc<str>>,
        handling: Option<&Handling>,
    ) -> Replying
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let meter = handling.map(|handling| handling.meter.clone());
        let body = match Bounded::new(body, account.clone(), self.message_bytes, meter) {
            Ok(body) => body,
            Err(status) => return Either::Left(ready(unary::refusal(status))),
        };
        let caller = Caller::of(&head.headers, certificate);
        match methods::handler(head.uri.path()) {
            Some(handler) => unary::serve(&head.headers, body, &self.shared, caller, handler),
            None => {
                let request = Request::from_parts(head, body);
                Either::Right(self.clone().call_streaming(request, caller).boxed())
            }
        }
    }

    async fn call_streaming<B>(self, request: Request<Bounded<B>>, caller: Caller) -> Reply
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Grpc { shared, stopping, .. } = self;
        let account = request.body().account().clone();
        let call = OwnedCall { shared, account, caller };
        match request.uri().path() {
            "/etcdserverpb.Watch/Watch" => {
                streaming::serve(request, |inbound| watch::Session::new(call, inbound)).await
            }
            "/etcdserverpb.Lease/LeaseKeepAlive" => {
                streaming::serve(request, |inbound| lease::keep_alive(call, inbound, stopping)).await
            }
            "/etcdserverpb.Maintenance/Snapshot" => {
                streaming::serve(request, |inbound| snapshot::send(call, inbound)).await
            }
            "/v3electionpb.Election/Observe" => {
                streaming::serve(request, |inbound| election::observe(call, inbound)).await
            }
            "/grpc.health.v1.Health/Watch" => {
                streaming::serve(request, |inbound| admin::watch_health(inbound, stopping)).await
            }
            reflection::V1 | reflection::V1ALPHA => {
                streaming::serve(request, |inbound| reflection::serve(call, inbound)).await
            }
            path => unary::refusal(methods::unknown(path)),
        }
    }
}
