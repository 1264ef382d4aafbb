//! A model of etcd: what the machine may rely on, and no more.
//!
//! As in etcd, the conditions of transactions within a transaction look at what was there before all of it, a
//! lease takes its keys with it in one revision, and what breaks etcd's limits is refused: here by a panic,
//! because the machine must never ask for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rallypoint_core::round::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};

/// etcd's default for `--max-txn-ops`.
const MAX_OPS: usize = 128;
/// The shortest time to live that etcd grants with its default election timeout.
pub(crate) const MIN_TTL: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Etcd {
    /// Counts the times that data was lost.
    pub(crate) history: u64,
    revision: i64,
    /// Events up to and including this revision are gone.
    compacted: i64,
    keys: BTreeMap<String, Entry>,
    leases: BTreeMap<i64, Lease>,
    granted: i64,
    log: VecDeque<Change>,
    /// Revisions that nobody has taken note of yet.
    fresh: Vec<Change>,
}

/// What one revision did.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) events: Vec<Event>,
}

#[derive(Debug, Clone)]
struct Lease {
    ttl: Duration,
    granted: Duration,
    ends: Duration,
    keys: BTreeSet<String>,
}

impl Etcd {
    pub(crate) fn new() -> Self {
        Etcd {
            history: 0,
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            granted: 1000,
            log: VecDeque::new(),
            fresh: Vec::new(),
        }
    }

    pub(crate) fn apply(&mut self, now: Duration, request: &Request) -> Result<Reply, Failure> {
        match request {
            Request::Grant(ttl) => {
                let ttl = Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(MIN_TTL);
                self.granted += 1;
                self.leases.insert(
                    self.granted,
                    Lease { ttl, granted: now, ends: now + ttl, keys: BTreeSet::new() },
                );
                Ok(Reply::Granted(self.granted))
            }
            Request::Renew(id) => self.renew(now, *id).map(|()| Reply::Renewed),
            Request::Revoke(id) => {
                self.revoke(*id);
                Ok(Reply::Revoked)
            }
            Request::Txn(txn) => self.txn(txn).map(Reply::Txn),
            Request::Range(prefix) => {
                let entries = self.prefix(prefix).cloned().collect();
                Ok(Reply::Range { revision: self.revision, entries })
            }
        }
    }

    pub(crate) fn renew(&mut self, now: Duration, id: i64) -> Result<(), Failure> {
        let lease = self.leases.get_mut(&id).ok_or(Failure::LeaseGone)?;
        lease.ends = now + lease.ttl;
        Ok(())
    }

    pub(crate) fn has_keys(&self, lease: i64) -> bool {
        self.leases.get(&lease).is_some_and(|lease| !lease.keys.is_empty())
    }

    /// Whether a leader of etcd that was stopped and goes on may take it for over: not one that was granted meanwhile.
    pub(crate) fn may_end_too_early(&self, now: Duration, lease: i64) -> bool {
        self.leases.get(&lease).is_some_and(|lease| lease.granted + lease.ttl <= now)
    }

    /// Ends a lease, as its own end does.
    pub(crate) fn revoke(&mut self, id: i64) {
        let Some(lease) = self.leases.remove(&id) else { return };
        let revision = self.revision + 1;
        let mut events = Vec::new();
        for key in lease.keys {
            self.keys.remove(&key);
            events.push(Event::Delete { key, revision });
        }
        self.commit(events);
    }

    /// The leases whose time is over. They live on until somebody revokes them, as in etcd.
    pub(crate) fn overdue(&self, now: Duration) -> Vec<i64> {
        self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect()
    }

