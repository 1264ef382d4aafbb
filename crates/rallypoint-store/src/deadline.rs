//! How long an operation may still take.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint_core::time::bounded;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::store::DEFAULT_TIMEOUT;

/// A store's timeout, which can be set while others use it. A clone is one of its own.
#[derive(Debug)]
pub(crate) struct Timeout(AtomicU64);

impl Default for Timeout {
    fn default() -> Self {
        Timeout::new(DEFAULT_TIMEOUT)
    }
}

impl Clone for Timeout {
    fn clone(&self) -> Self {
        Timeout::new(self.get())
    }
}

impl Timeout {
    pub(crate) fn new(timeout: Duration) -> Self {
        let new = Timeout(AtomicU64::new(0));
        new.set(timeout);
        new
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, timeout: Duration) {
        self.0.store(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The deadline of an operation that begins now and takes `timeout`, or else the store's own.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        let after = timeout.unwrap_or_else(|| self.get());
        Deadline { at: Instant::now() + bounded(after), after }
    }
}

/// When an operation gives up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    after: Duration,
}

impl Deadline {
    /// The time left to ask a server. Never so little that a key that is there is not found: a timeout says
    /// how long to wait for what is missing.
    pub(crate) fn left(self) -> Duration {
        const TO_ASK_ONCE: Duration = Duration::from_secs(2);
        self.at.saturating_duration_since(Instant::now()).max(TO_ASK_ONCE)
    }

    /// This one, or one that comes after so much time, if that is sooner.
    pub(crate) fn sooner(self, than: Duration) -> Self {
        Deadline { at: self.at.min(Instant::now() + than), ..self }
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    /// What `future` gives, unless the deadline comes first.
    pub(crate) async fn wait<F: Future>(self, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(self.at, future).await.ok()
    }

    /// The error of having waited in vain.
    pub(crate) fn missed(self, what: &'static str, keys: &[&[u8]]) -> StoreError {
        StoreError::Timeout { what, keys: keys.iter().map(|key| key.to_vec()).collect(), after: self.after }
    }
}
