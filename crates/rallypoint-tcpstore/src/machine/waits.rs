//! Who waits for which keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::ConnectionId;
use super::size::Size;
use crate::ids::IdMap;

/// Who waits for which keys. A connection has one wait at a time: clients send the next when they have the answer.
#[derive(Debug, Default)]
pub(super) struct Waits {
    of_connection: IdMap<Wait>,
    /// In the order in which they came, since a queue's next value is for who has waited longest.
    for_key: HashMap<Arc<[u8]>, BTreeMap<u64, ConnectionId>>,
    next: u64,
}

/// The wait of one connection. A key is taken off when it comes, also if it is deleted again before the others come.
#[derive(Debug)]
struct Wait {
    number: u64,
    missing: Vec<Arc<[u8]>>,
    /// How many of `missing` have not come.
    left: usize,
}

impl Waits {
    /// Notes that `connection` waits for all of these keys. A wait that it had is over, unanswered.
    pub(super) fn begin<'a>(&mut self, connection: ConnectionId, keys: impl Iterator<Item = &'a [u8]>) {
        self.cancel(connection);
        let number = self.next;
        self.next += 1;
        let mut missing = Vec::new();
        for key in keys {
            let name = match self.for_key.get_key_value(key) {
                Some((name, _)) => Arc::clone(name),
                None => key.into(),
            };
            if self.for_key.entry(Arc::clone(&name)).or_default().insert(number, connection).is_none() {
                missing.push(name);
            }
        }
        let left = missing.len();
        self.of_connection.insert(connection, Wait { number, missing, left });
    }

    /// Ends the wait of a connection, if it has one.
    pub(super) fn cancel(&mut self, connection: ConnectionId) {
        let Some(wait) = self.of_connection.remove(&connection) else { return };
        for key in wait.missing {
            let Some(waiting) = self.for_key.get_mut(&key) else { continue };
            waiting.remove(&wait.number);
            if waiting.is_empty() {
                self.for_key.remove(&key);
            }
        }
    }

    /// A key has come: those whose waits are over now.
    pub(super) fn come(&mut self, key: &[u8]) -> Vec<ConnectionId> {
        let waiting = self.for_key.remove(key).unwrap_or_default();
        waiting.into_values().filter(|connection| self.take_off(*connection)).collect()
    }

    /// A value has come into a queue, which is for one: the first whose wait is over now.
    pub(super) fn come_for_one(&mut self, key: &[u8]) -> Option<ConnectionId> {
        loop {
            let waiting = self.for_key.get_mut(key)?;
            let (_, connection) = waiting.pop_first()?;
            if waiting.is_empty() {
                self.for_key.remove(key);
            }
            if self.take_off(connection) {
                return Some(connection);
            }
        }
    }

    /// Takes one key off a wait; whether the wait is over.
    fn take_off(&mut self, connection: ConnectionId) -> bool {
        let Some(wait) = self.of_connection.get_mut(&connection) else { return false };
        wait.left -= 1;
        if wait.left == 0 {
            self.of_connection.remove(&connection);
            return true;
        }
        false
    }

    /// What the wait of a connection takes.
    pub(super) fn size(&self, connection: ConnectionId) -> usize {
        let missing =
            self.of_connection.get(&connection).map(|wait| wait.missing.as_slice()).unwrap_or_default();
        missing.iter().map(|key| Size::of_entry(key)).sum()
    }
}
