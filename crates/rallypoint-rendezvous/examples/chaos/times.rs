//! How long things take here.

use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(2);
pub(crate) const LAST_CALL: Duration = Duration::from_secs(1);
pub(crate) const A_FEW_SECONDS: Duration = Duration::from_secs(5);
/// Nothing may happen in this time.
pub(crate) const QUIET: Duration = Duration::from_millis(2500);
/// A gap that no lease may be lost in.
pub(crate) const SHORT: Duration = Duration::from_millis(800);
/// An etcd is back, and all nodes have found one that answers: an election, and a client's patience.
pub(crate) const ECHO: Duration = Duration::from_secs(3);
