//! Hashes over all keys, by which members of a cluster are compared. That of the keys is the one that an etcd with the same
//! history has.

use std::sync::Arc;

use crc::{CRC_32_ISCSI, Crc};
use etcd_client::proto::{PbHashKvRequest, PbHashKvResponse, PbHashRequest, PbHashResponse};
use tonic::Status;

use super::admin::check_admin;
use super::call::OwnedCall;
use crate::admission::Share;
use crate::mvcc::{Error, Record, Survey};

/// Keys that are looked at before others get at the store.
const STEP: usize = 2_000;
/// What is held for a version that was found, beside the version, which the store has too.
const FOUND_BYTES: usize = 16;

/// Of the bucket that etcd has its keys in, and begins with.
const BUCKET: &[u8] = b"key";

/// etcd hashes its whole file. Here there is none, so that it is that of the keys.
pub(super) async fn all(call: OwnedCall, _: PbHashRequest) -> Result<PbHashResponse, Status> {
    let PbHashKvResponse { header, hash, .. } = keys(call, PbHashKvRequest::default()).await?;
    Ok(PbHashResponse { header, hash })
}

pub(super) async fn keys(call: OwnedCall, request: PbHashKvRequest) -> Result<PbHashKvResponse, Status> {
    let shared = &call.shared;
    check_admin(&call)?;
    let _one = shared.hashes.acquire().await.expect("it is never closed");
    let survey = shared.read(|state| Survey::new(&state.store, request.revision))?;
    let (survey, compacted, _share) = gather(&call, survey).await?;
    let hashing = move || hash(&survey.hashed(compacted));
    let hash =
        tokio::task::spawn_blocking(hashing).await.map_err(|error| Status::internal(error.to_string()))?;
    let revision = shared.read(|state| state.store.visible());
    let mut answer =
        PbHashKvResponse { header: Some(shared.header_at(revision)), hash, ..Default::default() };
    answer.compact_revision = compacted;
    Ok(answer)
}

/// Gathers all versions; what they are compacted at, and what was taken for it.
pub(super) async fn gather(call: &OwnedCall, mut survey: Survey) -> Result<(Survey, i64, Share), Status> {
    let OwnedCall { shared, account, .. } = call;
    let mut share = account.take(0).map_err(Error::from)?;
    loop {
        let done = shared.read(|state| survey.step(&state.store, STEP))?;
        share.resize(survey.len() * FOUND_BYTES).map_err(Error::from)?;
        if let Some(compacted) = done {
            return Ok((survey, compacted, share));
        }
        tokio::task::yield_now().await;
    }
}

fn hash(records: &[Arc<Record>]) -> u32 {
    let crc = Crc::<u32>::new(&CRC_32_ISCSI);
    let (mut digest, mut buffer) = (crc.digest(), Vec::new());
    digest.update(BUCKET);
    for record in records {
        digest.update(&record.stored_key());
        buffer.clear();
        record.write_stored(&mut buffer);
        digest.update(&buffer);
    }
    digest.finalize()
}
