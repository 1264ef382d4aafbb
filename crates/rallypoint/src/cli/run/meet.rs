//! How this node meets the others, as its options mean it.
//!
//! torchrun's own backends, `static` and `c10d`, are the native backend on their endpoint: a command that was written
//! for torchrun needs no other words.

use std::collections::BTreeMap;
use std::time::Duration;

use rallypoint_core::endpoint::host_and_port;
use rallypoint_rendezvous::native::{BACKEND, TORCHRUNS};
use rallypoint_rendezvous::{ParameterError, Registry, RendezvousParameters};

use super::options::{C10D, Run, STATIC};
use super::scheduler::Scheduled;
use super::server::Serves;
use super::worker_store::StoreServer;
use crate::cli::exit::{EndpointFlags, NODE_RANK, Problem};

/// torchrun's defaults: where rank 0 is, and the ports of its two backends.
const MASTER_ADDR: &str = "127.0.0.1";
const MASTER_PORT: u16 = 29500;
const C10D_PORT: u16 = 29400;
/// torchrun's name of a run that has none. Only where one node serves this run and no other.
const NO_NAME: &str = "none";
/// What torchrun's backends can be told in `--rdzv-conf` and the native one cannot, with why.
const THEIRS: [(&str, &str); 8] = [
    ("rank", "--node-rank says it"),
    ("store_type", "the nodes meet on a server, not on a file"),
    ("close_timeout", "a run is closed by one request"),
    ("heartbeat_timeout", "a node is known by its lease: lease_timeout"),
    ("keep_alive_interval", "a node is known by its lease: lease_timeout"),
    ("keep_alive_max_attempt", "a node is known by its lease: lease_timeout"),
    ("cas_backoff_max_seconds", "nodes do not compete for one key"),
    ("use_libuv", "there is no TCP store"),
];

/// A backend of torchrun's that the native one stands in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Torchs {
    Static,
    C10d,
}

/// What follows from the options, beside what [`of`] wrote into them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meet {
    /// There is nobody to meet.
    pub(crate) alone: bool,
    pub(crate) serves: Serves,
    /// How long an etcd that does not answer yet is waited for; none: as long as for the other nodes.
    pub(crate) patience: Option<Duration>,
    /// The run before this one, on the same server, may have had the same name.
    pub(crate) name_again: bool,
    /// For the backend: `--rdzv-conf`, and what follows from other options.
    pub(crate) config: BTreeMap<String, String>,
    /// One line on what torchrun's words mean here.
    pub(crate) said: Option<String>,
    /// What the user should know at once.
    pub(crate) warned: Option<String>,
    /// The place to meet, in the user's own flags.
    pub(crate) place: EndpointFlags,
    /// What has no effect, and why.
    pub(crate) without_effect: Vec<(String, String)>,
}

/// Puts what torchrun's flags mean into the native backend's words, with what a scheduler says.
pub(crate) fn of(options: &mut Run, scheduled: Scheduled) -> Result<Meet, Problem> {
    let asked = Asked::take(options);
    if asked.torchs.is_none() && !Registry::with_defaults().names().any(|name| name == asked.backend) {
        return Err(Problem::usage(format!(
            "--rdzv-backend {} is not known: choose rallypoint (torchrun's static and c10d mean it too), or etcd to meet nodes that run PyTorch's own etcd backend",
            asked.backend
        )));
    }
    let mut meet = Meet::new(options)?;
    scheduled.config.into_iter().for_each(|(key, value)| meet.set(&key, value));
    meet.name_again = scheduled.names_run;
    if scheduled.names_run {
        meet.place = EndpointFlags::Scheduler;
    }
    if let Some(who) = meet.config.remove("worker_store") {
        // The plugin of torchrun has it there.
        options.worker_store.get_or_insert(StoreServer::named(&who)?);
    }
    options.store_files.take(&mut meet.config);
    let native = options.is_native();
    let is_host = if native { meet.drop_theirs(asked.torchs)? } else { None };
    if asked.torchs.is_some() {
        options.rdzv_backend = BACKEND.to_owned();
    }
    // torchrun's way to say that the nodes of one machine need no place: port 0.
    if asked.torchs.is_some() && !options.standalone && asked.endpoint.ends_with(":0") {
        if options.nodes().max > 1 {
            let (endpoint, nodes) = (&asked.endpoint, options.nodes().max);
            return Err(Problem::usage(format!(
                "--rdzv-endpoint {endpoint} is for 1 node, and there are {nodes}: the others cannot know which port it will be"
            )));
        }
        options.connection.endpoint.clear();
    }
    meet.alone = options.is_alone();
    if options.standalone {
        meet.none_of(&asked, "--standalone is for this node alone");
        meet.no_host(is_host);
    } else if !native {
        meet.none_of(&asked, "only Rallypoint's own backend heeds it");
        meet.serves = scheduled.serves.unwrap_or(meet.serves);
    } else {
        asked.check_rank(options)?;
        if meet.alone {
            meet.by_itself(options, asked);
            meet.no_host(is_host);
        } else {
            meet.with_others(options, &asked, is_host, scheduled.serves);
        }
    }
    Ok(meet)
}

