//! The v3 protocol: a table of methods, and a thin shell around each.

mod admin;
mod answer;
mod body;
mod kv;
mod lease;
mod rope;
mod status;
mod streaming;
mod unary;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{Either, ready};
use http::{Request, Response, header};
use tonic::Status;

use body::Bounded;
pub(crate) use streaming::Messages;
pub(crate) use unary::{Replying, Whole};

use crate::admission::Account;
use crate::shared::Shared;

/// An answer of one message, or of a stream of them.
pub(crate) type ReplyBody = http_body_util::Either<Whole, Messages>;
pub(crate) type Reply = Response<ReplyBody>;

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

    /// Answers a request, which is counted for this account.
    pub(crate) fn call<B>(&self, request: Request<B>, account: &Account) -> Replying
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let body = match Bounded::new(body, account.clone(), self.message_bytes) {
            Ok(body) => body,
            Err(status) => return Either::Left(ready(unary::refusal(status))),
        };
        match handler(head.uri.path()) {
            Some(handler) => unary::serve(&head.headers, body, &self.shared, handler),
            None => Either::Right(self.clone().call_streaming(Request::from_parts(head, body)).boxed()),
        }
    }

    async fn call_streaming<B>(self, request: Request<Bounded<B>>) -> Reply
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Grpc { shared, stopping, .. } = self;
        let account = request.body().account().clone();
        match request.uri().path() {
            "/etcdserverpb.Watch/Watch" => {
                streaming::serve(request, |inbound| watch::Session::new(shared, account, inbound)).await
            }
            "/etcdserverpb.Lease/LeaseKeepAlive" => {
                streaming::serve(request, |inbound| lease::keep_alive(shared, inbound, stopping)).await
            }
            path => unary::refusal(unknown(path)),
        }
    }
}

/// What answers a method of one message each way.
fn handler(path: &str) -> Option<unary::Handler> {
    use unary::{answer, answer_kept};
    Some(match path {
        "/etcdserverpb.KV/Range" => kv::range,
        "/etcdserverpb.KV/Put" => kv::put,
        "/etcdserverpb.KV/DeleteRange" => kv::delete,
        "/etcdserverpb.KV/Txn" => kv::txn,
        "/etcdserverpb.KV/Compact" => {
            |shared, account, message| answer_kept(message, account, |ask| kv::compact(shared, ask))
        }
        "/etcdserverpb.Lease/LeaseGrant" => {
            |shared, account, message| answer_kept(message, account, |ask| lease::grant(shared, ask))
        }
        "/etcdserverpb.Lease/LeaseRevoke" => {
            |shared, account, message| answer_kept(message, account, |ask| lease::revoke(shared, ask))
        }
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            |shared, account, message| answer_kept(message, account, |ask| lease::time_to_live(shared, ask))
        }
        "/etcdserverpb.Lease/LeaseLeases" => {
            |shared, account, message| answer_kept(message, account, |ask| lease::list(shared, ask))
        }
        "/etcdserverpb.Maintenance/Status" => {
            |shared, account, message| answer(message, account, |ask| admin::status(shared, ask))
        }
        "/etcdserverpb.Maintenance/Alarm" => {
            |shared, account, message| answer(message, account, |ask| admin::alarm(shared, ask))
        }
        "/etcdserverpb.Maintenance/Defragment" => {
            |shared, account, message| answer(message, account, |ask| admin::defragment(shared, ask))
        }
        "/etcdserverpb.Cluster/MemberList" => {
            |shared, account, message| answer(message, account, |ask| admin::members(shared, ask))
        }
        "/grpc.health.v1.Health/Check" => {
            |_, account, message| answer(message, account, |ask| admin::health(&ask))
        }
        _ => return None,
    })
}

/// In the words of etcd's gRPC library, for what is not served.
fn unknown(path: &str) -> Status {
    const SERVED: [&str; 6] = [
        "etcdserverpb.KV",
        "etcdserverpb.Watch",
        "etcdserverpb.Lease",
        "etcdserverpb.Maintenance",
        "etcdserverpb.Cluster",
        "grpc.health.v1.Health",
    ];
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or((path, ""));
    Status::unimplemented(if SERVED.contains(&service) {
        format!("unknown method {method} for service {service}")
    } else {
        format!("unknown service {service}")
    })
}
