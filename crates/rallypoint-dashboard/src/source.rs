//! What is read from etcd. The rest of this crate knows a run as `rallypoint status --json` writes it, and an event of its
//! timeline as `rallypoint events --json` does.

use std::collections::HashMap;

use rallypoint_core::round::{DEFAULT_CLOSED_TTL, What};
use rallypoint_etcd::v3::Client;
use rallypoint_etcd::{Error, ErrorKind, Result};
use rallypoint_rendezvous::{Exclusion, native};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Of so many runs in the list the past is read, for the time since which they have been as they are.
const MOST_TIMED: usize = 32;
/// A moment that no run sees.
const FOR_EVER: u64 = u64::MAX;

/// A run, and what has happened in it. Of what is written there only these fields are ever shown.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Seen {
    pub(crate) run_id: String,
    pub(crate) state: String,
    pub(crate) round: u64,
    pub(crate) world_size: usize,
    pub(crate) master: Option<Master>,
    pub(crate) settings: Option<Settings>,
    pub(crate) closed: Option<String>,
    pub(crate) leader: Option<String>,
    pub(crate) lost: Vec<Lost>,
    /// Members that are gone, and that the round goes on without.
    pub(crate) without: Vec<Lost>,
    pub(crate) waiting: usize,
    pub(crate) spares: usize,
    pub(crate) missing: Vec<Missing>,
    pub(crate) not_back: Vec<NotBack>,
    pub(crate) excluded: Vec<Exclusion>,
    pub(crate) unhealthy: Vec<Unhealthy>,
    pub(crate) unreadable: Vec<Unreadable>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) events: Vec<Event>,
    pub(crate) summary: Option<Summary>,
    #[serde(skip)]
    pub(crate) parts: Vec<Part>,
    /// What was last known of members that are gone, by their names.
    #[serde(skip)]
    pub(crate) last_known: HashMap<String, Node>,
}

impl Seen {
    /// The nodes that are there, without those that are excluded and wait to be let in.
    pub(crate) fn present(&self) -> usize {
        self.nodes.iter().filter(|node| node.state != "excluded").count()
    }

    /// Whether its nodes meet, for the first time or again.
    pub(crate) fn meets(&self) -> bool {
        ["meeting", "meeting again"].contains(&&*self.state)
    }
}

/// A part of the run's time.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) span: native::Span,
    /// None while it goes on.
    pub(crate) to_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Master {
    pub(crate) node: String,
    pub(crate) address: String,
    pub(crate) port: u16,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    pub(crate) min_nodes: usize,
    pub(crate) max_nodes: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Lost {
    pub(crate) node: String,
    pub(crate) rank: usize,
    pub(crate) why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Missing {
    pub(crate) node: String,
    pub(crate) why: String,
}

/// A node that was lost in any round, and has not come back.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct NotBack {
    pub(crate) node: String,
    pub(crate) why: String,
    pub(crate) at_ms: u64,
}

/// A node that stays away because it fails its health checks.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Unhealthy {
    pub(crate) node: String,
    pub(crate) problems: Vec<String>,
    pub(crate) at_ms: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Unreadable {
    pub(crate) key: String,
    pub(crate) problem: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) node: String,
    pub(crate) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rank: Option<usize>,
    pub(crate) address: String,
    pub(crate) host: String,
    pub(crate) rack: String,
    pub(crate) about: String,
    pub(crate) since: u64,
    pub(crate) arrived: i64,
    /// Its name or its host is not shown as it is: who asks for it by what is shown would ask for another.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_altered: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    /// Made by [`past::number`](crate::past::number): several events can have one revision.
    #[serde(skip)]
    pub(crate) id: String,
    /// It tells of the end of those whom the round goes on without.
    #[serde(skip)]
    pub(crate) is_harmless: bool,
    pub(crate) revision: i64,
    pub(crate) at_ms: u64,
    pub(crate) by: String,
    pub(crate) round: u64,
    #[serde(rename = "event")]
    pub(crate) kind: String,
    pub(crate) text: String,
    // Of some kinds alone.
    pub(crate) lost: Vec<Lost>,
    pub(crate) message: String,
    pub(crate) traceback: String,
    pub(crate) left_ms: Option<u64>,
    pub(crate) world_size: Option<usize>,
    pub(crate) why: String,
    pub(crate) waiting: usize,
    pub(crate) gone: Vec<Lost>,
    pub(crate) joined: Vec<Newcomer>,
    pub(crate) joined_count: usize,
}

