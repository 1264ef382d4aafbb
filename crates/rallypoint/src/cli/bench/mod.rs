//! `rallypoint bench rendezvous`: how fast a group forms on a given etcd, beside what that etcd can do at all; what it
//! costs while nothing happens; and how it gets over the death of many.

mod aftermath;
mod counts;
mod limits;
mod progress;
mod telemetry;

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client as RawClient, PutOptions};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use rallypoint_core::round::Keys;
use rallypoint_core::text::count;
use rallypoint_etcd::v3::{Client, raw_failure};
use rallypoint_rendezvous::native::{NativeHandler, NativeSettings, run_prefix};
use rallypoint_rendezvous::{RendezvousError, RendezvousHandler};
use serde::Serialize;
use tokio::task::{JoinError, JoinSet};

pub use self::aftermath::{Idle, MassDeath, idle, mass_death};
use self::counts::Counts;
use self::progress::Progress;
use self::telemetry::{Comparison, Telemetry, compare};
use super::connection::Connection;
use super::exit::{EndpointFlags, NODE, Problem};
use super::variables::yes_or_no;

/// Connections that all nodes share unless told otherwise; as many carry the raw requests of the floor.
pub const CONNECTIONS: usize = 8;
/// Raw requests under way at a time, which is where an etcd does most per second.
const IN_FLIGHT: usize = 256;
/// Leases and keys that go before, and are not measured.
const WARM_UP: usize = 200;

/// Seconds; longer than the floor takes to measure.
const FLOOR_LEASE: i64 = 300;

/// Measure what an etcd can do for a rendezvous.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Rendezvous(Rendezvous),
}

/// Form a group of nodes, as tasks of this process, and say how long it took.
///
/// Beside it stands the floor: as many lease grants and puts, asked for by a raw client. The run is closed
/// at the end, and the mark of that goes from etcd after 10 minutes. Ended before, as by Ctrl-C, it leaves its keys to
/// their leases: the last of the nodes' are gone after 30 seconds, of the floor's after 5 minutes, of the run's after 10.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 measured, 1 the ranks were wrong, 2 wrong usage, 3 no group formed, 4 no etcd at the endpoint, or it does not let this user in, 6 too few open files or ports."
)]
struct Rendezvous {
    /// The size of the group.
    #[arg(long, env = "RALLYPOINT_BENCH_NODES", value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Connections that the nodes share, but for the leader; as many as nodes are what nodes elsewhere have.
    #[arg(long, env = "RALLYPOINT_BENCH_CONNECTIONS", value_name = "N", default_value_t = CONNECTIONS as u32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// The nodes' leases [default: as nodes have them: 5 up to 1,000 nodes, 20 for 10,000, at most 30].
    #[arg(long, env = "RALLYPOINT_BENCH_LEASE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    lease: Option<u32>,
    /// Then let the group be for so long, and say what it costs etcd.
    #[arg(long, env = "RALLYPOINT_BENCH_IDLE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    idle: Option<u32>,
    /// Then let so many nodes die at once, and the others meet again.
    #[arg(long, env = "RALLYPOINT_BENCH_DEATHS", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    deaths: Option<u32>,
    /// Then form so many groups more with metrics and traces, and as many without, in turn, and say what they cost.
    #[arg(long, env = "RALLYPOINT_BENCH_COMPARE_TELEMETRY", value_name = "GROUPS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    compare_telemetry: Option<u32>,
    /// Print JSON.
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = yes_or_no)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The exit code of `rallypoint bench`.
pub(crate) fn run(options: &Bench) -> u8 {
    let What::Rendezvous(options) = &options.what;
    let measured = tokio::runtime::Runtime::new()
        .map_err(|error| Problem::new(NODE, format!("no threads to run on: {error}")))
        .and_then(|runtime| runtime.block_on(measure(options)));
    match measured {
        Ok(measured) => {
            let text = match options.json {
                true => serde_json::to_string(&measured).expect("figures can be written as JSON") + "\n",
                false => measured.to_string(),
            };
            // Who closes the pipe has seen enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            u8::from(!measured.formation.ranks_ok)
        }
        Err(problem) => problem.report(),
    }
}

