//! The Lock service: a line whose first has the lock.

use etcd_client::proto::{PbDeleteRequest, PbLockResponse, PbUnlockResponse};
use tonic::Status;

use super::call::OwnedCall;
use super::line::{Line, Waited, without_code};
use crate::durable::kept;

/// `v3lockpb.LockRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// `v3lockpb.UnlockRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// Answers when the lock is had. It ends with its lease, or when it is unlocked.
pub(super) async fn lock(call: OwnedCall, request: LockRequest) -> Result<PbLockResponse, Status> {
    let line = Line::new(&request.name);
    let entry = line.join(&call, request.lease, b"").await?;
    let revision = line.wait(&call, &entry).await.map_err(|waited| match waited {
        // The words of etcd's library, which has no code for them.
        Waited::Expired => Status::unknown("mutex: session is expired"),
        Waited::Failed(status) => status,
    })?;
    Ok(PbLockResponse { header: Some(call.shared.header_at(revision)), key: entry.key.into() })
}

pub(super) async fn unlock(call: OwnedCall, request: UnlockRequest) -> Result<PbUnlockResponse, Status> {
    let request = PbDeleteRequest { key: request.key, ..Default::default() };
    let deleted =
        call.shared.change_in_turn(&request, |state, request| state.delete(&call.caller, request, Ok));
    let (done, ticket) = deleted.await;
    kept(ticket).await?;
    let done = done.map_err(|error| without_code(error.into()))?;
    Ok(PbUnlockResponse { header: Some(call.shared.header_at(done.revision)) })
}
