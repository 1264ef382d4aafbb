//! What a backend is told, by name, as torchrun hands it over. Names, defaults and the messages for bad values
//! are PyTorch's.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use rallypoint_core::Endpoints;
use rallypoint_core::endpoint::DEFAULT_PORT;
use rallypoint_core::text::nearest;
use rallypoint_metrics::Metrics;
use rallypoint_traces::Tracer;
use thiserror::Error;

/// What whoever drives a rendezvous reads itself, besides [`HEALTH_OPTIONS`].
const LAUNCHERS: [&str; 5] = ["is_host", "worker_store", "store_cacert", "store_cert", "store_key"];

/// The options by which a node is told to look at its health: the checks, how long each may take, how long after a look the
/// next one is, what a node does that fails, and for how long it is kept out if it is to be. Whoever drives a rendezvous reads
/// them.
pub const HEALTH_OPTIONS: [&str; 5] =
    ["health_check", "health_check_timeout", "health_check_interval", "when_unhealthy", "exclude_for"];

/// What torchrun puts among a backend's options by itself; none of it means anything to ours.
pub const TORCHRUNS: [&str; 4] = ["rank", "is_host", "store_type", "keep_alive_interval"];

/// The parameters of a backend.
///
/// ```
/// use rallypoint_rendezvous::RendezvousParameters;
///
/// let mut parameters = RendezvousParameters::new("rallypoint", "etcd1,etcd2", "job42", 2, 4)?;
/// parameters.config.insert("last_call_timeout".into(), "10".into());
/// assert_eq!(parameters.get_as_int("last_call_timeout")?, Some(10));
///
/// let legacy = RendezvousParameters::from_url("etcd://etcd1:2379/job42?min_workers=2&max_workers=4")?;
/// assert_eq!((legacy.backend.as_str(), legacy.run_id.as_str()), ("etcd", "job42"));
/// # Ok::<(), rallypoint_rendezvous::ParameterError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Where it is counted what the handler does, for those who export it themselves.
    pub metrics: Option<Metrics>,
    /// Where its rounds are told as traces, for those who send them themselves.
    pub tracer: Option<Tracer>,
}

/// The options whose values are not for a log.
const SECRETS: [&str; 2] = ["password", "token"];

