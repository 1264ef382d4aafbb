//! The KV service.

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
use super::call::{Call, OwnedCall};
use super::unary::{Answering, Whole, at_once, decode, once_kept};
use crate::admission::{Account, Share};
use crate::durable::kept;
use crate::mvcc::{DeleteDone, Error, Found, PutDone, Reading, TxnDone};
use crate::removal::Removed;
use crate::shared::Shared;
use crate::state::{Begun, State};

/// Keys that a read looks at before it lets others at the store. That takes a fraction of a millisecond.
const STEP: usize = 2_000;
/// More than the answer to a delete has without keys.
const SMALL_ANSWER: usize = 256;
/// Records that are sorted where others wait.
const SORT_HERE: usize = 20_000;

/// Most reads are done in one step. Those that are not go on as a task, a step at a time.
pub(super) fn range(call: Call<'_>, message: Bytes) -> Answering {
    let begun = decode::<PbRangeRequest>(message).and_then(|request| Ok(begin(call, request)?));
    match begun {
        Ok(reading) if !reading.is_done() => {
            let call = call.owned();
            let answer = async move {
                let (found, mut share) = read_on(&call, reading).await?;
                let header = call.shared.header_at(found.revision);
                let rope = aside(&call.shared, move || answer::range(header, found)).await?;
                share.resize(ANSWER_BYTES + rope.length()).map_err(Error::from)?;
                Ok(Whole::within(rope, share)?)
            };
            Either::Right(answer.boxed())
        }
        Ok(reading) => at_once(found(call.shared, call.account, reading)),
        Err(status) => at_once(Err(status)),
    }
}

fn begin(call: Call<'_>, request: PbRangeRequest) -> Result<Reading, Error> {
    call.shared.read(|state| {
        let mut reading = state.range(call.caller, request)?;
        reading.step(&state.store, STEP)?;
        Ok(reading)
    })
}

/// What a read finds, for another request that is made of reads. The share is for what was found.
pub(super) async fn read(call: &OwnedCall, request: PbRangeRequest) -> Result<(Found, Share), Status> {
    let OwnedCall { shared, account, caller } = call;
    read_on(call, begin(Call { shared, account, caller }, request)?).await
}

/// The answer to a read of one step. What it found is shared with the store, so that nothing was copied yet.
fn found(shared: &Shared, account: &Account, reading: Reading) -> Result<Whole, Status> {
    let found = reading.finish();
    Ok(Whole::new(answer::range(shared.header_at(found.revision), found), account)?)
}

/// Goes on with a read. What it finds is counted as it goes.
async fn read_on(call: &OwnedCall, mut reading: Reading) -> Result<(Found, Share), Status> {
    let OwnedCall { shared, account, .. } = call;
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
    let found =
        if counted / SORT_HERE == 0 { reading.finish() } else { aside(shared, || reading.finish()).await? };
    Ok((found, share))
}

/// Does what takes long where nobody waits for the thread.
async fn aside<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    shared.aside.run(work).await.map_err(|error| Status::internal(error.to_string()))
}

/// What became of a write.
enum Written {
    Done(Whole),
    /// A delete of very many keys, which goes on in steps.
    InSteps {
        prev_kv: bool,
    },
}

