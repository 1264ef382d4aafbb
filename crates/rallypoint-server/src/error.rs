//! Why a server cannot start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// Why a server cannot start or go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Something else listens there already.
    #[error("cannot listen on {address}: the address is in use; stop what listens there, or choose another")]
    AddressInUse {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// The address cannot be listened on, by this user or at all.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A file of certificates or keys cannot be read.
    #[error("cannot read the {what} in {}", path.display())]
    TlsFile {
        /// What was to be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The files can be read, but not used together.
    #[error("the certificate in {} cannot be used", path.display())]
    Tls {
        /// The file of the server's certificate.
        path: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is in the folder for the data is not for this server.
    #[error("{} {problem}", path.display())]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// Why not, and what to do.
        problem: String,
    },
    /// The folder for the data cannot be read or written.
    #[error("cannot keep data in {}", path.display())]
    DataDirIo {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cluster behind a gateway cannot be used.
    #[error("cannot serve what is in the etcd")]
    Etcd {
        /// What the etcd said, or what is wrong with how it is to be reached.
        source: rallypoint_etcd::Error,
    },
    /// The token cannot be hashed.
    #[error("cannot make the hash of the token")]
    Token {
        /// What the system said.
        source: io::Error,
    },
    /// There is no thread for what writes to the disk.
    #[error("cannot start a thread")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
    /// The task that serves ended by a panic, or the runtime was shut down under it.
    #[error("the server ended before it was told to")]
    Ended {
        /// What tokio said.
        source: tokio::task::JoinError,
    },
}
