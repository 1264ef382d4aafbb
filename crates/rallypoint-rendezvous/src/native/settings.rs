//! What the native backend can be told.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use rallypoint_core::round::{
    DEFAULT_CLOSED_TTL, DEFAULT_LAST_CALL, DEFAULT_RUN_TTL, RankPolicy, RunSettings, SHORTEST_LEASE,
    WhenExcluded, default_lease,
};
use rallypoint_core::time::bounded;
use rallypoint_core::{Credentials, EtcdSettings, TlsSettings, Token, TokenError};
use rallypoint_etcd::read_secret;
use rallypoint_metrics::Metrics;

use crate::observe;
use crate::parameters::{ParameterError, RendezvousParameters, integer};

/// How long `next_rendezvous` waits for a round; the same as PyTorch's.
pub const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(600);
/// The longest id of a run or a node: it is part of each of their keys.
pub const LONGEST_NAME: usize = 1000;
/// Who leads after a leader's death must be in time to renew what the run hangs on.
const RUN_LEASES: u32 = 3;
/// The longest lease that etcd grants.
const LONGEST_LEASE: Duration = Duration::from_secs(9_000_000_000);
/// Where all runs are, under the prefix of the [`EtcdSettings`].
pub const DEFAULT_ROOT: &str = "rallypoint/";

/// What a node of the native backend is started with.
///
/// ```
/// use rallypoint_rendezvous::native::NativeSettings;
///
/// let mut settings = NativeSettings::new("etcd1,etcd2,etcd3", "job42", 2, 4)?;
/// settings.last_call = std::time::Duration::from_secs(10);
/// settings.rack = "r7".into();
/// # Ok::<(), rallypoint_rendezvous::ParameterError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NativeSettings {
    /// How to reach etcd.
    pub etcd: EtcdSettings,
    /// The run; nodes with the same one meet.
    pub run_id: String,
    /// What all nodes of the run must agree on.
    pub run: RunSettings,
    /// The node's name in the run. Without one it gets a name of its machine that it keeps when it is started
    /// again.
    pub node_id: Option<String>,
    /// The machine that this node is on, by which it can be excluded with all other nodes there. Without one it is what `hostname`
    /// says; in a pod that is not the machine's name.
    pub host: Option<String>,
    /// Where others reach this node. Without one it is the address by which this node reaches etcd.
    pub address: Option<String>,
    /// The port where the workers meet, should this node be the master; a free one without.
    pub master_port: Option<u16>,
    /// Nodes of one rack get ranks next to each other with [`RankPolicy::Hint`], and with [`RankPolicy::Sticky`] when they come.
    /// [`RankPolicy::Segment`] needs it.
    pub rack: String,
    /// The order of nodes with the same two, for instance a Slurm node id.
    pub hint: String,
    /// Whatever the others may want to know of this node.
    pub about: String,
    /// What this node does when it is excluded from the run.
    pub when_excluded: WhenExcluded,
    /// A node that is not heard of for this long is dead. It grows with `max_nodes` unless it is set: see
    /// [`default_lease`].
    pub lease: Duration,
    /// How long a round with enough nodes waits for more.
    pub last_call: Duration,
    /// How long a group that has lost a node waits for a replacement before it meets smaller than it was. The leader's
    /// counts.
    pub replacement: Duration,
    /// How long `next_rendezvous` waits for a round.
    pub join_timeout: Duration,
    /// What a run leaves in etcd is gone this long after its last node.
    pub run_ttl: Duration,
    /// Late nodes learn for this long that the run is over.
    pub closed_ttl: Duration,
    /// Where it is counted what this node does.
    pub metrics: Metrics,
}

