//! How quickly a node asks others while etcd is silent.

use std::time::Duration;

/// For a question and its answer.
pub(super) const ASKING: Duration = Duration::from_secs(1);

/// The time from one question to the next.
pub(super) fn pace(lease: Duration) -> Duration {
    (lease / 5).clamp(Duration::from_millis(200), Duration::from_secs(1))
}