impl fmt::Debug for RendezvousParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(key, value): (&'_ String, &'_ String)| {
            let is_secret = SECRETS.contains(&key.as_str());
            (key.clone(), if is_secret { "(not shown)".to_owned() } else { value.clone() })
        };
        f.debug_struct("RendezvousParameters")
            .field("backend", &self.backend)
            .field("endpoint", &self.endpoint)
            .field("run_id", &self.run_id)
            .field("min_nodes", &self.min_nodes)
            .field("max_nodes", &self.max_nodes)
            .field("local_addr", &self.local_addr)
            .field("config", &self.config.iter().map(shown).collect::<BTreeMap<_, _>>())
            .finish_non_exhaustive()
    }
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
        if backend.is_empty() {
            return refused("The rendezvous backend name must be a non-empty string.");
        }
        if min_nodes < 1 {
            return refused(format!(
                "The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
            ));
        }
        if max_nodes < min_nodes {
            return refused(format!(
                "The maximum number of rendezvous nodes ({max_nodes}) must be greater than or equal to the \
                 minimum number of rendezvous nodes ({min_nodes})."
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
            metrics: None,
            tracer: None,
        })
    }

    /// Reads `etcd://host:port/run?min_workers=2&max_workers=4&timeout=300`, the form that PyTorch's etcd
    /// rendezvous took first. `max_workers` is `min_workers` where it is missing; what else is in the query is
    /// [`config`](RendezvousParameters::config). Nothing in it is percent-decoded.
    pub fn from_url(url: &str) -> Result<Self, ParameterError> {
        let shape = || {
            ParameterError(format!(
                "The rendezvous URL '{url}' must be in format \
                 <backend>://<host>[:<port>]/<run id>?min_workers=<n>[&max_workers=<n>]."
            ))
        };
        let (backend, rest) = url.split_once("://").ok_or_else(shape)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (endpoint, path) = place.split_once('/').unwrap_or((place, ""));
        let mut config = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(shape)?;
            config.insert(key.to_owned(), value.to_owned());
        }
        let mut workers = |key: &str| -> Result<Option<usize>, ParameterError> {
            let Some(value) = config.remove(key) else { return Ok(None) };
            let number = integer(&value).ok_or_else(|| not_an_integer(key))?;
            Ok(Some(usize::try_from(number).unwrap_or(0)))
        };
        let min_nodes = workers("min_workers")?.ok_or_else(shape)?;
        let max_nodes = workers("max_workers")?.unwrap_or(min_nodes);
        if min_nodes < 1 {
            return refused("Min number of workers should be at least 1");
        }
        if max_nodes < min_nodes {
            return refused("Max number of workers cannot be less than min number of workers");
        }
        let parameters = Self::new(backend, endpoint, path.trim_matches('/'), min_nodes, max_nodes)?;
        Ok(RendezvousParameters { config, ..parameters })
    }

    /// Reads what torchrun's `--rdzv-conf` takes: `<key1>=<value1>,...,<keyN>=<valueN>`.
    pub fn parse_config(text: &str) -> Result<BTreeMap<String, String>, ParameterError> {
        let mut config = BTreeMap::new();
        if text.trim().is_empty() {
            return Ok(config);
        }
        for pair in text.trim().split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() {
                return refused(
                    "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.",
                );
            }
            if value.is_empty() {
                // What follows a name may be its value, after another character: a secret, maybe.
                let name = key.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
                let name = name.unwrap_or_default();
                return refused(format!(
                    "The rendezvous configuration option '{name}' must have a value specified."
                ));
            }
            config.insert(key.to_owned(), value.to_owned());
        }
        Ok(config)
    }

    /// The address that others reach this node by, where one is given, if it can be one.
    pub(crate) fn address(&self) -> Result<Option<String>, ParameterError> {
        let given = self.local_addr.as_ref().filter(|given| !given.is_empty());
        let Some(given) = given else { return Ok(None) };
        // An IPv6 address may name an interface.
        let is_ipv6 = given.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
        let cannot_be =
            |letter: char| letter.is_whitespace() || letter.is_control() || ":/?#@[],".contains(letter);
        if given.contains(cannot_be) && !is_ipv6 {
            return refused(format!(
                "The address of this node (--local-addr) is a host name or an IP address, and nothing else, not '{given}'."
            ));
        }
        Ok(Some(given.clone()))
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    /// The value of `key` as a yes or no.
    pub fn get_as_bool(&self, key: &str) -> Result<Option<bool>, ParameterError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.to_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
            "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
            _ => refused(format!(
                "The rendezvous configuration option '{key}' does not represent a valid boolean value."
            )),
        }
    }

    /// The value of `key` as an integer, as Python reads one.
    pub fn get_as_int(&self, key: &str) -> Result<Option<i64>, ParameterError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        integer(value).map(Some).ok_or_else(|| not_an_integer(key))
    }

    /// Refuses an option that is not among these and that torchrun does not give by itself.
    pub(crate) fn check_names(&self, known: &[&str]) -> Result<(), ParameterError> {
        for key in self.config.keys().map(String::as_str) {
            if !known.contains(&key) && !TORCHRUNS.contains(&key) {
                let launchers = LAUNCHERS.iter().chain(&HEALTH_OPTIONS).filter(|name| **name != key);
                let known: Vec<&str> = known.iter().chain(launchers).copied().collect();
                let meant = nearest(key, known.iter().copied());
                let instead = match meant {
                    Some(name) => format!("did you mean '{name}'?"),
                    None => format!("there are: {}", known.join(", ")),
                };
                return refused(format!(
                    "the rendezvous backend '{}' has no option '{key}'; {instead}",
                    self.backend
                ));
            }
        }
        Ok(())
    }

    /// The value of `key` in seconds; fractions are allowed, which PyTorch's backends do not.
    pub fn seconds(&self, key: &str) -> Result<Option<Duration>, ParameterError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let refused = || {
            let separate = if value.contains('=') { "; several options are separated by commas" } else { "" };
            ParameterError(format!("the option '{key}' takes seconds, as in 10, and not '{value}'{separate}"))
        };
        seconds(value).map(Some).ok_or_else(refused)
    }

    /// The servers that [`endpoint`](RendezvousParameters::endpoint) names: `host`, `host:port`, `[::1]:port`,
    /// or several of them with commas; `localhost` where it is empty.
    pub fn endpoints(&self) -> Result<Endpoints, ParameterError> {
        let mut list = Vec::new();
        for one in self.endpoint.split(',') {
            let one = one.trim();
            if one.is_empty() && self.endpoint.contains(',') {
                continue;
            }
            let (host, port) = parse_endpoint(one, DEFAULT_PORT)?;
            list.push(rallypoint_core::endpoint::host_and_port(&host, port));
        }
        list.join(",").parse().map_err(|error| ParameterError(format!("{error}")))
    }
}

