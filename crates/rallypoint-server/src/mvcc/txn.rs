//! Writes and transactions.
//!
//! Everything here writes to the revision that is open on the store; the caller commits it, or rolls it back
//! when there was an error.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::CompareOp;
use etcd_client::proto::{
    PbCompare, PbCompareTarget, PbDeleteRequest, PbDeleteResponse, PbPutRequest, PbPutResponse,
    PbRangeRequest, PbResponseHeader, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse,
    PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};

use super::{Error, Record, Span, Store, range};

/// Whether a lease exists: all the store wants to know of leases.
pub(crate) type LeaseExists<'a> = &'a dyn Fn(i64) -> bool;

/// Carries out a checked put.
pub(crate) fn put(
    store: &mut Store,
    request: PbPutRequest,
    lease_exists: LeaseExists<'_>,
) -> Result<PbPutResponse, Error> {
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
    let prev_kv = last.filter(|_| request.prev_kv).map(|last| last.to_proto());
    let revision = store.put(request.key.into(), value, lease);
    Ok(PbPutResponse { header: Some(header(revision)), prev_kv })
}

/// Carries out a checked delete.
pub(crate) fn delete(store: &mut Store, request: &PbDeleteRequest) -> PbDeleteResponse {
    let deleted = store.delete(&Span::new(&request.key[..], &request.range_end[..]));
    PbDeleteResponse {
        header: Some(header(store.view_revision())),
        deleted: i64::try_from(deleted.len()).unwrap_or(i64::MAX),
        prev_kvs: if request.prev_kv {
            deleted.iter().map(|last| last.to_proto()).collect()
        } else {
            Vec::new()
        },
    }
}

/// Carries out a checked transaction.
///
/// All compares, the nested ones too, look at the store as it was before; reads see the writes before them.
pub(crate) fn txn(
    store: &mut Store,
    request: PbTxnRequest,
    lease_exists: LeaseExists<'_>,
) -> Result<PbTxnResponse, Error> {
    let plan = Plan::new(store, request);
    plan.check(&|op| check_put(store, op, lease_exists))?;
    plan.check(&|op| check_range(store, op))?;
    let mut response = plan.apply(store, lease_exists)?;
    response.header = Some(header(store.view_revision()));
    Ok(response)
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
    fn new(store: &Store, request: PbTxnRequest) -> Self {
        let succeeded = request.compare.iter().all(|compare| holds(store, compare));
        let ops = if succeeded { request.success } else { request.failure };
        let steps = ops.into_iter().filter_map(|PbTxnRequestOp { request }| request).map(|op| match op {
            PbTxnOpRequest::RequestTxn(nested) => Step::Txn(Plan::new(store, nested)),
            op => Step::Op(op),
        });
        Plan { succeeded, steps: steps.collect() }
    }

    fn check(&self, check: &dyn Fn(&PbTxnOpRequest) -> Result<(), Error>) -> Result<(), Error> {
        self.steps.iter().try_for_each(|step| match step {
            Step::Op(op) => check(op),
            Step::Txn(nested) => nested.check(check),
        })
    }

    fn apply(self, store: &mut Store, lease_exists: LeaseExists<'_>) -> Result<PbTxnResponse, Error> {
        let mut responses = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            let response = match step {
                Step::Txn(nested) => PbTxnOpResponse::ResponseTxn(nested.apply(store, lease_exists)?),
                Step::Op(PbTxnOpRequest::RequestRange(request)) => {
                    PbTxnOpResponse::ResponseRange(range(store, &request)?)
                }
                Step::Op(PbTxnOpRequest::RequestPut(request)) => {
                    PbTxnOpResponse::ResponsePut(put(store, request, lease_exists)?)
                }
                Step::Op(PbTxnOpRequest::RequestDeleteRange(request)) => {
                    PbTxnOpResponse::ResponseDeleteRange(delete(store, &request))
                }
                Step::Op(PbTxnOpRequest::RequestTxn(_)) => unreachable!("nested transactions are plans"),
            };
            responses.push(PbResponseOp { response: Some(response) });
        }
        // Only the outermost transaction has a revision in its header.
        Ok(PbTxnResponse { header: Some(header(0)), succeeded: self.succeeded, responses })
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
fn holds(store: &Store, compare: &PbCompare) -> bool {
    let span = Span::new(&compare.key[..], &compare.range_end[..]);
    let mut found = store.iter_at(&span, store.revision()).peekable();
    if found.peek().is_some() {
        return found.all(|record| holds_for(compare, Some(record)));
    }
    // A missing key has no value, not even an empty one.
    compare.target != PbCompareTarget::Value as i32 && holds_for(compare, None)
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

fn header(revision: i64) -> PbResponseHeader {
    PbResponseHeader { revision, ..Default::default() }
}