/// The options by name, each with what it is for.
pub const OPTIONS: [(&str, &str); 33] = [
    ("last_call_timeout", "seconds that a round with enough nodes waits for more (30)"),
    ("replacement_timeout", "seconds that a group which lost a node waits before it meets smaller (0)"),
    ("join_timeout", "seconds that a node waits for a round (600)"),
    ("timeout", "the same, by its older name"),
    ("lease_timeout", "seconds without news after which a node is dead (5 up to 1,000 nodes, 20 for 10,000)"),
    (
        "run_timeout",
        "seconds after its last node until nothing is left of a run (600, or three times lease_timeout)",
    ),
    ("closed_timeout", "seconds for which late nodes learn that a run is over (600)"),
    ("rank_policy", "who gets which rank: sticky, arrival, address, hint or segment (sticky)"),
    (
        "segment_size",
        "for rank_policy segment: only so many nodes of one rack are seated, next to each other",
    ),
    ("rank_hint", "this node's place, for rank_policy hint, and for sticky when it comes"),
    ("rack", "this node's rack, for the same: nodes of one rack stay together"),
    ("node_id", "this node's name in the run"),
    ("host", "this node's machine, by which it can be excluded; in a pod, the machine's name"),
    ("about", "a text about this node for the others"),
    (
        "when_excluded",
        "what a node does that is excluded from the run: end, or wait until it is let in (end)",
    ),
    ("master_port", "the port where workers meet, should this node be the master"),
    ("metrics_listen", "HOST:PORT at which Prometheus finds this node's metrics"),
    ("otlp_endpoint", "URL of an OpenTelemetry collector that gets each round as a trace"),
    ("etcd_prefix", "put before all keys"),
    ("protocol", "http or https"),
    ("cacert", "file of the authority that signed etcd's certificate"),
    ("ca_cert", "the same, by another name"),
    ("cert", "file of this client's certificate"),
    ("ssl_cert", "the same, by another name"),
    ("key", "file of that certificate's key"),
    ("ssl_cert_key", "the same, by another name"),
    ("user", "etcd's user"),
    ("password", "the user's password"),
    ("password_file", "file with the user's password, in place of that"),
    ("token", "what all nodes and their server know, and nobody else"),
    ("token_file", "file with that, in its place"),
    ("connect_timeout", "seconds to reach an etcd (5)"),
    ("read_timeout", "seconds for one try of a request (5)"),
];

impl NativeSettings {
    /// The defaults.
    pub fn new(
        endpoints: &str,
        run_id: &str,
        min_nodes: usize,
        max_nodes: usize,
    ) -> Result<Self, ParameterError> {
        let etcd = EtcdSettings::new(endpoints).map_err(|error| ParameterError(error.to_string()))?;
        Ok(NativeSettings {
            etcd,
            run_id: run_id.to_owned(),
            run: RunSettings { min_nodes, max_nodes, policy: RankPolicy::default() },
            node_id: None,
            host: None,
            address: None,
            master_port: None,
            rack: String::new(),
            hint: String::new(),
            about: String::new(),
            when_excluded: WhenExcluded::default(),
            lease: default_lease(max_nodes),
            last_call: DEFAULT_LAST_CALL,
            replacement: Duration::ZERO,
            join_timeout: DEFAULT_JOIN_TIMEOUT,
            run_ttl: DEFAULT_RUN_TTL,
            closed_ttl: DEFAULT_CLOSED_TTL,
            metrics: Metrics::default(),
        })
    }

