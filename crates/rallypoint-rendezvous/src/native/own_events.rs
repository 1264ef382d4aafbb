//! Where an event goes that a node writes of itself: in place of the oldest, whichever process of its name wrote that; and on
//! which lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint_core::round::{Entry, EventRecord, Keys, NODE_EVENTS, What};
use rallypoint_etcd::v3::Client;
use rallypoint_etcd::v3::api::PutOptions;
use rallypoint_etcd::{ErrorKind, Result};
use tokio::sync::OnceCell;

use super::operator::read_round;
use super::translate::read_all;

/// How long an event is kept that a node writes of itself before there is a round to keep it with.
const BEFORE_THE_FIRST_ROUND: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub(super) struct OwnEvents {
    next: OnceCell<Next>,
}

/// The numbers of the next ones.
#[derive(Debug)]
struct Next {
    failure: AtomicU64,
    other: AtomicU64,
}

impl OwnEvents {
    /// Writes an event of this node. `lease` is that of the run as the node last knew it, 0 if it never did. Whether the run
    /// takes one still.
    pub(super) async fn keep(
        &self,
        client: &Client,
        keys: &Keys,
        node: &str,
        lease: i64,
        event: &EventRecord,
    ) -> Result<bool> {
        let value = serde_json::to_string(event).expect("an event has no keys that JSON cannot hold");
        let key = self.next(client, keys, node, &event.what).await?;
        let put = |lease| {
            let on_it = PutOptions::new().with_lease(lease);
            client.put(key.clone(), value.clone(), Some(on_it))
        };
        if lease != 0 {
            match put(lease).await {
                // An etcd that has lost it: the others may have met again, on another.
                Err(error) if error.kind() == ErrorKind::LeaseNotFound => {}
                done => return done.map(|_| true),
            }
        }
        let lease = match read_round(client, keys).await? {
            // Others may have met without it.
            Some(round) if round.lease != 0 => round.lease,
            Some(round) if round.closed.is_some() => return Ok(false),
            // Nodes have not met yet, and somebody may look for who does not come.
            _ => client.lease_grant(BEFORE_THE_FIRST_ROUND).await?.0,
        };
        put(lease).await.map(|_| true)
    }

    /// The key of the next one.
    async fn next(&self, client: &Client, keys: &Keys, node: &str, what: &What) -> Result<String> {
        let next = self.next.get_or_try_init(|| async {
            let (_, entries) = read_all(client, &keys.node_events(node)).await?;
            let after = |key: &dyn Fn(u64) -> String| AtomicU64::new(after_newest(&entries, key));
            Ok(Next {
                failure: after(&|number| keys.node_failure(node, number)),
                other: after(&|number| keys.node_event(node, number)),
            })
        });
        let next = next.await?;
        Ok(match what {
            What::Failed(_) => keys.node_failure(node, next.failure.fetch_add(1, Ordering::Relaxed)),
            _ => keys.node_event(node, next.other.fetch_add(1, Ordering::Relaxed)),
        })
    }
}

/// The number after that of the newest of these keys.
fn after_newest(entries: &[Entry], key: &dyn Fn(u64) -> String) -> u64 {
    let stands = |number: u64| {
        let key = key(number);
        entries.iter().find(|entry| entry.key == key).map(|entry| (entry.mod_revision, number))
    };
    (0..NODE_EVENTS).filter_map(stands).max().map_or(0, |(_, newest)| newest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_written_over() {
        let keys = Keys::new("job/");
        let entry = |key: String, mod_revision| Entry {
            key,
            value: String::new(),
            create_revision: 1,
            mod_revision,
            lease: 1,
        };
        let entries = [
            entry(keys.node_event("a", 0), 9),
            entry(keys.node_event("a", 1), 4),
            entry(keys.node_failure("a", 6), 12),
        ];
        assert_eq!(after_newest(&entries, &|number| keys.node_event("a", number)), 1);
        assert_eq!(after_newest(&entries, &|number| keys.node_failure("a", number)), 7);
        assert_eq!(after_newest(&entries, &|number| keys.node_event("b", number)), 0);
    }
}
