//! All runs, in a few words each.

use rallypoint_core::round::{Keys, News, RoundRecord};
use rallypoint_core::timeline::Without;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::{Client, KeyRange};
use serde::Serialize;

use super::super::settings::run_prefix;
use super::super::translate::read_all;
use super::state::RunState;
use super::{events, readable, runs};

/// A run in a few words.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunRow {
    /// Its id.
    pub run_id: String,
    /// What it is doing.
    pub state: RunState,
    /// The last completed round; 0 before the first.
    pub round: u64,
    /// The nodes of that round; of a run that is over, those that are still there.
    pub nodes: usize,
    /// The nodes that are there, whatever they do.
    pub there: usize,
    /// The nodes that a round needs.
    pub min_nodes: Option<usize>,
    /// And takes.
    pub max_nodes: Option<usize>,
    /// The nodes that wait for a round.
    pub waiting: usize,
    /// The nodes that there is no room for.
    pub spares: usize,
    /// Why it is over, once it is.
    pub closed: Option<String>,
}

/// All runs on this etcd. What it costs does not grow with their nodes.
pub async fn list(client: &Client) -> Result<Vec<RunRow>> {
    let mut rows = Vec::new();
    for run_id in runs(client).await? {
        rows.extend(row(client, &run_id).await?);
    }
    Ok(rows)
}

/// One of them; none if there is no such run.
pub async fn row(client: &Client, run_id: &str) -> Result<Option<RunRow>> {
    let keys = Keys::new(&run_prefix(run_id));
    let (_, group) = read_all(client, &keys.group()).await?;
    let range = KeyRange::prefix(keys.nodes());
    let there = client.get(range.start().to_vec(), Some(range.get_options().with_count_only())).await?;
    let there = usize::try_from(there.count()).unwrap_or(0);
    let entry = group.iter().find(|entry| entry.key == keys.round());
    if entry.is_none() && there == 0 {
        return Ok(None);
    }
    let mut unreadable = Vec::new();
    let round: Option<RoundRecord> = entry.and_then(|entry| readable(entry, &mut unreadable));
    let is_corrupt = !unreadable.is_empty();
    let round = round.unwrap_or_else(|| RoundRecord::without_round(0, None, 0));
    let is_closed = round.closed.is_some();
    // All who are there wait to get in.
    let nobody_works = round.news.waiting + round.news.spares >= there;
    let is_missed = !is_closed && !goes_on(client, run_id, round.round, &round.news).await?;
    let meets_again = is_missed || nobody_works;
    let state = RunState::of(is_corrupt, is_closed, there, round.round, meets_again);
    // Before the first round all who are there wait for it.
    let waiting = match round.has_round() {
        _ if is_closed || there == 0 => 0,
        false => there.saturating_sub(round.news.spares),
        true if meets_again => round.news.joined.saturating_sub(round.news.spares),
        true => round.news.waiting,
    };
    Ok(Some(RunRow {
        run_id: run_id.to_owned(),
        state,
        round: round.round,
        nodes: if is_closed || there == 0 { there } else { round.world_size },
        there,
        min_nodes: round.settings.map(|settings| settings.min_nodes),
        max_nodes: round.settings.map(|settings| settings.max_nodes),
        waiting,
        // The record names those who were there when it was written.
        spares: if is_closed { 0 } else { round.news.spares.min(there) },
        closed: round.closed,
    }))
}

/// Whether nobody who was lost is missed: the round goes on without those who had finished.
async fn goes_on(client: &Client, run_id: &str, round: u64, news: &News) -> Result<bool> {
    if news.lost_count == 0 {
        return Ok(true);
    }
    let events = events(client, run_id).await?;
    Ok(Without::told_by(&events).has_all(round, &news.lost, news.lost_count))
}