    /// What torchrun hands over. Unknown options are rejected, by name.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, ParameterError> {
        parameters.check_names(&OPTIONS.map(|(name, _)| name))?;
        let (min, max) = (parameters.min_nodes, parameters.max_nodes);
        let endpoints = parameters.endpoints()?.to_string();
        let mut settings = NativeSettings::new(&endpoints, &parameters.run_id, min, max)?;
        let text = |keys: &[&str]| keys.iter().find_map(|key| parameters.get(key)).map(str::to_owned);
        let set = |field: &mut Duration, keys: &[&str]| -> Result<(), ParameterError> {
            for key in keys {
                if let Some(value) = parameters.seconds(key)? {
                    *field = value;
                    return Ok(());
                }
            }
            Ok(())
        };
        set(&mut settings.last_call, &["last_call_timeout"])?;
        set(&mut settings.replacement, &["replacement_timeout"])?;
        set(&mut settings.join_timeout, &["join_timeout", "timeout"])?;
        set(&mut settings.lease, &["lease_timeout"])?;
        settings.run_ttl = settings.run_ttl.max(settings.lease.saturating_mul(RUN_LEASES));
        set(&mut settings.run_ttl, &["run_timeout"])?;
        set(&mut settings.closed_ttl, &["closed_timeout"])?;
        set(&mut settings.etcd.connect_timeout, &["connect_timeout"])?;
        set(&mut settings.etcd.request_timeout, &["read_timeout"])?;
        let etcd = &mut settings.etcd;
        for time in [&mut settings.join_timeout, &mut etcd.connect_timeout, &mut etcd.request_timeout] {
            *time = bounded(*time);
        }
        observe::listen_address(parameters)?;
        observe::collector(parameters)?;
        settings.metrics = parameters.metrics.clone().unwrap_or_default();
        let segment_size = parameters.get("segment_size").map(|text| {
            let size = integer(text).and_then(|size| usize::try_from(size).ok()).and_then(NonZeroUsize::new);
            size.ok_or_else(|| {
                ParameterError(format!("the option 'segment_size' is a number of nodes, not '{text}'"))
            })
        });
        let segment_size = segment_size.transpose()?;
        let policy = parameters.get("rank_policy").unwrap_or("sticky");
        settings.run.policy = RankPolicy::named(policy, segment_size).map_err(ParameterError)?;
        if let Some(what) = parameters.get("when_excluded") {
            let option = |error| ParameterError(format!("the option 'when_excluded': {error}"));
            settings.when_excluded = what.parse().map_err(option)?;
        }
        settings.address = parameters.address()?;
        settings.node_id = text(&["node_id"]);
        settings.host = text(&["host"]).filter(|host| !host.is_empty());
        settings.rack = text(&["rack"]).unwrap_or_default();
        settings.hint = text(&["rank_hint"]).unwrap_or_default();
        settings.about = text(&["about"]).unwrap_or_default();
        let port = parameters.get("master_port").map(|text| {
            let port = integer(text).and_then(|port| u16::try_from(port).ok());
            port.ok_or_else(|| ParameterError(format!("the option 'master_port' is a port, not '{text}'")))
        });
        settings.master_port = port.transpose()?;
        settings.etcd.prefix = text(&["etcd_prefix"]).unwrap_or_default();
        let path = |keys: &[&str]| text(keys).map(Into::into);
        let mut tls = TlsSettings::default();
        tls.ca = path(&["cacert", "ca_cert"]);
        tls.cert = path(&["cert", "ssl_cert"]);
        tls.key = path(&["key", "ssl_cert_key"]);
        let https = match parameters.get("protocol") {
            None => tls != TlsSettings::default(),
            Some("http") => false,
            Some("https") => true,
            Some(other) => {
                return Err(ParameterError(format!(
                    "The etcd protocol must be http or https, not '{other}'."
                )));
            }
        };
        settings.etcd.tls = https.then_some(tls);
        settings.etcd.credentials = credentials(parameters)?;
        settings.check()?;
        Ok(settings)
    }

    /// Refuses what cannot work, before anything is sent.
    pub fn check(&self) -> Result<(), ParameterError> {
        let RunSettings { min_nodes, max_nodes, .. } = self.run;
        check_run_id(&self.run_id)?;
        for (name, given) in [("node_id", &self.node_id), ("host", &self.host)] {
            if given.as_ref().is_some_and(|given| given.len() > LONGEST_NAME) {
                return Err(ParameterError(format!("'{name}' is longer than {LONGEST_NAME} bytes")));
            }
        }
        if min_nodes == 0 || max_nodes < min_nodes {
            return Err(ParameterError(format!(
                "a round needs at least one node and at most the maximum: {min_nodes} to {max_nodes} cannot be"
            )));
        }
        if let RankPolicy::Segment { size } = self.run.policy {
            if min_nodes % size != 0 || max_nodes % size != 0 {
                return Err(ParameterError(format!(
                    "only whole segments of {size} nodes are seated: {min_nodes} to {max_nodes} nodes are no multiples of 'segment_size'"
                )));
            }
            if self.rack.is_empty() {
                return Err(ParameterError(
                    "the rank policy 'segment' needs to know where this node is: set 'rack' to its rack or NVLink domain"
                        .to_owned(),
                ));
            }
        }
        if self.lease < SHORTEST_LEASE {
            return Err(ParameterError(format!(
                "'lease_timeout' must be at least {} s, the shortest that etcd grants",
                SHORTEST_LEASE.as_secs()
            )));
        }
        // Before the time of the run, which follows from it.
        let longest = LONGEST_LEASE / RUN_LEASES;
        if self.lease > longest {
            return Err(ParameterError(format!(
                "'lease_timeout' must be at most {} s, a third of the longest that etcd grants: 'run_timeout' is at least three times that",
                longest.as_secs()
            )));
        }
        if self.run_ttl < self.lease.saturating_mul(RUN_LEASES) {
            return Err(ParameterError(
                "'run_timeout' must be at least three times 'lease_timeout'".to_owned(),
            ));
        }
        let times = [
            ("run_timeout", self.run_ttl),
            ("closed_timeout", self.closed_ttl),
            ("last_call_timeout", self.last_call),
            ("replacement_timeout", self.replacement),
        ];
        if let Some((name, _)) = times.into_iter().find(|(_, time)| *time > LONGEST_LEASE) {
            let longest = LONGEST_LEASE.as_secs();
            return Err(ParameterError(format!(
                "'{name}' must be at most {longest} s, the longest that etcd grants"
            )));
        }
        self.etcd.check().map_err(|error| ParameterError(error.to_string()))
    }

    /// Beginning of the run's keys.
    #[must_use]
    pub(super) fn run_prefix(&self) -> String {
        run_prefix(&self.run_id)
    }
}

