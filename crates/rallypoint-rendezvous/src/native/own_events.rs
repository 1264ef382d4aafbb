//! Where the next event goes that a node writes of itself: in place of the oldest, whichever process of its name wrote that.

use std::sync::atomic::{AtomicU64, Ordering};

use rallypoint_core::round::{Entry, Keys, NODE_EVENTS, What};
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;
use tokio::sync::OnceCell;

use super::translate::read_all;

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
    /// The key of the next one.
    pub(super) async fn next(&self, client: &Client, keys: &Keys, node: &str, what: &What) -> Result<String> {
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
