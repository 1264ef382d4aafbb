//! What a request comes to, given what it has seen: an answer, or a write with what must still be so. Pure.
//!
//! The rules of v2 are not here: they are those of the tree in memory, asked on the part that was seen.

use std::sync::Arc;

use rallypoint_etcd::v3::api::{Compare, CompareOp, DeleteOptions, PutOptions, Txn, TxnOp};

use super::layout::{self, Act, Record};
use super::seen::{Found, Seen};
use crate::v2::{Action, Error, Event, Op, Path, Request, Stored, Time, View};

/// What is to be done.
#[derive(Debug)]
pub(super) enum Decision {
    Answer(Arc<Event>),
    Write(Box<Plan>),
}

/// A write that was decided on.
#[derive(Debug)]
pub(super) struct Plan {
    /// As if it were the change after the one that was seen last.
    event: Arc<Event>,
    next: u64,
    expects: Vec<Expect>,
    change: Change,
    /// Seconds until it is to end.
    pub(super) ttl: Option<u64>,
    /// The lease that the node has so far.
    pub(super) old: Option<OldLease>,
    /// Whether it will be done in any case, now or when it is tried again.
    pub(super) unconditional: bool,
}

/// The lease that a node has before a write.
#[derive(Debug, Clone, Copy)]
pub(super) struct OldLease {
    pub(super) id: i64,
    /// The seconds that were asked for.
    pub(super) ttl: u64,
    /// Whether less than half of them is left.
    pub(super) nears_its_end: bool,
}

/// What must still be so. Revision 0 is that of a key that is not there.
#[derive(Debug)]
pub(super) enum Expect {
    Key(Vec<u8>, i64),
    NoKeysUnder(Vec<u8>),
}

#[derive(Debug)]
enum Change {
    Put {
        /// Directories that are missing above it.
        above: Vec<Path>,
        record: Record,
        /// A key that orders in-order keys, and its value.
        order: Option<(Vec<u8>, Vec<u8>)>,
    },
    Remove,
}

/// Decides what a request comes to.
pub(super) fn decide(seen: &Seen, request: &Request, now: Time) -> Result<Decision, Error> {
    let answer = seen.tree(now).apply(now, &request.path, request.op.clone())?;
    let event = match answer {
        Stored::Event(event) => event,
        Stored::Listing(listing) => listing.event().into(),
        Stored::Watch(_) => unreachable!("no watch is looked for here"),
    };
    if event.action == Action::Get {
        return Ok(Decision::Answer(event));
    }
    let appends = matches!(request.op, Op::Append(_));
    let found = seen.node().filter(|_| !appends);
    let mut expects = Vec::new();
    let mut above = Vec::new();
    if let Some(found) = found {
        expects.push(Expect::Key(layout::node(&found.path), found.revision));
    } else {
        let last = seen.lineage.iter().rev().find_map(|(_, found)| found.as_ref());
        if let Some(last) = last {
            expects.push(Expect::Key(layout::node(&last.path), last.revision));
        }
        let target = &event.node.path;
        let missing = seen.lineage.iter().filter(|(_, found)| found.is_none()).map(|(path, _)| path);
        above = missing.filter(|path| *path != target).cloned().collect();
        // Below what is missing there is nothing.
        expects.push(Expect::Key(layout::node(above.first().unwrap_or(target)), 0));
    }
    let (mut ttl, mut unconditional) = (None, false);
    let change = match &request.op {
        Op::Delete { recursive: false, .. } if event.node.dir => {
            expects.push(Expect::NoKeysUnder(layout::children(&request.path)));
            Change::Remove
        }
        Op::Delete { .. } | Op::CompareAndDelete(_) => Change::Remove,
        Op::Set(put) | Op::Update(put) | Op::Create(put) | Op::Append(put) | Op::CompareAndSwap(_, put) => {
            unconditional = matches!(request.op, Op::Set(_) | Op::Update(_));
            ttl = event.node.expires.and(put.ttl);
            let order = appends.then(|| order(seen, &mut expects)).flatten();
            Change::Put { above, record: record(&event.node, seen, found.is_some(), put.ttl), order }
        }
        Op::Get { .. } | Op::Watch { .. } => unreachable!("they write nothing"),
    };
    let old = found.filter(|found| found.record.lease != 0).map(|found| {
        let (ttl, left) = found.record.ttl.map_or((0, 0), |(ttl, end)| (ttl, end.ttl(now)));
        OldLease { id: found.record.lease, ttl, nears_its_end: left <= ttl / 2 }
    });
    let next = seen.index + 1;
    Ok(Decision::Write(Box::new(Plan { event, next, expects, change, ttl, old, unconditional })))
}

/// The key that all who make in-order keys in a directory write, so that no two look before either has written.
fn order(seen: &Seen, expects: &mut Vec<Expect>) -> Option<(Vec<u8>, Vec<u8>)> {
    match seen.lineage.last() {
        None => {
            expects.push(Expect::Key(layout::ROOT.to_vec(), seen.root));
            Some((layout::ROOT.to_vec(), Vec::new()))
        }
        // Its mark is as it was, and is compared already.
        Some((path, Some(found))) => Some((layout::node(path), found.record.write())),
        // It is made just now.
        Some((_, None)) => None,
    }
}

