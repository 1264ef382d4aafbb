//! `rallypoint events`: what happened in a run.

use rallypoint_core::round::What;
use rallypoint_core::text::plain;
use rallypoint_etcd::v3::{Client, Entry, Event as WatchEvent, KeyRange, WatchUpdate};
use rallypoint_rendezvous::native::{self, Event, RunState, Summary};
use tokio::signal::unix::{SignalKind, signal};

use super::super::connection::Connection;
use super::super::exit::{NODE, Problem};
use super::super::variables::yes_or_no;
use super::{failed, json, no_such_run, now_ms, print, watch};

/// Show what happened in a run, in order, from all its nodes.
///
/// Rounds that were formed, nodes that died, left or took a place, failures of workers with their cause, and the end; at last
/// the time that all of it took, and the share of it in which workers ran.
///
/// The run keeps its last 256 events in etcd, and of each node 8 failures and 8 others, for as long as it lasts and most
/// often 10 minutes more.
/// `rallypoint run --event-log` writes those of a node to a file, for good.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  rallypoint events job42 --endpoint etcd1:2379\n  rallypoint events job42 --follow --json --endpoint etcd1:2379 >> job42.jsonl\n\nExit codes: 0 shown, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint, 6 stdout does not take it, as on a full disk."
)]
pub(crate) struct Events {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// Go on with what happens next, until the run is closed or Ctrl-C.
    #[arg(long, short, env = "RALLYPOINT_FOLLOW", value_parser = yes_or_no)]
    follow: bool,
    /// Print JSON: an object a line for each event, and none for the time it took.
    #[arg(long, env = "RALLYPOINT_JSON", value_parser = yes_or_no)]
    json: bool,
    /// Print only the time that was lost, added up; with --json as an object.
    #[arg(long, env = "RALLYPOINT_SUMMARY", value_parser = yes_or_no, conflicts_with = "follow")]
    summary: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The exit code of `rallypoint events`.
pub(crate) async fn events(options: &Events) -> Result<u8, Problem> {
    let run = &options.run;
    native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    let client = options.connection.client().await?;
    if options.follow {
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(|error| Problem::new(NODE, error.to_string()))?;
        return tokio::select! {
            followed = follow(&client, options) => followed,
            _ = interrupt.recv() => Ok(0),
        };
    }
    let events = native::events(&client, run).await.map_err(|error| failed(&error))?;
    let row = native::row(&client, run).await.map_err(|error| failed(&error))?;
    if events.is_empty() && row.is_none() {
        return Err(no_such_run(run));
    }
    // Of one that is over, or whose nodes are all gone, the last event is the last that is known.
    let goes_on = row.is_some_and(|row| ![RunState::Closed, RunState::Abandoned].contains(&row.state));
    let summary = Summary::of(&events, goes_on.then(now_ms));
    let text = match (options.json, options.summary) {
        (true, true) => json(&summary, false)?,
        (false, true) => summary.text(),
        (true, false) => events.iter().map(|event| json(event, true)).collect::<Result<_, _>>()?,
        (false, false) if events.is_empty() => "nothing yet\n".to_owned(),
        (false, false) => format!("{}\n{}", events.iter().map(lines).collect::<String>(), summary.text()),
    };
    print(&text, false)?;
    Ok(0)
}

/// Shows what is known, and what happens from then on.
async fn follow(client: &Client, options: &Events) -> Result<u8, Problem> {
    let range = KeyRange::prefix(native::events_prefix(&options.run));
    let mut changes = watch(client, range).await.map_err(|error| failed(&error))?;
    let mut events = native::events(client, &options.run).await.map_err(|error| failed(&error))?;
    let mut killed = native::Killed::told_by(&events);
    let mut shown = 0;
    loop {
        events.retain(|event| event.revision > shown);
        for event in &mut events {
            killed.hear(event);
            killed.amend(event);
            shown = shown.max(event.revision);
            let text = if options.json { json(event, true)? } else { lines(event) };
            let read = print(&text, false)?;
            if !read || matches!(event.record.what, What::Closed { .. }) {
                return Ok(0);
            }
        }
        let read = |entry: &Entry| Event::parse(&String::from_utf8_lossy(&entry.value), entry.mod_revision);
        events = match changes.next().await.map_err(|error| failed(&error))? {
            WatchUpdate::Events(told) => told
                .iter()
                .filter_map(|event| match event {
                    WatchEvent::Put(entry) => read(entry),
                    _ => None,
                })
                .collect(),
            WatchUpdate::Snapshot { revision, mut entries } => {
                // etcd has lost what it had, and counts from before again.
                shown = if revision < shown { 0 } else { shown };
                entries.sort_by_key(|entry| entry.mod_revision);
                entries.iter().filter_map(read).collect()
            }
        };
    }
}

/// An event as people read it.
pub(super) fn line(event: &Event) -> String {
    format!("{}  {}\n", event.time(), event.text())
}

/// The same, with the traceback of a failure below it.
fn lines(event: &Event) -> String {
    let traceback = match &event.record.what {
        What::Failed(failed) => {
            failed.traceback.lines().map(|line| format!("    {}\n", plain(line))).collect()
        }
        _ => String::new(),
    };
    line(event) + &traceback
}