async fn measure(options: &Rendezvous) -> Result<Measured, Problem> {
    let nodes = options.nodes as usize;
    let deaths = options.deaths.map_or(0, |deaths| deaths as usize);
    if deaths >= nodes {
        return Err(Problem::usage(format!(
            "of {}, {deaths} cannot die: one must be left",
            count(nodes, "node")
        )));
    }
    let run = format!("bench-{}-{}", std::process::id(), fastrand::u32(..));
    let mut etcd = options.connection.settings()?;
    etcd.prefix = options.connection.prefix.clone().unwrap_or_default();
    let settings = NativeSettings::new(options.connection.endpoints(), &run, nodes - deaths, nodes);
    let mut settings = settings.map_err(|error| Problem::usage(error.to_string()))?;
    settings.etcd = etcd;
    settings.lease = options.lease.map_or(settings.lease, |lease| Duration::from_secs(lease.into()));
    let connections = (options.connections as usize).min(nodes);
    limits::make_room(nodes, connections).map_err(|problem| Problem::new(NODE, problem))?;
    let failed = |error: RendezvousError| Problem::rendezvous(&error, EndpointFlags::Operator);
    let progress = Progress::told();
    progress.now(format!("connecting to {}", settings.etcd.endpoints));
    // What is wrong with the endpoint is told as to any operator.
    options.connection.client().await?;
    let mut group = form_telling(&settings, nodes, connections, &progress, None).await.map_err(failed)?;
    let formation = group.formation.clone();
    let idle = match options.idle {
        Some(time) => {
            progress.now(format!("letting the group be for {time} s"));
            let measured = idle(&settings, nodes, Duration::from_secs(time.into())).await;
            if measured.is_none() {
                progress.say(
                    "this server does not count its requests: only a real etcd tells what a group costs at rest",
                );
            }
            measured
        }
        None => None,
    };
    let mass_death = match deaths {
        0 => None,
        deaths => {
            let died = count(deaths, "node");
            progress.now(format!("{died} ended at once; waiting for the others to meet again"));
            Some(mass_death(&settings, &mut group, deaths).await.map_err(failed)?)
        }
    };
    progress.now("ending the run");
    disband(group).await;
    let telemetry = match options.compare_telemetry {
        None => None,
        Some(rounds) => {
            let compared = compare(&settings, nodes, connections, rounds as usize, &progress).await;
            let no_port = |error| Problem::new(NODE, format!("no port for a collector: {error}"));
            Some(compared.map_err(no_port)?.map_err(failed)?)
        }
    };
    Ok(Measured { formation, idle, mass_death, telemetry })
}

/// All that was measured.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    #[serde(flatten)]
    formation: Formation,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<Idle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mass_death: Option<MassDeath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    telemetry: Option<Comparison>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.formation)?;
        if let Some(idle) = &self.idle {
            writeln!(
                f,
                "idle                {:.0} s, {:.0} keep-alives a second",
                idle.seconds, idle.keep_alives
            )?;
            writeln!(
                f,
                "etcd then           {:.3} of a processor for 1,000 nodes",
                idle.processors_per_1000
            )?;
        }
        if let Some(died) = &self.mass_death {
            writeln!(f, "died at once        {}, leases of {} s", died.deaths, died.lease)?;
            writeln!(f, "the others know     {:.3}", died.known_seconds)?;
            writeln!(f, "they are whole      {:.3}", died.whole_seconds)?;
            writeln!(f, "etcd is tidy        {:.3}", died.tidy_seconds)?;
        }
        if let Some(Comparison { rounds, on, off, trace_bytes }) = &self.telemetry {
            let known =
                |count: Option<f64>| count.map_or("not told".to_owned(), |count| format!("{count:.2}"));
            for (what, figures) in [("with telemetry", on), ("without", off)] {
                let requests = known(figures.requests_per_node);
                let telemetry::Middle { seconds, least, most, .. } = figures;
                writeln!(
                    f,
                    "{what:<19} {seconds:.3} ({least:.3} - {most:.3}) of {rounds}, {requests} requests per node"
                )?;
            }
            writeln!(
                f,
                "its cost            {:.2} times, {trace_bytes} bytes of traces",
                on.seconds / off.seconds
            )?;
        }
        Ok(())
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Formation {
    /// The size of the group.
    pub nodes: usize,
    /// From the first node's start until the last one has its rank.
    pub seconds: f64,
    /// As many lease grants and puts by the raw client.
    pub floor_seconds: f64,
    /// Requests that etcd counted, per node, without the refreshes of leases, which come with time; none if
    /// that etcd does not say.
    pub requests_per_node: Option<f64>,
    /// Refreshes of leases that etcd counted, per node.
    pub keep_alives_per_node: Option<f64>,
    /// Each rank from 0 was given once, and all nodes had one size, one round, one master.
    pub ranks_ok: bool,
}

impl fmt::Display for Formation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |count: Option<f64>| count.map_or("not told".to_owned(), |count| format!("{count:.2}"));
        writeln!(f, "nodes               {}", self.nodes)?;
        writeln!(f, "seconds             {:.3}", self.seconds)?;
        writeln!(
            f,
            "floor               {:.3} ({:.2} times that)",
            self.floor_seconds,
            self.seconds / self.floor_seconds
        )?;
        writeln!(f, "requests per node   {}", known(self.requests_per_node))?;
        writeln!(f, "keep-alives         {} per node", known(self.keep_alives_per_node))?;
        writeln!(f, "ranks               {}", if self.ranks_ok { "right" } else { "WRONG" })
    }
}

