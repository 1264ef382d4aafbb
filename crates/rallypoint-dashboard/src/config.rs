//! What a dashboard can be told, and the defaults.

use std::fmt;
use std::net::SocketAddr;

use rallypoint_server::Tls;

/// A token with fewer characters could be guessed.
pub const SHORTEST_TOKEN: usize = 16;

/// How to serve. By default on the loopback address alone, and nobody may close a run.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen. Port 0 takes a free one. Anything but a loopback address lets other machines in.
    pub listen: SocketAddr,
    /// TLS, if browsers are to use it.
    pub tls: Option<Tls>,
    /// Who has it may close runs. Without one nobody may.
    pub token: Option<String>,
    /// Names that browsers may know it by, beside localhost and its addresses.
    pub allowed_hosts: Vec<String>,
    /// Pages that may be open at a time.
    pub max_viewers: usize,
    /// Connections at a time.
    pub max_connections: usize,
}

impl Config {
    /// The default, at this address.
    #[must_use]
    pub fn on(listen: SocketAddr) -> Self {
        let (max_viewers, max_connections) = (256, 1024);
        Config { listen, tls: None, token: None, allowed_hosts: Vec::new(), max_viewers, max_connections }
    }
}

impl fmt::Debug for Config {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("listen", &self.listen)
            .field("has_token", &self.token.is_some())
            .field("allowed_hosts", &self.allowed_hosts)
            .finish_non_exhaustive()
    }
}
