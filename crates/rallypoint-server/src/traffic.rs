//! What clients ask for, and what is held for them, counted for Prometheus.

use std::sync::{Arc, OnceLock};

use http::Response;
use rallypoint_metrics::prometheus_client::metrics::counter::Counter;
use rallypoint_metrics::prometheus_client::metrics::family::Family;

use crate::admission::Budget;
use crate::handled::Handled;
use crate::prometheus::Page;

/// Requests by what they ask for. The last of gRPC, and the last of all, are for the rest.
const METHODS: [(&str, &str); 28] = [
    ("/etcdserverpb.KV/Range", "KV/Range"),
    ("/etcdserverpb.KV/Txn", "KV/Txn"),
    ("/etcdserverpb.KV/Put", "KV/Put"),
    ("/etcdserverpb.KV/DeleteRange", "KV/DeleteRange"),
    ("/etcdserverpb.KV/Compact", "KV/Compact"),
    ("/etcdserverpb.Watch/Watch", "Watch/Watch"),
    ("/etcdserverpb.Lease/LeaseKeepAlive", "Lease/LeaseKeepAlive"),
    ("/etcdserverpb.Lease/LeaseGrant", "Lease/LeaseGrant"),
    ("/etcdserverpb.Lease/LeaseRevoke", "Lease/LeaseRevoke"),
    ("/etcdserverpb.Lease/LeaseTimeToLive", "Lease/LeaseTimeToLive"),
    ("/etcdserverpb.Lease/LeaseLeases", "Lease/LeaseLeases"),
    ("/etcdserverpb.Maintenance/Status", "Maintenance/Status"),
    ("/etcdserverpb.Maintenance/Alarm", "Maintenance/Alarm"),
    ("/etcdserverpb.Maintenance/Defragment", "Maintenance/Defragment"),
    ("/etcdserverpb.Maintenance/Hash", "Maintenance/Hash"),
    ("/etcdserverpb.Maintenance/HashKV", "Maintenance/HashKV"),
    ("/etcdserverpb.Maintenance/Snapshot", "Maintenance/Snapshot"),
    ("/etcdserverpb.Cluster/MemberList", "Cluster/MemberList"),
    ("/etcdserverpb.Auth/Authenticate", "Auth/Authenticate"),
    ("/v3lockpb.Lock/Lock", "Lock/Lock"),
    ("/v3lockpb.Lock/Unlock", "Lock/Unlock"),
    ("/v3electionpb.Election/Campaign", "Election/Campaign"),
    ("/v3electionpb.Election/Observe", "Election/Observe"),
    ("/grpc.health.v1.Health/Check", "Health/Check"),
    ("", "grpc"),
    ("/v2/keys", "v2/keys"),
    ("/metrics", "metrics"),
    ("", "http"),
];
const OTHER_GRPC: usize = 24;
const V2_KEYS: usize = OTHER_GRPC + 1;
const OTHER_HTTP: usize = METHODS.len() - 1;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Ok,
    /// The client is told that what it asks for cannot be.
    Refused,
    /// The server could not do it.
    Failed,
}

/// What a server is asked for, by all its clients.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    counts: [[Counter; 3]; METHODS.len()],
    /// The same as etcd counts it.
    pub(crate) handled: Arc<Handled>,
    /// Where what is held for clients is counted, once it serves.
    budget: OnceLock<Arc<Budget>>,
    /// Bytes that data may have; none where it has none of its own.
    quota: Option<usize>,
    /// A gateway has no methods of gRPC.
    is_gateway: bool,
}

/// One of the methods.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method(usize);

impl Method {
    /// That of a gRPC request.
    pub(crate) fn grpc(path: &str) -> Self {
        let known = METHODS[..OTHER_GRPC].iter().position(|(known, _)| *known == path);
        Method(known.unwrap_or(OTHER_GRPC))
    }

    /// That of a plain request.
    pub(crate) fn http(path: &str) -> Self {
        let known = METHODS[V2_KEYS..OTHER_HTTP].iter().position(|(known, _)| path.starts_with(known));
        Method(known.map_or(OTHER_HTTP, |at| V2_KEYS + at))
    }
}

impl Traffic {
    /// That of a server whose data may have so many bytes.
    pub(crate) fn of_server(quota: usize) -> Arc<Self> {
        Arc::new(Traffic { quota: Some(quota), ..Traffic::default() })
    }