/// A group that has formed.
#[derive(Debug)]
pub struct Group {
    /// What was measured.
    pub formation: Formation,
    /// The nodes, in the order of their names.
    pub nodes: Vec<Arc<NativeHandler>>,
    /// What counts and traces them, where something does.
    _watched: Vec<Arc<dyn RendezvousHandler>>,
}

/// Forms a group of `nodes` nodes, as tasks of this process on a few connections, and leaves it in being.
pub async fn form(settings: &NativeSettings, nodes: usize) -> Result<Group, RendezvousError> {
    form_on(settings, nodes, CONNECTIONS).await
}

/// The same, on so many connections.
pub async fn form_on(
    settings: &NativeSettings,
    nodes: usize,
    connections: usize,
) -> Result<Group, RendezvousError> {
    form_telling(settings, nodes, connections, &Progress::default(), None).await
}

async fn form_telling(
    settings: &NativeSettings,
    nodes: usize,
    connections: usize,
    progress: &Progress,
    telemetry: Option<&Telemetry>,
) -> Result<Group, RendezvousError> {
    let connection = |error: rallypoint_etcd::Error| RendezvousError::Connection {
        endpoint: settings.etcd.endpoints.to_string(),
        source: error.into(),
    };
    // If there is too little room, the error comes with the port that cannot be held.
    let _ = limits::make_room(nodes, connections);
    // They queue up for a few connections, which nodes elsewhere have one each of. So the first node has one to itself, and
    // a head start that makes it the leader: all wait for the leader, and it must not wait behind them.
    let mut settings = settings.clone();
    settings.etcd.retry_timeout = Duration::from_secs(60);
    settings.address.get_or_insert_with(|| "127.0.0.1".to_owned());
    let settings = &settings;
    let counted = telemetry.map(|telemetry| telemetry.clients.etcd.clone()).unwrap_or_default();
    let connecting =
        (0..=connections).map(|_| Client::connect_counting(settings.etcd.clone(), counted.clone()));
    let connecting = futures::stream::iter(connecting).buffer_unordered(64);
    let clients: Vec<Client> = connecting.try_collect().await.map_err(connection)?;
    let (leases, group) = (count(nodes, "lease"), count(nodes, "node"));
    progress.now(format!("measuring the floor: {leases} and as many keys, by a raw client"));
    // What is first at a fresh server, or on a fresh connection, pays for it.
    floor(settings, nodes.min(WARM_UP)).await?;
    let floor_seconds = floor(settings, nodes).await?;
    let before = Counts::read(settings).await.ok();
    // Each is made by a process of its own when that starts. Here they would stand in line.
    let mut tellers: Vec<_> = telemetry.map_or_else(Vec::new, |telemetry| {
        std::iter::repeat_with(|| telemetry.of_a_node()).take(nodes).collect()
    });
    let mut handlers = Vec::with_capacity(nodes);
    for index in 0..nodes {
        let mut settings = settings.clone();
        settings.node_id = Some(format!("node-{index:05}"));
        let client = clients[if index == 0 { 0 } else { 1 + index % connections }].clone();
        handlers.push(Arc::new(NativeHandler::with_client(settings, client).await?));
    }

    progress.now(format!("forming a group of {group}"));
    let began = Instant::now();
    let leader = Keys::new(&run_prefix(&settings.run_id)).leader();
    let mut met = Vec::with_capacity(nodes);
    let mut joining = JoinSet::new();
    for (index, node) in handlers.into_iter().enumerate() {
        let watched = tellers.pop().map(|teller| teller.over(&node));
        joining.spawn(async move {
            let round = match &watched {
                Some(watched) => watched.next_rendezvous().await?,
                None => node.next_rendezvous().await?,
            };
            let round = (round.rank, round.world_size, round.round, round.master);
            Ok::<_, RendezvousError>((node, round, watched))
        });
        if index == 0 {
            tokio::select! {
                led = led(&clients[0], &leader) => led.map_err(connection)?,
                // A group of one, or one that fails.
                Some(first) = joining.join_next() => met.push(joined(first)?),
            }
        }
    }
    while let Some(result) = joining.join_next().await {
        met.push(joined(result)?);
    }
    let seconds = began.elapsed().as_secs_f64();

    let after = Counts::read(settings).await.ok();
    let counted = before.zip(after);
    let per_node = |count: fn(&Counts) -> f64| {
        counted.as_ref().map(|(before, after)| (count(after) - count(before)) / nodes as f64)
    };
    let ranks_ok = {
        let mut ranks: Vec<usize> = met.iter().map(|(_, round, _)| round.0).collect();
        ranks.sort_unstable();
        let same = met
            .windows(2)
            .all(|pair| (pair[0].1.1, pair[0].1.2, &pair[0].1.3) == (pair[1].1.1, pair[1].1.2, &pair[1].1.3));
        same && ranks.into_iter().eq(0..nodes) && met.first().is_some_and(|(_, round, _)| round.1 == nodes)
    };
    let formation = Formation {
        nodes,
        seconds,
        floor_seconds,
        requests_per_node: per_node(|counts| counts.requests),
        keep_alives_per_node: per_node(|counts| counts.keep_alives),
        ranks_ok,
    };
    let (mut nodes, mut watchers) = (Vec::with_capacity(nodes), Vec::new());
    for (node, _, watched) in met {
        nodes.push(node);
        watchers.extend(watched);
    }
    nodes.sort_by(|a: &Arc<NativeHandler>, b| a.node().cmp(b.node()));
    Ok(Group { formation, nodes, _watched: watchers })
}

