//! Waits on a store that are longer than a store's own.

use std::time::Duration;

use rallypoint_core::time::bounded;
use rallypoint_store::{Store, StoreError};
use tokio::time::Instant;
use tracing::warn;

/// A wait without end is made of waits of this length, since a store's waits have one.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// What etcd refuses now it may take later.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is said that it does.
const PACE: Duration = Duration::from_secs(10);

/// Waits for a key, however long that takes.
pub(crate) async fn wait(store: &dyn Store, key: &[u8]) -> Result<(), StoreError> {
    loop {
        match store.wait(&[key], Some(LONG)).await {
            Err(StoreError::Timeout { .. }) => {}
            done => return done,
        }
    }
}

/// Tries again what etcd refuses, for so long, and says why it has to.
pub(crate) async fn until_taken<T>(
    time: Duration,
    mut operation: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let (mut since, mut said): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        let asked = Instant::now();
        let error = match operation().await {
            Err(error) if error.is_refusal() => error,
            done => return done,
        };
        // A wait that went on for long was not refused before.
        let first = since.take().filter(|_| asked.elapsed() < time).unwrap_or_else(Instant::now);
        since = Some(first);
        let left = bounded(time).saturating_sub(first.elapsed());
        if left.is_zero() {
            return Err(error);
        }
        if said.is_none_or(|said| said.elapsed() >= PACE) {
            warn!("{error}; trying again");
            said = Some(Instant::now());
        }
        tokio::time::sleep(left.min(AGAIN)).await;
    }
}
