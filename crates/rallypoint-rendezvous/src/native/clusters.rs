//! Whether the endpoints that a node was given are of one cluster: looked at once, beside everything else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rallypoint_etcd::v3::{Client, TwoClusters};
use tracing::warn;

/// How long an endpoint has to answer.
const TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Clusters {
    look: OnceLock<Arc<OnceLock<TwoClusters>>>,
}

impl Clusters {
    /// Looks, unless that was done. Says what it finds.
    pub(super) fn look(&self, client: &Client) {
        self.look.get_or_init(|| {
            let (found, client) = (Arc::new(OnceLock::new()), client.clone());
            let find = Arc::clone(&found);
            tokio::spawn(async move {
                if let Some(two) = client.two_clusters(TIME).await {
                    warn!("{two}");
                    let _ = find.set(two);
                }
            });
            found
        });
    }

    /// The endpoints that are of two clusters, if that was found.
    pub(super) fn found(&self) -> Option<&TwoClusters> {
        self.look.get()?.get()
    }
}
