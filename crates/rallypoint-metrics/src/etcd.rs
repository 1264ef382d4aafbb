//! What a client of etcd counts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::Labelled;

/// Requests by what they ask for. Of v2 and v3 alike; the last is for the rest.
const KINDS: [&str; 11] = [
    "get",
    "put",
    "delete",
    "txn",
    "lease_grant",
    "lease_keep_alive",
    "lease_revoke",
    "lease_time_to_live",
    "status",
    "watch",
    "other",
];

/// What a client of etcd counts.
#[derive(Debug, Clone, Default)]
pub struct Etcd(Arc<Families>);

#[derive(Debug)]
struct Families {
    requests: Labelled<Counter>,
    request_duration: Histogram,
    last_answer: Gauge<f64, AtomicU64>,
    refresh_duration: Histogram,
    refresh_failures: Counter,
    leases_lost: Counter,
    watch_cuts: Counter,
}

fn durations() -> Histogram {
    Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
}

impl Default for Families {
    fn default() -> Self {
        let outcomes = KINDS
            .iter()
            .flat_map(|kind| ["ok", "error"].map(|outcome| vec![("kind", *kind), ("outcome", outcome)]));
        Families {
            requests: Labelled::new(outcomes, Counter::default),
            request_duration: durations(),
            last_answer: Gauge::default(),
            refresh_duration: durations(),
            refresh_failures: Counter::default(),
            leases_lost: Counter::default(),
            watch_cuts: Counter::default(),
        }
    }
}

impl Etcd {
    /// A try of a request has ended after so long, well or not. `kind` is as errors name it.
    pub fn request(&self, kind: &str, ok: bool, took: Duration) {
        let kind = kind_of(kind);
        self.0.requests.get(&[kind, if ok { "ok" } else { "error" }]).inc();
        self.0.request_duration.observe(took.as_secs_f64());
    }

    /// etcd has answered something just now.
    pub fn answered(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.last_answer.set(now.as_secs_f64());
    }

    /// A lease was refreshed; its answer took so long.
    pub fn refreshed(&self, took: Duration) {
        self.0.refresh_duration.observe(took.as_secs_f64());
    }

    /// Refreshes were not answered, or refused.
    pub fn refresh_failed(&self) {
        self.0.refresh_failures.inc();
    }

    /// etcd says that a lease is gone.
    pub fn lease_lost(&self) {
        self.0.leases_lost.inc();
    }

    /// A stream of watches was cut, and what they watch is read afresh.
    pub fn watches_cut(&self) {
        self.0.watch_cuts.inc();
    }

    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let of = &*self.0;
        registry.register(
            "rallypoint_etcd_requests",
            "Requests sent to etcd, each try of one counted",
            of.requests.family(),
        );
        registry.register(
            "rallypoint_etcd_request_duration_seconds",
            "How long a try of a request to etcd took",
            of.request_duration.clone(),
        );
        registry.register(
            "rallypoint_etcd_last_answer_timestamp_seconds",
            "When etcd last answered anything; 0 before its first answer",
            of.last_answer.clone(),
        );
        registry.register(
            "rallypoint_etcd_lease_refresh_duration_seconds",
            "How long etcd took to refresh a lease",
            of.refresh_duration.clone(),
        );
        registry.register(
            "rallypoint_etcd_lease_refresh_failures",
            "Tries to refresh leases that were not answered, or refused",
            of.refresh_failures.clone(),
        );
        registry.register(
            "rallypoint_etcd_leases_lost",
            "Leases that etcd had ended before they were refreshed",
            of.leases_lost.clone(),
        );
        registry.register(
            "rallypoint_etcd_watch_cuts",
            "Streams of watches that broke, so that what they watch was read afresh",
            of.watch_cuts.clone(),
        );
    }
}

/// A label of a request that errors name like this.
fn kind_of(what: &str) -> &'static str {
    let known = KINDS.into_iter().find(|kind| *kind == what);
    known.unwrap_or(match what {
        "lease grant" => "lease_grant",
        "lease keep-alive" => "lease_keep_alive",
        "lease revoke" => "lease_revoke",
        "lease time to live" => "lease_time_to_live",
        _ => "other",
    })
}
