//! What an operator sees of the runs on an etcd, and can do, without being a node.

use std::collections::HashMap;

use futures::stream::{StreamExt as _, TryStreamExt as _};
use rallypoint_core::Backoff;
use rallypoint_core::round::{
    CloseOutcome, CloseRun, CloseStep, Corrupt, Entry, Failure, Keys, Lost, MasterRecord, NodeConfig,
    NodeRecord, Op, OpReply, RankRecord, RoundRecord, RunSettings, Txn, Wants, Why,
};
use rallypoint_etcd::v3::{Client, Entry as ServerEntry, KeyRange};
use rallypoint_etcd::{Error, ErrorKind, Repeat, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::settings::{DEFAULT_ROOT, run_of, run_prefix};
use super::translate::{carry_out, failure, read_all, transaction, txn_reply};
use crate::handler::Member;

/// Leases whose time is asked for together.
const LEASES_AT_A_TIME: usize = 32;
/// In a round of up to so many members, each that is missed is looked for. All nodes may do so at once.
const MOST_LOOKED_FOR: usize = 256;

/// A run, as it is now.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunStatus {
    /// Its id.
    pub run_id: String,
    /// The last completed round; 0 before the first.
    pub round: u64,
    /// The number of its members.
    pub world_size: usize,
    /// Its rank 0.
    pub master: Option<MasterRecord>,
    /// What its nodes were started with.
    pub settings: Option<RunSettings>,
    /// Why it is over, once it is.
    pub closed: Option<String>,
    /// Members of that round that are there no more, the first few. Who asks for a new round is none of them.
    pub lost: Vec<Lost>,
    /// The node that plans the rounds.
    pub leader: Option<String>,
    /// The run's own record cannot be read, and little else is known of it.
    pub is_corrupt: bool,
    /// What stands in etcd and is not what a node writes.
    pub unreadable: Vec<Unreadable>,
    /// The nodes that are there: members by rank, then the others in order of arrival.
    pub nodes: Vec<NodeStatus>,
}

/// A key that cannot be read.
#[derive(Debug, Clone, Serialize)]
pub struct Unreadable {
    /// The key.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

/// A node that is there.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// What it is to the run.
    pub state: NodeState,
    /// Its place in the last round.
    pub rank: Option<usize>,
    /// Where others reach it.
    pub address: String,
    /// Its rack.
    pub rack: String,
    /// What it says of itself.
    pub about: String,
    /// When it was started, in seconds since 1970, by its own clock.
    pub since: u64,
    /// Seconds that are left of its lease, as it was last refreshed.
    pub lease_left: Option<i64>,
    /// The revision at which it came.
    pub arrived: i64,
}

/// What a node is to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NodeState {
    /// In the last round. While the group meets again, it has not asked for the next one yet.
    Member,
    /// It asks for the next round.
    Joining,
    /// Not in the last round, and there is room for it.
    Waiting,
    /// Not in the last round, and there is no room for it.
    Spare,
    /// On its way out.
    Leaving,
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