fn record(node: &View, seen: &Seen, exists: bool, ttl: Option<u64>) -> Record {
    let next = seen.index + 1;
    let known = |index: u64| if index == next { 0 } else { index };
    // A directory that is changed shows its old index ever after.
    let old = seen.node().filter(|found| exists && found.record.value.is_none());
    Record {
        created: known(node.created),
        modified: old.filter(|_| node.dir).map_or(0, |found| found.record.modified),
        ttl: node.expires.map(|(end, _)| (ttl.unwrap_or_default(), end)),
        lease: 0,
        value: node.value.clone().filter(|_| !node.dir),
    }
}

impl Plan {
    pub(super) fn path(&self) -> &Path {
        &self.event.node.path
    }

    /// Whether it takes a directory away, with all that is in it.
    pub(super) fn removes_directory(&self) -> bool {
        matches!(self.change, Change::Remove) && !self.is_file()
    }

    /// Whether it is about a file. Those hang on their lease themselves.
    pub(super) fn is_file(&self) -> bool {
        !self.event.node.dir
    }

    /// The event, once its revision is known.
    pub(super) fn event_at(&self, revision: u64) -> Event {
        let at = |index: u64| if index == self.next { revision } else { index };
        let node = self.event.node.clone();
        let node = View { created: at(node.created), modified: at(node.modified), ..node };
        Event::new(self.event.action, node, self.event.prev.clone()).refreshing(self.event.refresh)
    }

    /// What is there after it was carried out, if that follows from what was seen before.
    pub(super) fn seen_after(&self, mut seen: Seen, revision: u64, lease: i64) -> Option<Seen> {
        let Change::Put { record, order: None, .. } = &self.change else { return None };
        let index = |index: u64| if index == 0 { revision } else { index };
        for (path, found) in &mut seen.lineage {
            let record = match path == self.path() {
                true => Record { lease, ..record.clone() },
                false if found.is_none() => Record::default(),
                false => continue,
            };
            let (created, modified) = (index(record.created), index(record.modified));
            let record = Record { created, modified, ..record };
            *found = Some(Found { path: path.clone(), record, revision: i64::try_from(revision).ok()? });
        }
        seen.index = revision;
        Some(seen).filter(|seen| seen.lineage.last().is_some_and(|(path, _)| path == self.path()))
    }

    /// The transaction, by the name of `id`, void once `fence` is up. `otherwise` are the reads if it comes too late.
    pub(super) fn txn(&self, id: &str, fence: &str, lease: i64, otherwise: Vec<TxnOp>) -> Txn {
        let mut then = match &self.change {
            Change::Put { above, record, order } => {
                let directory = Record::default().write();
                let mut then: Vec<TxnOp> = above
                    .iter()
                    .map(|path| TxnOp::put(layout::node(path), directory.clone(), None))
                    .collect();
                then.extend(order.clone().map(|(key, value)| TxnOp::put(key, value, None)));
                then.extend(self.puts(record, lease));
                then
            }
            Change::Remove => removal(self.path(), self.event.node.dir),
        };
        let act = Act {
            action: Some(self.event.action),
            refresh: self.event.refresh,
            id: id.to_owned(),
            path: self.path().clone(),
        };
        then.push(TxnOp::put(layout::ACTION, act.write(), None));
        Txn::new().when(compares(&self.expects, fence)).and_then(then).or_else(otherwise)
    }

    fn puts(&self, record: &Record, lease: i64) -> Vec<TxnOp> {
        let path = self.path();
        let hangs = || Some(PutOptions::new().with_lease(lease)).filter(|_| lease != 0);
        let value = Record { lease, ..record.clone() }.write();
        if self.is_file() {
            return vec![TxnOp::put(layout::node(path), value, hangs())];
        }
        let mut puts = vec![TxnOp::put(layout::node(path), value, None)];
        if lease != 0 {
            puts.push(TxnOp::put(layout::due(path), "", None));
            puts.push(TxnOp::put(layout::alive(path), "", hangs()));
        } else if self.old.is_some() {
            puts.extend([layout::due(path), layout::alive(path)].map(|key| TxnOp::delete(key, None)));
        }
        puts
    }
}

pub(super) fn compares(expects: &[Expect], fence: &str) -> Vec<Compare> {
    let still = expects.iter().map(|expect| match expect {
        Expect::Key(key, revision) => Compare::mod_revision(key.clone(), CompareOp::Equal, *revision),
        Expect::NoKeysUnder(prefix) => {
            Compare::create_revision(prefix.clone(), CompareOp::Equal, 0).with_prefix()
        }
    });
    still.chain([Compare::mod_revision(layout::fenced(fence), CompareOp::Equal, 0)]).collect()
}

/// Takes a node away, with all that is in it and all that is known of it.
pub(super) fn removal(path: &Path, dir: bool) -> Vec<TxnOp> {
    let mut then = vec![TxnOp::delete(layout::node(path), None)];
    if dir {
        let all = || Some(DeleteOptions::new().with_prefix());
        then.extend([layout::due(path), layout::alive(path)].map(|key| TxnOp::delete(key, None)));
        then.extend(
            [layout::below(path), layout::due_below(path), layout::alive_below(path)]
                .map(|prefix| TxnOp::delete(prefix, all())),
        );
    }
    then
}
