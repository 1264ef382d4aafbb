//! `rallypoint status` and `rallypoint close`: the runs on an etcd, for an operator.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rallypoint_core::endpoint::host_and_port;
use rallypoint_core::text::{self, plain};
use rallypoint_etcd::v3::{Client, KeyRange, Watch, revision_of};
use rallypoint_rendezvous::native::{self, DEFAULT_ROOT, NodeState, RunStatus, Unreadable, Why, run_prefix};
use tokio::signal::unix::{SignalKind, signal};

use super::connection::Connection;
use super::exit::{EndpointFlags, NO_SERVER, NODE, Problem, advice, chain};
use super::variables::yes_or_no;

/// No such run on this etcd.
const NO_RUN: u8 = 1;
/// How long late nodes learn that a run is over.
const CLOSED_MARK: Duration = Duration::from_secs(600);
/// A run that changes all the time is not looked at more often.
const PACE: Duration = Duration::from_millis(200);
/// What has not changed, but for the time that has passed, is not drawn more often.
const REPAINT: Duration = Duration::from_secs(1);

/// What follows the options of `rallypoint status --help`.
const STATES: &str = "\
States of a run:
  meeting        its nodes wait for each other, before the first round
  running        its nodes are at work
  meeting again  nodes were lost, or wait to get in: the others stop their workers and meet again
  closed         it is over, and nodes that come are turned away
  abandoned      no node is there: all have died or left, and nobody has closed it. Nodes that are started with its
                 --rdzv-id go on with it; what is left of it goes by itself, most often after 10 minutes
  unreadable     what stands in etcd was not written by a node

Example: rallypoint status job42 --endpoint etcd1:2379

Exit codes: 0 shown, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint.";

/// Show the runs on an etcd, or the nodes of one run.
///
/// All runs are a table with one line for each. Of one run it shows the last round, and each node with its rank, its
/// address, how long it has been there, and whether it is at work, meets the others again, or stands by as a spare.
///
/// It knows the runs of the backend rallypoint, whichever launcher they are under. Those of PyTorch's etcd backends, and of
/// ours that meet them (--rdzv-backend etcd), are not shown.
#[derive(Debug, clap::Args)]
#[command(after_help = STATES)]
pub(crate) struct Status {
    /// The run, by its --rdzv-id. If it is not given, all runs.
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The same, as `run` has it.
    #[arg(long = "rdzv-id", alias = "rdzv_id", value_name = "RUN", hide = true, conflicts_with = "run")]
    rdzv_id: Option<String>,
    /// Print JSON: an object for one run, a list of such for all. With --watch, each in one line.
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = yes_or_no)]
    json: bool,
    /// Show it again whenever something in it changes, until Ctrl-C.
    #[arg(long, env = "RALLYPOINT_WATCH", value_parser = yes_or_no)]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Status {
    fn run(&self) -> Option<&String> {
        self.run.as_ref().or(self.rdzv_id.as_ref())
    }
}

/// End a run for all its nodes.
///
/// All its nodes stop their workers and end with exit code 5. So do nodes that are started with this --rdzv-id in the
/// next 10 minutes. Only runs of the backend rallypoint can be closed so.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: rallypoint close job42 --reason maintenance --endpoint etcd1:2379\n\nExit codes: 0 closed, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint, 5 closed already."
)]
pub(crate) struct Close {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// Why, in words: each of its nodes says it when it ends.
    #[arg(long, env = "RALLYPOINT_REASON", value_name = "TEXT", value_parser = in_words)]
    reason: String,
    #[command(flatten)]
    connection: Connection,
}

fn in_words(reason: &str) -> Result<String, &'static str> {
    if reason.trim().is_empty() { Err("say why, in words") } else { Ok(reason.to_owned()) }
}

