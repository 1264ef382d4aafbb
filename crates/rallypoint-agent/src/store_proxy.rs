//! How this node's workers get to the store that they meet at, where each node has a proxy: to their own agent, which has one
//! connection to the agent with rank 0.

use std::net::SocketAddr;
use std::time::Duration;

use rallypoint_rendezvous::Master;
use rallypoint_tcpstore::{ProxyError, StoreProxy, Upstream};
use thiserror::Error;
use tracing::warn;

use crate::serving::{Invitation, Serving};
use crate::worker_store::WorkerStore;

/// Why workers of this node do not get to their store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreProxyError {
    /// The agent with rank 0 does not answer, or does not let this node in.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// It wants TLS, for which this node has nothing.
    #[error(
        "the workers' store at {place} wants TLS, and this node has no certificate for it: give --store-cacert, --store-cert and --store-key to all nodes"
    )]
    NoCertificate {
        /// HOST:PORT of the store.
        place: String,
    },
    /// This node wants TLS, and the other does not speak it.
    #[error(
        "this node wants TLS for the workers' store (--store-cert), and the node with rank 0 serves it without at {place}: give the same options to all nodes"
    )]
    NoTls {
        /// HOST:PORT of the store.
        place: String,
    },
}

impl Serving {
    /// Connects this node's workers with the store, where that is done by a proxy. None: they find it at `master`. An
    /// agent that does not answer is tried again for so long.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, does not let this node in, or if one of both wants TLS and the other does not.
    pub async fn proxy(
        self,
        choice: &WorkerStore,
        master: &Master,
        patience: Duration,
    ) -> Result<Option<StoreProxy>, StoreProxyError> {
        let tls = if let WorkerStore::Proxies(tls) = choice { tls.clone() } else { None };
        let upstream =
            |secret, tls| Upstream { host: master.address.clone(), port: master.port, secret, tls };
        match (self, tls) {
            (Serving::Proxies(Invitation { secret, tls: false }), None) => {
                Ok(Some(StoreProxy::connect(&upstream(secret, None), patience).await?))
            }
            (Serving::Proxies(Invitation { secret, tls: true }), tls @ Some(_)) => {
                Ok(Some(StoreProxy::connect(&upstream(secret, tls), patience).await?))
            }
            (Serving::Proxies(_), None) => Err(StoreProxyError::NoCertificate { place: place(master) }),
            // What would be said in the clear is not said at all.
            (_, Some(_)) => Err(StoreProxyError::NoTls { place: place(master) }),
            (Serving::Agent | Serving::Rank0, None) => {
                if matches!(choice, WorkerStore::Proxies(_)) {
                    warn!(
                        "the node with rank 0 has no --worker-store proxy: workers of this node connect to {}",
                        place(master)
                    );
                }
                Ok(None)
            }
        }
    }
}

fn place(master: &Master) -> String {
    rallypoint_core::endpoint::host_and_port(&master.address, master.port)
}

/// Where the workers of this node find the store that they meet at.
#[derive(Debug)]
pub(crate) enum Entrance {
    /// Where those of all nodes do.
    Master,
    /// At a port of this node, whose agent serves the store.
    Own(SocketAddr),
    /// At a port of this node's proxy.
    Proxy(StoreProxy),
}

impl Entrance {
    /// As the workers are told it.
    pub(crate) fn place(&self, master: &Master) -> (String, u16) {
        match self {
            Entrance::Master => (master.address.clone(), master.port),
            Entrance::Own(address) => (address.ip().to_string(), address.port()),
            Entrance::Proxy(proxy) => (proxy.local_addr().ip().to_string(), proxy.local_addr().port()),
        }
    }

    /// What may be behind a failure of a worker: that the connection to the store is lost.
    pub(crate) fn hint(&self) -> Option<String> {
        if let Entrance::Proxy(proxy) = self { proxy.lost() } else { None }
    }
}
