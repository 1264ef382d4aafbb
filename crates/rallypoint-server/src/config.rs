//! What a server can be told, and the defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::Token;

/// How to serve. The default is etcd's, on the loopback address alone.
///
/// ```
/// use rallypoint_server::Config;
///
/// let mut config = Config::on("127.0.0.1:0".parse()?);
/// config.max_txn_ops = 1024;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen. Port 0 takes a free one. Anything but a loopback address lets other machines in.
    pub listen: SocketAddr,
    /// The folder to keep all data in. Without one it ends with the server.
    pub data_dir: Option<PathBuf>,
    /// The name of the one member.
    pub name: String,
    /// URLs that clients are told to use; by default the address it listens on.
    pub advertise: Vec<String>,
    /// TLS, if clients are to use it.
    pub tls: Option<Tls>,
    /// What clients show to be let in: as the password of the user `root`, who may do everything. In a folder that becomes
    /// root's password, and is asked for from then on.
    pub token: Option<Token>,
    /// Bytes of one request that writes.
    pub max_request_bytes: usize,
    /// Operations in a transaction.
    pub max_txn_ops: usize,
    /// Roughly the bytes of all v3 keys, leases and watches. Over it nothing is added; deletes still work.
    pub quota_bytes: usize,
    /// Roughly the bytes held for all clients, beside the data: requests that have not come in whole, answers until they
    /// have left, watches. Whoever holds the most makes room for the others. Each connection over 8,192 takes 32 KiB of it, down to
    /// half.
    pub inflight_bytes: usize,
    /// Connections at a time, if the limit of open files allows for it. Then the one that was idle for the longest makes
    /// room.
    pub max_connections: usize,
    /// Past changes of v3 keys that are kept for reads and watches of the past.
    pub history_changes: usize,
    /// Roughly the bytes of those.
    pub history_bytes: usize,
    /// Where the revisions of v3 and the indices of v2 begin. In a folder with data they go on.
    pub numbering: Numbering,
    /// How long a token that a client got for its password lives after it was shown last.
    pub auth_token_ttl: Duration,
    /// How long a connection may take until its first byte, and for a TLS handshake.
    pub handshake_timeout: Duration,
    /// How long the first request of a connection may take to come, and the body of each.
    pub request_timeout: Duration,
    /// How often an idle watch that asked for it hears that it missed nothing.
    pub progress_interval: Duration,
    /// How long open requests may go on after the server was told to stop.
    pub stop_timeout: Duration,
}

/// Where the revisions of v3 and the indices of v2 begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Numbering {
    /// At the time of day, and all before counts as compacted. What was stored ends with a server; clients of an earlier
    /// one find their revisions in the past, and not taken by something else.
    #[default]
    FromClock,
    /// Where those of a fresh etcd begin, to be compared with one.
    FromOne,
}

/// The certificates of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Tls {
    /// PEM file of the server's certificate, and those between it and the authority.
    pub cert_file: PathBuf,
    /// PEM file of its private key.
    pub key_file: PathBuf,
    /// PEM file of the authorities whose clients may connect; without it any client may.
    pub client_ca_file: Option<PathBuf>,
}

impl Tls {
    /// A certificate and its key; any client may connect.
    #[must_use]
    pub fn new(cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        Tls { cert_file: cert_file.into(), key_file: key_file.into(), client_ca_file: None }
    }

    /// What speaks TLS with these files, for servers of other things.
    pub fn acceptor(&self) -> Result<tokio_rustls::TlsAcceptor, crate::ServerError> {
        crate::tls::acceptor(self)
    }
}

impl Config {
    /// The default, at this address.
    #[must_use]
    pub fn on(listen: SocketAddr) -> Self {
        Config { listen, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 2379)),
            data_dir: None,
            name: "default".to_owned(),
            advertise: Vec::new(),
            tls: None,
            token: None,
            max_request_bytes: 3 << 19,
            max_txn_ops: 128,
            quota_bytes: 2 << 30,
            inflight_bytes: 256 << 20,
            max_connections: 12_288,
            history_changes: 1 << 16,
            history_bytes: 64 << 20,
            numbering: Numbering::FromClock,
            auth_token_ttl: Duration::from_secs(300),
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            progress_interval: Duration::from_secs(10 * 60),
            stop_timeout: Duration::from_secs(1),
        }
    }
}
