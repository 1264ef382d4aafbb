//! `rallypoint exclude`, `include` and `excluded`: who is excluded from a run.

use std::io::Write;
use std::time::Duration;

use rallypoint_agent::server_node;
use rallypoint_core::text::plain;
use rallypoint_core::time::rfc3339;
use rallypoint_etcd::v3::Client;
use rallypoint_rendezvous::native::{self, MOST_EXCLUSIONS, NodeStatus, exclusion_time};
use rallypoint_rendezvous::{Exclusion, ExclusionOutcome, Whom};

use super::super::connection::Connection;
use super::super::exit::{CLOSED, NODE, Problem};
use super::super::variables::yes_or_no;
use super::close::in_words;
use super::table::table;
use super::{failed, json, no_such_run, print};

/// Keep a node, or all nodes of a host, out of a run.
///
/// If it is in the run's round, that ends: the others meet again without it, and a spare takes its place. It ends with exit
/// code 7 and says the reason, now and whenever it is started again, or waits to be let in if it was started with
/// `--rdzv-conf when_excluded=wait`. Only runs of the backend rallypoint have a place for this.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "rallypoint exclude [OPTIONS] --node <NAME> --reason <TEXT> <RUN>\n       rallypoint exclude [OPTIONS] --host <HOST> --reason <TEXT> <RUN>",
    after_help = "Examples:\n  rallypoint exclude job42 --node gpu-17-10.0.0.17 --reason 'GPU 3 is broken'\n  rallypoint exclude job42 --host gpu-17 --reason maintenance --for 2h\n\nExit codes: 0 excluded, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint, 5 the run is closed, 6 too many are excluded already."
)]
pub(crate) struct Exclude {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    #[command(flatten)]
    whom: OneOf,
    /// Why, in words: the node says it when it ends, and `rallypoint excluded` and `events` show it.
    #[arg(long, env = "RALLYPOINT_REASON", value_name = "TEXT", value_parser = in_words)]
    reason: String,
    /// For how long: seconds, or a number with s, m, h or d, up to 30d. Without it, for as long as the run lives.
    #[arg(long = "for", env = "RALLYPOINT_EXCLUDE_FOR", value_name = "TIME", value_parser = time)]
    time: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

/// Who is meant.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct OneOf {
    /// The node, by its name in the run: `rallypoint status RUN` shows it.
    #[arg(long, env = "RALLYPOINT_EXCLUDE_NODE", value_name = "NAME", value_parser = a_name)]
    node: Option<String>,
    /// Every node on this host, by what `hostname` says there.
    #[arg(long, env = "RALLYPOINT_EXCLUDE_HOST", value_name = "HOST", value_parser = a_name)]
    host: Option<String>,
}

impl OneOf {
    fn whom(&self) -> Option<Whom> {
        let node = self.node.clone().map(Whom::Node);
        node.or_else(|| self.host.clone().map(Whom::Host))
    }
}

/// Let somebody in again who is excluded from a run.
///
/// Nodes that wait for it join at once; those that have ended can be started again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  rallypoint include job42 --host gpu-17 --endpoint etcd1:2379\n  rallypoint include job42 --all --endpoint etcd1:2379\n\nExit codes: 0 let in, 1 there is no such run or it is not excluded, 2 wrong usage, 4 no etcd at the endpoint, 5 the run is closed."
)]
#[command(group = clap::ArgGroup::new("whom").required(true).multiple(false).args(["node", "host", "all"]))]
pub(crate) struct Include {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// The node, by the name it was excluded by.
    #[arg(long, env = "RALLYPOINT_INCLUDE_NODE", value_name = "NAME", value_parser = a_name)]
    node: Option<String>,
    /// The host, by the name it was excluded by.
    #[arg(long, env = "RALLYPOINT_INCLUDE_HOST", value_name = "HOST", value_parser = a_name)]
    host: Option<String>,
    /// Everybody who is excluded.
    #[arg(long, env = "RALLYPOINT_INCLUDE_ALL", value_parser = yes_or_no)]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Show who is excluded from a run, and why.
///
/// It says who has excluded them, since when, and until when.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: rallypoint excluded job42 --endpoint etcd1:2379\n\nExit codes: 0 shown, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint."
)]
pub(crate) struct Excluded {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// Print JSON: a list, with the time in milliseconds since 1970.
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = yes_or_no)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

fn a_name(name: &str) -> Result<String, String> {
    match name.len() {
        _ if name.trim().is_empty() => Err("name the one that is meant".to_owned()),
        length if length > native::LONGEST_NAME => {
            Err(format!("it has {length} bytes, and no name has more than {}", native::LONGEST_NAME))
        }
        _ => Ok(name.to_owned()),
    }
}

/// `90`, `90s`, `15m`, `2h`, `1d`.
pub(in crate::cli) fn time(text: &str) -> Result<Duration, String> {
    exclusion_time(text).map_err(str::to_owned)
}

