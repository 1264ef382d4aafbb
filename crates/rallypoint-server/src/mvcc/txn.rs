//! Writes and transactions.
//!
//! Everything here writes to the revision that is open on the store; the caller commits it, or rolls it back
//! when there was an error.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::CompareOp;
use etcd_client::proto::{
    PbCompare, PbCompareTarget, PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTargetUnion, PbTxnOpRequest,
    PbTxnRequest, PbTxnRequestOp,
};

use super::{Error, Found, Reading, Record, Span, Store};

/// Keys that a transaction may look at, all that nests in it included: it has the store for itself, and others wait. To
/// look at one takes some tens of nanoseconds.
const MAX_KEYS: usize = 100_000;

/// Whether a lease exists: all the store wants to know of leases.
pub(crate) type LeaseExists<'a> = &'a dyn Fn(i64) -> bool;

/// What a request did.
#[derive(Debug)]
pub(crate) enum Done {
    Range(Found),
    Put(PutDone),
    Delete(DeleteDone),
    Txn(TxnDone),
}

#[derive(Debug)]
pub(crate) struct PutDone {
    pub(crate) revision: i64,
    /// What was there, if that was asked for.
    pub(crate) prev: Option<Arc<Record>>,
}

#[derive(Debug)]
pub(crate) struct DeleteDone {
    pub(crate) revision: i64,
    pub(crate) deleted: usize,
    /// What was deleted, if that was asked for.
    pub(crate) prev: Vec<Arc<Record>>,
}

#[derive(Debug)]
pub(crate) struct TxnDone {
    /// 0 for one that nests in another, as from etcd.
    pub(crate) revision: i64,
    pub(crate) succeeded: bool,
    pub(crate) done: Vec<Done>,
}

/// Carries out a checked put.
pub(crate) fn put(
    store: &mut Store,
    request: PbPutRequest,
    lease_exists: LeaseExists<'_>,
) -> Result<PutDone, Error> {
    if request.lease != 0 && !lease_exists(request.lease) {
        return Err(Error::LeaseNotFound);
    }
    let last = if request.ignore_value || request.ignore_lease || request.prev_kv {
        store.get(&request.key).cloned()
    } else {
        None
    };
    let (mut value, mut lease) = (Bytes::from(request.value), request.lease);
    if request.ignore_value || request.ignore_lease {
        let last = last.as_ref().ok_or(Error::KeyNotFound)?;
        if request.ignore_value {
            value = last.value.clone();
        }
        if request.ignore_lease {
            lease = last.lease;
        }
    }
    let prev = last.filter(|_| request.prev_kv);
    let revision = store.put(request.key.into(), value, lease);
    Ok(PutDone { revision, prev })
}

/// Carries out a checked delete.
pub(crate) fn delete(store: &mut Store, request: &PbDeleteRequest) -> DeleteDone {
    let prev = store.delete(&Span::new(&request.key[..], &request.range_end[..]));
    DeleteDone {
        revision: store.view_revision(),
        deleted: prev.len(),
        prev: if request.prev_kv { prev } else { Vec::new() },
    }
}

/// Carries out a checked transaction.
///
/// All compares, the nested ones too, look at the store as it was before; reads see the writes before them.
pub(crate) fn txn(
    store: &mut Store,
    request: PbTxnRequest,
    lease_exists: LeaseExists<'_>,
) -> Result<TxnDone, Error> {
    let mut effort = Effort { left: MAX_KEYS };
    let plan = Plan::new(store, request, &mut effort)?;
    plan.check(&|op| check_put(store, op, lease_exists))?;
    plan.check(&|op| check_range(store, op))?;
    let mut done = plan.apply(store, lease_exists, &mut effort)?;
    done.revision = store.view_revision();
    Ok(done)
}

/// How many keys a transaction may still look at.
struct Effort {
    left: usize,
}

impl Effort {
    /// It looked at so many, and that was all of them or not.
    fn spend(&mut self, keys: usize, is_all: bool) -> Result<(), Error> {
        self.left = self.left.checked_sub(keys).filter(|_| is_all).ok_or(Error::RequestTooLarge)?;
        Ok(())
    }
}

/// A transaction whose branches are chosen.
struct Plan {
    succeeded: bool,
    steps: Vec<Step>,
}

enum Step {
    Op(PbTxnOpRequest),
    Txn(Plan),
}

impl Plan {
    fn new(store: &Store, request: PbTxnRequest, effort: &mut Effort) -> Result<Self, Error> {
        let mut succeeded = true;
        for compare in &request.compare {
            succeeded = succeeded && holds(store, compare, effort)?;
        }
        let ops = if succeeded { request.success } else { request.failure };
        let steps = ops.into_iter().filter_map(|PbTxnRequestOp { request }| request).map(|op| match op {
            PbTxnOpRequest::RequestTxn(nested) => Plan::new(store, nested, effort).map(Step::Txn),
            op => Ok(Step::Op(op)),
        });
        Ok(Plan { succeeded, steps: steps.collect::<Result<_, _>>()? })
    }

    fn check(&self, check: &dyn Fn(&PbTxnOpRequest) -> Result<(), Error>) -> Result<(), Error> {
        self.steps.iter().try_for_each(|step| match step {
            Step::Op(op) => check(op),
            Step::Txn(nested) => nested.check(check),
        })
    }