/// How a run is; none if there is no such run.
pub async fn status(client: &Client, run_id: &str) -> Result<Option<RunStatus>> {
    let keys = Keys::new(&run_prefix(run_id));
    let (_, group) = read_all(client, &keys.group()).await?;
    let (_, nodes) = read_all(client, &keys.nodes()).await?;
    let round = group.iter().find(|entry| entry.key == keys.round());
    if round.is_none() && nodes.is_empty() {
        return Ok(None);
    }
    let mut unreadable = Vec::new();
    let round: Option<RoundRecord> = round.and_then(|entry| readable(entry, &mut unreadable));
    let is_corrupt = !unreadable.is_empty();
    let (_, places) = read_all(client, &keys.ranks()).await?;
    let plan = round.as_ref().map(|round| round.plan.clone()).unwrap_or_default();
    let ranks = by_id(&keys, &places);
    let seat = |id: &str, incarnation| {
        let (rank, of) = parse::<RankRecord>(ranks.get(id)?).ok()?.in_plan(&plan)?;
        (of == incarnation && !plan.is_empty()).then_some(rank)
    };
    let completed = round.as_ref().map_or(0, |round| round.round);
    let leases: Vec<i64> = nodes.iter().map(|entry| entry.lease).collect();
    let left = leases.into_iter().map(|lease| client.lease_left(lease));
    let left: Vec<Option<i64>> = futures::stream::iter(left).buffered(LEASES_AT_A_TIME).try_collect().await?;
    let mut shown = Vec::new();
    for (entry, lease_left) in nodes.iter().zip(left) {
        let Some(record) = readable::<NodeRecord>(entry, &mut unreadable) else { continue };
        let id = keys.id_of(&entry.key).to_owned();
        let rank = seat(&id, record.incarnation);
        let state = match (record.wants, rank) {
            (Wants::Leave, _) => NodeState::Leaving,
            (Wants::Join, Some(_)) if record.round >= completed => NodeState::Joining,
            (_, Some(_)) => NodeState::Member,
            (_, None) if completed == 0 => NodeState::Joining,
            (_, None) => NodeState::Waiting,
        };
        shown.push(NodeStatus {
            node: id,
            state,
            rank,
            address: record.address,
            rack: record.rack,
            about: record.about,
            since: record.since,
            lease_left,
            arrived: entry.create_revision,
        });
    }
    shown.sort_by_key(|node| (node.rank.is_none(), node.rank, node.arrived));
    if let Some(settings) = round.as_ref().and_then(|round| round.settings) {
        let members = shown.iter().filter(|node| node.rank.is_some()).count();
        let outside = shown.iter_mut().filter(|node| node.state == NodeState::Waiting);
        for node in outside.skip(settings.max_nodes.saturating_sub(members)) {
            node.state = NodeState::Spare;
        }
    }
    let leader = group
        .iter()
        .find(|entry| entry.key == keys.leader())
        .map(|entry| NodeConfig::leader_of(&entry.value).to_owned());
    let round = round.unwrap_or_else(|| RoundRecord::without_round(0, None, 0));
    let mut lost = round.news.lost;
    lost.retain(|lost| lost.why != Why::Again || shown.iter().all(|node| node.node != lost.node));
    if nodes.is_empty() && round.closed.is_none() && round.world_size <= MOST_LOOKED_FOR {
        // Nobody was left to tell of the last that went.
        look_for(&mut lost, &keys, &plan, &places, |_| false);
        lost.sort_by_key(|lost| lost.rank);
    }
    Ok(Some(RunStatus {
        run_id: run_id.to_owned(),
        round: round.round,
        world_size: round.world_size,
        master: round.master,
        settings: round.settings,
        closed: round.closed,
        lost,
        leader,
        is_corrupt,
        unreadable,
        nodes: shown,
    }))
}

