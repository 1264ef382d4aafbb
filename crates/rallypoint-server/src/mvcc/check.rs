//! What can be said of a request without looking at the data: the first errors a client gets.

use std::collections::HashSet;

use etcd_client::proto::{
    PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};
use etcd_client::{SortOrder, SortTarget};

use super::{Error, Span};

pub(crate) fn check_range(request: &PbRangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    // etcd 3.4 ends when it gets another sort target.
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(Error::InvalidSortOption);
    }
    Ok(())
}

pub(crate) fn check_put(request: &PbPutRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn check_delete(request: &PbDeleteRequest) -> Result<(), Error> {
    if request.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Checks a transaction and all in it; `max_ops` bounds each of its lists, and what nests in it shares the bound.
pub(crate) fn check_txn(request: &PbTxnRequest, max_ops: usize) -> Result<(), Error> {
    check_ops(request, max_ops)?;
    Writes::of(&request.success)?;
    Writes::of(&request.failure)?;
    Ok(())
}

fn check_ops(request: &PbTxnRequest, max_ops: usize) -> Result<(), Error> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = max_ops.checked_sub(ops).ok_or(Error::TooManyOps)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(PbTxnOpRequest::RequestRange(range)) => check_range(range)?,
            Some(PbTxnOpRequest::RequestPut(put)) => check_put(put)?,
            Some(PbTxnOpRequest::RequestDeleteRange(delete)) => check_delete(delete)?,
            Some(PbTxnOpRequest::RequestTxn(txn)) => check_ops(txn, left)?,
            None => return Err(Error::KeyNotFound),
        }
    }
    Ok(())
}

/// The keys that a list of operations writes.
///
/// No key may be put twice, or put and deleted, as the result would hang on the order. Branches of which only
/// one is taken do not meet. The order of the checks is etcd's, with its blind spots: a nested delete does
/// not see the puts of its elder siblings, and a delete without an end is not seen at all.
#[derive(Default)]
struct Writes<'a> {
    puts: HashSet<&'a [u8]>,
    deletes: Vec<Span<&'a [u8]>>,
}

impl<'a> Writes<'a> {
    fn of(ops: &'a [PbTxnRequestOp]) -> Result<Self, Error> {
        let mut all = Writes::default();
        for op in ops {
            if let Some(PbTxnOpRequest::RequestDeleteRange(delete)) = &op.request {
                all.deletes.push(Span::new(&delete.key, &delete.range_end));
            }
        }
        for op in ops {
            if let Some(PbTxnOpRequest::RequestTxn(txn)) = &op.request {
                let success = Writes::of(&txn.success)?;
                let failure = Writes::of(&txn.failure)?;
                for key in &success.puts {
                    all.put(key)?;
                }
                for key in failure.puts.difference(&success.puts) {
                    all.put(key)?;
                }
                all.deletes.extend(success.deletes);
                all.deletes.extend(failure.deletes);
            }
        }
        for op in ops {
            if let Some(PbTxnOpRequest::RequestPut(put)) = &op.request {
                all.put(&put.key)?;
            }
        }
        Ok(all)
    }

    fn put(&mut self, key: &'a [u8]) -> Result<(), Error> {
        let is_deleted = |span: &Span<&[u8]>| !matches!(span, Span::From(_)) && span.contains(key);
        if !self.puts.insert(key) || self.deletes.iter().any(is_deleted) {
            return Err(Error::DuplicateKey);
        }
        Ok(())
    }
}

/// Whether a transaction cannot write, whichever branches it takes.
pub(crate) fn is_read_only(request: &PbTxnRequest) -> bool {
    !any_op(request, &|op| !matches!(op, PbTxnOpRequest::RequestRange(_)))
}

/// Whether a transaction may write a key.
pub(crate) fn has_put(request: &PbTxnRequest) -> bool {
    any_op(request, &|op| matches!(op, PbTxnOpRequest::RequestPut(_)))
}

fn any_op(request: &PbTxnRequest, is: &dyn Fn(&PbTxnOpRequest) -> bool) -> bool {
    request.success.iter().chain(&request.failure).filter_map(|op| op.request.as_ref()).any(|op| match op {
        PbTxnOpRequest::RequestTxn(nested) => any_op(nested, is),
        op => is(op),
    })
}