    fn apply(
        self,
        store: &mut Store,
        lease_exists: LeaseExists<'_>,
        effort: &mut Effort,
    ) -> Result<TxnDone, Error> {
        let mut done = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            done.push(match step {
                Step::Txn(nested) => Done::Txn(nested.apply(store, lease_exists, effort)?),
                Step::Op(PbTxnOpRequest::RequestRange(request)) => {
                    let mut reading = Reading::within(store, request)?;
                    let keys = reading.step(store, effort.left)?;
                    effort.spend(keys, reading.is_done())?;
                    Done::Range(reading.finish())
                }
                Step::Op(PbTxnOpRequest::RequestPut(request)) => {
                    Done::Put(put(store, request, lease_exists)?)
                }
                Step::Op(PbTxnOpRequest::RequestDeleteRange(request)) => {
                    let span = Span::new(&request.key[..], &request.range_end[..]);
                    let scan = store.scan(&span, None, i64::MAX, effort.left, |_| {});
                    effort.spend(scan.visited, scan.is_done)?;
                    Done::Delete(delete(store, &request))
                }
                Step::Op(PbTxnOpRequest::RequestTxn(_)) => unreachable!("nested transactions are plans"),
            });
        }
        // Only the outermost transaction has a revision in its header.
        Ok(TxnDone { revision: 0, succeeded: self.succeeded, done })
    }
}

/// What a put needs of the store as it was before the transaction.
fn check_put(store: &Store, op: &PbTxnOpRequest, lease_exists: LeaseExists<'_>) -> Result<(), Error> {
    let PbTxnOpRequest::RequestPut(put) = op else { return Ok(()) };
    if (put.ignore_value || put.ignore_lease) && store.get(&put.key).is_none() {
        return Err(Error::KeyNotFound);
    }
    if put.lease != 0 && !lease_exists(put.lease) {
        return Err(Error::LeaseNotFound);
    }
    Ok(())
}

/// What a range needs of the store as it was before the transaction.
fn check_range(store: &Store, op: &PbTxnOpRequest) -> Result<(), Error> {
    let PbTxnOpRequest::RequestRange(PbRangeRequest { revision, .. }) = op else { return Ok(()) };
    match *revision {
        0 => Ok(()),
        revision if revision > store.revision() => Err(Error::FutureRevision),
        revision if revision < store.compacted() => Err(Error::Compacted),
        _ => Ok(()),
    }
}

/// Whether a compare holds for every key of its span; without any, a key that was never written stands in.
fn holds(store: &Store, compare: &PbCompare, effort: &mut Effort) -> Result<bool, Error> {
    let span = Span::new(&compare.key[..], &compare.range_end[..]);
    let (mut is_empty, mut holds) = (true, true);
    let scan = store.scan(&span, None, store.revision(), effort.left, |record| {
        is_empty = false;
        holds = holds && holds_for(compare, Some(record));
    });
    effort.spend(scan.visited, scan.is_done)?;
    if !is_empty {
        return Ok(holds);
    }
    // A missing key has no value, not even an empty one.
    Ok(compare.target != PbCompareTarget::Value as i32 && holds_for(compare, None))
}

fn holds_for(compare: &PbCompare, record: Option<&Arc<Record>>) -> bool {
    let number = |given: Option<i64>, field: fn(&Record) -> i64| {
        record.map_or(0, |record| field(record)).cmp(&given.unwrap_or(0))
    };
    let given = compare.target_union.as_ref();
    let order = match PbCompareTarget::try_from(compare.target) {
        Ok(PbCompareTarget::Value) => {
            let value = record.map_or(&[][..], |record| &record.value);
            let given = match given {
                Some(PbTargetUnion::Value(given)) => &given[..],
                _ => &[],
            };
            value.cmp(given)
        }
        Ok(PbCompareTarget::Version) => number(
            given.and_then(|given| if let PbTargetUnion::Version(n) = given { Some(*n) } else { None }),
            |record| record.version,
        ),
        Ok(PbCompareTarget::Create) => number(
            given
                .and_then(|given| if let PbTargetUnion::CreateRevision(n) = given { Some(*n) } else { None }),
            |record| record.create_revision,
        ),
        Ok(PbCompareTarget::Mod) => number(
            given.and_then(|given| if let PbTargetUnion::ModRevision(n) = given { Some(*n) } else { None }),
            |record| record.mod_revision,
        ),
        Ok(PbCompareTarget::Lease) => number(
            given.and_then(|given| if let PbTargetUnion::Lease(n) = given { Some(*n) } else { None }),
            |record| record.lease,
        ),
        // etcd lets unknown targets be equal, and unknown comparisons hold.
        Err(_) => std::cmp::Ordering::Equal,
    };
    match CompareOp::try_from(compare.result) {
        Ok(CompareOp::Equal) => order.is_eq(),
        Ok(CompareOp::NotEqual) => order.is_ne(),
        Ok(CompareOp::Greater) => order.is_gt(),
        Ok(CompareOp::Less) => order.is_lt(),
        Err(_) => true,
    }
}
