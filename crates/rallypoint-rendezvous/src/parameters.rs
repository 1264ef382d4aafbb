//! What a backend is told, by name, as torchrun hands it over.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

/// The parameters of a backend.
///
/// ```
/// use rallypoint_rendezvous::RendezvousParameters;
///
/// let mut parameters = RendezvousParameters::new("rallypoint", "etcd1,etcd2", "job42", 2, 4)?;
/// parameters.config.insert("last_call_timeout".into(), "10".into());
/// assert_eq!(parameters.seconds("last_call_timeout")?.unwrap().as_secs(), 10);
/// # Ok::<(), rallypoint_rendezvous::ParameterError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousParameters {
    /// The name of the backend.
    pub backend: String,
    /// The servers, comma-separated.
    pub endpoint: String,
    /// The run; nodes with the same one meet.
    pub run_id: String,
    /// Nodes that a round needs.
    pub min_nodes: usize,
    /// Nodes that a round takes.
    pub max_nodes: usize,
    /// The address that others reach this node by, where it is not the one it reaches etcd by.
    pub local_addr: Option<String>,
    /// Everything else, by name.
    pub config: BTreeMap<String, String>,
}

/// A parameter that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ParameterError(pub String);

impl RendezvousParameters {
    /// Checks what every backend asks for.
    pub fn new(
        backend: &str,
        endpoint: &str,
        run_id: &str,
        min_nodes: usize,
        max_nodes: usize,
    ) -> Result<Self, ParameterError> {
        let refused = |text: String| Err(ParameterError(text));
        if backend.is_empty() {
            return refused("The rendezvous backend name must be a non-empty string.".to_owned());
        }
        if min_nodes < 1 {
            return refused(format!(
                "The minimum number of rendezvous nodes must be greater than zero, but got {min_nodes}."
            ));
        }
        if max_nodes < min_nodes {
            return refused(format!(
                "The maximum number of rendezvous nodes ({max_nodes}) must be at least the minimum ({min_nodes})."
            ));
        }
        Ok(RendezvousParameters {
            backend: backend.to_owned(),
            endpoint: endpoint.to_owned(),
            run_id: run_id.to_owned(),
            min_nodes,
            max_nodes,
            local_addr: None,
            config: BTreeMap::new(),
        })
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    /// The value of `key` in seconds; fractions are allowed.
    pub fn seconds(&self, key: &str) -> Result<Option<Duration>, ParameterError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let seconds = value.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let refused = || ParameterError(format!("{key:?} is a number of seconds, not {value:?}"));
        seconds.map(Some).ok_or_else(refused)
    }
}
