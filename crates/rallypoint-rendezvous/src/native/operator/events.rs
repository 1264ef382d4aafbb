//! What happened in a run.

use rallypoint_core::round::{Entry, EventRecord, Keys, RoundRecord, What};
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
        let record = parse::<RoundRecord>(&round);
        let leases = [record.as_ref().map_or(round.lease, |record| record.lease), round.lease];
        let has_met = !record.is_ok_and(|record| record.round == 0);
        entries.retain(|entry| leases.contains(&entry.lease) || (!has_met && is_of_health(entry)));
    }
    Ok(Event::read_all(&entries))
}

/// What a node says of itself that has not met anybody: it hangs on a lease of its own if it came first of all.
fn is_of_health(entry: &Entry) -> bool {
    let event = parse::<EventRecord>(entry);
    event.is_ok_and(|event| matches!(event.what, What::Unhealthy { .. } | What::Healthy))
}

/// Beginning of the keys that [`events`] reads, for who wants to be told of the next one.
#[must_use]
pub fn events_prefix(run_id: &str) -> String {
    Keys::new(&run_prefix(run_id)).events()
}
