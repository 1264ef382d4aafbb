//! What a request looks at, in one read, and what it has seen. Pure.

use rallypoint_etcd::v3::api::{
    GetOptions, GetResponse, KeyValue, ResponseHeader, TxnOp, TxnOpResponse, TxnResponse,
};

use super::layout::{self, Record};
use crate::v2::{Code, Content, Error, Limits, Node, Op, Path, Request, Store, Time, View};

/// What is to be looked at beside a node and the directories above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    Nothing,
    /// Whether there is anything.
    Any,
    Children,
    All,
}

/// What a request looks at.
#[derive(Debug, Clone)]
pub(super) struct Look {
    path: Path,
    below: Below,
}

/// A node that was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) path: Path,
    /// Its indices are written out.
    pub(super) record: Record,
    /// Of its key in etcd.
    pub(super) revision: i64,
}

/// What was seen, all of it at one moment.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) index: u64,
    pub(super) raft_term: u64,
    pub(super) cluster_id: u64,
    /// Every path from the root to the node, without the root.
    pub(super) lineage: Vec<(Path, Option<Found>)>,
    /// Revision of the key that orders in-order keys in the root.
    pub(super) root: i64,
    below: Vec<Found>,
    has_children: bool,
}

impl Look {
    pub(super) fn of(request: &Request) -> Self {
        let below = match request.op {
            Op::Get { recursive: true } => Below::All,
            Op::Get { recursive: false } => Below::Children,
            Op::Delete { recursive: false, .. } => Below::Any,
            _ => Below::Nothing,
        };
        Look { path: request.path.clone(), below }
    }

    /// The reads, to be carried out in one transaction.
    pub(super) fn reads(&self) -> Vec<TxnOp> {
        let mut reads = vec![TxnOp::get(layout::ROOT, Some(GetOptions::new().with_keys_only()))];
        reads.extend(self.path.lineage().skip(1).map(|path| TxnOp::get(layout::node(&path), None)));
        let all = GetOptions::new().with_prefix();
        match self.below {
            Below::Nothing => {}
            Below::Any => {
                let any = all.with_keys_only().with_limit(1);
                reads.push(TxnOp::get(layout::children(&self.path), Some(any)));
            }
            Below::Children => reads.push(TxnOp::get(layout::children(&self.path), Some(all))),
            Below::All => reads.push(TxnOp::get(layout::below(&self.path), Some(all))),
        }
        reads
    }

    /// What the answer to the reads says.
    pub(super) fn read(&self, answer: &TxnResponse) -> Result<Seen, Error> {
        let header = answer.header();
        let mut seen = Seen {
            index: header.map_or(0, |header| header.revision().unsigned_abs()),
            raft_term: header.map_or(0, ResponseHeader::raft_term),
            cluster_id: header.map_or(0, ResponseHeader::cluster_id),
            lineage: Vec::new(),
            root: 0,
            below: Vec::new(),
            has_children: false,
        };
        let mut reads = answer.op_responses().into_iter().filter_map(|read| match read {
            TxnOpResponse::Get(read) => Some(read),
            _ => None,
        });
        let root = reads.next();
        seen.root = root.as_ref().and_then(|read| read.kvs().first()).map_or(0, KeyValue::mod_revision);
        for path in self.path.lineage().skip(1) {
            let found = reads.next().map(found).transpose()?.unwrap_or_default().pop();
            seen.lineage.push((path, found));
        }
        match (reads.next(), self.below) {
            (Some(read), Below::Any) => seen.has_children = !read.kvs().is_empty(),
            (Some(read), _) => seen.below = found(read)?,
            (None, _) => {}
        }
        Ok(seen)
    }
}

fn found(mut read: GetResponse) -> Result<Vec<Found>, Error> {
    let kvs = read.take_kvs().into_iter();
    kvs.filter_map(|kv| {
        let (revision, key) = (kv.mod_revision(), kv.key());
        let path = layout::node_path(key)?;
        Some(Found::read(path, revision, kv.into_key_value().1))
    })
    .collect()
}

impl Found {
    pub(super) fn read(path: Path, revision: i64, value: Vec<u8>) -> Result<Self, Error> {
        let unknown = || {
            let cause = [b"this value in etcd is not of a gateway: ", path.as_bytes()].concat();
            Error::new(Code::Internal, cause, 0)
        };
        let mut record = Record::read(value).ok_or_else(unknown)?;
        let index = revision.unsigned_abs();
        record.created = if record.created == 0 { index } else { record.created };
        record.modified = if record.modified == 0 { index } else { record.modified };
        Ok(Found { path, record, revision })
    }

    /// How it looks.
    pub(super) fn view(&self, now: Time) -> View {
        let Record { created, modified, ttl, value, .. } = &self.record;
        View {
            path: self.path.clone(),
            value: value.clone(),
            dir: value.is_none(),
            expires: ttl.map(|(_, end)| (end, end.ttl(now))),
            nodes: Vec::new(),
            modified: *modified,
            created: *created,
        }
    }

    fn node(&self, now: Time) -> Node {
        let Record { created, modified, ttl, value, .. } = &self.record;
        let content = value.clone().map_or_else(Content::empty_dir, Content::File);
        // It is there until etcd says otherwise, whatever this clock shows.
        let expires = ttl.map(|(_, end)| end.max(now.next()));
        Node { created: *created, modified: *modified, expires, content }
    }
}

impl Seen {
    /// The node itself. The root has none.
    pub(super) fn node(&self) -> Option<&Found> {
        self.lineage.last().and_then(|(_, found)| found.as_ref())
    }

    /// The part of the tree that was seen.
    pub(super) fn tree(&self, now: Time) -> Store {
        let mut tree = Store::starting_at(Limits { nodes: usize::MAX, ..Limits::default() }, self.index);
        for found in self.lineage.iter().filter_map(|(_, found)| found.as_ref()) {
            tree.insert(&found.path, found.node(now));
        }
        // Each after the directory it is in, which their keys are not.
        let mut below: Vec<&Found> = self.below.iter().collect();
        below.sort_by(|one, other| one.path.cmp(&other.path));
        for found in below {
            tree.insert(&found.path, found.node(now));
        }
        let path = self.lineage.last().map(|(path, _)| path.clone()).unwrap_or_default();
        if self.has_children {
            tree.insert(&path.child(b"any"), Node::new(self.index, None, Content::empty_dir()));
        }
        tree
    }
}