/// Ends a run for all its nodes, for good. Late nodes learn of it for `mark`. False if it was over already.
pub async fn close(client: &Client, run_id: &str, reason: &str, mark: std::time::Duration) -> Result<bool> {
    let keys = Keys::new(&run_prefix(run_id));
    let mut close = CloseRun::by_operator(&keys, reason, mark);
    let mut backoff = Backoff::default();
    loop {
        let request = match close.poll() {
            CloseStep::Send(request) => request,
            CloseStep::Done(outcome) => {
                if let Some(unused) = close.unused_mark() {
                    client.lease_revoke(unused).await?;
                }
                return match outcome {
                    Ok(outcome) => Ok(outcome == CloseOutcome::Closed),
                    Err(Corrupt { key, problem }) => Err(corrupt(&key, &problem)),
                };
            }
        };
        let reply = match carry_out(client, request).await {
            Ok(reply) => Ok(reply),
            // Whether it was carried out is looked up; what fails for another reason fails the next time, too.
            Err(error) if error.may_have_applied() => Err(Failure::Unknown),
            Err(error) if failure(&error) == Failure::LeaseGone => Err(Failure::LeaseGone),
            Err(error) => return Err(error),
        };
        if !close.handle(reply) {
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
    }
}

pub(super) async fn read_round(client: &Client, keys: &Keys) -> Result<Option<RoundRecord>> {
    read_entry(client, &keys.round()).await?.as_ref().map(parse).transpose()
}

async fn read_entry(client: &Client, key: &str) -> Result<Option<Entry>> {
    let txn = Txn { then: vec![Op::Get(key.to_owned())], ..Txn::default() };
    let answer = client.txn(key.as_bytes(), Repeat::Safe, || transaction(&txn)).await?;
    match txn_reply(&answer)?.results.into_iter().next() {
        Some(OpReply::Got(entry)) => Ok(entry),
        _ => Ok(None),
    }
}

/// Members of the round of `plan` that are there no more; of a large round the first few. An empty plan is that of the last
/// round.
pub(super) async fn lost(client: &Client, keys: &Keys, plan: &str) -> Result<Vec<Lost>> {
    let is_meant = |round: &RoundRecord| round.has_round() && (plan.is_empty() || round.plan == plan);
    let Some(round) = read_round(client, keys).await?.filter(is_meant) else { return Ok(Vec::new()) };
    let plan = &*round.plan;
    let mut gone = Vec::new();
    for lost in round.news.lost {
        // Who asked for a new round may have gone since.
        if lost.why != Why::Again || read_entry(client, &keys.node(&lost.node)).await?.is_none() {
            gone.push(lost);
        }
    }
    if round.world_size <= MOST_LOOKED_FOR {
        // Nobody tells of those who went when the others had asked for a new round already.
        let (_, ranks) = read_all(client, &keys.ranks()).await?;
        let (_, nodes) = read_all(client, &keys.nodes()).await?;
        let nodes = by_id(keys, &nodes);
        look_for(&mut gone, keys, plan, &ranks, |id| nodes.contains_key(id));
    }
    gone.sort_by_key(|lost| lost.rank);
    Ok(gone)
}

/// Adds those members of the round of `plan` that are not here, and that nobody has told of.
fn look_for(gone: &mut Vec<Lost>, keys: &Keys, plan: &str, ranks: &[Entry], is_here: impl Fn(&str) -> bool) {
    for entry in ranks {
        let id = keys.id_of(&entry.key);
        let Ok(place) = parse::<RankRecord>(entry) else { continue };
        let Some((rank, incarnation)) = place.in_plan(plan).filter(|_| !is_here(id)) else { continue };
        let why = if place.left && place.incarnation == incarnation { Why::Left } else { Why::Died };
        match gone.iter_mut().find(|lost| lost.node == id) {
            Some(known) if known.why == Why::Again => known.why = why,
            Some(_) => {}
            None => gone.push(Lost { node: id.to_owned(), rank, why }),
        }
    }
}

/// Members of the round of `plan` that are there no more, and whether others ask for another round, or are in one.
pub(super) async fn standing(client: &Client, keys: &Keys, plan: &str) -> Result<(Vec<Lost>, bool)> {
    let round = read_round(client, keys).await?.filter(|round| round.plan == plan && round.has_round());
    let Some(round) = round else { return Ok((Vec::new(), true)) };
    let gone = lost(client, keys, plan).await?;
    let is_gone = |again: &Lost| gone.iter().any(|lost| lost.node == again.node);
    let over = round.news.lost.iter().any(|lost| lost.why == Why::Again && !is_gone(lost));
    Ok((gone, over))
}

/// The members of the round of `plan`, by rank; none if it is not the last one.
pub(super) async fn members(client: &Client, keys: &Keys, plan: &str) -> Result<Vec<Member>> {
    let (_, ranks) = read_all(client, &keys.ranks()).await?;
    let (_, nodes) = read_all(client, &keys.nodes()).await?;
    if read_round(client, keys).await?.is_none_or(|record| record.plan != plan || !record.has_round()) {
        return Ok(Vec::new());
    }
    let nodes = by_id(keys, &nodes);
    let mut members = Vec::new();
    for entry in &ranks {
        // What cannot be read is nobody's.
        let Some((rank, _)) = parse::<RankRecord>(entry).ok().and_then(|place| place.in_plan(plan)) else {
            continue;
        };
        let id = keys.id_of(&entry.key);
        let node = nodes.get(id).and_then(|entry| parse::<NodeRecord>(entry).ok());
        let (address, about) = node.map(|node| (node.address, node.about)).unwrap_or_default();
        members.push(Member { node: id.to_owned(), rank, address, about });
    }
    members.sort_by_key(|member| member.rank);
    Ok(members)
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
