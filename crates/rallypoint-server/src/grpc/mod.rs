//! The v3 protocol: a table of methods, and a thin shell around each.

mod admin;
mod body;
mod codec;
mod kv;
mod lease;
mod status;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header};
use tonic::Status;
use tonic::body::Body;

use body::Bounded;
pub(crate) use body::Budget;

use crate::identity::{CLUSTER_ID, MEMBER_ID, RAFT_TERM};
use crate::shared::Shared;

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

    pub(crate) async fn call<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let body = match Bounded::new(body, Arc::clone(&self.budget)) {
            Ok(body) => body,
            Err(status) => return status.into_http(),
        };
        let path = head.uri.path().to_owned();
        let request = Request::from_parts(head, body);
        let shared = &self.shared;
        match path.as_str() {
            "/etcdserverpb.KV/Range" => codec::unary(request, |range| kv::range(shared, &range)).await,
            "/etcdserverpb.KV/Put" => codec::unary(request, |put| kv::put(shared, put)).await,
            "/etcdserverpb.KV/DeleteRange" => {
                codec::unary(request, |delete| kv::delete(shared, &delete)).await
            }
            "/etcdserverpb.KV/Txn" => codec::unary(request, |txn| kv::txn(shared, txn)).await,
            "/etcdserverpb.KV/Compact" => codec::unary(request, |compact| kv::compact(shared, compact)).await,

            "/etcdserverpb.Watch/Watch" => {
                let shared = Arc::clone(shared);
                codec::streaming(request, |inbound| watch::Session::new(shared, inbound)).await
            }

            "/etcdserverpb.Lease/LeaseGrant" => {
                codec::unary(request, |grant| lease::grant(shared, grant)).await
            }
            "/etcdserverpb.Lease/LeaseRevoke" => {
                codec::unary(request, |revoke| lease::revoke(shared, revoke)).await
            }
            "/etcdserverpb.Lease/LeaseTimeToLive" => {
                codec::unary(request, |lease| lease::time_to_live(shared, lease)).await
            }
            "/etcdserverpb.Lease/LeaseLeases" => {
                codec::unary(request, |lease| lease::list(shared, lease)).await
            }
            "/etcdserverpb.Lease/LeaseKeepAlive" => {
                let (shared, stopping) = (Arc::clone(shared), self.stopping.clone());
                codec::streaming(request, |inbound| lease::keep_alive(shared, inbound, stopping)).await
            }

            "/etcdserverpb.Maintenance/Status" => {
                codec::unary(request, |ask| admin::status(shared, ask)).await
            }
            "/etcdserverpb.Maintenance/Alarm" => codec::unary(request, |ask| admin::alarm(shared, ask)).await,
            "/etcdserverpb.Maintenance/Defragment" => {
                codec::unary(request, |ask| admin::defragment(shared, ask)).await
            }
            "/etcdserverpb.Cluster/MemberList" => {
                codec::unary(request, |ask| admin::members(shared, ask)).await
            }
            "/grpc.health.v1.Health/Check" => codec::unary(request, |ask| admin::health(&ask)).await,

            path => unknown(path).into_http(),
        }
    }
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

/// The header of an answer.
fn header_at(revision: i64) -> etcd_client::proto::PbResponseHeader {
    etcd_client::proto::PbResponseHeader {
        cluster_id: CLUSTER_ID,
        member_id: MEMBER_ID,
        revision,
        raft_term: RAFT_TERM,
    }
}
