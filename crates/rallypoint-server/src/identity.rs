//! Who this server says it is. Where what it holds ends with it, each start is another cluster.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::Numbering;
use crate::durable::Ids;

/// The raft term, which never changes without an election.
pub(crate) const RAFT_TERM: u64 = 1;

/// The release of etcd whose v3 behaviour this server has; clients choose features by it.
pub(crate) const ETCD_VERSION: &str = "3.5.30";

/// What a member list says about this server, and every answer of both protocols.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// The id of the cluster.
    pub(crate) cluster_id: u64,
    /// The id of the one member, which is also the leader.
    pub(crate) member_id: u64,
    /// The name of the member.
    pub(crate) name: String,
    /// URLs where clients reach it.
    pub(crate) client_urls: Vec<String>,
}

impl Identity {
    /// One that no other start has.
    pub(crate) fn new(name: String, client_urls: Vec<String>) -> Self {
        let (cluster_id, member_id) = Uuid::new_v4().as_u64_pair();
        Identity { cluster_id, member_id, name, client_urls }
    }

    /// The same as that of an earlier start.
    pub(crate) fn known(ids: Ids, name: String, client_urls: Vec<String>) -> Self {
        Identity { cluster_id: ids.cluster, member_id: ids.member, name, client_urls }
    }

    pub(crate) fn ids(&self) -> Ids {
        Ids { cluster: self.cluster_id, member: self.member_id }
    }
}

impl Numbering {
    /// The number to begin after, unless that is etcd's own.
    ///
    /// Microseconds since 1970 stay below 2^53, so that every client's numbers hold them, until the year 2255; and no
    /// server writes a million times a second, so a later start is always ahead of an earlier one.
    pub(crate) fn origin(self, now: SystemTime) -> Option<u64> {
        let since = |now: SystemTime| now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        match self {
            Numbering::FromOne => None,
            Numbering::FromClock => Some(u64::try_from(since(now).as_micros()).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_the_clock_grow_and_fit_into_a_double() {
        let origin = |seconds| Numbering::FromClock.origin(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(origin(1_800_000_000), Some(1_800_000_000_000_000));
        assert!(origin(1_800_000_001) > origin(1_800_000_000));
        assert!(origin(285 * 365 * 86_400) < Some(1 << 53));
        assert_eq!(Numbering::FromOne.origin(SystemTime::now()), None);
    }
}
