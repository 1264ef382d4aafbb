//! The KV service.

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbPutRequest,
    PbPutResponse, PbRangeRequest, PbRangeResponse, PbResponseHeader, PbTxnRequest, PbTxnResponse,
};
use tonic::Status;

use crate::shared::Shared;

pub(super) fn range(shared: &Shared, request: &PbRangeRequest) -> Result<PbRangeResponse, Status> {
    let mut response = shared.read(|state| state.range(request))?;
    complete(shared, &mut response.header);
    Ok(response)
}

pub(super) fn put(shared: &Shared, request: PbPutRequest) -> Result<PbPutResponse, Status> {
    let mut response = shared.write(|state| state.put(request))?;
    complete(shared, &mut response.header);
    Ok(response)
}

pub(super) fn delete(shared: &Shared, request: &PbDeleteRequest) -> Result<PbDeleteResponse, Status> {
    let mut response = shared.write(|state| state.delete(request))?;
    complete(shared, &mut response.header);
    Ok(response)
}

pub(super) fn txn(shared: &Shared, request: PbTxnRequest) -> Result<PbTxnResponse, Status> {
    let mut response = shared.write(|state| state.txn(request))?;
    complete(shared, &mut response.header);
    Ok(response)
}

pub(super) fn compact(shared: &Shared, request: PbCompactionRequest) -> Result<PbCompactionResponse, Status> {
    let revision = shared.write(|state| {
        state.compact(request.revision)?;
        Ok::<_, Status>(state.store.revision())
    })?;
    Ok(PbCompactionResponse { header: Some(shared.header_at(revision)) })
}

/// The store knows the revision; the rest is ours.
fn complete(shared: &Shared, header: &mut Option<PbResponseHeader>) {
    *header = Some(shared.header_at(header.as_ref().map_or(0, |header| header.revision)));
}