/// The exit code of `rallypoint status`.
pub(crate) async fn status(options: &Status) -> Result<u8, Problem> {
    if let Some(run) = options.run() {
        native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    }
    let client = options.connection.client().await?;
    if !options.watch {
        let (text, _) = look(&client, options).await?;
        print(&text, false);
        return Ok(0);
    }
    let range =
        KeyRange::prefix(options.run().map_or_else(|| DEFAULT_ROOT.to_owned(), |run| run_prefix(run)));
    let mut changes = watch(&client, range).await.map_err(|error| failed(&error))?;
    // Listened to from here on: one that comes while something is shown must not be lost.
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|error| Problem::new(NODE, error.to_string()))?;
    let redraw = !options.json && std::io::stdout().is_terminal();
    let mut before: Option<(String, Instant)> = None;
    loop {
        let (text, shown) = look(&client, options).await?;
        // Nodes write other things, too, and time alone is no change.
        let unchanged = before.as_ref().filter(|(before, _)| *before == shown).map(|(_, at)| at.elapsed());
        if shows(redraw, unchanged) {
            print(&text, redraw);
            before = Some((shown, Instant::now()));
        }
        let changed = async {
            changes.next().await.map_err(|error| failed(&error))?;
            tokio::time::sleep(PACE).await;
            Ok::<(), Problem>(())
        };
        tokio::select! {
            changed = changed => changed?,
            _ = interrupt.recv() => return Ok(0),
        }
    }
}

/// Whether what is watched is shown again: if it has changed. Where it stands in the place of what was shown before, also if
/// it has not for so long, since times are in it.
fn shows(redraw: bool, unchanged: Option<Duration>) -> bool {
    unchanged.is_none_or(|time| redraw && time >= REPAINT)
}

/// The exit code of `rallypoint close`.
pub(crate) async fn close(options: &Close) -> Result<u8, Problem> {
    let run = &options.run;
    native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    let client = options.connection.client().await?;
    if native::status(&client, run).await.map_err(|error| failed(&error))?.is_none() {
        return Err(no_such_run(run));
    }
    let closed =
        native::close(&client, run, &options.reason, CLOSED_MARK).await.map_err(|error| failed(&error))?;
    if !closed {
        let endpoint = options.connection.endpoints();
        let text = format!(
            "run {run:?} is closed already; `rallypoint status {run} --endpoint {endpoint}` says why"
        );
        return Err(Problem::new(super::exit::CLOSED, text));
    }
    // The run is closed, whoever reads.
    let _ = writeln!(std::io::stdout(), "run {} is closed: {}", plain(run), plain(&options.reason));
    Ok(0)
}

/// All changes from now on.
async fn watch(client: &Client, range: KeyRange) -> rallypoint_etcd::Result<Watch> {
    let options = range.get_options().with_count_only();
    let answer = client.get(DEFAULT_ROOT, Some(options)).await?;
    Ok(client.watch(range, revision_of(answer.header())? + 1))
}

fn failed(error: &rallypoint_etcd::Error) -> Problem {
    let advice = match error.is_transient() {
        true => "",
        false => advice(Some(error), EndpointFlags::Operator),
    };
    Problem::new(NO_SERVER, format!("{}{advice}", chain(error)))
}

fn no_such_run(run: &str) -> Problem {
    Problem::new(
        NO_RUN,
        format!(
            "there is no run {run:?} on this etcd; `rallypoint status` lists those there are: runs of the backend rallypoint, and no others"
        ),
    )
}

/// What is to be shown, and the same without what changes as time passes.
async fn look(client: &Client, options: &Status) -> Result<(String, String), Problem> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let one = async |run: &str| native::status(client, run).await.map_err(|error| failed(&error));
    if let Some(run) = options.run() {
        let Some(mut status) = one(run).await? else {
            // One that is watched may yet come.
            let text = format!("run {}: not there\n", plain(run));
            return if options.watch { Ok((text.clone(), text)) } else { Err(no_such_run(run)) };
        };
        let text =
            if options.json { json(&Shown::of(&status), options.watch)? } else { describe(&status, now) };
        status.nodes.iter_mut().for_each(|node| node.lease_left = None);
        return Ok((text, json(&Shown::of(&status), true)?));
    }
    let mut all = Vec::new();
    for run in native::runs(client).await.map_err(|error| failed(&error))? {
        all.extend(one(&run).await?);
    }
    if !options.json {
        let text = list(&all);
        return Ok((text.clone(), text));
    }
    let shown = |all: &[RunStatus], one_line| json(&all.iter().map(Shown::of).collect::<Vec<_>>(), one_line);
    let text = shown(&all, options.watch)?;
    all.iter_mut().flat_map(|status| &mut status.nodes).for_each(|node| node.lease_left = None);
    Ok((text, shown(&all, true)?))
}