    /// That of a gateway.
    pub(crate) fn of_gateway() -> Arc<Self> {
        Arc::new(Traffic { is_gateway: true, ..Traffic::default() })
    }

    /// Where what is held for clients is counted.
    pub(crate) fn holds(&self, budget: Arc<Budget>) {
        // It serves once.
        let _ = self.budget.set(budget);
    }

    /// A request was answered. Of a stream only the beginning is known by then.
    pub(crate) fn answered<B>(&self, method: Method, response: &Response<B>) {
        let outcome = match response.headers().get("grpc-status").map(http::HeaderValue::as_bytes) {
            None => match response.status() {
                status if status.is_server_error() => Outcome::Failed,
                status if status.is_client_error() => Outcome::Refused,
                _ => Outcome::Ok,
            },
            Some(b"0") => Outcome::Ok,
            // Unknown, deadline exceeded, resource exhausted, internal, unavailable and data loss.
            Some(b"2" | b"4" | b"8" | b"13" | b"14" | b"15") => Outcome::Failed,
            Some(_) => Outcome::Refused,
        };
        self.counts[method.0][outcome as usize].inc();
    }

    pub(crate) fn tell(&self, page: &mut Page) {
        let first = if self.is_gateway { V2_KEYS } else { 0 };
        let family: Family<[(&str, &str); 2], Counter> = Family::default();
        for ((_, method), counts) in METHODS[first..].iter().zip(&self.counts[first..]) {
            for (outcome, count) in ["ok", "refused", "failed"].into_iter().zip(counts) {
                family.get_or_create(&[("method", *method), ("outcome", outcome)]).inc_by(count.get());
            }
        }
        let help = "Requests that were answered; streams when they begin";
        page.registry.register("rallypoint_server_requests", help, family);
        if !self.is_gateway {
            self.handled.tell(page);
        }
        if let Some(quota) = self.quota {
            page.gauge("etcd_server_quota_backend_bytes", "Bytes that data may have", quota as u64);
        }
        let Some(budget) = self.budget.get() else { return };
        let numbers = budget.numbers();
        let gauges = [
            ("rallypoint_server_connections", "Connections that are open", numbers.connections),
            ("rallypoint_server_connections_limit", "Connections that may be open", numbers.max_connections),
            ("rallypoint_server_inflight_bytes", "What is held for clients beside the data", numbers.held),
            ("rallypoint_server_inflight_limit_bytes", "What may be held for clients", numbers.capacity),
        ];
        for (name, help, value) in gauges {
            page.gauge(name, help, value as u64);
        }
        page.counter(
            "rallypoint_server_connections_refused",
            "Connections turned away since there were too many",
            numbers.turned_away,
        );
        page.counter(
            "rallypoint_server_connections_closed_for_room",
            "Connections closed to make room for others",
            numbers.pushed_out,
        );
        page.counter(
            "rallypoint_server_inflight_refused",
            "How often a client was refused room for a request or an answer",
            numbers.refused,
        );
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn a_request_is_counted_by_its_method_and_its_outcome() {
        let traffic = Traffic::default();
        let status = |code: &str| Response::builder().header("grpc-status", code).body(()).unwrap();
        traffic.answered(Method::grpc("/etcdserverpb.KV/Range"), &Response::new(()));
        traffic.answered(Method::grpc("/etcdserverpb.KV/Range"), &status("8"));
        traffic.answered(Method::grpc("/nobody.Knows/It"), &status("12"));
        let missing = Response::builder().status(StatusCode::NOT_FOUND).body(()).unwrap();
        traffic.answered(Method::http("/v2/keys/a"), &missing);
        traffic.answered(Method::http("/version"), &Response::new(()));
        let mut page = Page::default();
        traffic.tell(&mut page);
        let text = page.text();
        for (method, outcome) in [
            ("KV/Range", "ok"),
            ("KV/Range", "failed"),
            ("grpc", "refused"),
            ("v2/keys", "refused"),
            ("http", "ok"),
        ] {
            let line =
                format!("rallypoint_server_requests_total{{method=\"{method}\",outcome=\"{outcome}\"}} 1");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let counted = text.lines().filter(|line| line.ends_with("} 1")).count();
        assert_eq!(counted, 5, "{text}");
    }
}
