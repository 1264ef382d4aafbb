//! What monitors and tools ask: the Maintenance and Cluster services as far as there is something to say, and
//! gRPC's own health check.

use etcd_client::proto::{
    PbAlarmMember, PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbMember,
    PbMemberListRequest, PbMemberListResponse, PbStatusRequest, PbStatusResponse,
};
use tonic::Status;

use crate::identity::{ETCD_VERSION, RAFT_TERM};
use crate::shared::Shared;

/// The size of the file of an empty etcd.
const EMPTY_BYTES: i64 = 20_480;

pub(super) fn status(shared: &Shared, _: PbStatusRequest) -> Result<PbStatusResponse, Status> {
    let (revision, weight, is_full) =
        shared.read(|state| (state.store.visible(), state.weight(), state.is_full()));
    let alarm = || format!("memberID:{} alarm:NOSPACE ", shared.identity.member_id);
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
        errors: is_full.then(alarm).into_iter().collect(),
        ..Default::default()
    })
}

/// etcd's alarm of a server that has no room for more.
const NO_SPACE: i32 = 1;

/// The one alarm there is stands for as long as its cause does. Nobody raises it, and to disarm it changes nothing.
pub(super) fn alarm(shared: &Shared, request: PbAlarmRequest) -> Result<PbAlarmResponse, Status> {
    const LIST: i32 = 0;
    const RAISE: i32 = 1;
    if request.action == RAISE {
        return Err(Status::unimplemented("an alarm of an embedded server is raised by its cause alone"));
    }
    let (revision, is_full) = shared.read(|state| (state.store.visible(), state.is_full()));
    let asked = request.action == LIST && matches!(request.alarm, 0 | NO_SPACE);
    let alarm = PbAlarmMember { member_id: shared.identity.member_id, alarm: NO_SPACE };
    let alarms = (is_full && asked).then_some(alarm).into_iter().collect();
    Ok(PbAlarmResponse { header: Some(shared.header_at(revision)), alarms })
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