/// The exit code of `rallypoint exclude`.
pub(crate) async fn exclude(options: &Exclude) -> Result<u8, Problem> {
    let Some(whom) = options.whom.whom() else { return Err(Problem::usage("give --node or --host")) };
    let client = connect(&options.run, &options.connection).await?;
    if let Some(note) = ends_the_run(&client, &options.run, &whom).await {
        let _ = writeln!(std::io::stderr(), "note: {note}");
    }
    let outcome = native::exclude(&client, &options.run, whom.clone(), &options.reason, options.time).await;
    check(&options.run, outcome.map_err(|error| failed(&error))?)?;
    let run = plain(&options.run);
    let until = match options.time {
        Some(time) => format!("for {} s", time.as_secs()),
        None => "for as long as the run lives".to_owned(),
    };
    // It is done, whoever reads.
    let _ =
        writeln!(std::io::stdout(), "{whom} is excluded from run {run}, {until}: {}", plain(&options.reason));
    if let Some(note) = nobody_there(&client, &options.run, &whom).await {
        let _ = writeln!(std::io::stderr(), "note: {note}");
    }
    Ok(0)
}

/// What is said, before it is done, where the nodes have met on the server of a node that is meant: the run ends with it.
async fn ends_the_run(client: &Client, run: &str, whom: &Whom) -> Option<String> {
    let round = native::last_round(client, run).await.ok().flatten()?;
    let server = server_node(&*round.run_store).await?;
    let status = native::status(client, run).await.ok().flatten()?;
    let meant = |node: &&NodeStatus| node.rank == Some(server.node) && whom.is(&node.node, &node.host);
    let node = status.nodes.iter().find(meant)?;
    Some(format!(
        "node {} has the server that the nodes have met on: run {} ends with it, and so does this exclusion",
        plain(&node.node),
        plain(run)
    ))
}

/// What is said where nobody is there now who is meant: most often the name is another.
async fn nobody_there(client: &Client, run: &str, whom: &Whom) -> Option<String> {
    let status = native::status(client, run).await.ok().flatten()?;
    let meant = |node: &&NodeStatus| whom.is(&node.node, &node.host);
    (!status.nodes.iter().any(|node| meant(&node))).then(|| {
        format!("{whom} is not among the nodes that are there; `rallypoint status {}` shows them", plain(run))
    })
}

/// The exit code of `rallypoint include`.
pub(crate) async fn include(options: &Include) -> Result<u8, Problem> {
    let whom = OneOf { node: options.node.clone(), host: options.host.clone() }.whom();
    // The variable may say no.
    if whom.is_none() && !options.all {
        return Err(Problem::usage("give --node, --host or --all"));
    }
    let client = connect(&options.run, &options.connection).await?;
    let outcome = native::include(&client, &options.run, whom.clone()).await;
    check(&options.run, outcome.map_err(|error| failed(&error))?)?;
    let who = whom.map_or_else(|| "everybody".to_owned(), |whom| whom.to_string());
    let _ = writeln!(std::io::stdout(), "{who} may join run {} again", plain(&options.run));
    Ok(0)
}

/// The exit code of `rallypoint excluded`.
pub(crate) async fn excluded(options: &Excluded) -> Result<u8, Problem> {
    let client = connect(&options.run, &options.connection).await?;
    let found = native::excluded(&client, &options.run).await.map_err(|error| failed(&error))?;
    let Some(excluded) = found else { return Err(no_such_run(&options.run)) };
    print(&if options.json { json(&excluded, false)? } else { show(&options.run, &excluded) }, false)?;
    Ok(0)
}

async fn connect(run: &str, connection: &Connection) -> Result<Client, Problem> {
    native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    connection.client().await
}

fn check(run: &str, outcome: ExclusionOutcome) -> Result<(), Problem> {
    match outcome {
        ExclusionOutcome::Done => Ok(()),
        ExclusionOutcome::NoRun => Err(no_such_run(run)),
        ExclusionOutcome::RunClosed => {
            Err(Problem::new(CLOSED, format!("run {run:?} is closed: no node can join it any more")))
        }
        ExclusionOutcome::TooMany => Err(Problem::new(
            NODE,
            format!(
                "{MOST_EXCLUSIONS} are excluded from run {run:?} already; let some in with `rallypoint include`"
            ),
        )),
        // An operator needs no place in the run.
        ExclusionOutcome::NotExcluded | ExclusionOutcome::NotAMember => {
            let text = format!(
                "nobody by that name is excluded from run {run:?}; `rallypoint excluded` shows who is"
            );
            Err(Problem::new(super::NO_RUN, text))
        }
    }
}

fn show(run: &str, excluded: &[Exclusion]) -> String {
    if excluded.is_empty() {
        return format!("nobody is excluded from run {}\n", plain(run));
    }
    let moment = |at: u64| rfc3339(Duration::from_secs(at / 1000)).replace(".000Z", "Z");
    let mut rows = vec![["NODE", "HOST", "UNTIL", "SINCE", "BY", "REASON"].map(str::to_owned).to_vec()];
    for exclusion in excluded {
        let (node, host) = match &exclusion.whom {
            Whom::Node(node) => (node.clone(), String::new()),
            Whom::Host(host) => (String::new(), host.clone()),
        };
        let by = if exclusion.by.is_empty() { "an operator" } else { &exclusion.by };
        let until = exclusion.until_ms.map_or_else(|| "the run's end".to_owned(), moment);
        rows.push(vec![node, host, until, moment(exclusion.at_ms), by.to_owned(), exclusion.reason.clone()]);
    }
    table(&rows)
}
