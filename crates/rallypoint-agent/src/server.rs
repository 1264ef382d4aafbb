//! The node that runs the server which the nodes have met on: when it dies, the others can say so.

use std::fmt;
use std::time::Duration;

use rallypoint_core::text::plain;
use rallypoint_store::Store;
use serde::{Deserialize, Serialize};
use tracing::debug;

/// Where the run has it.
const SERVER: &[u8] = b"server";
/// Why a run is closed by the node with the server; its name comes before.
pub const SERVER_ENDED: &str = "ended, and with it the server that the nodes had met on";
/// It is for words alone, and nobody waits for long.
const PATIENCE: Duration = Duration::from_secs(5);

/// The node that runs the server which the nodes have met on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerNode {
    /// Its place in the round.
    pub node: usize,
    /// Its name.
    pub host: String,
    /// The machine it is on, by which it can be excluded; none where an earlier version says it.
    #[serde(default)]
    pub machine: Option<String>,
}

impl fmt::Display for ServerNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} ({})", self.node, plain(&self.host))
    }
}

/// Says that the server is on this node. To be called before the others can know that it is in the round.
pub(crate) async fn tell(store: &dyn Store, server: &ServerNode) {
    let text = serde_json::to_vec(server).unwrap_or_default();
    let told = tokio::time::timeout(PATIENCE, store.set(SERVER, &text)).await;
    debug!(?told, "the others were told of the server");
}

/// Which node has the server, if one has it: of what all rounds of a run share.
pub async fn server_node(store: &dyn Store) -> Option<ServerNode> {
    let look = async {
        match store.check(&[SERVER]).await.unwrap_or(false) {
            true => store.get(SERVER).await.ok(),
            false => None,
        }
    };
    let told = tokio::time::timeout(PATIENCE, look).await.ok().flatten();
    told.and_then(|text| serde_json::from_slice(&text).ok())
}
