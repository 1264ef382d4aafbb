//! When etcd is silent for a node, and how quickly it asks others then.

use std::time::Duration;

use rallypoint_rendezvous::Contact;
use tokio::time::Instant;

/// For a question and its answer.
pub(super) const ASKING: Duration = Duration::from_secs(1);

/// A lease is refreshed several times within its time: if it was not for this part of it, something is wrong.
pub(super) fn silent_at(contact: &Contact) -> Instant {
    contact.at + contact.lease.mul_f64(0.6)
}

pub(super) fn is_silent(contact: &Contact) -> bool {
    silent_at(contact) <= Instant::now()
}

/// The time from one question to the next.
pub(super) fn pace(lease: Duration) -> Duration {
    (lease / 5).clamp(Duration::from_millis(200), Duration::from_secs(1))
}
