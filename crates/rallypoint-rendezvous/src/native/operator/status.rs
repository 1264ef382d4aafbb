//! A run, as it is now.

use std::collections::HashMap;

use futures::stream::{StreamExt as _, TryStreamExt as _};
use rallypoint_core::round::{
    Exclusion, Keys, Lost, MasterRecord, NodeConfig, NodeRecord, RankRecord, RoundRecord, RunSettings, Wants,
    Why,
};
use rallypoint_core::timeline::{Killed, Without};
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;
use serde::Serialize;

use super::super::settings::run_prefix;
use super::super::translate::read_all;
use super::missing::{self, Missing};
use super::not_back::{NotBack, not_back};
use super::round::{MOST_LOOKED_FOR, look_for};
use super::state::{NodeState, NodeStatus, RunState};
use super::unhealthy::{self, Unhealthy};
use super::{Unreadable, by_id, events, exclusions, parse, readable};

/// Leases whose time is asked for together.
const LEASES_AT_A_TIME: usize = 32;

/// A run, as it is now.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunStatus {
    /// Its id.
    pub run_id: String,
    /// What it is doing.
    pub state: RunState,
    /// The nodes that wait for a round.
    pub waiting: usize,
    /// The nodes that there is no room for.
    pub spares: usize,
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
    /// Members that are there no more, and that the round goes on without: their workers had finished.
    pub without: Vec<Lost>,
    /// Who is excluded from the run.
    pub excluded: Vec<Exclusion>,
    /// The node that plans the rounds.
    pub leader: Option<String>,
    /// The run's own record cannot be read, and little else is known of it.
    pub is_corrupt: bool,
    /// What stands in etcd and is not what a node writes.
    pub unreadable: Vec<Unreadable>,
    /// Who is waited for, where that is known.
    pub missing: Vec<Missing>,
    /// Who was lost, in whichever round, and has not come back, where there would be room for it; the last first.
    pub not_back: Vec<NotBack>,
    /// Who stays away because it fails its health checks, where there would be room for it.
    pub unhealthy: Vec<Unhealthy>,
    /// The nodes that are there: members by rank, then the others in order of arrival.
    pub nodes: Vec<NodeStatus>,
}

impl RunStatus {
    /// What a node is to the run, in words. While the nodes meet again, its members are those that have not asked for it yet.
    #[must_use]
    pub fn words(&self, node: &NodeStatus) -> String {
        match node.state {
            NodeState::Joining => format!("ready for round {}", self.round + 1),
            NodeState::Member if self.state == RunState::MeetingAgain => {
                format!("still in round {}", self.round)
            }
            state => state.to_string(),
        }
    }
}

