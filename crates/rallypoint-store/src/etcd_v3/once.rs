//! Writes that are carried out once, even when the reply is lost.
//!
//! A reply that does not come leaves open whether the write was carried out, or still will be: etcd may hold
//! the request in a queue while the client gives up on it. So every write is a transaction that also writes a
//! *place*: a small key that only this store writes, and only if it is as this store last left it. Sent twice,
//! the transaction can succeed once. And when it fails, the place tells whether that was because it had
//! succeeded before.
//!
//! Each operation has a place to itself for as long as it lasts. Places hang on a lease, and so are gone some
//! time after their store.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint_core::Backoff;
use rallypoint_etcd::v3::api::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use rallypoint_etcd::v3::{Client, Repeat, revision_of};
use rallypoint_etcd::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::debug;
use uuid::Uuid;

use super::layout::Layout;
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

/// Much longer than any operation takes, its retries included.
const LEASE: Duration = Duration::from_secs(2 * 3600);

/// A write: what must hold, what it does, and what to read if that does not hold.
pub(super) struct Write<'a> {
    pub(super) what: &'static str,
    pub(super) key: &'a [u8],
    pub(super) when: Vec<Compare>,
    pub(super) then: Vec<TxnOp>,
    pub(super) otherwise: Vec<TxnOp>,
    /// A refusal is not expected: the first try does without the reads that a refusal needs, which cost etcd
    /// time even when they are not carried out.
    pub(super) lean: bool,
}

/// What became of a write.
pub(super) enum Outcome {
    /// Carried out; these are the answers to `then`.
    Done(Vec<TxnOpResponse>),
    /// Carried out at this revision, but the answers were lost.
    DoneEarlier(i64),
    /// Not carried out, and it never will be; these are the answers to `otherwise`, at this revision.
    Refused(Vec<TxnOpResponse>, i64),
}

#[derive(Debug)]
pub(super) struct Once {
    client: Client,
    store: String,
    /// The lease to put places on, where they need none of their own.
    given: Option<i64>,
    next_place: AtomicU64,
    free: Mutex<Vec<IdempotencyKey>>,
    lease: tokio::sync::Mutex<Option<Lease>>,
    /// Where it was made; the last handle may be dropped on a thread that has no runtime.
    runtime: Option<Handle>,
}

#[derive(Debug)]
struct IdempotencyKey {
    key: Vec<u8>,
    /// The revision of this store's last write to it; 0 before the first.
    revision: i64,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    id: i64,
    granted: Instant,
}

impl Once {
    pub(super) fn new(client: Client, given: Option<i64>) -> Self {
        Once {
            client,
            store: Uuid::new_v4().simple().to_string(),
            given,
            next_place: AtomicU64::new(0),
            free: Mutex::new(Vec::new()),
            lease: tokio::sync::Mutex::new(None),
            runtime: Handle::try_current().ok(),
        }
    }

    pub(super) async fn run(
        &self,
        layout: &Layout,
        write: &Write<'_>,
        deadline: Deadline,
    ) -> Result<Outcome> {
        // A place that a dropped future takes with it is missed by nobody; it stays until its lease ends.
        let mut place = self.take_place(layout);
        let outcome = self.run_in(&mut place, write, deadline).await?;
        self.free.lock().expect("no code panics while it holds this lock").push(place);
        Ok(outcome)
    }

    fn take_place(&self, layout: &Layout) -> IdempotencyKey {
        let free = self.free.lock().expect("no code panics while it holds this lock").pop();
        free.unwrap_or_else(|| {
            let number = self.next_place.fetch_add(1, Ordering::Relaxed);
            IdempotencyKey { key: layout.operation(&self.store, number), revision: 0 }
        })
    }