    /// What a new leader of etcd does: all leases begin anew.
    pub(crate) fn extend_leases(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.ends = now + lease.ttl;
        }
    }

    /// Becomes what it was once, or empty. What comes after is another history.
    pub(crate) fn lose_data(&mut self, now: Duration, kept: Option<Etcd>) {
        let (history, granted) = (self.history + 1, self.granted);
        *self = kept.unwrap_or_else(Etcd::new);
        (self.history, self.granted) = (history, granted);
        self.fresh.clear();
        self.extend_leases(now);
    }

    /// Others write, and have nothing to do with this run. `compacted`: nothing of before can be watched any more.
    pub(crate) fn advance(&mut self, revisions: i64, compacted: bool) {
        for _ in 0..revisions.min(3) {
            self.commit(vec![Event::Delete { key: "others".to_owned(), revision: self.revision + 1 }]);
        }
        self.revision += (revisions - 3).max(0);
        self.fresh.clear();
        if compacted {
            self.compact(self.revision);
        }
    }

    /// Forgets the events up to this revision.
    pub(crate) fn compact(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision.min(self.revision));
        while self.log.front().is_some_and(|change| change.revision <= self.compacted) {
            self.log.pop_front();
        }
    }

    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key)
    }

    pub(crate) fn prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Entry> {
        let from = self.keys.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, entry)| entry)
    }

    /// The revisions since this was last asked.
    pub(crate) fn take_fresh(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.fresh)
    }

    /// What a watch has to say from a revision up to another, and where it goes on.
    pub(crate) fn watch(&self, keys: &Watched, from: i64, up_to: i64) -> (Option<Update>, i64) {
        if from <= self.compacted {
            return (Some(self.snapshot(keys)), self.revision + 1);
        }
        let up_to = up_to.min(self.revision);
        let begin = self.log.partition_point(|change| change.revision < from);
        let mut events = Vec::new();
        for change in self.log.range(begin..).take_while(|change| change.revision <= up_to) {
            events.extend(change.events.iter().filter(|event| covers(keys, key_of(event))).cloned());
        }
        ((!events.is_empty()).then_some(Update::Events(events)), from.max(up_to + 1))
    }

    pub(crate) fn snapshot(&self, keys: &Watched) -> Update {
        let entries = match keys {
            Watched::Key(key) => self.keys.get(key).cloned().into_iter().collect(),
            Watched::Prefix(prefix) => self.prefix(prefix).cloned().collect(),
        };
        Update::Snapshot { revision: self.revision, entries }
    }

    fn txn(&mut self, txn: &Txn) -> Result<TxnReply, Failure> {
        check_size(txn, MAX_OPS);
        writes(&txn.then);
        writes(&txn.otherwise);
        let path = self.decide(txn);
        self.check_leases(txn, &path)?;
        let mut events = Vec::new();
        let mut reply = self.carry_out(txn, &path, &mut events);
        self.commit(events);
        stamp(&mut reply, self.revision);
        Ok(reply)
    }

    fn decide(&self, txn: &Txn) -> Path {
        let held = txn.when.iter().all(|condition| self.holds(condition));
        let ops = if held { &txn.then } else { &txn.otherwise };
        let within = ops.iter().map(|op| if let Op::Txn(txn) = op { Some(self.decide(txn)) } else { None });
        Path { held, within: within.collect() }
    }

    fn holds(&self, condition: &Condition) -> bool {
        let created = |key: &String| self.keys.get(key).map_or(0, |entry| entry.create_revision);
        match condition {
            Condition::Missing(key) => !self.keys.contains_key(key),
            Condition::CreatedAt(key, revision) => created(key) == *revision,
            Condition::Holds(key, value) => self.keys.get(key).is_some_and(|entry| entry.value == *value),
            Condition::ModifiedAt(key, revision) => {
                self.keys.get(key).map_or(0, |entry| entry.mod_revision) == *revision
            }
            // etcd compares a range without keys as if one were there that was made at revision 0.
            Condition::OnlyCreatedAt(prefix, revision) => {
                let mut all = self.prefix(prefix).map(|entry| entry.create_revision).peekable();
                if all.peek().is_none() { *revision == 0 } else { all.all(|created| created == *revision) }
            }
        }
    }

    fn check_leases(&self, txn: &Txn, path: &Path) -> Result<(), Failure> {
        for (op, within) in path.ops(txn).iter().zip(&path.within) {
            match (op, within) {
                (Op::Put { lease, .. }, _) if *lease != 0 && !self.leases.contains_key(lease) => {
                    return Err(Failure::LeaseGone);
                }
                (Op::Txn(txn), Some(path)) => self.check_leases(txn, path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, txn: &Txn, path: &Path, events: &mut Vec<Event>) -> TxnReply {
        let ops = path.ops(txn).iter().zip(&path.within);
        let results = ops.map(|(op, within)| self.operate(op, within.as_ref(), events)).collect();
        TxnReply { held: path.held, revision: self.revision, results }
    }

    fn operate(&mut self, op: &Op, within: Option<&Path>, events: &mut Vec<Event>) -> OpReply {
        match (op, within) {
            (Op::Put { key, value, lease }, _) => {
                let revision = self.revision + 1;
                let before = self.keys.get(key);
                let entry = Entry {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: before.map_or(revision, |entry| entry.create_revision),
                    mod_revision: revision,
                    lease: *lease,
                };
                if let Some(lease) = before.and_then(|entry| self.leases.get_mut(&entry.lease)) {
                    lease.keys.remove(key);
                }
                if let Some(lease) = self.leases.get_mut(lease) {
                    lease.keys.insert(key.clone());
                }
                self.keys.insert(key.clone(), entry.clone());
                events.push(Event::Put(entry));
                OpReply::Done
            }
            (Op::Get(key), _) => OpReply::Got(self.keys.get(key).cloned()),
            (Op::Range(prefix), _) => OpReply::Found(self.prefix(prefix).cloned().collect()),
            (Op::Delete(key), _) => {
                self.delete(key, events);
                OpReply::Done
            }
            (Op::DeletePrefix(prefix), _) => {
                let keys: Vec<String> = self.prefix(prefix).map(|entry| entry.key.clone()).collect();
                for key in keys {
                    self.delete(&key, events);
                }
                OpReply::Done
            }
            (Op::Txn(txn), Some(path)) => OpReply::Txn(self.carry_out(txn, path, events)),
            (Op::Txn(_), None) => unreachable!("each transaction within has its path"),
        }
    }

    fn delete(&mut self, key: &str, events: &mut Vec<Event>) {
        let Some(entry) = self.keys.remove(key) else { return };
        if let Some(lease) = self.leases.get_mut(&entry.lease) {
            lease.keys.remove(key);
        }
        events.push(Event::Delete { key: key.to_owned(), revision: self.revision + 1 });
    }

    fn commit(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.revision += 1;
        let change = Change { revision: self.revision, events };
        self.fresh.push(change.clone());
        self.log.push_back(change);
    }
}

/// Which way a transaction goes, and those within it.
struct Path {
    held: bool,
    within: Vec<Option<Path>>,
}

impl Path {
    fn ops<'a>(&self, txn: &'a Txn) -> &'a [Op] {
        if self.held { &txn.then } else { &txn.otherwise }
    }
}

