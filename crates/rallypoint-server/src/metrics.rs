//! Numbers of the v3 half for Prometheus, under etcd's names.

use crate::prometheus::Page;
use crate::shared::Shared;

/// Adds them to a page.
pub(crate) fn v3(shared: &Shared, page: &mut Page) {
    let numbers = shared.read(|state| {
        [
            (
                "etcd_debugging_mvcc_current_revision",
                "The current revision of the store",
                state.store.visible().unsigned_abs(),
            ),
            (
                "etcd_debugging_mvcc_compact_revision",
                "The revision of the last compaction",
                state.store.compacted().max(0).unsigned_abs(),
            ),
            ("etcd_debugging_mvcc_keys_total", "Total number of keys", state.store.key_count() as u64),
            ("etcd_mvcc_db_total_size_in_bytes", "Total size of all data in bytes", state.weight() as u64),
            ("etcd_debugging_mvcc_watcher_total", "Total number of watchers", state.hub.len() as u64),
            (
                "etcd_debugging_mvcc_watch_stream_total",
                "Total number of watch streams",
                state.hub.stream_count() as u64,
            ),
            ("etcd_debugging_lease_total", "Total number of leases", state.leases.len() as u64),
            ("etcd_server_has_leader", "Whether or not a leader exists", 1),
            ("etcd_server_is_leader", "Whether or not this member is a leader", 1),
        ]
    });
    for (name, help, value) in numbers {
        page.gauge(name, help, value);
    }
}
