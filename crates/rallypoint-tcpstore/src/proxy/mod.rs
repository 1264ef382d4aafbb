//! A node's proxy: its clients come to a port of loopback, and all of them share one connection to the server.
//!
//! It passes bytes on and reads none of them, so a message means what it means on the server. `client` is one of
//! them, `table` what is known of all, and `upstream` the connection that they share.

mod client;
#[cfg(test)]
mod fuzz;
mod table;
mod upstream;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use self::table::Table;
use crate::{Secret, StoreTls};

/// Clients at a time: a worker has a few connections, and this is for who has lost count. More wait to be accepted.
const MOST_CLIENTS: usize = 4096;
/// How long it waits when no connection can be accepted, which is mostly for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the server is, and how it lets a proxy in.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The host of the server, as it is called in its certificate.
    pub host: String,
    /// Its port for agents.
    pub port: u16,
    /// What the members of the round know.
    pub secret: Secret,
    /// With it, TLS is spoken.
    pub tls: Option<StoreTls>,
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why there is no proxy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// Nobody answers at the server's address, or somebody else.
    #[error("cannot reach the workers' store at {place}: {why}")]
    Unreachable {
        /// HOST:PORT of the server.
        place: String,
        /// What came of it.
        why: String,
    },
    /// The server answers, and does not let this node in.
    #[error("the workers' store at {place} does not let this node in: {why}")]
    TurnedAway {
        /// HOST:PORT of the server.
        place: String,
        /// Why not.
        why: String,
    },
    /// There is no port for this node's clients.
    #[error("no port on 127.0.0.1 for the workers' store")]
    Port(#[source] io::Error),
}

/// A node's proxy. Dropped, it is gone, with its port and all its connections.
#[derive(Debug)]
pub struct StoreProxy {
    address: SocketAddr,
    lost: watch::Receiver<Option<String>>,
    serving: AbortHandle,
}

impl Drop for StoreProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl StoreProxy {
    /// Connects to the server, and listens at a free port of loopback. A server that does not answer is tried again for
    /// so long.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached in that time or does not let this node in, or if there is no port.
    pub async fn connect(upstream: &Upstream, patience: Duration) -> Result<Self, ProxyError> {
        let trunk = upstream::connect(upstream, patience).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(ProxyError::Port)?;
        let address = listener.local_addr().map_err(ProxyError::Port)?;
        let (lost_sender, lost) = watch::channel(None);
        let place = upstream.to_string();
        let serving = tokio::spawn(async move {
            let (table, frames) = Table::new();
            let (gone, ends) = watch::channel(false);
            let mut clients = JoinSet::new();
            let error = tokio::select! {
                error = upstream::carry(trunk, &table, frames) => error,
                never = accept(&listener, &table, &ends, &mut clients) => match never {},
            };
            drop(listener);
            while clients.try_join_next().is_some() {}
            let words = format!("the connection to the workers' store at {place} is lost: {error}");
            match clients.len() {
                0 => tracing::debug!("{words}"),
                open => tracing::warn!(
                    "{words}; the connections of this node's workers to it are closed ({open})"
                ),
            }
            lost_sender.send_replace(Some(words));
            gone.send_replace(true);
            while clients.join_next().await.is_some() {}
        });
        Ok(StoreProxy { address, lost, serving: serving.abort_handle() })
    }

    /// Where this node's clients find the store.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What became of the connection to the server, if it is lost: in words that name it.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lost.borrow().clone()
    }
}

/// Takes clients in, for as long as it is waited for.
async fn accept(
    listener: &TcpListener,
    table: &Arc<Table>,
    ends: &watch::Receiver<bool>,
    clients: &mut JoinSet<()>,
) -> std::convert::Infallible {
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MOST_CLIENTS => match accepted {
                Ok((socket, _)) => {
                    // Here and not in the client's task, so that streams are opened in the order of their numbers.
                    if let Some(stream) = table.open().await {
                        clients.spawn(client::serve(socket, stream, ends.clone()));
                    }
                }
                Err(error) => {
                    tracing::debug!("a client of the workers' store cannot be accepted: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}
