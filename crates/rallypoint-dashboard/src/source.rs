//! What is read from etcd. The rest of this crate knows a run as `rallypoint status --json` writes it, and an event of its
//! timeline as `rallypoint events --json` does.

use std::time::Duration;

use rallypoint_etcd::v3::Client;
use rallypoint_etcd::{Error, ErrorKind, Result};
use rallypoint_rendezvous::native;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long late nodes learn that a run is over.
const CLOSED_MARK: Duration = Duration::from_secs(600);

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
    pub(crate) waiting: usize,
    pub(crate) spares: usize,
    pub(crate) missing: Vec<Missing>,
    pub(crate) unreadable: Vec<Unreadable>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) events: Vec<Event>,
    pub(crate) summary: Option<Summary>,
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
    pub(crate) rack: String,
    pub(crate) about: String,
    pub(crate) since: u64,
    pub(crate) arrived: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) revision: i64,
    pub(crate) at_ms: u64,
    pub(crate) by: String,
    pub(crate) round: u64,
    #[serde(rename = "event")]
    pub(crate) kind: String,
    pub(crate) text: String,
    // Of some kinds alone; the page is told of them otherwise.
    #[serde(skip_serializing)]
    pub(crate) world_size: usize,
    #[serde(skip_serializing)]
    pub(crate) gathering_ms: u64,
    #[serde(skip_serializing)]
    pub(crate) last_call_ms: u64,
    #[serde(skip_serializing)]
    pub(crate) placing_ms: u64,
    #[serde(skip_serializing)]
    pub(crate) lost: Vec<Lost>,
    #[serde(skip_serializing)]
    pub(crate) rank: Option<usize>,
    #[serde(skip_serializing)]
    pub(crate) host: String,
    #[serde(skip_serializing)]
    pub(crate) message: String,
    #[serde(skip_serializing)]
    pub(crate) traceback: String,
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
}

/// A run in the list of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) run_id: String,
    pub(crate) state: String,
    pub(crate) round: u64,
    pub(crate) nodes: usize,
    pub(crate) min_nodes: usize,
    pub(crate) max_nodes: usize,
    pub(crate) waiting: usize,
    pub(crate) spares: usize,
    pub(crate) closed: Option<String>,
}

/// All runs.
pub(crate) async fn runs(client: &Client) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for id in native::runs(client).await? {
        let Some(seen) = run(client, &id).await? else { continue };
        let settings = seen.settings.unwrap_or_default();
        rows.push(Row {
            run_id: id,
            state: seen.state,
            round: seen.round,
            nodes: seen.nodes.len(),
            min_nodes: settings.min_nodes,
            max_nodes: settings.max_nodes,
            waiting: seen.waiting,
            spares: seen.spares,
            closed: seen.closed,
        });
    }
    Ok(rows)
}

/// One run with its timeline; none if there is no such run.
pub(crate) async fn run(client: &Client, id: &str) -> Result<Option<Seen>> {
    let Some(status) = native::status(client, id).await? else { return Ok(None) };
    let mut seen: Seen = understood(serde_json::to_value(&status))?;
    seen.waiting = seen.nodes.iter().filter(|node| ["waiting", "joining"].contains(&&*node.state)).count();
    seen.spares = seen.nodes.iter().filter(|node| node.state == "spare").count();
    seen.state = state(&seen).to_owned();
    Ok(Some(seen))
}

fn state(seen: &Seen) -> &'static str {
    let joining = seen.nodes.iter().any(|node| node.state == "joining");
    match () {
        () if seen.closed.is_some() => "closed",
        () if seen.nodes.is_empty() => "abandoned",
        () if seen.round == 0 => "meeting",
        () if joining || !seen.lost.is_empty() => "meeting again",
        () => "running",
    }
}

/// Ends a run for all its nodes. None if there is no such run, false if it was over already.
pub(crate) async fn close(client: &Client, id: &str, reason: &str) -> Result<Option<bool>> {
    if native::status(client, id).await?.is_none() {
        return Ok(None);
    }
    native::close(client, id, reason, CLOSED_MARK).await.map(Some)
}

fn understood<T: serde::de::DeserializeOwned>(value: serde_json::Result<Value>) -> Result<T> {
    let read = value.and_then(serde_json::from_value);
    read.map_err(|error| Error::new(ErrorKind::Protocol, "read the run").because(error))
}