/// A node that was not in the round before.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Newcomer {
    pub(crate) node: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Summary {
    pub(crate) rounds: u64,
    pub(crate) forming_ms: u64,
    pub(crate) regaining_ms: u64,
    pub(crate) working_ms: u64,
    pub(crate) total_ms: u64,
    pub(crate) working_share: Option<f64>,
    pub(crate) deaths: u64,
    pub(crate) failures: u64,
    pub(crate) failures_may_be_more: bool,
    /// What is to be known of these figures, in sentences.
    pub(crate) caveats: Vec<String>,
}

/// A run in the list of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) run_id: String,
    pub(crate) state: String,
    pub(crate) round: u64,
    pub(crate) nodes: usize,
    /// Those that are there, whatever they do.
    pub(crate) there: usize,
    pub(crate) min_nodes: Option<usize>,
    pub(crate) max_nodes: Option<usize>,
    pub(crate) waiting: usize,
    pub(crate) spares: usize,
    pub(crate) closed: Option<String>,
    /// Since when its nodes meet again; of one that all have left, when the last that is known of it happened.
    pub(crate) since_ms: Option<u64>,
}

impl From<native::NodeStatus> for Node {
    fn from(node: native::NodeStatus) -> Self {
        Node {
            node: node.node,
            state: node.state.to_string(),
            rank: node.rank,
            address: node.address,
            host: node.host,
            rack: node.rack,
            about: node.about,
            since: node.since,
            arrived: node.arrived,
            is_altered: false,
        }
    }
}

/// All runs. Of those whose nodes meet again or are all gone, the first few, it is known since when.
pub(crate) async fn runs(client: &Client) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = understood(serde_json::to_value(native::list(client).await?))?;
    let is_timed = |row: &&mut Row| ["meeting again", "abandoned"].contains(&&*row.state);
    for row in rows.iter_mut().filter(is_timed).take(MOST_TIMED) {
        let events = native::events(client, &row.run_id).await?;
        if row.state == "abandoned" {
            row.since_ms = events.iter().map(|event| event.record.at_ms).max();
            continue;
        }
        let open = native::spans(&events, Some(FOR_EVER)).pop();
        row.since_ms = open.filter(|span| span.to_ms == FOR_EVER).map(|span| span.from_ms);
    }
    Ok(rows)
}

/// One run with its timeline; none if there is no such run.
pub(crate) async fn run(client: &Client, id: &str) -> Result<Option<Seen>> {
    let Some(mut status) = native::status(client, id).await? else { return Ok(None) };
    // There may be ten thousand, too many to be written as JSON and read again.
    let nodes = std::mem::take(&mut status.nodes);
    let events = native::events(client, id).await?;
    let mut seen: Seen = understood(serde_json::to_value(&status))?;
    seen.nodes = nodes.into_iter().map(Node::from).collect();
    let open = |span: native::Span| Part { to_ms: (span.to_ms < FOR_EVER).then_some(span.to_ms), span };
    seen.parts = native::spans(&events, Some(FOR_EVER)).into_iter().map(open).collect();
    // Without what goes on: that grows by itself, and is added by whoever shows it. Of a run whose nodes are all gone nothing does.
    let goes_on = seen.parts.iter().find(|part| part.to_ms.is_none() && seen.state != "abandoned");
    let summary = native::Summary::of(&events, goes_on.map(|part| part.span.from_ms));
    let shown: Summary = understood(serde_json::to_value(&summary))?;
    seen.summary = Some(Summary { caveats: summary.caveats(), ..shown });
    seen.events = understood(serde_json::to_value(&events))?;
    let without = native::Without::told_by(&events);
    for (shown, event) in seen.events.iter_mut().zip(&events) {
        let round = event.record.round;
        shown.is_harmless = match &event.record.what {
            What::Killed { .. } => without.has(round, &event.record.by),
            What::Lost { lost, count, .. } => without.has_all(round, lost, *count),
            What::Without { .. } => true,
            _ => false,
        };
    }
    Ok(Some(seen))
}

/// Ends a run for all its nodes. None if there is no such run, false if it was over already.
pub(crate) async fn close(client: &Client, id: &str, reason: &str) -> Result<Option<bool>> {
    if native::status(client, id).await?.is_none() {
        return Ok(None);
    }
    native::close(client, id, reason, DEFAULT_CLOSED_TTL).await.map(Some)
}

fn understood<T: serde::de::DeserializeOwned>(value: serde_json::Result<Value>) -> Result<T> {
    let read = value.and_then(serde_json::from_value);
    read.map_err(|error| Error::new(ErrorKind::Protocol, "read the run").because(error))
}
