//! What one client has been promised, and what it has asked for without an answer.

use std::collections::{BTreeMap, BTreeSet};

/// Seconds of the leases. None ends by itself.
pub(crate) const TTL: i64 = 600;

/// All that a client has in the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// v3 keys with their values and leases.
    pub(crate) keys: BTreeMap<String, (String, i64)>,
    pub(crate) leases: BTreeSet<i64>,
    /// v2 files.
    pub(crate) files: BTreeMap<String, String>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// All in one transaction.
    Put(Vec<(String, String)>),
    Delete(String),
    Grant(i64),
    PutLeased(String, String, i64),
    Revoke(i64),
    SetFile(String, String),
    /// All files, which are in this directory.
    RemoveFiles(String),
}

impl Holdings {
    /// What they are after a request.
    pub(crate) fn after(&self, op: &Op) -> Holdings {
        let mut after = self.clone();
        match op.clone() {
            Op::Put(pairs) => after.keys.extend(pairs.into_iter().map(|(key, value)| (key, (value, 0)))),
            Op::Delete(key) => drop(after.keys.remove(&key)),
            Op::Grant(id) => drop(after.leases.insert(id)),
            Op::PutLeased(key, value, id) => drop(after.keys.insert(key, (value, id))),
            Op::Revoke(id) => {
                after.leases.remove(&id);
                after.keys.retain(|_, (_, lease)| *lease != id);
            }
            Op::SetFile(path, value) => drop(after.files.insert(path, value)),
            Op::RemoveFiles(_) => after.files.clear(),
        }
        after
    }
}

/// A client that asks for one thing after the other.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) number: usize,
    pub(crate) count: u64,
    /// As it was promised.
    pub(crate) held: Holdings,
    /// Asked for, and not answered.
    pub(crate) open: Option<Op>,
}

impl Model {
    pub(crate) fn new(number: usize) -> Self {
        Model { number, count: 0, held: Holdings::default(), open: None }
    }

    /// Begins every key of this client.
    pub(crate) fn prefix(&self) -> String {
        format!("w{}/", self.number)
    }

    /// The id of a lease of this client.
    fn lease(&self) -> i64 {
        i64::try_from(self.count * 100 + self.number as u64 + 1).unwrap()
    }

    pub(crate) fn has_lease(&self, id: i64) -> bool {
        id % 100 == i64::try_from(self.number + 1).unwrap()
    }

    /// What to ask for next. No two values are the same.
    pub(crate) fn next(&mut self) -> Op {
        self.count += 1;
        let key = |name: &str| format!("{}{name}{}", self.prefix(), fastrand::u32(..4));
        let value = self.count.to_string();
        let lease = self.held.leases.first().copied();
        let op = match (fastrand::u32(..12), lease) {
            (0..3, _) => Op::Put(vec![(key("k"), value)]),
            (3..5, _) => Op::Put(["a", "b"].map(|name| (self.prefix() + name, value.clone())).into()),
            (5, _) => Op::Delete(key("k")),
            (6, _) if self.held.leases.len() < 3 => Op::Grant(self.lease()),
            (6 | 7, Some(lease)) => Op::PutLeased(key("l"), value, lease),
            (8, Some(lease)) => Op::Revoke(lease),
            (9, _) => Op::RemoveFiles(format!("/w{}", self.number)),
            _ => Op::SetFile(format!("/w{}/d{}/f", self.number, fastrand::u32(..3)), value),
        };
        self.open = Some(op.clone());
        op
    }

    pub(crate) fn promised(&mut self) {
        let op = self.open.take().unwrap();
        self.held = self.held.after(&op);
    }

    /// After a crash: nothing of what was promised is lost, and nothing is there that was not asked for.
    pub(crate) fn check(&mut self, found: Holdings) {
        let with_open = self.open.as_ref().map(|op| self.held.after(op));
        assert!(
            found == self.held || Some(&found) == with_open.as_ref(),
            "client {}: promised {:?}, asked for {:?}, found {found:?}",
            self.number,
            self.held,
            self.open
        );
        (self.held, self.open) = (found, None);
    }
}
