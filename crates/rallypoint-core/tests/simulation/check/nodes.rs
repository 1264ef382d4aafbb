//! Who is there, by the nodes' keys: who holds each, who waits for a round, and who is gone.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint_core::round::{Entry, NodeRecord, RankRecord, Wants};

use super::{Check, Violation, Who, nothing, parse};
use crate::etcd::Etcd;

impl Check {
    /// etcd has lost data: what it has now is what counts.
    pub(crate) fn lost_data(&mut self, etcd: &Etcd) -> Result<(), Violation> {
        (self.losses, self.last_loss) = (self.losses + 1, self.now);
        self.lost_at = etcd.revision();
        self.by_others.clear();
        self.round = etcd.get(&self.keys.round()).map(parse).transpose()?.unwrap_or_else(nothing);
        for (id, incarnation) in std::mem::take(&mut self.holders) {
            self.dropped_at.insert((id, incarnation), self.now);
        }
        for entry in etcd.prefix(&self.keys.nodes()) {
            let record: NodeRecord = parse(entry)?;
            self.holders.insert(self.keys.id_of(&entry.key).to_owned(), record.incarnation);
        }
        // Who had left by then has left once more.
        let members = self.rounds.get(&self.round.plan).map(|round| round.members.clone());
        self.gone.extend(self.who_is_gone(etcd, &members.unwrap_or_default())?);
        self.look_who_waits(etcd);
        Ok(())
    }

    /// Those of the members of the last round who are not there, or have left.
    pub(super) fn who_is_gone(
        &self,
        etcd: &Etcd,
        members: &BTreeMap<Who, usize>,
    ) -> Result<BTreeSet<String>, Violation> {
        let mut gone = BTreeSet::new();
        for (id, incarnation) in members.keys() {
            let node = etcd.get(&self.keys.node(id)).map(parse::<NodeRecord>).transpose()?;
            let place = etcd.get(&self.keys.rank(id)).map(parse::<RankRecord>).transpose()?;
            let there = node.is_some_and(|it| it.incarnation == *incarnation && it.wants != Wants::Leave);
            if !there || place.is_some_and(|place| place.plan == self.round.plan && place.left) {
                gone.insert(id.clone());
            }
        }
        Ok(gone)
    }

    /// Who asks for a round, and is not in the last one.
    pub(super) fn look_who_waits(&mut self, etcd: &Etcd) {
        if !self.waiting.is_empty() {
            self.waited_at = self.now;
        }
        let nodes = self.keys.nodes();
        let waits = |entry: &&Entry| {
            let id = &entry.key[nodes.len()..];
            parse::<NodeRecord>(entry).is_ok_and(|record| self.waits(id, &record))
        };
        self.waiting =
            etcd.prefix(&nodes).filter(waits).map(|entry| entry.key[nodes.len()..].to_owned()).collect();
    }

    fn waits(&self, id: &str, record: &NodeRecord) -> bool {
        let who = (id.to_owned(), record.incarnation);
        let is_member = self.rounds.get(&self.round.plan).is_some_and(|it| it.members.contains_key(&who));
        record.wants == Wants::Join && (!is_member || self.gone.contains(id))
    }

    pub(super) fn node_written(&mut self, entry: &Entry) -> Result<(), Violation> {
        let record: NodeRecord = parse(entry)?;
        let id = self.keys.id_of(&entry.key).to_owned();
        if record.wants == Wants::Leave {
            self.gone.insert(id.clone());
            self.left.insert(id.clone());
        }
        if self.waits(&id, &record) {
            self.waiting.insert(id.clone());
        } else if self.waiting.remove(&id) {
            self.waited_at = self.now;
        }
        match self.holders.insert(id.clone(), record.incarnation) {
            None => _ = self.back_at.insert(id.clone(), self.now),
            Some(other) if other != record.incarnation => {
                self.dropped_at.insert((id.clone(), other), self.now);
            }
            Some(_) => {}
        }
        if let Some(seat) = record.seat {
            self.claims.insert(id.clone(), (record.incarnation, seat.round));
        }
        self.node_writes += 1;
        let writes = (self.node_writes, self.node_writes);
        self.owners.entry(id).or_default().entry(record.incarnation).or_insert(writes).1 = self.node_writes;
        Ok(())
    }
}
