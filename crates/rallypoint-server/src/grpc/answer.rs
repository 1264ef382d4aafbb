//! What the store has done, as the protocol tells it.

use etcd_client::EventType;
use etcd_client::proto::{
    PbDeleteResponse, PbEvent, PbPutResponse, PbRangeResponse, PbResponseHeader, PbTxnResponse,
    PbWatchResponse,
};

use super::rope::{Field, Form, Rope};
use crate::mvcc::{DeleteDone, Done, Found, PutDone, TxnDone};
use crate::watch::WatchEvent;

/// Fields of `etcdserverpb`.
const RANGE_KVS: Field = 2;
const PUT_PREV_KV: Field = 2;
const DELETE_PREV_KVS: Field = 3;
const TXN_RESPONSES: Field = 3;
const WATCH_EVENTS: Field = 11;
const EVENT_KV: Field = 2;
const EVENT_PREV_KV: Field = 3;

pub(super) fn range(header: PbResponseHeader, found: Found) -> Rope {
    let Found { records, keys_only, more, count, .. } = found;
    let mut rope = Rope::of(&PbRangeResponse { header: Some(header), kvs: Vec::new(), more, count });
    let form = if keys_only { Form::WithoutValue } else { Form::Whole };
    for record in records {
        rope.push_record(RANGE_KVS, record, form);
    }
    rope
}

pub(super) fn put(header: PbResponseHeader, done: PutDone) -> Rope {
    let mut rope = Rope::of(&PbPutResponse { header: Some(header), prev_kv: None });
    if let Some(prev) = done.prev {
        rope.push_record(PUT_PREV_KV, prev, Form::Whole);
    }
    rope
}

pub(super) fn delete(header: PbResponseHeader, done: DeleteDone) -> Rope {
    let deleted = i64::try_from(done.deleted).unwrap_or(i64::MAX);
    let mut rope = Rope::of(&PbDeleteResponse { header: Some(header), deleted, prev_kvs: Vec::new() });
    for prev in done.prev {
        rope.push_record(DELETE_PREV_KVS, prev, Form::Whole);
    }
    rope
}

pub(super) fn txn(header: PbResponseHeader, done: TxnDone) -> Rope {
    let TxnDone { succeeded, done, .. } = done;
    let mut rope = Rope::of(&PbTxnResponse { header: Some(header), succeeded, responses: Vec::new() });
    // As from etcd, what is in it has a revision and nothing else in its headers.
    let header = |revision| PbResponseHeader { revision, ..Default::default() };
    for done in done {
        let mut response = Rope::default();
        match done {
            Done::Range(found) => response.push_message(1, range(header(found.revision), found)),
            Done::Put(done) => response.push_message(2, put(header(done.revision), done)),
            Done::Delete(done) => response.push_message(3, delete(header(done.revision), done)),
            Done::Txn(done) => response.push_message(4, txn(header(done.revision), done)),
        }
        rope.push_message(TXN_RESPONSES, response);
    }
    rope
}

/// One event, as a field of a [`PbWatchResponse`].
pub(super) fn event(told: WatchEvent) -> Rope {
    let WatchEvent { record, prev } = told;
    let (kind, form) = if record.is_deletion() {
        (EventType::Delete, Form::Deletion)
    } else {
        (EventType::Put, Form::Whole)
    };
    let mut event = Rope::of(&PbEvent { r#type: kind as i32, ..Default::default() });
    event.push_record(EVENT_KV, record, form);
    if let Some(prev) = prev {
        event.push_record(EVENT_PREV_KV, prev, Form::Whole);
    }
    let mut field = Rope::default();
    field.push_message(WATCH_EVENTS, event);
    field
}

/// Messages of a watch with these events. Where it asked for fragments each is below a size, though no event is cut.
pub(super) fn events(
    response: &PbWatchResponse,
    events: Vec<WatchEvent>,
    fragment_bytes: Option<usize>,
) -> Vec<Rope> {
    let max_bytes = fragment_bytes.unwrap_or(usize::MAX);
    let mut pieces = vec![Rope::default()];
    for told in events {
        let event = event(told);
        let piece = pieces.last_mut().expect("there is always one");
        if piece.length() > 0 && HEAD_BYTES + piece.length() + event.length() >= max_bytes {
            pieces.push(event);
        } else {
            piece.append(event);
        }
    }
    let last = pieces.len() - 1;
    let head = |at: usize| Rope::of(&PbWatchResponse { fragment: at < last, ..response.clone() });
    let whole = pieces.into_iter().enumerate().map(|(at, events)| {
        let mut piece = head(at);
        piece.append(events);
        piece
    });
    whole.collect()
}

/// At least what a message of events has beside them.
const HEAD_BYTES: usize = 64;