/// What torchrun's flags say of the place to meet.
struct Asked {
    torchs: Option<Torchs>,
    /// The backend's name, as it was given.
    backend: String,
    /// The nodes meet at the master.
    by_master: bool,
    endpoint: String,
    master_addr: Option<String>,
    master_port: Option<u16>,
    node_rank: Option<usize>,
}

impl Asked {
    fn take(options: &mut Run) -> Self {
        let backend = options.rdzv_backend.clone();
        Asked {
            torchs: match backend.as_str() {
                STATIC => Some(Torchs::Static),
                C10D => Some(Torchs::C10d),
                _ => None,
            },
            backend,
            by_master: options.meets_at_master(),
            endpoint: options.connection.endpoints().to_owned(),
            master_addr: options.master_addr.take().filter(|address| !address.is_empty()),
            master_port: options.master_port.take(),
            node_rank: options.node_rank.take(),
        }
    }

    /// Each node has the rank that it is given.
    fn is_static(&self) -> bool {
        self.torchs == Some(Torchs::Static) || self.by_master
    }

    fn check_rank(&self, options: &Run) -> Result<(), Problem> {
        let nodes = options.nodes().max;
        let Some(rank) = self.node_rank.filter(|rank| self.is_static() && *rank >= nodes) else {
            return Ok(());
        };
        let there = match nodes {
            1 => "1 node has the rank 0".to_owned(),
            nodes => format!("the ranks are 0 to {}", nodes - 1),
        };
        Err(Problem::usage(format!("--node-rank {rank} does not exist with --nnodes {nodes}: {there}")))
    }

    fn said(&self, endpoint: &str) -> String {
        let asked = match (self.torchs, &self.master_addr) {
            (Some(_), _) => format!("--rdzv-backend {}", self.backend),
            (None, Some(_)) => "--master-addr".to_owned(),
            (None, None) if self.master_port.is_some() => "--master-port".to_owned(),
            (None, None) => "--node-rank".to_owned(),
        };
        let server = if self.by_master { ", where node 0 starts the server" } else { "" };
        format!("{asked} means Rallypoint's own backend here; the nodes meet at {endpoint}{server}")
    }
}

impl Meet {
    fn new(options: &Run) -> Result<Self, Problem> {
        let refused = |error: ParameterError| Problem::usage(format!("--rdzv-conf: {error}"));
        let mut meet = Meet {
            alone: false,
            serves: Serves::OnDemand,
            patience: options.connect_timeout.map(|seconds| seconds.0),
            name_again: false,
            config: RendezvousParameters::parse_config(&options.rdzv_conf).map_err(refused)?,
            said: None,
            warned: None,
            place: EndpointFlags::Endpoint,
            without_effect: Vec::new(),
        };
        if let Some(seconds) = options.replacement_timeout.filter(|_| options.is_native()) {
            meet.set("replacement_timeout", seconds.0.as_secs_f64().to_string());
        }
        if let Some(host) = options.host.as_ref().filter(|_| options.is_native()) {
            meet.set("host", host.as_str());
        }
        Ok(meet)
    }

