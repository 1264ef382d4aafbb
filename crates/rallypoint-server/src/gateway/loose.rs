//! Leases of what was taken away with a directory: nothing hangs on them any more, and each would stay until its time is
//! up. Who takes the directory away ends them, when the watch of all keys tells which they are.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rallypoint_etcd::v3::Client;

/// Writes of this gateway that may leave leases behind, by the name of the request.
#[derive(Debug, Default)]
pub(super) struct LooseLeases(Mutex<HashSet<String>>);

/// More are forgotten: their leases end by themselves.
const WRITES: usize = 4096;

impl LooseLeases {
    fn writes(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a directory is taken away.
    pub(super) fn expect(&self, id: &str) {
        let mut writes = self.writes();
        if writes.len() >= WRITES {
            writes.clear();
        }
        writes.insert(id.to_owned());
    }

    /// It was not carried out.
    pub(super) fn forget(&self, id: &str) {
        self.writes().remove(id);
    }

    /// A write was carried out, and these leases hung on what it took away. Another gateway's are that one's affair.
    pub(super) fn end(&self, client: &Client, id: &str, leases: Vec<i64>) {
        if !self.writes().remove(id) || leases.is_empty() {
            return;
        }
        let client = client.clone();
        tokio::spawn(async move {
            for lease in leases {
                // If that fails, it ends by itself.
                let _ = client.lease_revoke(lease).await;
            }
        });
    }
}
