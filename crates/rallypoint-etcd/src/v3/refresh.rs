//! The messages by which leases are refreshed.

/// What errors call it.
pub(super) const WHAT: &str = "lease keep-alive";

/// A request to refresh a lease.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Refresh {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// The answer to it. No time to live is left of a lease that is not there.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Refreshed {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}