    /// What `--rdzv-conf` says comes first.
    fn set(&mut self, key: &str, value: impl Into<String>) {
        self.config.entry(key.to_owned()).or_insert(value.into());
    }

    fn nothing(&mut self, flag: &str, why: &str) {
        self.without_effect.push((flag.to_owned(), why.to_owned()));
    }

    /// Takes out what only torchrun's backends can be told; whether this node is to serve, if it says so. Of our own
    /// backend, what is no option of it is refused later, but for what torchrun puts there by itself.
    fn drop_theirs(&mut self, torchs: Option<Torchs>) -> Result<Option<bool>, Problem> {
        let all = torchs.is_some();
        for (key, why) in THEIRS.into_iter().filter(|(key, _)| all || TORCHRUNS.contains(key)) {
            if self.config.remove(key).is_some() {
                self.nothing(&format!("--rdzv-conf {key}"), why);
            }
        }
        self.config.remove("is_host").map(|text| yes_or_no("is_host", &text)).transpose()
    }

    fn none_of(&mut self, asked: &Asked, why: &str) {
        let given = [
            ("--master-addr", asked.master_addr.is_some()),
            ("--master-port", asked.master_port.is_some()),
            ("--node-rank", asked.node_rank.is_some_and(|rank| rank != 0)),
        ];
        given.into_iter().filter(|(_, given)| *given).for_each(|(flag, _)| self.nothing(flag, why));
    }

    /// A node that meets nobody has a server of its own.
    fn no_host(&mut self, is_host: Option<bool>) {
        if is_host.is_some() {
            self.nothing("--rdzv-conf is_host", "this node meets no other");
        }
    }

    /// Nobody else needs to find the server, so the workers can have the port.
    fn by_itself(&mut self, options: &mut Run, asked: Asked) {
        self.said = asked.torchs.map(|_| asked.said("a server of this node's own"));
        let address = asked.master_addr.map(|address| bare(&address).to_owned());
        options.local_addr = options.local_addr.take().or(address);
        if let Some(port) = asked.master_port.filter(|port| *port != 0) {
            self.set("master_port", port.to_string());
        }
    }

    fn with_others(
        &mut self,
        options: &mut Run,
        asked: &Asked,
        is_host: Option<bool>,
        scheduled: Option<Serves>,
    ) {
        let is_static = asked.is_static();
        if asked.by_master {
            let address = asked.master_addr.as_deref().unwrap_or(MASTER_ADDR);
            options.connection.endpoint = endpoint(address, asked.master_port.unwrap_or(MASTER_PORT));
            self.place = EndpointFlags::Master;
            if asked.master_addr.is_none() {
                self.warned = Some(format!(
                    "there is no --master-addr, so it is {MASTER_ADDR}, as under torchrun: nodes on other machines cannot reach that; give all nodes the address of node 0"
                ));
            }
            if asked.node_rank == Some(0) {
                options.local_addr = options.local_addr.take().or_else(|| Some(bare(address).to_owned()));
            }
        } else {
            let why = "--rdzv-endpoint says where the nodes meet";
            asked.master_addr.iter().for_each(|_| self.nothing("--master-addr", why));
            asked.master_port.iter().for_each(|_| self.nothing("--master-port", why));
            if let (Some(torchs), false) =
                (asked.torchs, asked.endpoint.is_empty() || has_port(&asked.endpoint))
            {
                let port = if torchs == Torchs::C10d { C10D_PORT } else { MASTER_PORT };
                options.connection.endpoint = format!("{}:{port}", asked.endpoint);
            }
        }
        let told = is_host.map(|here| if here { Serves::Here } else { Serves::Elsewhere }).or(scheduled);
        self.serves = told.unwrap_or(match asked.node_rank.filter(|_| is_static) {
            Some(0) => Serves::Here,
            Some(_) => Serves::Elsewhere,
            None => Serves::OnDemand,
        });
        // A policy is the run's, so all its nodes have one with a static rendezvous, also the one that leaves out its 0.
        if let Some(rank) = asked.node_rank.or(is_static.then_some(0)) {
            self.set("rank_policy", "hint");
            self.set("rank_hint", rank.to_string());
        }
        if let Some(rank) = asked.node_rank.filter(|_| is_static) {
            // So a second node of this rank is told of, and one that is started again takes its place at once.
            self.set("node_id", format!("{NODE_RANK}{rank}"));
        }
        if asked.torchs.is_some() || asked.by_master {
            let place = Some(options.connection.endpoints()).filter(|endpoint| !endpoint.is_empty());
            self.said = place.map(|endpoint| asked.said(endpoint));
            if options.rdzv_id.trim().is_empty() {
                self.name_again = true;
                if self.place == EndpointFlags::Endpoint {
                    self.place = EndpointFlags::Unnamed;
                }
                options.rdzv_id = NO_NAME.to_owned();
            }
        }
    }
}