    async fn run_in(
        &self,
        place: &mut IdempotencyKey,
        write: &Write<'_>,
        deadline: Deadline,
    ) -> Result<Outcome> {
        // Never the same twice, not even in two processes that were one before a fork.
        let id = Uuid::new_v4();
        let mut backoff = Backoff::default();
        let mut changes = Changes::default();
        // The reply to an earlier try that was lost, if one was.
        let mut lost: Option<Error> = None;
        let mut lean = write.lean;
        loop {
            let lease = match self.lease(deadline).await {
                Ok(lease) => lease,
                Err(error) => return Err(give_up(write, error, lost)),
            };
            let refusal = match (&lost, lean) {
                (None, true) => Refusal::Unexpected,
                (None, false) => Refusal::Explained,
                (Some(_), _) => Refusal::Final,
            };
            let txn = || transaction(place, write, id, lease, &refusal);
            let client = self.client.retrying_for(deadline.left());
            let error = match client.txn(write.key, Repeat::Unsafe, txn).await {
                Ok(answer) => {
                    let revision = revision_of(answer.header())?;
                    let mut answers = answer.op_responses();
                    if answer.succeeded() {
                        place.revision = revision;
                        return Ok(Outcome::Done(answers));
                    }
                    if matches!(refusal, Refusal::Unexpected) {
                        lean = false;
                        continue;
                    }
                    match at_place(&mut answers) {
                        Found::Record { value, revision } if value == id.as_bytes() => {
                            place.revision = revision;
                            return Ok(Outcome::DoneEarlier(revision));
                        }
                        Found::Fenced => {
                            place.revision = revision;
                            return Ok(Outcome::Refused(answers, revision));
                        }
                        found => {
                            let now = match found {
                                Found::Record { revision, .. } => revision,
                                _ => 0,
                            };
                            if now == place.revision {
                                return Ok(Outcome::Refused(answers, revision));
                            }
                            // Not as this store left it: its lease ran out, or a forked process has it too.
                            if let Some(source) = lost {
                                return Err(unknown(write, source));
                            }
                            // Or the server lost its data, or was restored to an earlier state.
                            debug!(place = %place.key.escape_ascii(), "a place was lost");
                            place.revision = now;
                            changes.pause(write, deadline).await?;
                            continue;
                        }
                    }
                }
                Err(error) => error,
            };
            match error.kind() {
                // The place went with its lease, and with it the record of a try whose reply was lost.
                ErrorKind::LeaseNotFound if lost.is_some() => return Err(give_up(write, error, lost)),
                ErrorKind::LeaseNotFound if self.given.is_none() && !deadline.is_over() => {
                    let mut current = self.lease.lock().await;
                    if current.is_some_and(|current| current.id == lease) {
                        *current = None;
                    }
                    drop(current);
                    changes.pause(write, deadline).await?;
                    continue;
                }
                _ if error.is_transient() && !deadline.is_over() => {
                    debug!(%error, "the reply to a write was lost");
                    if error.may_have_applied() {
                        lost = Some(error);
                    }
                    tokio::time::sleep(backoff.next(fastrand::f64())).await;
                }
                ErrorKind::LeaseNotFound if self.given.is_some() => {
                    let (what, key) = (write.what, write.key.to_vec());
                    return Err(StoreError::LeaseGone { what, key, lease, source: error });
                }
                _ => return Err(give_up(write, error, lost)),
            }
        }
    }

    /// The lease that places hang on.
    async fn lease(&self, deadline: Deadline) -> Result<i64, Error> {
        if let Some(given) = self.given {
            return Ok(given);
        }
        // Whoever has the lock may be waiting for etcd, for as long as its own deadline allows.
        let late = || Error::new(ErrorKind::Unreachable, "lease grant").because("no answer in time");
        let mut lease = tokio::time::timeout(deadline.left(), self.lease.lock()).await.map_err(|_| late())?;
        if let Some(Lease { id, granted }) = *lease
            && granted.elapsed() < LEASE / 2
        {
            return Ok(id);
        }
        let (id, _) = self.client.retrying_for(deadline.left()).lease_grant(LEASE).await?;
        *lease = Some(Lease { id, granted: Instant::now() });
        Ok(id)
    }
}