/// How a run is; none if there is no such run.
pub async fn status(client: &Client, run_id: &str) -> Result<Option<RunStatus>> {
    let keys = Keys::new(&run_prefix(run_id));
    let (_, group) = read_all(client, &keys.group()).await?;
    let (_, nodes) = read_all(client, &keys.nodes()).await?;
    let round = group.iter().find(|entry| entry.key == keys.round());
    let nobody_came = round.is_none() && nodes.is_empty();
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
    let excluded = exclusions::of_group(&keys, &group);
    let completed = round.as_ref().map_or(0, |round| round.round);
    let mut shown = Vec::new();
    for entry in &nodes {
        let Some(record) = readable::<NodeRecord>(entry, &mut unreadable) else { continue };
        let id = keys.id_of(&entry.key).to_owned();
        let rank = seat(&id, record.incarnation);
        let is_excluded = excluded.iter().any(|exclusion| exclusion.whom.is(&id, &record.host));
        let state = match (record.wants, rank) {
            (Wants::Leave, _) => NodeState::Leaving,
            _ if is_excluded => NodeState::Excluded,
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
            host: record.host,
            rack: record.rack,
            about: record.about,
            since: record.since,
            lease: entry.lease,
            lease_left: None,
            hint: record.hint,
            arrived: entry.create_revision,
        });
    }
    shown.sort_by_key(|node| (node.rank.is_none(), node.rank, node.arrived));
    if let Some(settings) = round.as_ref().and_then(|round| round.settings) {
        spares(&settings, &mut shown);
    }
    let leader = group
        .iter()
        .find(|entry| entry.key == keys.leader())
        .map(|entry| NodeConfig::leader_of(&entry.value).to_owned());
    let round = round.unwrap_or_else(|| RoundRecord::without_round(0, None, 0));
    let mut lost = round.news.lost;
    // Who asked for a round that never came was not lost.
    let is_closed = round.closed.is_some();
    let is_there = |lost: &Lost| shown.iter().any(|node| node.node == lost.node);
    lost.retain(|lost| lost.why != Why::Again || !(is_closed || is_there(lost)));
    if nodes.is_empty() && round.closed.is_none() && round.world_size <= MOST_LOOKED_FOR {
        // Nobody was left to tell of the last that went.
        look_for(&mut lost, &keys, &plan, &places, |_| false);
        lost.sort_by_key(|lost| lost.rank);
    }
    let count = |state| shown.iter().filter(|node: &&NodeStatus| node.state == state).count();
    let waiting = count(NodeState::Waiting) + count(NodeState::Joining);
    let spares = count(NodeState::Spare);
    let nobody_works = shown.iter().all(|node| node.rank.is_none());
    let asks = nobody_works || count(NodeState::Joining) > 0;
    let meets_without = |lost: &[Lost]| round.round > 0 && (asks || !lost.is_empty());
    let is_full = round.settings.is_some_and(|settings| round.world_size >= settings.max_nodes);
    let has_room = |meets_again: bool| !is_closed && !is_corrupt && (meets_again || !is_full);
    let is_told = has_room(meets_without(&lost)) || !lost.is_empty();
    let events = if is_told { events(client, run_id).await? } else { Vec::new() };
    Killed::told_by(&events).amend_lost(round.round, &mut lost);
    let goes_on = Without::told_by(&events);
    let (without, lost): (Vec<Lost>, Vec<Lost>) =
        lost.into_iter().partition(|lost| goes_on.has(round.round, &lost.node));
    let meets_again = meets_without(&lost);
    let has_room = has_room(meets_again);
    let is_named = |node: &str| {
        shown.iter().any(|known| known.node == node) || excluded.iter().any(|it| it.whom.is(node, ""))
    };
    let mut not_back = if has_room && round.round > 0 { not_back(&events, is_named) } else { Vec::new() };
    let unhealthy = if has_room { unhealthy::unhealthy(events, &shown) } else { Vec::new() };
    not_back.retain(|lost| {
        unhealthy.iter().all(|sick| sick.node != lost.node) && !goes_on.has(lost.round, &lost.node)
    });
    if nobody_came && unhealthy.is_empty() {
        return Ok(None);
    }
    // Who cannot join yet is one of those who meet.
    let there = shown.len() + if round.round == 0 { unhealthy.len() } else { 0 };
    let state = RunState::of(is_corrupt, is_closed, there, round.round, meets_again);
    let min_nodes = round.settings.map_or(0, |settings| settings.min_nodes);
    // Who is excluded is not one of those that are there for the others.
    let there: Vec<NodeStatus> =
        shown.iter().filter(|node| node.state != NodeState::Excluded).cloned().collect();
    let mut missing = missing::missing(state, round.round, min_nodes, &lost, &there);
    if round.round == 0 {
        // A gap among the names may be somebody who is excluded.
        missing.retain(|missing| !excluded.iter().any(|it| it.whom.is(&missing.node, "")));
    }
    Ok(Some(RunStatus {
        run_id: run_id.to_owned(),
        state,
        waiting,
        spares,
        missing,
        not_back,
        unhealthy,
        round: round.round,
        world_size: round.world_size,
        master: round.master,
        settings: round.settings,
        closed: round.closed,
        lost,
        without,
        excluded,
        leader,
        is_corrupt,
        unreadable,
        nodes: shown,
    }))
}

/// Tells those who wait from those whom the group has no use for, in order of arrival.
fn spares(settings: &RunSettings, nodes: &mut [NodeStatus]) {
    let members = nodes.iter().filter(|node| node.rank.is_some()).count();
    let room = settings.max_nodes.saturating_sub(members);
    // Whole segments are of one rack each.
    let mut racks: HashMap<String, usize> = HashMap::new();
    for node in nodes.iter().filter(|node| node.state == NodeState::Waiting) {
        *racks.entry(node.rack.clone()).or_default() += 1;
    }
    if let Some(size) = settings.policy.segment_size() {
        racks.values_mut().for_each(|nodes| *nodes -= *nodes % size);
    }
    let mut waiting = 0;
    for node in nodes.iter_mut().filter(|node| node.state == NodeState::Waiting) {
        let useful = racks.get_mut(&node.rack).filter(|left| **left > 0 && waiting < room);
        match useful {
            Some(left) => (*left, waiting) = (*left - 1, waiting + 1),
            None => node.state = NodeState::Spare,
        }
    }
}

/// Asks how much is left of each node's lease: one request for each.
pub async fn ask_leases(client: &Client, status: &mut RunStatus) -> Result<()> {
    let left = status.nodes.iter().map(|node| client.lease_left(node.lease));
    let left: Vec<Option<i64>> = futures::stream::iter(left).buffered(LEASES_AT_A_TIME).try_collect().await?;
    for (node, left) in status.nodes.iter_mut().zip(left) {
        node.lease_left = left;
    }
    Ok(())
}
