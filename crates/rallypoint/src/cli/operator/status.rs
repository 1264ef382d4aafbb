//! `rallypoint status`: the runs on an etcd, or the nodes of one.

use std::io::IsTerminal;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rallypoint_core::endpoint::host_and_port;
use rallypoint_core::round::kept_out_in_short;
use rallypoint_core::text::{self, plain};
use rallypoint_etcd::v3::{Client, KeyRange};
use rallypoint_rendezvous::is_finish;
use rallypoint_rendezvous::native::{
    self, DEFAULT_ROOT, Event, Missing, NodeState, NodeStatus, RunRow, RunState, RunStatus, Unhealthy,
    Unreadable, Why, run_prefix,
};
use tokio::signal::unix::{SignalKind, signal};

use super::super::connection::Connection;
use super::super::exit::{NODE, Problem};
use super::super::variables::yes_or_no;
use super::events::line;
use super::table::table;
use super::{failed, json, no_such_run, now_ms, print, watch};

/// Up to so many nodes, each is asked how much is left of its lease.
const FEW_NODES: usize = 64;
/// So many events are shown while a run is watched.
const EVENTS_WATCHED: usize = 8;
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
                 --rdzv-id go on with it; what is left of it goes by itself, most often within 10 minutes
  unreadable     what stands in etcd was not written by a node

Examples:
  rallypoint status job42 --endpoint etcd1:2379
  rallypoint status job42 --watch --filter state=spare --endpoint etcd1:2379

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
    #[arg(value_name = "RUN", group = "which")]
    run: Option<String>,
    /// The same, as `run` has it.
    #[arg(
        long = "rdzv-id",
        alias = "rdzv_id",
        value_name = "RUN",
        hide = true,
        conflicts_with = "run",
        group = "which"
    )]
    rdzv_id: Option<String>,
    /// Print JSON: an object for one run, with its nodes; a list for all, with what the table has. With --watch, each in one
    /// line.
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = yes_or_no)]
    json: bool,
    /// Show it again whenever something in it changes, until Ctrl-C; a run, until it is closed and its nodes have gone.
    #[arg(long, env = "RALLYPOINT_WATCH", value_parser = yes_or_no)]
    watch: bool,
    /// The order of the nodes.
    #[arg(long, env = "RALLYPOINT_SORT", value_enum, default_value_t = Sort::Rank)]
    sort: Sort,
    /// Show only the nodes with this text in their name, address, rack or what they say of themselves; or, as
    /// state=WORD, those in a state: member, joining, waiting, spare, leaving, excluded, sick or leader.
    #[arg(long, env = "RALLYPOINT_FILTER", value_name = "TEXT", requires = "which")]
    filter: Option<Filter>,
    /// Show so many of the last events below the nodes; 0 for none, with --watch 8. `rallypoint events` shows all.
    #[arg(long, env = "RALLYPOINT_EVENTS", value_name = "N")]
    events: Option<usize>,
    /// Ask for what is left of each node's lease, also where more than 64 nodes are shown: it is a request for each.
    #[arg(long, env = "RALLYPOINT_LEASES", value_parser = yes_or_no)]
    leases: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The order of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Members by rank, then the others in order of arrival.
    Rank,
    /// By name; numbers in names by their size.
    Name,
    /// By rack, and by rank within it.
    Rack,
    /// By state.
    State,
    /// Those that came last first.
    Newest,
}

impl Sort {
    fn order(self, nodes: &mut [NodeStatus]) {
        match self {
            Sort::Rank => {}
            Sort::Name => nodes.sort_by(|a, b| text::natural(&a.node, &b.node)),
            Sort::Rack => nodes.sort_by(|a, b| text::natural(&a.rack, &b.rack)),
            Sort::State => nodes.sort_by_key(|node| node.state as u8),
            Sort::Newest => nodes.sort_by_key(|node| std::cmp::Reverse(node.arrived)),
        }
    }
}

/// Which nodes are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    Leader,
    Sick,
    State(NodeState),
    Text(String),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(word) = text.strip_prefix("state=") else {
            // What nodes say of themselves may have such a sign, too.
            return match text.split_once('=') {
                Some((key, word)) if text::nearest(key, ["state"]).is_some() => {
                    Err(format!("{key:?} is not known: did you mean state={word}?"))
                }
                _ => Ok(Filter::Text(text.to_lowercase())),
            };
        };
        match word {
            "leader" => return Ok(Filter::Leader),
            "sick" => return Ok(Filter::Sick),
            _ => {}
        }
        NodeState::ALL.into_iter().find(|state| state.to_string() == word).map(Filter::State).ok_or_else(
            || {
                let names = NodeState::ALL.map(|state| state.to_string()).join(", ");
                format!("{word:?} is no state of a node; there are: {names}, sick and leader")
            },
        )
    }
}

impl Filter {
    fn matches(&self, leader: Option<&str>, node: &NodeStatus) -> bool {
        match self {
            Filter::Leader => leader == Some(&node.node),
            Filter::Sick => false,
            Filter::State(state) => node.state == *state,
            Filter::Text(text) => [&node.node, &node.address, &node.rack, &node.about]
                .iter()
                .any(|it| it.to_lowercase().contains(text)),
        }
    }

