//! Numbers of the v3 half for Prometheus, under etcd's names.

use crate::identity::ETCD_VERSION;
use crate::prometheus::Page;
use crate::shared::Shared;

/// Adds them to a page.
pub(crate) fn v3(shared: &Shared, page: &mut Page) {
    let (numbers, failed) = shared.read(|state| {
        let numbers = [
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
            (
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "The same: none of it is free",
                state.weight() as u64,
            ),
            ("etcd_debugging_mvcc_watcher_total", "Total number of watchers", state.hub.len() as u64),
            (
                "etcd_debugging_mvcc_watch_stream_total",
                "Total number of watch streams",
                state.hub.stream_count() as u64,
            ),
            ("etcd_debugging_lease_total", "Total number of leases", state.leases.len() as u64),
            ("etcd_server_proposals_committed_total", "Changes that were carried out", state.applied),
            ("etcd_server_proposals_applied_total", "The same: they are carried out at once", state.applied),
            (
                "etcd_server_proposals_pending",
                "Changes that wait to be on disk",
                state.journal.as_ref().map_or(0, |journal| journal.waiting() as u64),
            ),
            ("etcd_server_is_learner", "Whether or not this member is a learner", 0),
            ("etcd_server_has_leader", "Whether or not a leader exists", 1),
            ("etcd_server_is_leader", "Whether or not this member is a leader", 1),
        ];
        (numbers, state.failed)
    });
    for (name, help, value) in numbers {
        page.gauge(name, help, value);
    }
    page.counter("etcd_server_proposals_failed", "Times that the disk had no room for changes", failed);
    page.counter("etcd_server_leader_changes_seen", "Leaders that there were: this member", 1);
    let (minor, _) = ETCD_VERSION.rsplit_once('.').expect("a version has a patch");
    let id = format!("{:x}", shared.identity.member_id);
    page.label("etcd_server_version", "The etcd whose behaviour this has", "server_version", ETCD_VERSION);
    page.label("etcd_cluster_version", "The same, without the patch", "cluster_version", minor);
    page.label("etcd_server_id", "The id of this member", "server_id", &id);
    // Whoever writes waits for one file, whichever it is. In memory there is none.
    for name in ["etcd_disk_backend_commit_duration_seconds", "etcd_disk_wal_fsync_duration_seconds"] {
        let help = "How long it took to bring changes to the disk";
        page.registry.register(name, help, shared.commits.clone());
    }
}
