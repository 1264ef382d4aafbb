//! What happened in a run.

use rallypoint_core::round::{Keys, RoundRecord};
use rallypoint_core::timeline::Event;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;

use super::super::settings::run_prefix;
use super::super::translate::read_all;
use super::{parse, read_entry};

/// What happened in a run, in order, as far as it is still known.
pub async fn events(client: &Client, run_id: &str) -> Result<Vec<Event>> {
    let keys = Keys::new(&run_prefix(run_id));
    let (_, mut entries) = read_all(client, &keys.events()).await?;
    if let Some(round) = read_entry(client, &keys.round()).await? {
        // Those of an earlier run of this id hang on a lease of its own.
        let lease = parse::<RoundRecord>(&round).map_or(round.lease, |record| record.lease);
        entries.retain(|entry| [lease, round.lease].contains(&entry.lease));
    }
    Ok(Event::read_all(&entries))
}

/// Beginning of the keys that [`events`] reads, for who wants to be told of the next one.
#[must_use]
pub fn events_prefix(run_id: &str) -> String {
    Keys::new(&run_prefix(run_id)).events()
}
