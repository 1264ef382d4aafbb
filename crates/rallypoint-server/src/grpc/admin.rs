//! What monitors and tools ask: the Maintenance and Cluster services as far as there is something to say, and
//! gRPC's own health check.

use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbMember,
    PbMemberListRequest, PbMemberListResponse, PbStatusRequest, PbStatusResponse,
};
use tonic::Status;

use crate::identity::{ETCD_VERSION, RAFT_TERM};
use crate::shared::Shared;

/// The size of the file of an empty etcd.
const EMPTY_BYTES: i64 = 20_480;

pub(super) fn status(shared: &Shared, _: PbStatusRequest) -> Result<PbStatusResponse, Status> {
    let (revision, weight) = shared.read(|state| (state.store.visible(), state.weight()));
    // A file is never empty, and etcdctl divides by its size.
    let bytes = i64::try_from(weight).unwrap_or(i64::MAX).max(EMPTY_BYTES);
    // Without a raft log, the revision counts what was applied.
    let index = revision.unsigned_abs();
    Ok(PbStatusResponse {
        header: Some(shared.header_at(revision)),
        version: ETCD_VERSION.to_owned(),
        db_size: bytes,
        db_size_in_use: bytes,
        db_size_quota: i64::try_from(shared.settings.quota_bytes).unwrap_or(i64::MAX),
        leader: shared.identity.member_id,
        raft_index: index,
        raft_applied_index: index,
        raft_term: RAFT_TERM,
        ..Default::default()
    })
}

/// No alarm is ever raised; to list them or to disarm them works.
pub(super) fn alarm(shared: &Shared, request: PbAlarmRequest) -> Result<PbAlarmResponse, Status> {
    const ACTIVATE: i32 = 1;
    if request.action == ACTIVATE {
        return Err(Status::unimplemented("an embedded server has no alarms"));
    }
    let header = shared.header_at(shared.read(|state| state.store.visible()));
    Ok(PbAlarmResponse { header: Some(header), alarms: Vec::new() })
}

/// There is no file to be made smaller.
pub(super) fn defragment(shared: &Shared, _: PbDefragmentRequest) -> Result<PbDefragmentResponse, Status> {
    let header = shared.header_at(shared.read(|state| state.store.visible()));
    Ok(PbDefragmentResponse { header: Some(header) })
}

pub(super) fn members(shared: &Shared, _: PbMemberListRequest) -> Result<PbMemberListResponse, Status> {
    let header = shared.header_at(shared.read(|state| state.store.visible()));
    let member = PbMember {
        id: shared.identity.member_id,
        name: shared.identity.name.clone(),
        client_ur_ls: shared.identity.client_urls.clone(),
        ..Default::default()
    };
    Ok(PbMemberListResponse { header: Some(header), members: vec![member] })
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Who can ask is served. Only the server as a whole has a name here, the empty one.
pub(super) fn health(request: &HealthRequest) -> Result<HealthResponse, Status> {
    const SERVING: i32 = 1;
    if request.service.is_empty() {
        Ok(HealthResponse { status: SERVING })
    } else {
        Err(Status::not_found("unknown service"))
    }
}