/// Carries out a write, while keys may be changed.
type Write<In> = fn(Call<'_>, &mut State, In) -> Result<Written, Error>;

pub(super) fn put(call: Call<'_>, message: Bytes) -> Answering {
    write::<PbPutRequest>(call, message, |call, state, request| {
        let answer =
            |done: PutDone| Whole::new(answer::put(call.shared.header_at(done.revision), done), call.account);
        state.put(call.caller, request, answer).map(Written::Done)
    })
}

pub(super) fn delete(call: Call<'_>, message: Bytes) -> Answering {
    write::<PbDeleteRequest>(call, message, |call, state, request| {
        if state.begin_delete(call.caller, &request)? == Begun::InSteps {
            return Ok(Written::InSteps { prev_kv: request.prev_kv });
        }
        let answer = |done: DeleteDone| {
            Whole::new(answer::delete(call.shared.header_at(done.revision), done), call.account)
        };
        state.delete(call.caller, &request, answer).map(Written::Done)
    })
}

pub(super) fn txn(call: Call<'_>, message: Bytes) -> Answering {
    write::<PbTxnRequest>(call, message, |call, state, request| {
        let answer =
            |done: TxnDone| Whole::new(answer::txn(call.shared.header_at(done.revision), done), call.account);
        state.txn(call.caller, request, answer).map(Written::Done)
    })
}

/// Carries out a write, at once unless it has to wait for its turn.
fn write<In>(call: Call<'_>, message: Bytes, write: Write<In>) -> Answering
where
    In: Message + Default + 'static,
{
    let request = match decode(message) {
        Ok(request) => request,
        Err(status) => return at_once(Err(status)),
    };
    match try_write(call, request, write) {
        Ok(answering) => answering,
        Err(mut request) => {
            let call = call.owned();
            let later = async move {
                loop {
                    call.shared.idle().await;
                    match try_write(call.borrowed(), request, write) {
                        Ok(answering) => return answering.await,
                        Err(back) => request = back,
                    }
                }
            };
            Either::Right(later.boxed())
        }
    }
}

/// Carries out a write, or gives it back. Also an error may tell of what is not on disk yet.
fn try_write<In>(call: Call<'_>, request: In, write: Write<In>) -> Result<Answering, In> {
    let (written, ticket) = call.shared.try_change(request, |state, request| write(call, state, request))?;
    Ok(match written {
        Ok(Written::Done(answer)) => once_kept(Ok(answer), ticket),
        Ok(Written::InSteps { prev_kv }) => {
            // A task of its own: others wait for its end, whether its client does or not.
            let task = tokio::spawn(delete_in_steps(call.owned(), prev_kv));
            let ended = async { task.await.map_err(|error| Status::internal(error.to_string()))? };
            Either::Right(ended.boxed())
        }
        Err(error) => once_kept(Err(error.into()), ticket),
    })
}

/// Room for its answer is taken before it changes anything: once it is carried out it must be answered.
async fn delete_in_steps(call: OwnedCall, prev_kv: bool) -> Result<Whole, Status> {
    let OwnedCall { shared, account, .. } = &call;
    let mut share = account.take(ANSWER_BYTES + SMALL_ANSWER).map_err(Error::from);
    let removed = shared.remove(|bytes| match &mut share {
        Ok(_) if prev_kv && bytes + ANSWER_BYTES > account.capacity() => Err(Error::AnswerTooLarge),
        Ok(share) => Ok(share.grow(if prev_kv { bytes } else { 0 })?),
        Err(error) => Err(*error),
    });
    let (removed, ticket) = removed.await?;
    let header = shared.header_at(removed.revision);
    let answer = move || {
        let Removed { revision, found, .. } = removed;
        let (deleted, prev) = (found.len(), if prev_kv { found } else { Vec::new() });
        answer::delete(header, DeleteDone { revision, deleted, prev })
    };
    let rope = aside(shared, answer).await?;
    let mut share = share?;
    share.shrink_to(ANSWER_BYTES + rope.length());
    kept(ticket).await?;
    Ok(Whole::within(rope, share)?)
}

/// What was compacted is refused from now on, and forgotten in steps. As in etcd, who asks for a physical one waits for
/// that.
pub(super) async fn compact(
    call: OwnedCall,
    request: PbCompactionRequest,
) -> Result<PbCompactionResponse, Status> {
    let OwnedCall { shared, caller, .. } = call;
    let (revision, ticket) = shared.change(|state| {
        state.auth.check_admin(&caller)?;
        state.compact(request.revision)?;
        Ok::<_, Error>(state.store.revision())
    });
    kept(ticket).await?;
    let revision = revision?;
    while request.physical && !shared.write(State::forget_some) {
        tokio::task::yield_now().await;
    }
    Ok(PbCompactionResponse { header: Some(shared.header_at(revision)) })
}