impl Drop for Once {
    /// Gives the places back at once where that is possible; elsewhere they go with their lease.
    fn drop(&mut self) {
        if let (Some(Lease { id, .. }), Some(runtime)) = (*self.lease.get_mut(), &self.runtime) {
            let client = self.client.retrying_for(Duration::from_secs(1));
            runtime.spawn(async move {
                if let Err(error) = client.lease_revoke(id).await {
                    debug!(%error, "the places of a store are left to their lease");
                }
            });
        }
    }
}

/// How often the place or its lease was not as it was left. Once is a server that lost its data, and the next try
/// succeeds; again and again is one that makes no sense, and must not be asked without a pause.
#[derive(Default)]
struct Changes {
    seen: bool,
    backoff: Backoff,
}

impl Changes {
    async fn pause(&mut self, write: &Write<'_>, deadline: Deadline) -> Result<()> {
        if deadline.is_over() {
            return Err(deadline.missed(write.what, &[write.key]));
        }
        if std::mem::replace(&mut self.seen, true) {
            tokio::time::sleep(self.backoff.next(fastrand::f64())).await;
        }
        Ok(())
    }
}

/// What a transaction does about its own refusal.
enum Refusal {
    /// Nothing.
    Unexpected,
    /// It reads what the caller asked for, and the place.
    Explained,
    /// It changes the place besides, so that an earlier try whose reply was lost is refused if it comes late.
    Final,
}

fn transaction(place: &IdempotencyKey, write: &Write<'_>, id: Uuid, lease: i64, refusal: &Refusal) -> Txn {
    let unchanged = || Compare::mod_revision(place.key.clone(), CompareOp::Equal, place.revision);
    let record =
        |value: &[u8]| TxnOp::put(place.key.clone(), value, Some(PutOptions::new().with_lease(lease)));
    let read = || TxnOp::get(place.key.clone(), None);
    let when: Vec<Compare> = write.when.iter().cloned().chain([unchanged()]).collect();
    let then: Vec<TxnOp> = write.then.iter().cloned().chain([record(id.as_bytes())]).collect();
    let txn = Txn::new().when(when).and_then(then);
    let look = match refusal {
        Refusal::Unexpected => return txn,
        Refusal::Explained => read(),
        Refusal::Final => {
            TxnOp::txn(Txn::new().when([unchanged()]).and_then([record(b"")]).or_else([read()]))
        }
    };
    let mut otherwise = write.otherwise.clone();
    otherwise.push(look);
    txn.or_else(otherwise)
}

/// What the last answer of a refused transaction says about the place.
enum Found {
    Missing,
    Record {
        value: Vec<u8>,
        revision: i64,
    },
    /// It was as it should be, and has been changed against late comers.
    Fenced,
}

fn at_place(answers: &mut Vec<TxnOpResponse>) -> Found {
    match answers.pop() {
        Some(TxnOpResponse::Txn(fence)) if fence.succeeded() => Found::Fenced,
        Some(TxnOpResponse::Txn(fence)) => match fence.op_responses().first() {
            Some(TxnOpResponse::Get(read)) => record(read),
            _ => Found::Missing,
        },
        Some(TxnOpResponse::Get(read)) => record(&read),
        _ => Found::Missing,
    }
}

fn record(read: &rallypoint_etcd::v3::api::GetResponse) -> Found {
    read.kvs().first().map_or(Found::Missing, |kv| Found::Record {
        value: kv.value().to_vec(),
        revision: kv.mod_revision(),
    })
}

fn give_up(write: &Write<'_>, error: Error, lost: Option<Error>) -> StoreError {
    if error.may_have_applied() {
        return unknown(write, error);
    }
    match lost {
        Some(lost) => unknown(write, lost),
        None => error.into(),
    }
}

fn unknown(write: &Write<'_>, source: Error) -> StoreError {
    StoreError::OutcomeUnknown { what: write.what, key: write.key.to_vec(), source }
}
