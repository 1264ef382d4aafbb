//! A line of those who want the same: a lock, or to lead. Each has a key under its name, on a lease of its own, and whoever
//! has the oldest is the first. These are the keys that etcd's clients make when they do it by themselves.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use etcd_client::proto::{
    PbCompare, PbCompareTarget, PbPutRequest, PbRangeRequest, PbTargetUnion, PbTxnOpRequest, PbTxnRequest,
    PbTxnRequestOp,
};
use etcd_client::{CompareOp, SortOrder, SortTarget};
use tonic::{Code, Status};

use super::call::OwnedCall;
use super::kv;
use super::pause::Pause;
use super::watch::{SMALL_BYTES, WATCH_BYTES};
use crate::admission::{Account, Full, Share};
use crate::durable::kept;
use crate::mvcc::{Done, Error, Record, Span, TxnDone};
use crate::shared::Shared;
use crate::watch::{Filter, Message, Polled, StreamKey, WatchRequest};

/// Seconds of the lease of one that comes without, as from etcd's own sessions.
const SESSION_TTL: i64 = 60;

/// The keys of a line: all below its name.
#[derive(Debug, Clone)]
pub(super) struct Line {
    prefix: Vec<u8>,
}

/// An entry of a line.
#[derive(Debug)]
pub(super) struct QueueEntry {
    pub(super) key: Bytes,
    /// When it was taken: of two, the lower one is before the other.
    pub(super) taken_at: i64,
    pub(super) lease: i64,
    /// Of the store when it was taken, or found.
    pub(super) revision: i64,
    /// What was there already, if it was.
    pub(super) found: Option<Arc<Record>>,
}

impl Line {
    pub(super) fn new(name: &[u8]) -> Self {
        Line { prefix: [name, b"/"].concat() }
    }

    /// All its keys.
    pub(super) fn span(&self) -> Span {
        Span::Until(self.prefix.clone().into(), self.end().into())
    }

    /// The first key after it.
    fn end(&self) -> Vec<u8> {
        let mut end = self.prefix.clone();
        *end.last_mut().expect("it ends with a slash") += 1;
        end
    }

    /// Asks for keys of the line by their age, the one that `order` puts first.
    pub(super) fn by_age(&self, order: SortOrder, max_create_revision: i64) -> PbRangeRequest {
        PbRangeRequest {
            key: self.prefix.clone(),
            range_end: self.end(),
            limit: 1,
            sort_order: order as i32,
            sort_target: SortTarget::Create as i32,
            max_create_revision,
            ..Default::default()
        }
    }

    /// Takes an entry, or finds the one that the lease has. Without a lease, with one that is made for it.
    pub(super) async fn join(
        &self,
        call: &OwnedCall,
        lease: i64,
        value: &[u8],
    ) -> Result<QueueEntry, Status> {
        let OwnedCall { shared, caller, .. } = call;
        let lease = match lease {
            0 => {
                let known = shared.read(|state| state.auth.check_known(caller));
                known.map_err(|error| without_code(error.into()))?;
                let (granted, ticket) = shared.grant(0, SESSION_TTL);
                kept(ticket).await?;
                granted?.id
            }
            lease => lease,
        };
        let key = [&self.prefix[..], format!("{lease:x}").as_bytes()].concat();
        let put = PbPutRequest { key: key.clone(), value: value.to_vec(), lease, ..Default::default() };
        let own = PbRangeRequest { key: key.clone(), ..Default::default() };
        let request = PbTxnRequest {
            compare: vec![created_at(&key, 0)],
            success: vec![op(PbTxnOpRequest::RequestPut(put))],
            failure: vec![op(PbTxnOpRequest::RequestRange(own))],
        };
        // Who may not read the line could not wait in it. It is not read here: it may be long, and all would wait for that.
        let all = self.by_age(SortOrder::Ascend, 0);
        let joined = shared.change_in_turn(request, |state, request| {
            state.auth.check_range(caller, &all)?;
            state.txn(caller, request, Ok)
        });
        let (joined, ticket) = joined.await;
        kept(ticket).await?;
        let TxnDone { revision, mut done, .. } = joined.map_err(|error| without_code(error.into()))?;
        let found = match done.swap_remove(0) {
            Done::Range(found) => found.records.into_iter().next(),
            _ => None,
        };
        let taken_at = found.as_ref().map_or(revision, |record| record.create_revision);
        Ok(QueueEntry { key: key.into(), taken_at, lease, revision, found })
    }

    /// Waits until nobody is before an entry; the revision of the store then. Given up, the entry is left.
    pub(super) async fn wait(&self, call: &OwnedCall, entry: &QueueEntry) -> Result<i64, Waited> {
        let leaving = Leaving { shared: &call.shared, key: Some(&entry.key) };
        loop {
            let older = self.by_age(SortOrder::Descend, entry.taken_at - 1);
            let turn = call.shared.turns.of(&self.prefix).await;
            let (found, share) = kv::read(call, older).await?;
            drop((share, turn));
            let Some(before) = found.records.first() else { break leaving.stay(found.revision) };
            let mut watch = InnerWatch::open(call);
            // One that was left behind waits for nothing.
            for key in [&before.key, &entry.key] {
                watch.add(Span::One(key.clone()), found.revision + 1, ONLY_DELETIONS)?;
            }
            let gone = watch.next().await?;
            if gone.iter().flatten().any(|record| record.key == entry.key) {
                break Err(Waited::Expired);
            }
        }
    }
}