/// Who this node says it is.
fn credentials(parameters: &RendezvousParameters) -> Result<Option<Credentials>, ParameterError> {
    let token = token(&parameters.config)?;
    let Some(user) = parameters.get("user") else { return Ok(token.as_ref().map(Credentials::token)) };
    if token.is_some() {
        return Err(ParameterError(format!(
            "there are a token and a user, '{user}': give the token of a server that the nodes start, or the user of one that is there"
        )));
    }
    let password = match parameters.get("password_file") {
        Some(file) => {
            let unreadable = |error| ParameterError(format!("cannot read the password in {file}: {error}"));
            read_secret(file.as_ref()).map_err(unreadable)?
        }
        None => parameters.get("password").unwrap_or_default().to_owned(),
    };
    Ok(Some(Credentials::new(user, password)))
}

/// What all nodes and their server know, of the options `token_file` and `token`.
pub fn token(options: &BTreeMap<String, String>) -> Result<Option<Token>, ParameterError> {
    let (from, text) = match (options.get("token_file"), options.get("token")) {
        (Some(file), _) => {
            let unreadable = |error| ParameterError(format!("cannot read the token in {file}: {error}"));
            (format!("the file {file}"), read_secret(file.as_ref()).map_err(unreadable)?)
        }
        (None, Some(text)) => ("the option 'token'".to_owned(), text.clone()),
        (None, None) => return Ok(None),
    };
    let wrong = |error: TokenError| ParameterError(format!("{from} {error}"));
    Token::new(&text).map(Some).map_err(wrong)
}

/// Refuses what cannot be the id of a run.
pub fn check_run_id(run_id: &str) -> Result<(), ParameterError> {
    match run_id.len() {
        0 => Err(ParameterError("the run needs an id: give all its nodes the same one".to_owned())),
        length if length > LONGEST_NAME => {
            Err(ParameterError(format!("the run's id has {length} bytes, and may have {LONGEST_NAME}")))
        }
        _ => Ok(()),
    }
}

/// Beginning of a run's keys; a run's id is one part of the path, whatever is in it.
#[must_use]
pub fn run_prefix(run_id: &str) -> String {
    format!("{DEFAULT_ROOT}{}/", run_id.replace('%', "%25").replace('/', "%2F"))
}

