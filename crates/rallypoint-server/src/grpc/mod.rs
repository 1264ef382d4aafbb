//! The v3 protocol: a table of methods, and a thin shell around each.

mod admin;
mod body;
mod codec;
mod kv;
mod lease;
mod status;
mod unary;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{Either, ready};
use http::{Request, Response, header};
use tonic::Status;

use body::Bounded;
pub(crate) use body::Budget;
pub(crate) use unary::{Replying, Whole};

use crate::shared::Shared;

/// An answer of one message, or of a stream of them.
pub(crate) type ReplyBody = http_body_util::Either<Whole, tonic::body::Body>;
pub(crate) type Reply = Response<ReplyBody>;

/// Answers gRPC requests.
#[derive(Debug, Clone)]
pub(crate) struct Grpc {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    /// Becomes true when the server stops.
    stopping: tokio::sync::watch::Receiver<bool>,
}

impl Grpc {
    pub(crate) fn new(
        shared: Arc<Shared>,
        budget: Arc<Budget>,
        stopping: tokio::sync::watch::Receiver<bool>,
    ) -> Self {
        Grpc { shared, budget, stopping }
    }

    /// Whether a request is one of gRPC's: etcd tells them from the others in the same way.
    pub(crate) fn is_for_us<B>(request: &Request<B>) -> bool {
        request.version() == http::Version::HTTP_2
            && request
                .headers()
                .get(header::CONTENT_TYPE)
                .is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"))
    }

    pub(crate) fn call<B>(&self, request: Request<B>) -> Replying
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let body = match Bounded::new(body, Arc::clone(&self.budget)) {
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
        let reply = match request.uri().path() {
            "/etcdserverpb.Watch/Watch" => {
                codec::streaming(request, |inbound| watch::Session::new(shared, inbound)).await
            }
            "/etcdserverpb.Lease/LeaseKeepAlive" => {
                codec::streaming(request, |inbound| lease::keep_alive(shared, inbound, stopping)).await
            }
            path => unknown(path).into_http(),
        };
        reply.map(http_body_util::Either::Right)
    }
}

/// What answers a method of one message each way.
fn handler(path: &str) -> Option<unary::Handler> {
    use unary::answer;
    Some(match path {
        "/etcdserverpb.KV/Range" => {
            |shared, budget, message| answer(message, budget, |range| kv::range(shared, &range))
        }
        "/etcdserverpb.KV/Put" => {
            |shared, budget, message| answer(message, budget, |put| kv::put(shared, put))
        }
        "/etcdserverpb.KV/DeleteRange" => {
            |shared, budget, message| answer(message, budget, |delete| kv::delete(shared, &delete))
        }
        "/etcdserverpb.KV/Txn" => {
            |shared, budget, message| answer(message, budget, |txn| kv::txn(shared, txn))
        }
        "/etcdserverpb.KV/Compact" => {
            |shared, budget, message| answer(message, budget, |compact| kv::compact(shared, compact))
        }
        "/etcdserverpb.Lease/LeaseGrant" => {
            |shared, budget, message| answer(message, budget, |grant| lease::grant(shared, grant))
        }
        "/etcdserverpb.Lease/LeaseRevoke" => {
            |shared, budget, message| answer(message, budget, |revoke| lease::revoke(shared, revoke))
        }
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            |shared, budget, message| answer(message, budget, |lease| lease::time_to_live(shared, lease))
        }
        "/etcdserverpb.Lease/LeaseLeases" => {
            |shared, budget, message| answer(message, budget, |ask| lease::list(shared, ask))
        }
        "/etcdserverpb.Maintenance/Status" => {
            |shared, budget, message| answer(message, budget, |ask| admin::status(shared, ask))
        }
        "/etcdserverpb.Maintenance/Alarm" => {
            |shared, budget, message| answer(message, budget, |ask| admin::alarm(shared, ask))
        }
        "/etcdserverpb.Maintenance/Defragment" => {
            |shared, budget, message| answer(message, budget, |ask| admin::defragment(shared, ask))
        }
        "/etcdserverpb.Cluster/MemberList" => {
            |shared, budget, message| answer(message, budget, |ask| admin::members(shared, ask))
        }
        "/grpc.health.v1.Health/Check" => {
            |_, budget, message| answer(message, budget, |ask| admin::health(&ask))
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