/// How a wait in a line has ended, other than well.
#[derive(Debug)]
pub(super) enum Waited {
    /// The lease of the entry has.
    Expired,
    Failed(Status),
}

impl From<Status> for Waited {
    fn from(status: Status) -> Self {
        Waited::Failed(status)
    }
}

impl From<Error> for Waited {
    fn from(error: Error) -> Self {
        Waited::Failed(error.into())
    }
}

/// Leaves the line when it is dropped: the client has gone, or cannot be told that it has a place.
struct Leaving<'a> {
    shared: &'a Shared,
    key: Option<&'a Bytes>,
}

impl Leaving<'_> {
    fn stay(mut self, revision: i64) -> Result<i64, Waited> {
        self.key = None;
        Ok(revision)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.write(|state| state.delete_key(key));
        }
    }
}

/// etcd does this through a client of its own, whose errors have lost their codes. What says that there is no room, or that
/// the server ends, keeps its own.
pub(super) fn without_code(status: Status) -> Status {
    match status.code() {
        Code::ResourceExhausted | Code::Unavailable | Code::Internal => status,
        _ => Status::unknown(status.message()),
    }
}

/// Carries out a transaction, and waits until it is on disk.
pub(super) async fn transact(call: &OwnedCall, request: PbTxnRequest) -> Result<TxnDone, Status> {
    let done = call.shared.change_in_turn(request, |state, request| state.txn(&call.caller, request, Ok));
    let (done, ticket) = done.await;
    kept(ticket).await?;
    done.map_err(|error| without_code(error.into()))
}

/// That a key was made at a revision; at 0, that it is not there.
pub(super) fn created_at(key: &[u8], revision: i64) -> PbCompare {
    PbCompare {
        result: CompareOp::Equal as i32,
        target: PbCompareTarget::Create as i32,
        key: key.to_vec(),
        target_union: Some(PbTargetUnion::CreateRevision(revision)),
        ..Default::default()
    }
}

pub(super) fn op(request: PbTxnOpRequest) -> PbTxnRequestOp {
    PbTxnRequestOp { request: Some(request) }
}

const ONLY_DELETIONS: Filter = Filter { no_put: true, no_delete: false };

/// A watch of the server's own, for a request that waits. It ends with the request.
pub(super) struct InnerWatch {
    shared: Arc<Shared>,
    account: Account,
    stream: StreamKey,
    /// For the message that was told last.
    share: Option<Share>,
    pause: Pause,
}

/// Versions of keys, or their deletions; none if some were compacted before they could be told.
type WatchBatch = Option<Vec<Arc<Record>>>;

impl InnerWatch {
    pub(super) fn open(call: &OwnedCall) -> Self {
        let stream = call.shared.write(|state| state.hub.open());
        let (shared, account) = (Arc::clone(&call.shared), call.account.clone());
        InnerWatch { shared, account, stream, share: None, pause: Pause::default() }
    }

    /// Watches these keys too. Whether the caller may is asked before.
    pub(super) fn add(&mut self, span: Span, start_revision: i64, filter: Filter) -> Result<(), Error> {
        let keys = match &span {
            Span::One(key) | Span::From(key) => key.len(),
            Span::Until(key, end) => key.len() + end.len(),
        };
        let share = Some(self.account.take(WATCH_BYTES + 2 * keys)?);
        let request = WatchRequest {
            id: 0,
            span,
            start_revision,
            filter,
            prev_kv: false,
            fragment: false,
            progress_notify: false,
            share,
        };
        self.shared.write(|state| state.watch(self.stream, request));
        Ok(())
    }

    /// The next events.
    pub(super) async fn next(&mut self) -> Result<WatchBatch, Status> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<WatchBatch, Status>> {
        self.share = None;
        loop {
            ready!(self.pause.poll(cx));
            let room = self.share.as_ref().map_or(SMALL_BYTES, Share::bytes);
            match self.shared.write(|state| state.hub.poll(&state.store, self.stream, room, cx.waker())) {
                Polled::Message(Message::Events { events, .. }) => {
                    return Poll::Ready(Ok(Some(events.into_iter().map(|event| event.record).collect())));
                }
                Polled::Message(Message::Compacted { .. }) => return Poll::Ready(Ok(None)),
                Polled::Message(Message::Refused { .. }) => return Poll::Ready(Err(Error::NoSpace.into())),
                Polled::Message(_) => {}
                Polled::NoRoom(bytes) => match self.account.take_or_wait(bytes) {
                    Ok(share) => {
                        self.pause.end();
                        self.share = Some(share);
                    }
                    Err(Full) => self.pause.begin(),
                },
                Polled::Again => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Polled::Pending => return Poll::Pending,
                Polled::Closed => {
                    return Poll::Ready(Err(Status::unavailable("etcdserver: server stopped")));
                }
            }
        }
    }
}

impl Drop for InnerWatch {
    fn drop(&mut self) {
        self.shared.write(|state| state.hub.drop_stream(self.stream));
    }
}
