//! What the parameters say, and what they say wrong.

use std::path::PathBuf;
use std::time::Duration;

use rallypoint_core::barrier::{DEFAULT_LAST_CALL, DEFAULT_PREFIX, DEFAULT_TIMEOUT, Settings};
use rallypoint_core::{EtcdSettings, TlsSettings};
use rallypoint_metrics::Metrics;

use uuid::Uuid;

use crate::observe;
use crate::parameters::{ParameterError, RendezvousParameters};

/// The options by name.
const OPTIONS: [&str; 9] = [
    "join_timeout",
    "timeout",
    "last_call_timeout",
    "etcd_prefix",
    "protocol",
    "cacert",
    "cert",
    "key",
    observe::LISTEN,
];

/// Everything that the barrier is told.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) etcd: EtcdSettings,
    pub(super) run_id: String,
    pub(super) local_addr: Option<String>,
    /// How long `next_rendezvous` may take.
    pub(super) timeout: Duration,
    pub(super) machine: Settings,
    pub(super) metrics: Metrics,
}

impl Config {
    pub(super) fn new(parameters: &RendezvousParameters) -> Result<Self, ParameterError> {
        parameters.check_names(&OPTIONS)?;
        observe::listen_address(parameters)?;
        let tls = match parameters.get("protocol") {
            None | Some("http") => None,
            Some("https") => Some(tls(parameters, "cacert", "cert", "key")),
            Some(_) => return Err(ParameterError("The etcd protocol must be HTTP or HTTPS.".to_owned())),
        };
        let seconds = |key: &str, default| {
            let seconds = parameters.get_as_int(key)?;
            Ok(seconds.map_or(default, |seconds| Duration::from_secs(seconds.try_into().unwrap_or(0))))
        };
        let timeout = match parameters.seconds("join_timeout")? {
            Some(timeout) => timeout,
            None => seconds("timeout", DEFAULT_TIMEOUT)?,
        };
        let prefix = parameters.get("etcd_prefix").unwrap_or(DEFAULT_PREFIX);
        let slash = if prefix.ends_with('/') { "" } else { "/" };
        let mut etcd = etcd_settings(parameters)?;
        etcd.tls = tls;
        Ok(Config {
            etcd,
            run_id: parameters.run_id.clone(),
            local_addr: parameters.address()?,
            timeout,
            metrics: parameters.metrics.clone().unwrap_or_default(),
            machine: Settings {
                node: Uuid::new_v4().simple().to_string(),
                min: parameters.min_nodes,
                max: parameters.max_nodes,
                last_call: seconds("last_call_timeout", DEFAULT_LAST_CALL)?,
                root: format!("{prefix}{slash}run_{}", parameters.run_id),
            },
        })
    }
}

/// The defaults, for the servers that the parameters name.
pub(crate) fn etcd_settings(parameters: &RendezvousParameters) -> Result<EtcdSettings, ParameterError> {
    let endpoints = parameters.endpoints()?;
    EtcdSettings::new(&endpoints.to_string()).map_err(|error| ParameterError(error.to_string()))
}

/// The files that the parameters of these names name. A certificate without a key is a file that has both.
pub(crate) fn tls(parameters: &RendezvousParameters, ca: &str, cert: &str, key: &str) -> TlsSettings {
    let file = |name| parameters.get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut tls = TlsSettings::default();
    (tls.ca, tls.cert) = (file(ca), file(cert));
    tls.key = if tls.cert.is_some() { file(key).or_else(|| tls.cert.clone()) } else { None };
    tls
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config, ParameterError> {
        let mut parameters = RendezvousParameters::new("etcd", "a,b", "job", 2, 4)?;
        parameters.config.extend(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        Config::new(&parameters)
    }

    #[test]
    fn the_defaults_are_pytorchs() {
        let Config { machine, etcd, timeout, .. } = config(&[]).unwrap();
        assert_eq!((timeout.as_secs(), machine.last_call.as_secs()), (600, 30));
        assert_eq!(machine.root, "/torchelastic/p2p/run_job");
        assert!(etcd.tls.is_none());
        assert_eq!(etcd.urls(), ["http://a:2379", "http://b:2379"]);
        assert_eq!(config(&[("etcd_prefix", "/x/")]).unwrap().machine.root, "/x/run_job");
        assert_eq!(config(&[("timeout", "-3")]).unwrap().timeout, Duration::ZERO);
    }

    #[test]
    fn join_timeout_comes_before_timeout_which_torchrun_always_gives() {
        let both = config(&[("timeout", "900"), ("join_timeout", "1.5")]).unwrap();
        assert_eq!(both.timeout, Duration::from_millis(1500));
        assert!(config(&[("join_timeout", "soon")]).unwrap_err().0.contains("'join_timeout'"));
    }

    #[test]
    fn what_is_wrong_is_said_as_pytorch_says_it() {
        let refused = |key, value| config(&[(key, value)]).unwrap_err().0;
        assert_eq!(refused("protocol", "HTTPS"), "The etcd protocol must be HTTP or HTTPS.");
        assert_eq!(
            refused("timeout", "1.5"),
            "The rendezvous configuration option 'timeout' does not represent a valid integer value."
        );
        assert!(refused("last_call_timeout", "soon").contains("'last_call_timeout'"));
        assert!(refused("last_cal_timeout", "1").contains("did you mean 'last_call_timeout'?"));
        assert!(config(&[("rank", "0")]).is_ok(), "torchrun gives it by itself");
    }

    #[test]
    fn files_are_for_https() {
        let files = [("protocol", "https"), ("cacert", "ca.pem"), ("cert", "c.pem")];
        let tls = config(&files).unwrap().etcd.tls.unwrap();
        assert_eq!((tls.ca, tls.key), (Some("ca.pem".into()), Some("c.pem".into())));
        assert!(config(&files[1..]).unwrap().etcd.tls.is_none());
    }
}