/// A run as JSON has it: with what the table says of it.
#[derive(serde::Serialize)]
struct Shown<'a> {
    state: String,
    waiting: usize,
    spares: usize,
    #[serde(flatten)]
    status: &'a RunStatus,
}

impl<'a> Shown<'a> {
    fn of(status: &'a RunStatus) -> Self {
        let spares = count(status, NodeState::Spare);
        Shown { state: state(status), waiting: waiting(status), spares, status }
    }
}

fn print(text: &str, redraw: bool) {
    let clear = if redraw { "\x1b[2J\x1b[H" } else { "" };
    let mut out = std::io::stdout().lock();
    // Nobody reads any more, which is no fault of the run.
    let _ = write!(out, "{clear}{text}").and_then(|()| out.flush());
}

fn json(value: &impl serde::Serialize, one_line: bool) -> Result<String, Problem> {
    let text = if one_line { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) };
    text.map(|text| text + "\n").map_err(|error| Problem::new(NO_RUN, error.to_string()))
}

fn count(status: &RunStatus, state: NodeState) -> usize {
    status.nodes.iter().filter(|node| node.state == state).count()
}

/// The nodes of the last round; of a run that is over, those that are still there.
fn there(status: &RunStatus) -> usize {
    let is_over = status.closed.is_some() || status.nodes.is_empty();
    if is_over { status.nodes.len() } else { status.world_size }
}

/// The nodes that wait for a round.
fn waiting(status: &RunStatus) -> usize {
    count(status, NodeState::Waiting) + count(status, NodeState::Joining)
}

/// What a run is doing, in a word or two.
fn state(status: &RunStatus) -> String {
    match (&status.closed, status.round) {
        _ if status.is_corrupt => "unreadable".to_owned(),
        (Some(_), _) => "closed".to_owned(),
        // What it has left is there for those who are started again.
        (None, _) if status.nodes.is_empty() => "abandoned".to_owned(),
        (None, 0) => "meeting".to_owned(),
        (None, _) if meets_again(status) => "meeting again".to_owned(),
        (None, _) => "running".to_owned(),
    }
}

fn range(status: &RunStatus) -> String {
    status
        .settings
        .map_or_else(String::new, |settings| format!("{}:{}", settings.min_nodes, settings.max_nodes))
}

fn list(all: &[RunStatus]) -> String {
    if all.is_empty() {
        return "no runs of the backend rallypoint\n".to_owned();
    }
    let mut rows =
        vec![["RUN", "STATE", "ROUND", "NODES", "OF", "WAITING", "SPARES"].map(str::to_owned).to_vec()];
    for status in all {
        rows.push(vec![
            status.run_id.clone(),
            state(status),
            status.round.to_string(),
            there(status).to_string(),
            range(status),
            waiting(status).to_string(),
            count(status, NodeState::Spare).to_string(),
        ]);
    }
    table(&rows)
}

/// The last round, and how many nodes are needed and may be there.
fn round(status: &RunStatus) -> String {
    let of = match status.settings {
        Some(settings) if settings.min_nodes == settings.max_nodes => {
            format!(" (the run needs {})", settings.min_nodes)
        }
        Some(settings) => format!(" (the run needs {} to {})", settings.min_nodes, settings.max_nodes),
        None => String::new(),
    };
    match status.round {
        0 => format!("none yet{of}"),
        round => format!("{round}, of {}{of}", text::count(status.world_size, "node")),
    }
}

