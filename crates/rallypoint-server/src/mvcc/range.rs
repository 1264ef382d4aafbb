//! Reads.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use etcd_client::proto::PbRangeRequest;
use etcd_client::{SortOrder, SortTarget};

use super::{Error, Record, Span, Store};

/// How often a read of what is there now begins again because a compaction has overtaken it.
const RESTARTS: usize = 8;
/// What a record costs that may not be part of the answer.
const CANDIDATE_BYTES: usize = 16;

/// What a read has found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The revision of the view.
    pub(crate) revision: i64,
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) keys_only: bool,
    pub(crate) more: bool,
    pub(crate) count: i64,
}

/// A checked range request that is carried out in steps, so that others get at the store in between. All steps see the
/// store as it was at the first.
#[derive(Debug)]
pub(crate) struct Reading {
    request: PbRangeRequest,
    /// The revision of the view, and the one that is read.
    view: i64,
    at: i64,
    records: Vec<Arc<Record>>,
    /// Roughly what the records found so far will take in an answer.
    bytes: usize,
    count: i64,
    /// The last key that was looked at.
    after: Option<Bytes>,
    is_done: bool,
    restarts_left: usize,
}

impl Reading {
    /// Reads what all may see.
    pub(crate) fn new(store: &Store, request: PbRangeRequest) -> Result<Self, Error> {
        Reading::at(store, request, store.visible())
    }

    /// Reads as part of a write, with what was written before it.
    pub(crate) fn within(store: &Store, request: PbRangeRequest) -> Result<Self, Error> {
        Reading::at(store, request, store.view_revision())
    }

    fn at(store: &Store, request: PbRangeRequest, view: i64) -> Result<Self, Error> {
        let at = match request.revision {
            ..=0 => view,
            revision if revision > view => return Err(Error::FutureRevision),
            revision => revision,
        };
        if at < store.compacted() {
            return Err(Error::Compacted);
        }
        Ok(Reading {
            request,
            view,
            at,
            records: Vec::new(),
            bytes: 0,
            count: 0,
            after: None,
            is_done: false,
            restarts_left: RESTARTS,
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Roughly the bytes of the answer so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Looks at so many keys at most; how many it were.
    pub(crate) fn step(&mut self, store: &Store, most: usize) -> Result<usize, Error> {
        if self.at < store.compacted() {
            self.begin_again(store)?;
        }
        let Reading { request, at, records, bytes, count, after, .. } = self;
        let span = Span::new(&request.key[..], &request.range_end[..]);
        if let (Span::One(key), false) = (&span, request.count_only) {
            let found = store.get_at(key, *at);
            *count = i64::from(found.is_some());
            records.extend(found.filter(|record| passes(request, record)).cloned());
            *bytes = records.iter().map(|record| answer_bytes(request, record)).sum();
            self.is_done = true;
            return Ok(1);
        }
        // Without an order the limit comes before the sort: so etcd has it. One more tells whether there are more.
        let limit = limit(request);
        let takes_all = has_filter(request) || order(request) != SortOrder::None;
        let wanted = if takes_all { usize::MAX } else { limit.saturating_add(1) };
        let scan = store.scan(&span, after.as_ref(), *at, most, |record| {
            *count += 1;
            if !request.count_only && records.len() < wanted && passes(request, record) {
                *bytes += if takes_all && limit < usize::MAX {
                    CANDIDATE_BYTES
                } else {
                    answer_bytes(request, record)
                };
                records.push(Arc::clone(record));
            }
        });
        self.is_done = scan.is_done;
        self.after = scan.last;
        Ok(scan.visited)
    }

    /// What was to be read is forgotten. A read of what is there now has not said anything yet.
    fn begin_again(&mut self, store: &Store) -> Result<(), Error> {
        if self.request.revision > 0 {
            return Err(Error::Compacted);
        }
        self.restarts_left = self.restarts_left.checked_sub(1).ok_or(Error::TooManyRequests)?;
        let again = Reading::new(store, std::mem::take(&mut self.request))?;
        *self = Reading { restarts_left: self.restarts_left, ..again };
        Ok(())
    }

    /// What was found, in the order that was asked for. It may have much to sort, and needs no store.
    pub(crate) fn finish(self) -> Found {
        let Reading { request, view, records, count, .. } = self;
        let target = SortTarget::try_from(request.sort_target).unwrap_or_default();
        let limit = limit(&request);
        let mut records = sorted(records, order(&request), target);
        let more = records.len() > limit;
        records.truncate(limit);
        Found { revision: view, records, keys_only: request.keys_only, more, count }
    }
}

fn limit(request: &PbRangeRequest) -> usize {
    usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX)
}

fn order(request: &PbRangeRequest) -> SortOrder {
    SortOrder::try_from(request.sort_order).unwrap_or_default()
}

fn answer_bytes(request: &PbRangeRequest, record: &Record) -> usize {
    if request.keys_only { record.weight() - record.value.len() } else { record.weight() }
}

fn has_filter(request: &PbRangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// Whether a record is within the bounds that were given; a bound of zero is none.
fn passes(request: &PbRangeRequest, record: &Record) -> bool {
    let within = |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(record.mod_revision, request.min_mod_revision, request.max_mod_revision)
        && within(record.create_revision, request.min_create_revision, request.max_create_revision)
}

/// Sorts what is in the order of its keys. Without an order, any target but the key means ascending.
fn sorted(mut records: Vec<Arc<Record>>, order: SortOrder, target: SortTarget) -> Vec<Arc<Record>> {
    let compare: fn(&Record, &Record) -> Ordering = match target {
        SortTarget::Key => |a, b| a.key.cmp(&b.key),
        SortTarget::Version => |a, b| a.version.cmp(&b.version),
        SortTarget::Create => |a, b| a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => |a, b| a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => |a, b| a.value.cmp(&b.value),
    };
    match (order, target) {
        (SortOrder::None | SortOrder::Ascend, SortTarget::Key) => {}
        (SortOrder::None | SortOrder::Ascend, _) => records.sort_by(|a, b| compare(a, b)),
        (SortOrder::Descend, _) => records.sort_by(|a, b| compare(b, a)),
    }
    records
}
