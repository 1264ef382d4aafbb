//! `/metrics` for Prometheus. Where etcd has a metric of the same meaning, its name is used.

use axum::response::Response;
use rallypoint_metrics::text::CONTENT_TYPE;

use super::{Site, reply};
use crate::prometheus::Page;
use crate::v2::{Action, Count, Counts, Stats};

pub(super) fn serve(site: &Site) -> Response {
    let Counts { stats, watchers, cut } = site.keys.counts();
    let mut page = Page::new();
    page.gauge("etcd_debugging_store_watchers", "Watchers of v2 that wait", watchers);
    page.counter("rallypoint_v2_watchers_cut", "Streams of v2 ended because nobody read them", cut);
    requests(&mut page, &stats);
    site.keys.metrics(&mut page);
    site.traffic.tell(&mut page);
    reply::of_type(CONTENT_TYPE, page.text())
}

fn requests(page: &mut Page, stats: &Stats) {
    let of = |action: Action| (action.name(), stats.of(action));
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
    let success = |(action, count): (&'static str, Count)| (action, count.success);
    page.counters("etcd_debugging_store_reads", "Reads of v2 keys", "action", reads.map(success));
    page.counters("etcd_debugging_store_writes", "Writes of v2 keys", "action", writes.map(success));
    let failed = reads.into_iter().chain(writes).map(|(action, count)| (action, count.fail));
    page.counters("rallypoint_v2_failed", "Requests on v2 keys that failed", "action", failed);
    let expired = stats.of(Action::Expire).success;
    page.counter("etcd_debugging_store_expires", "Nodes of v2 that ended with their TTL", expired);
    page.counter("etcd_debugging_store_watch_requests", "Watches of v2 keys asked for", stats.watches);
}
