//! Who serves the store that workers meet at, and how they get there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum as _;
use rallypoint_agent::{StoreTls, WorkerStore};

use crate::cli::connection::check_file;
use crate::cli::exit::Problem;

/// Who serves the workers' store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreServer {
    /// This launcher: the store is there before the first worker, empty in every round, and outlives rank 0.
    Agent,
    /// The same, and workers connect to the launcher of their own node, at 127.0.0.1. Each has one connection to the node with
    /// rank 0, which lets in nobody but the nodes of the round.
    Proxy,
    /// The worker with rank 0.
    Rank0,
}

/// torchrun's switch for the same: with 1, its workers do not meet at its own store.
const NOT_SHARED: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// Certificates for the connections from node to node.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Workers")]
pub(crate) struct StoreFiles {
    /// With --worker-store proxy: PEM file of the authority that signed the nodes' certificates. With it the nodes speak TLS for
    /// their workers, and each shows its certificate.
    #[arg(long, env = "RALLYPOINT_STORE_CACERT", value_name = "FILE", requires_all = ["store_cert", "store_key"])]
    pub(crate) store_cacert: Option<PathBuf>,
    /// PEM file of this node's certificate, for the address by which the others reach it, as a server and as a client.
    #[arg(long, env = "RALLYPOINT_STORE_CERT", value_name = "FILE", requires_all = ["store_cacert", "store_key"])]
    pub(crate) store_cert: Option<PathBuf>,
    /// PEM file of that certificate's key.
    #[arg(long, env = "RALLYPOINT_STORE_KEY", value_name = "FILE", requires_all = ["store_cacert", "store_cert"])]
    pub(crate) store_key: Option<PathBuf>,
}

impl StoreFiles {
    /// What stands in `--rdzv-conf`, where the plugin of torchrun has it. A flag comes before.
    pub(crate) fn take(&mut self, config: &mut BTreeMap<String, String>) {
        for (name, file) in [
            ("store_cacert", &mut self.store_cacert),
            ("store_cert", &mut self.store_cert),
            ("store_key", &mut self.store_key),
        ] {
            if let Some(path) = config.remove(name) {
                file.get_or_insert(path.into());
            }
        }
    }

    fn load(&self) -> Result<Option<StoreTls>, Problem> {
        let (ca, cert, key) = match (&self.store_cacert, &self.store_cert, &self.store_key) {
            (None, None, None) => return Ok(None),
            (Some(ca), Some(cert), Some(key)) => (ca, cert, key),
            _ => {
                return Err(Problem::usage(
                    "TLS for the workers' store needs all three: --store-cacert, --store-cert and --store-key",
                ));
            }
        };
        for (flag, file) in [("--store-cacert", ca), ("--store-cert", cert), ("--store-key", key)] {
            check_file(flag, file)?;
        }
        let tls = StoreTls::load(ca, cert, key);
        tls.map(Some).map_err(|error| Problem::usage(format!("TLS for the workers' store: {error}")))
    }
}

impl StoreServer {
    /// By its name in `--rdzv-conf`.
    pub(crate) fn named(name: &str) -> Result<Self, Problem> {
        StoreServer::from_str(name, false).map_err(|_| {
            Problem::usage(format!("--rdzv-conf worker_store={name} is none of agent, proxy and rank0"))
        })
    }

    pub(crate) fn choose(given: Option<Self>, files: &StoreFiles) -> Result<WorkerStore, Problem> {
        let tls = files.load()?;
        let given = given.unwrap_or_else(|| {
            let own = std::env::var(NOT_SHARED).is_ok_and(|value| value == "1");
            if own { StoreServer::Rank0 } else { StoreServer::Agent }
        });
        match (given, tls) {
            (StoreServer::Proxy, tls) => Ok(WorkerStore::Proxies(tls)),
            (StoreServer::Agent, None) => Ok(WorkerStore::Agent),
            (StoreServer::Rank0, None) => Ok(WorkerStore::Rank0),
            // Workers speak no TLS themselves.
            (StoreServer::Agent | StoreServer::Rank0, Some(_)) => {
                Err(Problem::usage("--store-cert is for --worker-store proxy: give that too"))
            }
        }
    }
}
