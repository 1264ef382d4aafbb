//! The KV service.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTxnRequest,
};
use futures::FutureExt as _;
use futures::future::Either;
use prost::Message;
use tonic::Status;

use super::answer;
use super::body::ANSWER_BYTES;
use super::unary::{Answering, Whole, at_once, decode, once_kept};
use crate::admission::{Account, Share};
use crate::durable::Ticket;
use crate::mvcc::{Error, Found, Reading};
use crate::shared::Shared;
use crate::state::State;

/// Keys that a read looks at before it lets others at the store. That takes a fraction of a millisecond.
const STEP: usize = 2_000;
/// Records that are sorted where others wait.
const SORT_HERE: usize = 20_000;

/// Most reads are done in one step. Those that are not go on as a task, a step at a time.
pub(super) fn range(shared: &Arc<Shared>, account: &Account, message: Bytes) -> Answering {
    let begun = decode::<PbRangeRequest>(message).and_then(|request| {
        Ok(shared.read(|state| {
            let mut reading = state.range(request)?;
            reading.step(&state.store, STEP)?;
            Ok::<_, Error>(reading)
        })?)
    });
    match begun {
        Ok(reading) if !reading.is_done() => {
            Either::Right(read_on(Arc::clone(shared), account.clone(), reading).boxed())
        }
        Ok(reading) => at_once(found(shared, account, reading)),
        Err(status) => at_once(Err(status)),
    }
}

/// The answer to a read of one step. What it found is shared with the store, so that nothing was copied yet.
fn found(shared: &Shared, account: &Account, reading: Reading) -> Result<Whole, Status> {
    let found = reading.finish();
    Ok(Whole::new(answer::range(shared.header_at(found.revision), found), account)?)
}

/// Goes on with a read. What it finds is counted as it goes.
async fn read_on(shared: Arc<Shared>, account: Account, mut reading: Reading) -> Result<Whole, Status> {
    // One at a time for each connection: many would be no faster, and each holds what it has found.
    let _turn = account.turn().await;
    let mut share = account.take(ANSWER_BYTES).map_err(Error::from)?;
    let mut counted = 0;
    loop {
        if reading.bytes() + ANSWER_BYTES > account.capacity() {
            return Err(Error::AnswerTooLarge.into());
        }
        // One that began again has less than before.
        share.grow(reading.bytes().saturating_sub(counted)).map_err(Error::from)?;
        counted = counted.max(reading.bytes());
        if reading.is_done() {
            break;
        }
        tokio::task::yield_now().await;
        shared.read(|state| reading.step(&state.store, STEP))?;
    }
    let found = if counted / SORT_HERE == 0 {
        reading.finish()
    } else {
        tokio::task::spawn_blocking(|| reading.finish())
            .await
            .map_err(|error| Status::internal(error.to_string()))?
    };
    answer_found(&shared, found, share)
}

/// The answer to a read that was counted as it went.
fn answer_found(shared: &Shared, found: Found, mut share: Share) -> Result<Whole, Status> {
    let rope = answer::range(shared.header_at(found.revision), found);
    let bytes = ANSWER_BYTES + rope.length();
    share.resize(bytes).map_err(Error::from)?;
    Ok(Whole::within(rope, share)?)
}

pub(super) fn put(shared: &Arc<Shared>, account: &Account, message: Bytes) -> Answering {
    write(shared, message, |state, request: PbPutRequest| {
        let answer = |done: crate::mvcc::PutDone| {
            Whole::new(answer::put(shared.header_at(done.revision), done), account)
        };
        state.put(request, answer)
    })
}

pub(super) fn delete(shared: &Arc<Shared>, account: &Account, message: Bytes) -> Answering {
    write(shared, message, |state, request: PbDeleteRequest| {
        let answer = |done: crate::mvcc::DeleteDone| {
            Whole::new(answer::delete(shared.header_at(done.revision), done), account)
        };
        state.delete(&request, answer)
    })
}

pub(super) fn txn(shared: &Arc<Shared>, account: &Account, message: Bytes) -> Answering {
    write(shared, message, |state, request: PbTxnRequest| {
        let answer = |done: crate::mvcc::TxnDone| {
            Whole::new(answer::txn(shared.header_at(done.revision), done), account)
        };
        state.txn(request, answer)
    })
}

/// Carries out a write. Also an error may tell of what is not on disk yet.
fn write<In: Message + Default>(
    shared: &Shared,
    message: Bytes,
    write: impl FnOnce(&mut State, In) -> Result<Whole, Error>,
) -> Answering {
    match decode(message) {
        Ok(request) => {
            let (answer, ticket) = shared.change(|state| write(state, request));
            once_kept(answer.map_err(Status::from), ticket)
        }
        Err(status) => at_once(Err(status)),
    }
}

pub(super) fn compact(
    shared: &Shared,
    request: PbCompactionRequest,
) -> (Result<PbCompactionResponse, Status>, Option<Ticket>) {
    let (revision, ticket) = shared.change(|state| {
        state.compact(request.revision)?;
        Ok::<_, Status>(state.store.revision())
    });
    (revision.map(|revision| PbCompactionResponse { header: Some(shared.header_at(revision)) }), ticket)
}
