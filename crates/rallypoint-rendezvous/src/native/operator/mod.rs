//! What an operator sees of the runs on an etcd, and can do, without being a node.
//!
//! - [`list`]: all runs, in a few words each. [`status`]: one, with its nodes. [`events`]: what happened in it.
//! - [`close()`]: ends it. [`exclude`], [`include()`]: keep somebody out of it, or let them in again.
//! - [`last_round`]: where its nodes can be asked something. [`node_at`]: what one of them said of itself that is gone.
//! - `state`: what a run and its nodes are doing. `missing`: who is waited for. `not_back`: who
//!   could be. `round`: what a node asks of its last round.

mod before;
mod close;
mod events;
mod exclusions;
mod list;
mod missing;
mod not_back;
mod round;
mod round_store;
mod state;
mod status;
mod unhealthy;

use std::collections::HashMap;

use rallypoint_core::round::{Entry, Keys, Op, OpReply, RoundRecord, Txn};
use rallypoint_etcd::v3::{Client, Entry as ServerEntry, KeyRange};
use rallypoint_etcd::{Error, ErrorKind, Repeat, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::before::node_at;
pub use self::close::close;
pub(super) use self::close::close_by_host;
pub use self::events::{events, events_prefix};
pub(super) use self::exclusions::change;
pub use self::exclusions::{exclude, excluded, include};
pub use self::list::{RunRow, list, row};
pub use self::missing::Missing;
pub use self::not_back::NotBack;
pub(super) use self::round::{Gone, gone, members, others_than, standing};
pub(super) use self::round_store::run_store;
pub use self::round_store::{LastRound, last_round};
pub use self::state::{NodeState, NodeStatus, RunState};
pub use self::status::{RunStatus, ask_leases, status};
pub use self::unhealthy::Unhealthy;
use super::settings::{DEFAULT_ROOT, run_of};
use super::translate::{transaction, txn_reply};

/// A key that cannot be read.
#[derive(Debug, Clone, Serialize)]
pub struct Unreadable {
    /// The key.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

/// The ids of all runs on this etcd.
pub async fn runs(client: &Client) -> Result<Vec<String>> {
    let mut runs = Vec::new();
    let end = KeyRange::prefix(DEFAULT_ROOT);
    let mut start = DEFAULT_ROOT.as_bytes().to_vec();
    loop {
        // One key of each run, then on to the next: a run may have many.
        let options = end.get_options().with_limit(1).with_keys_only();
        let mut answer = client.get(start.clone(), Some(options)).await?;
        let Some(key) = answer.take_kvs().pop().map(ServerEntry::from).map(|entry| entry.key) else {
            return Ok(runs);
        };
        let rest = String::from_utf8_lossy(&key[DEFAULT_ROOT.len().min(key.len())..]).into_owned();
        let part = rest.split('/').next().unwrap_or_default();
        runs.push(run_of(part));
        // What comes after the slash, in the order of bytes.
        start = format!("{DEFAULT_ROOT}{part}0").into_bytes();
    }
}

pub(super) async fn read_round(client: &Client, keys: &Keys) -> Result<Option<RoundRecord>> {
    read_entry(client, &keys.round()).await?.as_ref().map(parse).transpose()
}

async fn read_entry(client: &Client, key: &str) -> Result<Option<Entry>> {
    let txn = Txn { then: vec![Op::Get(key.to_owned())], ..Txn::default() };
    let answer = client.txn(key.as_bytes(), Repeat::Safe, || transaction(&txn)).await?;
    match txn_reply(&txn, &answer)?.results.into_iter().next() {
        Some(OpReply::Got(entry)) => Ok(entry),
        _ => Ok(None),
    }
}

/// What stands under a key, or a note that it cannot be read.
fn readable<T: DeserializeOwned>(entry: &Entry, unreadable: &mut Vec<Unreadable>) -> Option<T> {
    let record = serde_json::from_str(&entry.value);
    let note = |error: serde_json::Error| Unreadable { key: entry.key.clone(), problem: error.to_string() };
    record.map_err(|error| unreadable.push(note(error))).ok()
}

fn by_id<'a>(keys: &Keys, entries: &'a [Entry]) -> HashMap<&'a str, &'a Entry> {
    entries.iter().map(|entry| (keys.id_of(&entry.key), entry)).collect()
}

fn parse<T: DeserializeOwned>(entry: &Entry) -> Result<T> {
    serde_json::from_str(&entry.value).map_err(|error| corrupt(&entry.key, &error.to_string()))
}

fn corrupt(key: &str, problem: &str) -> Error {
    Error::new(ErrorKind::Protocol, "read the run").key(key.as_bytes()).because(problem.to_owned())
}
