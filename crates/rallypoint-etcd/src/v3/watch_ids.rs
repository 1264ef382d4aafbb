//! What the server calls the watches of a stream.
//!
//! etcd calls a watch as it was asked to. `etcd grpc-proxy` counts them itself, from 0 in the order of the requests, and
//! its first answers come in any order. So ours begin where no proxy gets to, and an answer with a smaller one tells.

use std::collections::HashMap;

/// The first of our own.
pub(super) const FIRST: i64 = 1 << 32;

/// For a watch of nobody, that is made only to be answered.
pub(super) const PROBE: i64 = FIRST - 1;

/// The ids on one stream.
#[derive(Debug)]
pub(super) enum WatchIds {
    /// The server has not shown yet whose they are. These were asked for, in this order.
    Unknown(Vec<i64>),
    Ours,
    /// The server counts, and this many were asked for. Ours by the server's.
    Servers {
        asked: i64,
        ours: HashMap<i64, i64>,
    },
}

impl WatchIds {
    pub(super) fn new() -> Self {
        WatchIds::Unknown(Vec::new())
    }

    /// A watch was asked for by this id.
    pub(super) fn ask(&mut self, id: i64) {
        match self {
            WatchIds::Unknown(asked) => asked.push(id),
            WatchIds::Ours => {}
            WatchIds::Servers { asked, ours } => {
                ours.insert(*asked, id);
                *asked += 1;
            }
        }
    }

    /// Whether the server counts itself. Such a one does not answer to requests for progress.
    pub(super) fn are_servers(&self) -> bool {
        matches!(self, WatchIds::Servers { .. })
    }

    /// Our id of a watch that the server has just made, or speaks of.
    pub(super) fn ours(&mut self, id: i64, created: bool) -> i64 {
        if let WatchIds::Unknown(asked) = self
            && created
        {
            *self = if id >= PROBE {
                WatchIds::Ours
            } else {
                let count = i64::try_from(asked.len()).unwrap_or(i64::MAX);
                WatchIds::Servers { asked: count, ours: (0..).zip(std::mem::take(asked)).collect() }
            };
        }
        match self {
            WatchIds::Servers { ours, .. } => ours.get(&id).copied().unwrap_or(id),
            WatchIds::Unknown(_) | WatchIds::Ours => id,
        }
    }

    /// What the server calls one of ours that is to end.
    pub(super) fn end(&mut self, id: i64) -> i64 {
        let WatchIds::Servers { ours, .. } = self else { return id };
        let Some(servers) = ours.iter().find(|(_, ours)| **ours == id).map(|(servers, _)| *servers) else {
            return id;
        };
        ours.remove(&servers);
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_calls_them_as_it_was_asked_to() {
        let mut ids = WatchIds::new();
        ids.ask(FIRST);
        ids.ask(FIRST + 1);
        assert_eq!(ids.ours(FIRST + 1, true), FIRST + 1);
        assert!(!ids.are_servers());
        assert_eq!((ids.ours(FIRST, true), ids.end(FIRST)), (FIRST, FIRST));
    }

    #[test]
    fn a_proxy_counts_them_in_the_order_of_the_requests_and_answers_in_any() {
        let mut ids = WatchIds::new();
        ids.ask(FIRST + 4);
        ids.ask(FIRST + 7);
        assert_eq!(ids.ours(1, true), FIRST + 7);
        assert!(ids.are_servers());
        assert_eq!(ids.ours(0, true), FIRST + 4);
        ids.ask(FIRST + 9);
        assert_eq!((ids.ours(2, true), ids.ours(1, false)), (FIRST + 9, FIRST + 7));
        assert_eq!(ids.end(FIRST + 7), 1);
        assert_eq!(ids.ours(1, false), 1, "it is nobody's any more");
    }
}