/// Host and port of one endpoint, `<hostname>[:<port>]`; `localhost` where it is empty.
fn parse_endpoint(endpoint: &str, default_port: u16) -> Result<(String, u16), ParameterError> {
    if endpoint.is_empty() {
        return Ok(("localhost".to_owned(), default_port));
    }
    let bracketed = endpoint.starts_with('[') && endpoint.ends_with(']');
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) if !bracketed => (host, Some(port)),
        _ => (endpoint, None),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = match port {
        None => default_port,
        Some(port) => {
            let digits = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
            let number = port.parse().ok().filter(|_| digits);
            number.ok_or_else(|| {
                ParameterError(format!(
                    "The port number of the rendezvous endpoint '{endpoint}' must be an integer between 0 and \
                     65536."
                ))
            })?
        }
    };
    let allowed = |one: char| one.is_alphanumeric() || matches!(one, '_' | '.' | ':' | '-');
    if host.is_empty() || !host.chars().all(allowed) {
        return refused(format!(
            "The hostname of the rendezvous endpoint '{endpoint}' must be a dot-separated list of labels, an \
             IPv4 address, or an IPv6 address."
        ));
    }
    Ok((host.to_owned(), port))
}

/// An integer as Python's `int` reads it: white space around it, a sign, and underscores between digits.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.split('_').any(|group| group.is_empty() || !group.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

fn not_an_integer(key: &str) -> ParameterError {
    ParameterError(format!(
        "The rendezvous configuration option '{key}' does not represent a valid integer value."
    ))
}

