//! How the parts of a server hear that it stops.

use tokio::sync::watch;

/// Until the server is told to stop, or is gone.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
