//! What happened in a run.

use rallypoint_core::round::Keys;
use rallypoint_core::timeline::Event;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;

use super::super::settings::run_prefix;
use super::super::translate::read_all;

/// What happened in a run, in order, as far as it is still known.
pub async fn events(client: &Client, run_id: &str) -> Result<Vec<Event>> {
    let (_, entries) = read_all(client, &events_prefix(run_id)).await?;
    Ok(Event::read_all(&entries))
}

/// Beginning of the keys that [`events`] reads, for who wants to be told of the next one.
#[must_use]
pub fn events_prefix(run_id: &str) -> String {
    Keys::new(&run_prefix(run_id)).events()
}
