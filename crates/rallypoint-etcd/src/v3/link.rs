//! A connection to one endpoint, as it is before anything was sent on it.

use tonic::transport::Channel;

/// A bare connection, on which no token is shown.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) index: usize,
    pub(super) url: String,
    pub(super) channel: Channel,
}
