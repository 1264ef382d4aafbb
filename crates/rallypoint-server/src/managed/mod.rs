//! A server for one machine, started and stopped by the program that needs it: a real etcd as a child process
//! where there is one, the embedded server where there is none. Both have the same face.

mod child;
mod find;
mod port;

use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::{v2, v3};
use thiserror::Error;
use tracing::warn;

use self::child::Child;
pub use self::find::BINARY_VARIABLE;
use crate::{Config, Server, ServerError};

/// What to start.
///
/// ```
/// use rallypoint_server::EtcdServerOptions;
///
/// let mut options = EtcdServerOptions::default();
/// options.data_dir = Some("/scratch/etcd".into());
/// assert_eq!(options.tries, 3);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EtcdServerOptions {
    /// Where the data is kept. It stays there, and a later start goes on from it; without one, it is in a temporary folder that is
    /// removed, or in memory where there is no etcd.
    pub data_dir: Option<PathBuf>,
    /// How long each try may take.
    pub timeout: Duration,
    /// How often it is tried.
    pub tries: u32,
    /// The etcd to start. Without one it is looked for; see [`EtcdServer::start`].
    pub binary: Option<PathBuf>,
}

impl Default for EtcdServerOptions {
    fn default() -> Self {
        EtcdServerOptions { data_dir: None, timeout: Duration::from_secs(60), tries: 3, binary: None }
    }
}

/// Why no server could be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EtcdServerError {
    /// The folder for the data cannot be made.
    #[error("cannot make the data folder {}", path.display())]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run {}", binary.display())]
    Run {
        /// The program.
        binary: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It ended instead of serving.
    #[error("{} ended with {status} before it was ready. Its log ends with:\n{log}", binary.display())]
    Ended {
        /// The program.
        binary: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// It did not answer in time.
    #[error("{} did not answer within {:.0} s. Its log ends with:\n{log}", binary.display(), after.as_secs_f64())]
    Timeout {
        /// The program.
        binary: PathBuf,
        /// How long it was waited for.
        after: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// The embedded server cannot start.
    #[error(transparent)]
    Embedded(#[from] ServerError),
}

/// A server of etcd's protocols on a free port of this machine's loopback address.
///
/// It ends when it is stopped, when it is dropped, and with the process that started it, however that one ends;
/// what it made on disk goes with it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_server::{EtcdServer, EtcdServerOptions};
///
/// let server = EtcdServer::start(EtcdServerOptions::default()).await?;
/// let client = server.client().await?;
/// client.put("greeting", "hello", None).await?;
/// server.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EtcdServer {
    running: Running,
    port: u16,
}

#[derive(Debug)]
enum Running {
    Child(Child),
    Embedded(Server),
}

impl EtcdServer {
    /// Starts a server and waits until it answers.
    ///
    /// The etcd is the one that `TORCHELASTIC_ETCD_BINARY_PATH` names, or else `bin/etcd` beside this program,
    /// or else the first on `PATH`. Where there is none, the embedded server is started.
    pub async fn start(options: EtcdServerOptions) -> Result<EtcdServer, EtcdServerError> {
        match options.binary.clone().or_else(find::etcd) {
            Some(binary) => EtcdServer::start_child(binary, &options).await,
            None => EtcdServer::start_own(options.data_dir),
        }
    }

    /// Starts the embedded server, whether there is an etcd or not, with its data in memory.
    pub fn start_embedded() -> Result<EtcdServer, EtcdServerError> {
        EtcdServer::start_own(None)
    }

    fn start_own(data_dir: Option<PathBuf>) -> Result<EtcdServer, EtcdServerError> {
        let any_port = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let mut config = Config::on(any_port);
        config.data_dir = data_dir;
        let server = Server::bind(config)?;
        let port = server.address().port();
        Ok(EtcdServer { running: Running::Embedded(server), port })
    }

    async fn start_child(
        binary: PathBuf,
        options: &EtcdServerOptions,
    ) -> Result<EtcdServer, EtcdServerError> {
        let mut attempt = 1;
        loop {
            match Child::start(&binary, options.data_dir.as_deref(), options.timeout).await {
                Ok(child) => return Ok(EtcdServer { port: child.port(), running: Running::Child(child) }),
                Err(error) if attempt < options.tries => {
                    warn!(%error, attempt, "etcd did not start; trying again");
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn host(&self) -> &'static str {
        "127.0.0.1"
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, as clients want it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.host(), self.port)
    }

    /// Whether it is the embedded server.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        matches!(self.running, Running::Embedded(_))
    }

    fn settings(&self) -> EtcdSettings {
        EtcdSettings::new(&self.endpoint()).expect("a loopback address and a port are an endpoint")
    }

    /// A client of its v3 API.
    pub async fn client(&self) -> rallypoint_etcd::Result<v3::Client> {
        v3::Client::connect(self.settings()).await
    }

    /// A client of its v2 API.
    pub async fn client_v2(&self) -> rallypoint_etcd::Result<v2::Client> {
        v2::Client::connect(self.settings()).await
    }

    /// Stops it and waits until it is gone, and the folder that it made with it.
    pub async fn stop(self) {
        match self.running {
            Running::Child(child) => child.stop().await,
            Running::Embedded(server) => {
                if let Err(error) = server.stop().await {
                    warn!(%error, "the embedded server did not stop in good order");
                }
            }
        }
    }
}
