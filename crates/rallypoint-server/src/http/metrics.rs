//! `/metrics` in Prometheus' text format. Where etcd has a metric of the same meaning, its name is used.

use std::fmt::{Display, Write as _};

use axum::response::Response;

use super::reply;
use super::service::Service;
use crate::v2::{Action, Stats};

pub(super) fn serve(service: &Service) -> Response {
    let mut text = Text::default();
    let store = service.store();
    let stats = store.stats().clone();
    text.metric("rallypoint_v2_keys", "gauge", "Files and directories of v2.", [("", store.nodes() as u64)]);
    text.metric(
        "rallypoint_v2_bytes",
        "gauge",
        "About the memory that they take.",
        [("", store.weight() as u64)],
    );
    let watchers = store.hub().count() as u64;
    text.metric("etcd_debugging_store_watchers", "gauge", "Watchers of v2 that wait.", [("", watchers)]);
    text.metric(
        "rallypoint_v2_watchers_cut_total",
        "counter",
        "Streams of v2 ended because nobody read them.",
        [("", store.hub().cut())],
    );
    // The text of v3 may take a lock of its own.
    drop(store);
    text.requests(&stats);
    reply::text(text.0 + &(service.v3.metrics)())
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn requests(&mut self, stats: &Stats) {
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
        self.metric(reads_total, "counter", "Reads of v2 keys.", reads.clone().map(|(l, n)| (l, n.success)));
        self.metric(
            writes_total,
            "counter",
            "Writes of v2 keys.",
            writes.clone().map(|(l, n)| (l, n.success)),
        );
        self.metric(
            "rallypoint_v2_failed_total",
            "counter",
            "Requests on v2 keys that failed.",
            reads.into_iter().chain(writes).map(|(l, n)| (l, n.fail)),
        );
        self.metric(
            "etcd_debugging_store_expires_total",
            "counter",
            "Nodes of v2 that ended with their TTL.",
            [("", stats.of(Action::Expire).success)],
        );
        self.metric(
            "etcd_debugging_store_watch_requests_total",
            "counter",
            "Watches of v2 keys asked for.",
            [("", stats.watches)],
        );
    }

    fn metric<L: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) {
        let out = &mut self.0;
        // Writing to a string cannot fail.
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (label, value) in values {
            let _ = writeln!(out, "{name}{label} {value}");
        }
    }
}

fn label(action: Action) -> String {
    format!("{{action=\"{}\"}}", action.name())
}
