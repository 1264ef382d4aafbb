//! Reads.

use std::cmp::Ordering;
use std::sync::Arc;

use etcd_client::proto::{PbRangeRequest, PbRangeResponse, PbResponseHeader};
use etcd_client::{SortOrder, SortTarget};

use super::{Error, Record, Span, Store};

/// Carries out a checked range request. The header has the revision of the view and nothing else.
pub(crate) fn range(store: &Store, request: &PbRangeRequest) -> Result<PbRangeResponse, Error> {
    let view = store.view_revision();
    let at = match request.revision {
        ..=0 => view,
        revision if revision > view => return Err(Error::FutureRevision),
        revision => revision,
    };
    if at < store.compacted() {
        return Err(Error::Compacted);
    }
    let mut response = PbRangeResponse { header: Some(header(view)), ..Default::default() };
    let span = Span::new(&request.key[..], &request.range_end[..]);

    if let Span::One(key) = span
        && !request.count_only
    {
        let found = store.get_at(key, at);
        response.count = i64::from(found.is_some());
        response
            .kvs
            .extend(found.filter(|record| passes(request, record)).map(|record| to_proto(request, record)));
        return Ok(response);
    }

    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let order = SortOrder::try_from(request.sort_order).unwrap_or_default();
    let target = SortTarget::try_from(request.sort_target).unwrap_or_default();
    let mut found = store.iter_at(&span, at);
    let records: Vec<_> = if request.count_only {
        Vec::new()
    } else if order == SortOrder::None && !has_filter(request) {
        // One more tells whether there are more. The limit comes before the sort here: so etcd has it.
        found.by_ref().take(limit.saturating_add(1)).inspect(|_| response.count += 1).collect()
    } else {
        let counted = found.by_ref().inspect(|_| response.count += 1);
        counted.filter(|record| passes(request, record)).collect()
    };
    response.count += i64::try_from(found.count()).unwrap_or(i64::MAX);

    let records = sorted(records, order, target);
    response.more = records.len() > limit;
    response.kvs = records.iter().take(limit).map(|record| to_proto(request, record)).collect();
    Ok(response)
}

fn header(revision: i64) -> PbResponseHeader {
    PbResponseHeader { revision, ..Default::default() }
}

fn to_proto(request: &PbRangeRequest, record: &Record) -> etcd_client::proto::PbKeyValue {
    if request.keys_only { record.to_proto_without_value() } else { record.to_proto() }
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
fn sorted(mut records: Vec<&Arc<Record>>, order: SortOrder, target: SortTarget) -> Vec<&Arc<Record>> {
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