/// What a node is to the run. While the nodes meet again, its members are those that have not asked for it yet.
fn what(status: &RunStatus, state: NodeState) -> String {
    match state {
        NodeState::Joining => format!("ready for round {}", status.round + 1),
        NodeState::Member if meets_again(status) => format!("still in round {}", status.round),
        state => format!("{state:?}").to_lowercase(),
    }
}

fn meets_again(status: &RunStatus) -> bool {
    status.round > 0 && (count(status, NodeState::Joining) > 0 || !status.lost.is_empty())
}

fn describe(status: &RunStatus, now: u64) -> String {
    let mut text = format!("run      {}\nstate    {}", plain(&status.run_id), state(status));
    if let Some(reason) = &status.closed {
        text.push_str(&format!(": {}", plain(reason)));
    }
    text.push_str(&format!("\nround    {}\n", round(status)));
    if let Some(master) = &status.master {
        text.push_str(&format!("master   {}\n", plain(&host_and_port(&master.address, master.port))));
    }
    for Unreadable { key, problem } in &status.unreadable {
        text.push_str(&format!("cannot be read: {}: {}\n", plain(key), plain(problem)));
    }
    for lost in &status.lost {
        let what = match lost.why {
            Why::Died => "died",
            Why::Replaced => "replaced",
            Why::Left => "left",
            // It had asked for the next round, or a later version knows more.
            Why::Again | Why::Other => "gone",
        };
        text.push_str(&format!("{what}     node {} ({})\n", lost.rank, plain(&lost.node)));
    }
    if status.nodes.is_empty() {
        return text + "no nodes are there\n";
    }
    let mut rows = vec![
        ["RANK", "NODE", "STATE", "ADDRESS", "AGE", "LEASE", "RACK", "ABOUT"].map(str::to_owned).to_vec(),
    ];
    for node in &status.nodes {
        let leads = status.leader.as_deref() == Some(node.node.as_str());
        let what = what(status, node.state);
        rows.push(vec![
            node.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            node.node.clone(),
            if leads { format!("{what}, leader") } else { what },
            node.address.clone(),
            if node.since == 0 { String::new() } else { age(now.saturating_sub(node.since)) },
            node.lease_left.map_or_else(String::new, |left| format!("{left} s left")),
            node.rack.clone(),
            node.about.clone(),
        ]);
    }
    text + "\n" + &table(&rows)
}

/// `42 s`, `7 min`, `3 h 20 min`, `5 d 1 h`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Columns as wide as what is in them; those that are empty are left out.
fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let shown: Vec<usize> =
        (0..columns).filter(|column| rows.iter().skip(1).any(|row| !row[*column].is_empty())).collect();
    let mut text = String::new();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        // What is longer than a format can pad is padded all the same.
        let pad = |column: usize| " ".repeat(widths[column] - row[column].chars().count());
        let cells: Vec<String> = shown.iter().map(|column| row[*column].clone() + &pad(*column)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_they_need_to_be() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text =
            table(&[row(["RUN", "RACK", "STATE"]), row(["a-long-name", "", "running"]), row(["b", "", "x"])]);
        assert_eq!(text, "RUN          STATE\na-long-name  running\nb            x\n");
        let long = "r".repeat(120_000);
        assert!(
            table(&[row(["RUN", "A", "B"]), row([&long, "\x1b[2J", "x"])]).ends_with("  \\u{1b}[2J  x\n")
        );
    }

    #[test]
    fn what_has_not_changed_is_drawn_once_a_second_at_most() {
        let unchanged = |millis| Some(Duration::from_millis(millis));
        assert!(shows(true, None) && shows(false, None));
        assert!(!shows(true, unchanged(200)) && shows(true, unchanged(1000)));
        assert!(!shows(false, unchanged(5000)), "lines are not repeated");
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [(5, "5 s"), (61, "1 min"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(age(seconds), text);
        }
    }
}