fn yes_or_no(key: &str, text: &str) -> Result<bool, Problem> {
    match text.to_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(true),
        "0" | "false" | "f" | "no" | "n" => Ok(false),
        _ => Err(Problem::usage(format!("--rdzv-conf {key}={text} is neither true nor false"))),
    }
}

/// An address without the brackets of IPv6.
fn bare(address: &str) -> &str {
    address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address)
}

fn endpoint(address: &str, port: u16) -> String {
    host_and_port(bare(address), port)
}

/// Whether each part of an endpoint that torchrun takes, which is one, has a port.
fn has_port(endpoint: &str) -> bool {
    let after = endpoint.rsplit_once(']').map_or(endpoint, |(_, after)| after);
    after.contains([':', ','])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::super::options::tests::parsed;
    use super::*;

    fn meant(line: &str) -> Result<(Run, Meet), Problem> {
        let mut run = parsed(line).map_err(|error| Problem::usage(error.to_string()))?;
        let meet = of(&mut run, Scheduled::default())?;
        Ok((run, meet))
    }

    #[test]
    fn a_static_rendezvous_is_the_native_one_at_the_master() {
        let (run, meet) = meant("--nnodes 2 --node-rank 0 --master-addr node1 --master-port 7000").unwrap();
        assert_eq!((run.rdzv_backend.as_str(), run.connection.endpoints()), (BACKEND, "node1:7000"));
        assert_eq!((run.rdzv_id.as_str(), run.local_addr.as_deref()), ("none", Some("node1")));
        assert_eq!((meet.serves, meet.alone, meet.patience), (Serves::Here, false, None));
        assert_eq!((meet.config["rank_policy"].as_str(), meet.config["rank_hint"].as_str()), ("hint", "0"));
        assert!(meet.said.unwrap().contains("node1:7000") && meet.without_effect.is_empty());

        let (run, meet) =
            meant("--rdzv-backend static --nnodes 2 --node_rank 1 --master_addr [fd00::1] --rdzv-id job")
                .unwrap();
        assert_eq!((run.connection.endpoints(), run.rdzv_id.as_str()), ("[fd00::1]:29500", "job"));
        assert_eq!((meet.serves, run.local_addr), (Serves::Elsewhere, None));
        assert_eq!(meet.config["node_id"], "node-rank-1");

        // A rank is given, so the nodes meet at the master.
        let (run, meet) = meant("--nnodes 2 --node-rank 0").unwrap();
        assert_eq!((run.connection.endpoints(), meet.serves), ("127.0.0.1:29500", Serves::Here));
        assert!(meet.warned.unwrap().contains("no --master-addr"));
        assert!(meet.said.unwrap().starts_with("--node-rank means"));

        // torchrun's address, which is of use on one machine alone.
        let (run, meet) = meant("--nnodes 2 --node-rank 1 --master-port 7000").unwrap();
        assert_eq!((run.connection.endpoints(), meet.place), ("127.0.0.1:7000", EndpointFlags::Master));
        assert!(meet.warned.unwrap().contains("no --master-addr"));
        assert!(meet.said.unwrap().starts_with("--master-port means"));

        // Whoever leaves out its rank is 0, as under torchrun, but serves only where the address is its own.
        let (_, meet) = meant("--nnodes 2 --master-addr node1").unwrap();
        assert_eq!((meet.serves, meet.config["rank_hint"].as_str()), (Serves::OnDemand, "0"));
        assert!(meant("--nnodes 2 --node-rank 2 --master-addr a").unwrap_err().text.contains("0 to 1"));
    }

    #[test]
    fn c10d_is_the_native_one_at_its_endpoint() {
        let (run, meet) = meant(
            "--rdzv-backend c10d --nnodes 2:4 --rdzv-endpoint node1 --rdzv-conf is_host=1,close_timeout=3",
        )
        .unwrap();
        assert_eq!((run.connection.endpoints(), run.rdzv_id.as_str()), ("node1:29400", "none"));
        assert_eq!((meet.serves, meet.config.len()), (Serves::Here, 0));
        assert_eq!(meet.without_effect[0].0, "--rdzv-conf close_timeout");
        let (run, _) =
            meant("--rdzv-backend c10d --nnodes 2 --rdzv-endpoint [fd00::1]:1 --master-addr x").unwrap();
        assert_eq!(run.connection.endpoints(), "[fd00::1]:1");
        // Our own backend heeds it too, and names what it does not heed.
        let (_, meet) =
            meant("--nnodes 2 --rdzv-endpoint node1 --rdzv-id j --rdzv-conf is_host=0,rank=1").unwrap();
        assert_eq!((meet.serves, meet.config.len()), (Serves::Elsewhere, 0));
        assert_eq!(meet.without_effect[0].0, "--rdzv-conf rank");
        let (_, meet) = meant("--standalone --rdzv-conf is_host=1").unwrap();
        assert_eq!(meet.without_effect[0].0, "--rdzv-conf is_host");
        let waits = "--nnodes 2:4 --rdzv-endpoint n:1 --rdzv-id j --replacement-timeout 1.5";
        let option = |line: &str| meant(line).unwrap().1.config.get("replacement_timeout").cloned();
        assert_eq!(option(waits).as_deref(), Some("1.5"));
        let both = format!("{waits} --rdzv-conf replacement_timeout=9");
        assert_eq!(option(&both).as_deref(), Some("9"));
        assert_eq!(option(&format!("{waits} --rdzv-backend etcd")), None, "it knows no such option");
        // Ranks are heeded though torchrun's c10d does not; nodes may still share one.
        let (_, meet) = meant("--rdzv-backend c10d --nnodes 2:4 --rdzv-endpoint n:1 --node-rank 7").unwrap();
        assert_eq!((meet.config["rank_hint"].as_str(), meet.config.get("node_id")), ("7", None));
    }

    #[test]
    fn one_node_needs_no_place() {
        for line in
            ["--rdzv-backend c10d --rdzv-endpoint localhost:0", "--standalone --rdzv-backend static", ""]
        {
            let (run, meet) = meant(line).unwrap();
            assert!(meet.alone && run.connection.endpoints().is_empty(), "{line}");
        }
        let (run, meet) = meant("--master-addr 10.0.0.1 --master-port 29511").unwrap();
        assert_eq!((meet.alone, run.local_addr.as_deref()), (true, Some("10.0.0.1")));
        assert_eq!(meet.config["master_port"], "29511");
        assert!(
            meant("--rdzv-backend c10d --rdzv-endpoint h:0 --nnodes 2").unwrap_err().text.contains("1 node")
        );
        assert!(meant("--node-rank 1 --master-addr a").unwrap_err().text.contains("--node-rank 1"));
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let named = |line: &str| {
            let without = meant(line).unwrap().1.without_effect;
            without.into_iter().map(|(flag, _)| flag).collect::<Vec<_>>()
        };
        let all = "--master-addr a --master-port 1 --node-rank 1";
        assert_eq!(named(&format!("--standalone {all}")).len(), 3);
        assert_eq!(named(&format!("--rdzv-backend etcd --nnodes 2 --rdzv-endpoint e {all}")).len(), 3);
        assert_eq!(
            named("--nnodes 2 --rdzv-endpoint e --rdzv-id j --master-addr a --node-rank 1"),
            ["--master-addr"]
        );
    }
}