/// The run that a part of the path names.
pub(super) fn run_of(part: &str) -> String {
    part.replace("%2F", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn with(options: &[(&str, &str)]) -> Result<NativeSettings, ParameterError> {
        let mut parameters = RendezvousParameters::new("rallypoint", "a,b:1", "job", 2, 4).unwrap();
        parameters.config =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NativeSettings::from_parameters(&parameters)
    }

    #[test]
    fn options_are_taken_by_name_and_unknown_ones_refused() {
        let settings = with(&[
            ("last_call_timeout", "0.5"),
            ("replacement_timeout", "90"),
            ("lease_timeout", "2"),
            ("rank_policy", "hint"),
            ("rank_hint", "17"),
            ("cacert", "ca.pem"),
            ("user", "me"),
        ])
        .unwrap();
        assert_eq!(settings.last_call, Duration::from_millis(500));
        assert_eq!(settings.replacement, Duration::from_secs(90));
        assert_eq!((settings.run.policy, settings.hint.as_str()), (RankPolicy::Hint, "17"));
        assert_eq!(settings.etcd.urls(), ["https://a:2379", "https://b:1"]);
        assert_eq!(settings.join_timeout, DEFAULT_JOIN_TIMEOUT);
        assert_eq!(settings.lease, Duration::from_secs(2));
        assert_eq!(with(&[("lease_timeout", "500")]).unwrap().run_ttl, Duration::from_secs(1500));
        let lease = |max| NativeSettings::new("a", "job", 1, max).unwrap().lease.as_secs();
        assert_eq!((lease(1_000), lease(10_000)), (5, 20));

        let refused = |options: &[(&str, &str)]| with(options).unwrap_err().to_string();
        let mistyped = refused(&[("last_cal_timeout", "1")]);
        assert!(mistyped.contains("'last_cal_timeout'; did you mean 'last_call_timeout'?"), "{mistyped}");
        assert!(!refused(&[("colour", "1")]).contains("did you mean"));
        assert!(refused(&[("join_timeout", "abc")]).contains("'abc'"));
        assert!(refused(&[("master_port", "abc")]).contains("'abc'"));
        assert!(refused(&[("lease_timeout", "1")]).contains("at least 2 s"));
        assert!(refused(&[("lease_timeout", "5"), ("run_timeout", "14")]).contains("three times"));
        let said = refused(&[("lease_timeout", "9000000000")]);
        assert!(said.contains("'lease_timeout' must be at most 3000000000 s"), "{said}");
        for name in ["run_timeout", "closed_timeout", "last_call_timeout", "replacement_timeout"] {
            let said = refused(&[(name, "1e10")]);
            assert!(said.contains(name) && said.contains("at most 9000000000 s"), "{said}");
        }
        assert!(refused(&[("node_id", &"n".repeat(1001))]).contains("'node_id'"));
        assert!(refused(&[("host", &"n".repeat(1001))]).contains("'host'"));
        let long = NativeSettings::new("a", &"r".repeat(1001), 1, 1).unwrap().check();
        assert!(long.unwrap_err().to_string().contains("1001 bytes"));
        assert!(refused(&[("rank_policy", "random")]).contains("sticky, arrival, address, hint, segment"));
        assert!(refused(&[("master_port", "70000")]).contains("70000"));
        let segment = ("rank_policy", "segment");
        let whole =
            with(&[segment, ("segment_size", "2"), ("rack", "r1"), ("when_excluded", "wait")]).unwrap();
        assert_eq!(whole.run.policy.segment_size().map(NonZeroUsize::get), Some(2));
        assert_eq!(whole.when_excluded, WhenExcluded::Wait);
        assert!(refused(&[segment, ("rack", "r1")]).contains("needs 'segment_size'"));
        assert!(refused(&[segment, ("segment_size", "2")]).contains("set 'rack'"));
        assert!(refused(&[segment, ("segment_size", "0")]).contains("'segment_size' is a number of nodes"));
        let said = refused(&[segment, ("segment_size", "4"), ("rack", "r1")]);
        assert!(said.contains("2 to 4 nodes are no multiples of 'segment_size'"), "{said}");
        assert!(refused(&[("segment_size", "2")]).contains("and this one is 'sticky'"));
        assert!(refused(&[("when_excluded", "cry")]).contains("'when_excluded'"));
        assert!(refused(&[("protocol", "ftp")]).contains("'ftp'"));
    }

    #[test]
    fn a_runs_id_is_one_part_of_the_path() {
        for id in ["job", "team/job", "50%", "%2F"] {
            let prefix = run_prefix(id);
            let part = prefix.strip_prefix(DEFAULT_ROOT).unwrap().strip_suffix('/').unwrap();
            assert!(!part.contains('/'));
            assert_eq!(run_of(part), id);
        }
    }

    #[test]
    fn passwords_and_tokens_come_from_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (password, secret) = (file("password", "hunter2\n"), file("token", "correct horse battery\n"));
        let shown = |options: &[(&str, &str)]| {
            let shown = with(options).unwrap().etcd.credentials;
            shown.map(|it| (it.user, it.password, it.required))
        };
        let told =
            |user: &str, password: &str, required| Some((user.to_owned(), password.to_owned(), required));
        let user = ("user", "me");
        assert_eq!(shown(&[user, ("password_file", &password)]), told("me", "hunter2", false));
        assert_eq!(shown(&[user, ("password", "other")]), told("me", "other", false));
        for token in [("token_file", secret.as_str()), ("token", "correct horse battery")] {
            assert_eq!(shown(&[token]), told("root", "correct horse battery", true));
        }
        let refused = |options: &[(&str, &str)]| with(options).unwrap_err().0;
        assert!(refused(&[user, ("token_file", &secret)]).contains("a token and a user, 'me'"));
        assert!(refused(&[("token_file", "/nowhere")]).contains("the token in /nowhere"));
        assert!(refused(&[user, ("password_file", "/nowhere")]).contains("the password in /nowhere"));
        let short = refused(&[("token", "hunter2")]);
        assert!(short.contains("can be guessed") && !short.contains("hunter2"), "{short}");
    }
}