/// A text as a number of seconds; fractions are allowed.
#[must_use]
pub fn seconds(text: &str) -> Option<Duration> {
    text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

fn refused<T>(text: impl Into<String>) -> Result<T, ParameterError> {
    Err(ParameterError(text.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn with(key: &str, value: &str) -> RendezvousParameters {
        let mut parameters = RendezvousParameters::new("etcd", "", "run", 1, 1).unwrap();
        parameters.config.insert(key.to_owned(), value.to_owned());
        parameters
    }

    #[test]
    fn integers_and_booleans_are_pythons() {
        for (text, number) in
            [("10", Some(10)), (" -7\n", Some(-7)), ("+1_000", Some(1000)), ("1__0", None), ("_1", None)]
        {
            assert_eq!(with("k", text).get_as_int("k").ok().flatten(), number, "{text:?}");
        }
        for text in ["", "1.5", "ten", "-", "0x10"] {
            assert_eq!(
                with("k", text).get_as_int("k").unwrap_err().0,
                "The rendezvous configuration option 'k' does not represent a valid integer value."
            );
        }
        for (text, truth) in [("1", true), ("YES", true), ("t", true), ("0", false), ("No", false)] {
            assert_eq!(with("k", text).get_as_bool("k").unwrap(), Some(truth));
        }
        assert!(with("k", "maybe").get_as_bool("k").unwrap_err().0.contains("a valid boolean value"));
        assert_eq!(with("k", "1").get_as_int("other").unwrap(), None);
    }

    #[test]
    fn the_address_of_a_node_is_a_name_or_a_number() {
        let address = |given: &str| {
            let mut parameters = with("k", "v");
            parameters.local_addr = Some(given.to_owned());
            parameters.address()
        };
        for given in ["node1", "node-1.rack_2.example", "10.0.0.1", "::1", "fe80::1%eth0"] {
            assert_eq!(address(given).unwrap().as_deref(), Some(given));
        }
        assert_eq!(address("").unwrap(), None);
        for given in ["bad host", "node1:29500", "http://node1", "[::1]", "a,b", "n\n", "::x"] {
            let error = address(given).unwrap_err().0;
            assert!(error.contains("--local-addr") && error.contains(given), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let mut parameters = with("password", "hunter2");
        parameters.config.insert("token".to_owned(), "hunter3".to_owned());
        parameters.config.insert("user".to_owned(), "root".to_owned());
        let printed = format!("{parameters:?}");
        assert!(!printed.contains("hunter") && printed.contains("root"), "{printed}");
    }

    #[test]
    fn endpoints_are_pytorchs_or_a_list_of_them() {
        let endpoints = |endpoint: &str| {
            let parameters = RendezvousParameters::new("etcd", endpoint, "run", 1, 1)?;
            parameters.endpoints().map(|endpoints| endpoints.to_string())
        };
        for (given, parsed) in [
            ("", "localhost:2379"),
            (" a.b-c_d ", "a.b-c_d:2379"),
            ("a:80", "a:80"),
            ("[::1]", "[::1]:2379"),
            ("[::1]:80", "[::1]:80"),
            ("fe80::1:80", "[fe80::1]:80"),
            ("a, b:1,,a:2379", "a:2379,b:1"),
        ] {
            assert_eq!(endpoints(given).as_deref(), Ok(parsed), "{given:?}");
        }
        for given in ["a:", "a:x", "a:65536", "a:123456", "a: 1"] {
            assert_eq!(
                endpoints(given).unwrap_err().0,
                format!(
                    "The port number of the rendezvous endpoint '{given}' must be an integer between 0 and 65536."
                )
            );
        }
        for given in ["a b", "http://a:80", ":80", "[]"] {
            assert!(endpoints(given).unwrap_err().0.starts_with("The hostname of the rendezvous endpoint"));
        }
    }

    #[test]
    fn configuration_strings_are_torchruns() {
        let config = RendezvousParameters::parse_config(" a = 1,b=x=y ").unwrap();
        assert_eq!((config["a"].as_str(), config["b"].as_str()), ("1", "x=y"));
        assert!(RendezvousParameters::parse_config("  ").unwrap().is_empty());
        let refused = |text: &str| RendezvousParameters::parse_config(text).unwrap_err().0;
        assert!(refused("=1").contains("<key1>=<value1>"));
        assert_eq!(refused("a,b=1"), "The rendezvous configuration option 'a' must have a value specified.");
        assert_eq!(
            refused("token:a secret,b=1"),
            "The rendezvous configuration option 'token' must have a value specified."
        );
    }

    #[test]
    fn urls_of_old_are_understood() {
        let url = "etcd://h:1/job/?min_workers=2&timeout=9&&etcd_prefix=/p";
        let parameters = RendezvousParameters::from_url(url).unwrap();
        assert_eq!((parameters.min_nodes, parameters.max_nodes), (2, 2));
        assert_eq!((parameters.endpoint.as_str(), parameters.run_id.as_str()), ("h:1", "job"));
        assert_eq!(parameters.get_as_int("timeout").unwrap(), Some(9));
        assert_eq!((parameters.get("etcd_prefix"), parameters.get("min_workers")), (Some("/p"), None));
        let refused = |url: &str| RendezvousParameters::from_url(url).unwrap_err().0;
        assert_eq!(refused("etcd://h/r?min_workers=0"), "Min number of workers should be at least 1");
        assert_eq!(
            refused("etcd://h/r?min_workers=2&max_workers=1"),
            "Max number of workers cannot be less than min number of workers"
        );
        assert!(refused("etcd://h/r").contains("must be in format"));
        assert!(refused("h/r?min_workers=1").contains("must be in format"));
        assert!(refused("etcd://h/r?min_workers=x").contains("'min_workers'"));
    }
}
