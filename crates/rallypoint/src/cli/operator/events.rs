//! `rallypoint events`: what happened in a run.

use std::io::Write;

use rallypoint_etcd::v3::{Client, KeyRange};
use rallypoint_rendezvous::native::{self, Event, Summary};
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
/// The run keeps its last 256 events in etcd, and 8 of each node's own, for as long as it lasts and most often 10 minutes more.
/// `rallypoint run --event-log` writes those of a node to a file, for good.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  rallypoint events job42 --endpoint etcd1:2379\n  rallypoint events job42 --follow --json --endpoint etcd1:2379 >> job42.jsonl\n\nExit codes: 0 shown, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint."
)]
pub(crate) struct Events {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// Go on with what happens next, until Ctrl-C.
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
    let range = KeyRange::prefix(native::events_prefix(run));
    let mut changes = watch(&client, range).await.map_err(|error| failed(&error))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|error| Problem::new(NODE, error.to_string()))?;
    let mut events = native::events(&client, run).await.map_err(|error| failed(&error))?;
    if events.is_empty() && !options.follow && !is_there(&client, run).await? {
        return Err(no_such_run(run));
    }
    if options.summary || !options.follow {
        print(&once(&client, options, &events).await?, false);
        return Ok(0);
    }
    let mut shown = 0;
    loop {
        for event in events.iter().filter(|event| event.revision > shown) {
            let text = if options.json { json(event, true)? } else { line(event) };
            let mut out = std::io::stdout().lock();
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                // Nobody reads any more.
                return Ok(0);
            }
        }
        shown = events.last().map_or(shown, |event| event.revision.max(shown));
        tokio::select! {
            changed = changes.next() => changed.map_err(|error| failed(&error))?,
            _ = interrupt.recv() => return Ok(0),
        };
        events = native::events(&client, run).await.map_err(|error| failed(&error))?;
        // etcd has lost what it had, and counts from the beginning again.
        if events.last().is_some_and(|event| event.revision < shown) {
            shown = 0;
        }
    }
}

async fn is_there(client: &Client, run: &str) -> Result<bool, Problem> {
    Ok(native::status(client, run).await.map_err(|error| failed(&error))?.is_some())
}

async fn once(client: &Client, options: &Events, events: &[Event]) -> Result<String, Problem> {
    let goes_on = is_there(client, &options.run).await?;
    let summary = Summary::of(events, goes_on.then(now_ms));
    match (options.json, options.summary) {
        (true, true) => return json(&summary, false),
        (false, true) => return Ok(summary.text()),
        _ => {}
    }
    let mut text = String::new();
    for event in events {
        text += &if options.json { json(event, true)? } else { line(event) };
    }
    if events.is_empty() && !options.json {
        return Ok("nothing yet\n".to_owned());
    }
    if !options.json {
        text += "\n";
        text += &summary.text();
    }
    Ok(text)
}

/// An event as people read it.
pub(super) fn line(event: &Event) -> String {
    format!("{}  {}\n", event.time(), event.text())
}
