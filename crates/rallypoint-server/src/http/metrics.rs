//! `/metrics` in Prometheus' text format. Where etcd has a metric of the same meaning, its name is used.

use axum::response::Response;

use super::{Site, reply};
use crate::prometheus::metric;
use crate::v2::{Action, Counts, Stats};

pub(super) fn serve(site: &Site) -> Response {
    let Counts { stats, watchers, cut } = site.keys.counts();
    let mut text = String::new();
    metric(
        &mut text,
        "etcd_debugging_store_watchers",
        "gauge",
        "Watchers of v2 that wait.",
        [("", watchers)],
    );
    metric(
        &mut text,
        "rallypoint_v2_watchers_cut_total",
        "counter",
        "Streams of v2 ended because nobody read them.",
        [("", cut)],
    );
    requests(&mut text, &stats);
    reply::text(text + &site.keys.metrics())
}

fn requests(text: &mut String, stats: &Stats) {
    let of = |action: Action| (label(action), stats.of(action));
    let reads = [of(Action::Get)];
    let writes = [
        Action::Set,
        Action::Create,
        Action::Update,
        Action::CompareAndSwap,
        Action::Delete,
        Action::CompareAndDelete,
    ]
    .map(of);
    let (reads_total, writes_total) =
        ("etcd_debugging_store_reads_total", "etcd_debugging_store_writes_total");
    metric(text, reads_total, "counter", "Reads of v2 keys.", reads.clone().map(|(l, n)| (l, n.success)));
    metric(text, writes_total, "counter", "Writes of v2 keys.", writes.clone().map(|(l, n)| (l, n.success)));
    metric(
        text,
        "rallypoint_v2_failed_total",
        "counter",
        "Requests on v2 keys that failed.",
        reads.into_iter().chain(writes).map(|(l, n)| (l, n.fail)),
    );
    metric(
        text,
        "etcd_debugging_store_expires_total",
        "counter",
        "Nodes of v2 that ended with their TTL.",
        [("", stats.of(Action::Expire).success)],
    );
    metric(
        text,
        "etcd_debugging_store_watch_requests_total",
        "counter",
        "Watches of v2 keys asked for.",
        [("", stats.watches)],
    );
}

fn label(action: Action) -> String {
    format!("{{action=\"{}\"}}", action.name())
}
