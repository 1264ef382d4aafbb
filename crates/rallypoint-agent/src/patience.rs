//! Waits on a store that are longer than a store's own.

use std::time::Duration;

use rallypoint_store::{Store, StoreError};
use tokio::time::Instant;

/// A wait without end is made of waits of this length, since a store's waits have one.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// What etcd refuses now it may take later.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits for a key, however long that takes.
pub(crate) async fn wait(store: &dyn Store, key: &[u8]) -> Result<(), StoreError> {
    loop {
        match store.wait(&[key], Some(LONG)).await {
            Err(StoreError::Timeout { .. }) => {}
            done => return done,
        }
    }
}

/// Tries again what etcd refuses, until the deadline.
pub(crate) async fn until<T>(
    deadline: Instant,
    mut operation: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    loop {
        match operation().await {
            Err(error) if error.is_refusal() && Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
            done => return done,
        }
    }
}
