//! The store that the members of a run's round share, for an operator who asks them something.

use std::sync::Arc;

use rallypoint_core::round::Keys;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;
use rallypoint_store::{EtcdStore, Store};

use super::super::settings::run_prefix;
use super::read_round;
use super::round::members;
use crate::handler::Member;

/// The last round of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct LastRound {
    /// Its number.
    pub round: u64,
    /// How many nodes it has.
    pub world_size: usize,
    /// Those that are known, by rank.
    pub members: Vec<Member>,
    /// What they share. What is written there is gone with the run.
    pub store: Arc<dyn Store>,
    /// What the nodes of all rounds share. The same goes for it.
    pub run_store: Arc<dyn Store>,
}

/// The last round of a run; none where there is no run, it has no round yet, or it is closed.
pub async fn last_round(client: &Client, run_id: &str) -> Result<Option<LastRound>> {
    let keys = Keys::new(&run_prefix(run_id));
    let round = read_round(client, &keys).await?.filter(|round| round.has_round() && round.closed.is_none());
    let Some(round) = round else { return Ok(None) };
    let members = members(client, &keys, &round.plan).await?;
    let store = |prefix: &str| on_lease(client, prefix, round.lease);
    let (of_round, run_store) = (store(&keys.store(round.round, &round.plan)), store(&keys.run_store()));
    let (round, world_size) = (round.round, round.world_size);
    Ok(Some(LastRound { round, world_size, members, store: of_round, run_store }))
}

/// What the nodes of all rounds of a run share; none before its first round, or once it is closed.
pub(in super::super) async fn run_store(client: &Client, keys: &Keys) -> Result<Option<Arc<dyn Store>>> {
    let round = read_round(client, keys).await?.filter(|round| round.has_round() && round.closed.is_none());
    Ok(round.map(|round| on_lease(client, &keys.run_store(), round.lease)))
}

fn on_lease(client: &Client, prefix: &str, lease: i64) -> Arc<dyn Store> {
    Arc::new(EtcdStore::on_lease(client.clone(), prefix, lease))
}