/// What came of a node's task.
fn joined<T>(task: Result<Result<T, RendezvousError>, JoinError>) -> Result<T, RendezvousError> {
    task.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Waits until somebody leads the run.
async fn led(client: &Client, leader: &str) -> rallypoint_etcd::Result<()> {
    while client.get(leader, None).await?.kvs().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Leaves nothing of the group in etcd; what a busy etcd does not get done in time goes with its lease.
pub async fn disband(group: Group) {
    let closer = group.nodes.first().map(|node| node.set_closed("the benchmark is done"));
    if let Some(Err(error)) = futures::future::OptionFuture::from(closer).await {
        tracing::warn!(%error, "the benchmark's run is left to its lease");
    }
    let leaving = group.nodes.iter().map(|node| node.leave());
    let _: Vec<_> = futures::stream::iter(leaving).buffer_unordered(64).collect().await;
}

/// What this etcd needs for a lease and a key of each node, asked for by the raw client.
async fn floor(settings: &NativeSettings, nodes: usize) -> Result<f64, RendezvousError> {
    let endpoint = settings.etcd.endpoints.to_string();
    let failed = |error: rallypoint_etcd::Error| RendezvousError::Connection {
        endpoint: endpoint.clone(),
        source: error.into(),
    };
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let connected = RawClient::connect(settings.etcd.urls(), raw_options(settings)?).await;
        clients.push(connected.map_err(|error| failed(raw_failure("connect", error)))?);
    }
    // Among the keys of the run, since a user may be let to no others.
    let key = |index: usize| format!("{}{}floor/{index}", settings.etcd.prefix, run_prefix(&settings.run_id));
    let began = Instant::now();
    let joining = (0..nodes).map(|index| {
        let mut client = clients[index % CONNECTIONS].clone();
        let key = key(index);
        async move {
            let granted = client.lease_grant(FLOOR_LEASE, None).await;
            let lease = granted.map_err(|error| raw_failure("grant a lease", error))?.id();
            let options = PutOptions::new().with_lease(lease);
            let put = client.put(key.as_str(), [b'x'; 200], Some(options)).await;
            put.map_err(|error| raw_failure("put", error).key(key))?;
            Ok(lease)
        }
    });
    let leases: Vec<i64> =
        futures::stream::iter(joining).buffer_unordered(IN_FLIGHT).try_collect().await.map_err(failed)?;
    let seconds = began.elapsed().as_secs_f64();
    // They would end while the group forms, at its expense.
    let ending = leases.into_iter().map(|lease| {
        let mut client = clients[0].clone();
        async move {
            let ended = client.lease_revoke(lease).await;
            ended.map(drop).map_err(|error| raw_failure("revoke a lease", error))
        }
    });
    let ended: Result<Vec<()>, _> =
        futures::stream::iter(ending).buffer_unordered(IN_FLIGHT).try_collect().await;
    ended.map_err(failed)?;
    Ok(seconds)
}

fn raw_options(settings: &NativeSettings) -> Result<Option<etcd_client::ConnectOptions>, RendezvousError> {
    let mut options = etcd_client::ConnectOptions::new();
    if let Some(credentials) = &settings.etcd.credentials {
        options = options.with_user(&credentials.user, &credentials.password);
    }
    if let Some(tls) = &settings.etcd.tls {
        let read = |path: &std::path::Path| {
            std::fs::read(path).map_err(|error| {
                rallypoint_rendezvous::ParameterError(format!("cannot read {}: {error}", path.display()))
            })
        };
        let mut made = etcd_client::TlsOptions::new();
        if let Some(ca) = &tls.ca {
            made = made.ca_certificate(etcd_client::Certificate::from_pem(read(ca)?));
        }
        if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
            made = made.identity(etcd_client::Identity::from_pem(read(cert)?, read(key)?));
        }
        options = options.with_tls(made);
    }
    Ok(Some(options))
}
