//! What is known of a lease.

use tokio::time::Instant;

/// What is known of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// The last refresh was answered.
    Alive,
    /// Refreshes go unanswered since then. The lease may live on: while etcd has no leader no lease ends, and
    /// a new leader gives each its full time again.
    Unsure {
        /// When the last answered refresh was sent.
        since: Instant,
        /// etcd answers, and does not let us refresh it: a permission or a password is gone.
        refused: bool,
    },
    /// etcd says that it is not there any more. Its keys are gone. This is final.
    Lost,
}