pub(crate) fn key_of(event: &Event) -> &str {
    match event {
        Event::Put(entry) => &entry.key,
        Event::Delete { key, .. } => key,
    }
}

fn covers(keys: &Watched, key: &str) -> bool {
    match keys {
        Watched::Key(watched) => watched == key,
        Watched::Prefix(prefix) => key.starts_with(prefix.as_str()),
    }
}

fn stamp(reply: &mut TxnReply, revision: i64) {
    reply.revision = revision;
    for result in &mut reply.results {
        if let OpReply::Txn(within) = result {
            stamp(within, revision);
        }
    }
}

/// etcd counts the longest of the three lists, and allows those within only what is left.
fn check_size(txn: &Txn, limit: usize) {
    let size = txn.when.len().max(txn.then.len()).max(txn.otherwise.len());
    assert!(size <= limit, "etcd refuses a transaction of {size} operations where {limit} are left");
    for op in txn.then.iter().chain(&txn.otherwise) {
        if let Op::Txn(within) = op {
            check_size(within, limit - size);
        }
    }
}

/// The keys that operations put and those they delete, after a check that none is touched twice.
fn writes(ops: &[Op]) -> (BTreeSet<String>, Vec<Watched>) {
    let mut puts = BTreeSet::new();
    let mut deletes = Vec::new();
    for op in ops {
        match op {
            Op::Delete(key) => deletes.push(Watched::Key(key.clone())),
            Op::DeletePrefix(prefix) => deletes.push(Watched::Prefix(prefix.clone())),
            _ => {}
        }
    }
    let refuse = |key: &String, puts: &BTreeSet<String>, deletes: &[Watched]| {
        assert!(!puts.contains(key), "etcd refuses a transaction that puts {key} twice");
        let deleted = deletes.iter().any(|keys| covers(keys, key));
        assert!(!deleted, "etcd refuses a transaction that puts and deletes {key}");
    };
    for op in ops {
        let Op::Txn(txn) = op else { continue };
        let ((mut put, deleted), (or_put, or_deleted)) = (writes(&txn.then), writes(&txn.otherwise));
        put.extend(or_put);
        put.iter().for_each(|key| refuse(key, &puts, &deletes));
        puts.extend(put);
        deletes.extend(deleted);
        deletes.extend(or_deleted);
    }
    for op in ops {
        let Op::Put { key, .. } = op else { continue };
        refuse(key, &puts, &deletes);
        puts.insert(key.clone());
    }
    (puts, deletes)
}