    /// Of one that stays away no more is known than its name.
    fn matches_sick(&self, sick: &Unhealthy) -> bool {
        match self {
            Filter::Sick => true,
            Filter::Leader | Filter::State(_) => false,
            Filter::Text(text) => sick.node.to_lowercase().contains(text),
        }
    }
}

impl Status {
    fn run(&self) -> Option<&String> {
        self.run.as_ref().or(self.rdzv_id.as_ref())
    }
}

/// The exit code of `rallypoint status`.
pub(crate) async fn status(options: &Status) -> Result<u8, Problem> {
    if let Some(run) = options.run() {
        native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    }
    let client = options.connection.client().await?;
    if !options.watch {
        let Look { text, .. } = look(&client, options).await?;
        print(&text, false)?;
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
        let Look { text, without_time, is_over } = look(&client, options).await?;
        // Nodes write other things, too, and time alone is no change.
        let unchanged =
            before.as_ref().filter(|(before, _)| *before == without_time).map(|(_, at)| at.elapsed());
        if shows(redraw, unchanged) {
            if !print(&text, redraw)? {
                return Ok(0);
            }
            before = Some((without_time, Instant::now()));
        }
        if is_over {
            return Ok(0);
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

/// What is to be shown.
struct Look {
    text: String,
    /// The same, without what changes as time passes.
    without_time: String,
    /// It will not change any more.
    is_over: bool,
}

impl Look {
    fn without_time(text: String) -> Self {
        Look { without_time: text.clone(), text, is_over: false }
    }
}

async fn look(client: &Client, options: &Status) -> Result<Look, Problem> {
    let Some(run) = options.run() else {
        let rows = native::list(client).await.map_err(|error| failed(&error))?;
        let text = if options.json { json(&rows, options.watch)? } else { list(&rows) };
        return Ok(Look::without_time(text));
    };
    let Some(mut status) = native::status(client, run).await.map_err(|error| failed(&error))? else {
        // One that is watched may yet come.
        let text = format!("run {}: not there\n", plain(run));
        return if options.watch { Ok(Look::without_time(text)) } else { Err(no_such_run(run)) };
    };
    let is_over = status.state == RunState::Closed && status.nodes.is_empty();
    let mut hidden = 0;
    if let Some(filter) = &options.filter {
        let leader = status.leader.clone();
        let all = status.nodes.len();
        status.nodes.retain(|node| filter.matches(leader.as_deref(), node));
        hidden = all - status.nodes.len();
    }
    options.sort.order(&mut status.nodes);
    let without_time = json(&status, true)?;
    if options.leases || status.nodes.len() <= FEW_NODES {
        native::ask_leases(client, &mut status).await.map_err(|error| failed(&error))?;
    }
    let by_itself = if options.watch && !options.json { EVENTS_WATCHED } else { 0 };
    let shown = options.events.unwrap_or(by_itself);
    let events = match shown {
        0 => Vec::new(),
        _ => native::events(client, run).await.map_err(|error| failed(&error))?,
    };
    let last = &events[events.len().saturating_sub(shown)..];
    let text = match options.json {
        true => json(&WithEvents { status: &status, events: (shown > 0).then_some(last) }, options.watch)?,
        false => describe(&status, options.filter.as_ref(), hidden, now_ms() / 1000) + &last_events(last),
    };
    let newest = last.last().map_or(0, |event| event.revision);
    Ok(Look { text, without_time: format!("{without_time}{newest}"), is_over })
}

/// A run as JSON has it, with its last events where they are asked for.
#[derive(serde::Serialize)]
struct WithEvents<'a> {
    #[serde(flatten)]
    status: &'a RunStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<&'a [Event]>,
}

fn last_events(events: &[Event]) -> String {
    if events.is_empty() {
        return String::new();
    }
    let lines = events.iter().map(line);
    format!("\nlast events\n{}", lines.collect::<String>())
}

fn list(all: &[RunRow]) -> String {
    if all.is_empty() {
        return "no runs of the backend rallypoint\n".to_owned();
    }
    let mut rows =
        vec![["RUN", "STATE", "ROUND", "NODES", "OF", "WAITING", "SPARES"].map(str::to_owned).to_vec()];
    for row in all {
        let of = row.min_nodes.zip(row.max_nodes);
        rows.push(vec![
            row.run_id.clone(),
            word(row.state, row.closed.as_deref()),
            row.round.to_string(),
            row.nodes.to_string(),
            of.map_or_else(String::new, |(min, max)| format!("{min}:{max}")),
            row.waiting.to_string(),
            row.spares.to_string(),
        ]);
    }
    table(&rows)
}

/// The state, as the dashboard says it: a run that has done its work is finished, and not merely closed.
fn word(state: RunState, closed: Option<&str>) -> String {
    match closed {
        Some(reason) if state == RunState::Closed && is_finish(reason) => "finished".to_owned(),
        _ => state.to_string(),
    }
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

/// `hidden`: the nodes that are there and not shown.
fn describe(status: &RunStatus, filter: Option<&Filter>, hidden: usize, now: u64) -> String {
    let word = word(status.state, status.closed.as_deref());
    let mut text = format!("run      {}\nstate    {word}", plain(&status.run_id));
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
            Why::Killed => "killed",
            Why::Excluded => "excluded",
            // It had asked for the next round, or a later version knows more.
            Why::Again | Why::Late | Why::Other => "gone",
        };
        text.push_str(&format!("{what:<8} node {} ({})\n", lost.rank, plain(&lost.node)));
    }
    for gone in &status.without {
        let node = plain(&gone.node);
        text.push_str(&format!(
            "finished node {} ({node}): it {}, and the round goes on\n",
            gone.rank,
            gone.why.words()
        ));
    }
    if let Some(kept_out) = kept_out_in_short(&status.excluded) {
        text.push_str(&format!("excluded {kept_out}\n"));
    }
    // Of who is lost it is said already.
    let is_lost = |missing: &&Missing| status.lost.iter().any(|lost| lost.node == missing.node);
    for missing in status.missing.iter().filter(|missing| !is_lost(missing)) {
        text.push_str(&format!("missing  {}: {}\n", plain(&missing.node), plain(&missing.why)));
    }
    for lost in status.not_back.iter().filter(|lost| status.lost.iter().all(|one| one.node != lost.node)) {
        let (node, ago) = (plain(&lost.node), age(now.saturating_sub(lost.at_ms / 1000)));
        let how = format!("node {} of round {} {}", lost.rank, lost.round, lost.why.words());
        text.push_str(&format!("not back {node}: {how}, {ago} ago\n"));
    }
    for Unhealthy { node, problems, at_ms } in &status.unhealthy {
        let since = age(now.saturating_sub(at_ms / 1000));
        let problems = plain(&problems.join("; "));
        text.push_str(&format!("sick     {}, for {since}: {problems}\n", plain(node)));
    }
    let needed = status.settings.map_or(0, |settings| settings.min_nodes);
    let excluded = status.nodes.iter().filter(|node| node.state == NodeState::Excluded).count();
    let there = (status.nodes.len() + hidden).saturating_sub(excluded);
    let unnamed = needed.saturating_sub(there + status.missing.len() + status.unhealthy.len());
    if status.state == RunState::Meeting && unnamed > 0 {
        let more = if status.missing.is_empty() && status.unhealthy.is_empty() { "" } else { " more" };
        text.push_str(&format!(
            "missing  {unnamed}{more} of {}; no name is known\n",
            text::count(needed, "node")
        ));
    }
    let is_meant = |sick: &&Unhealthy| filter.is_none_or(|filter| filter.matches_sick(sick));
    let sick: Vec<&Unhealthy> = status.unhealthy.iter().filter(is_meant).collect();
    let hidden = hidden + status.unhealthy.len() - sick.len();
    if status.nodes.is_empty() && sick.is_empty() {
        let none = format!("no node matches --filter; {}\n", text::are(hidden, "node", "there"));
        return text + if hidden == 0 { "no nodes are there\n" } else { &none };
    }
    let mut rows = vec![
        ["RANK", "NODE", "STATE", "ADDRESS", "AGE", "LEASE", "RACK", "ABOUT"].map(str::to_owned).to_vec(),
    ];
    for node in &status.nodes {
        let leads = status.leader.as_deref() == Some(node.node.as_str());
        let what = status.words(node);
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
    for Unhealthy { node, at_ms, .. } in sick {
        let since = age(now.saturating_sub(at_ms / 1000));
        // While it stays away it has no lease, and no address.
        let mut row = ["-", node, "sick", "", &since].map(str::to_owned).to_vec();
        row.resize(rows[0].len(), String::new());
        rows.push(row);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_changed_is_drawn_once_a_second_at_most() {
        let unchanged = |millis| Some(Duration::from_millis(millis));
        assert!(shows(true, None) && shows(false, None));
        assert!(!shows(true, unchanged(200)) && shows(true, unchanged(1000)));
        assert!(!shows(false, unchanged(5000)), "lines are not repeated");
    }

    #[test]
    fn a_filter_that_is_mistyped_is_refused_and_other_words_are_looked_for() {
        let refused = "sate=spare".parse::<Filter>().unwrap_err();
        assert!(refused.contains("did you mean state=spare?"), "{refused}");
        assert_eq!("rank=8".parse(), Ok(Filter::Text("rank=8".to_owned())));
        assert_eq!("state=spare".parse(), Ok(Filter::State(NodeState::Spare)));
    }

    #[test]
    fn a_run_that_has_done_its_work_is_finished() {
        assert_eq!(word(RunState::Closed, Some("a node has finished")), "finished");
        assert_eq!(word(RunState::Closed, Some("maintenance")), "closed");
        assert_eq!(word(RunState::Running, None), "running");
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [(5, "5 s"), (61, "1 min"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(age(seconds), text);
        }
    }
}
