//! Requests that cannot be carried out, in etcd's own words: clients match on them.

use thiserror::Error;

use crate::admission::Full;
use crate::auth::AuthError;

/// Why a request to the store, the leases or the watches was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Error {
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: value is provided")]
    ValueProvided,
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// gRPC's own words for it.
    #[error("grpc: trying to send message larger than max")]
    AnswerTooLarge,
    /// Where etcd has no limit, this server has one: what it holds for clients must not grow without bound.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// Who asks may not, or asks something of users and roles that cannot be.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

impl From<Full> for Error {
    fn from(_: Full) -> Self {
        Error::TooManyRequests
    }
}
