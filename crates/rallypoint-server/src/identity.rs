//! Who this server says it is. Constant ids: it is always the one member of the one cluster it serves.

/// The id of the cluster in every answer of both protocols.
pub(crate) const CLUSTER_ID: u64 = 0x7261_6c6c_7970_6f69;

/// The id of the one member, which is also the leader.
pub(crate) const MEMBER_ID: u64 = 0x6e74_5f65_7463_6431;

/// The raft term, which never changes without an election.
pub(crate) const RAFT_TERM: u64 = 1;

/// The release of etcd whose v3 behaviour this server has; clients choose features by it.
pub(crate) const ETCD_VERSION: &str = "3.5.30";

/// What a member list says about this server.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// The name of the member.
    pub(crate) name: String,
    /// URLs where clients reach it.
    pub(crate) client_urls: Vec<String>,
}
