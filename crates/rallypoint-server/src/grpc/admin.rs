//! What monitors and tools ask: the Maintenance and Cluster services as far as there is something to say, and
//! gRPC's own health check.

use etcd_client::proto::{
    PbAlarmMember, PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbMember,
    PbMemberListRequest, PbMemberListResponse, PbMoveLeaderRequest, PbMoveLeaderResponse, PbStatusRequest,
    PbStatusResponse,
};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::watch;
use tonic::Status;
use tonic::codec::Streaming;

use super::call::{Call, OwnedCall};
use super::streaming::Outgoing;
use crate::auth::AuthError;
use crate::identity::{ETCD_VERSION, RAFT_TERM};
use crate::stopped::stopped;

/// The size of the file of an empty etcd.
const EMPTY_BYTES: i64 = 20_480;

pub(super) fn status(call: Call<'_>, _: PbStatusRequest) -> Result<PbStatusResponse, Status> {
    let shared = call.shared;
    shared.read(|state| state.auth.check_admin(call.caller))?;
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

/// The alarm stands for as long as its cause does, or until whoever raised it disarms it. That of damaged data, etcd's
/// other one, has no cause here: damage is found at the start.
pub(super) fn alarm(call: Call<'_>, request: PbAlarmRequest) -> Result<PbAlarmResponse, Status> {
    const LIST: i32 = 0;
    const RAISE: i32 = 1;
    const DISARM: i32 = 2;
    let shared = call.shared;
    // Without a kind, all are listed.
    let is_asked = matches!(request.alarm, 0 | NO_SPACE);
    let (revision, is_told) = shared.write(|state| {
        match request.action {
            LIST => state.auth.check_known(call.caller)?,
            _ => state.auth.check_admin(call.caller)?,
        }
        let is_told = match request.action {
            LIST => is_asked && state.is_full(),
            RAISE if request.alarm == NO_SPACE => {
                state.is_alarmed = true;
                true
            }
            DISARM if request.alarm == NO_SPACE => std::mem::take(&mut state.is_alarmed),
            _ => false,
        };
        Ok::<_, AuthError>((state.store.visible(), is_told))
    })?;
    let alarm = PbAlarmMember { member_id: shared.identity.member_id, alarm: NO_SPACE };
    let alarms = is_told.then_some(alarm).into_iter().collect();
    Ok(PbAlarmResponse { header: Some(shared.header_at(revision)), alarms })
}

/// There is no file to be made smaller. As from etcd, the answer has no header.
pub(super) fn defragment(call: Call<'_>, _: PbDefragmentRequest) -> Result<PbDefragmentResponse, Status> {
    check_admin(&call.owned())?;
    Ok(PbDefragmentResponse { header: None })
}

/// Whether the caller may manage the server. For some of that etcd answers in the words it uses inside, without a code.
pub(super) fn check_admin(call: &OwnedCall) -> Result<(), Status> {
    let checked = call.shared.read(|state| state.auth.check_admin(&call.caller));
    checked.map_err(|error| {
        let words = error.to_string();
        Status::unknown(format!("auth: {}", words.trim_start_matches("etcdserver: ")))
    })
}

/// There is one member to lead.
pub(super) fn move_leader(
    call: Call<'_>,
    request: PbMoveLeaderRequest,
) -> Result<PbMoveLeaderResponse, Status> {
    call.shared.read(|state| state.auth.check_admin(call.caller))?;
    if request.target_id != call.shared.identity.member_id {
        return Err(Status::failed_precondition("etcdserver: bad leader transferee"));
    }
    Ok(PbMoveLeaderResponse { header: None })
}

pub(super) fn members(call: Call<'_>, _: PbMemberListRequest) -> Result<PbMemberListResponse, Status> {
    let shared = call.shared;
    shared.read(|state| state.auth.check_known(call.caller))?;
    // As from etcd, of no revision.
    let header = shared.header_at(0);
    let member = PbMember {
        id: shared.identity.member_id,
        name: shared.identity.name.clone(),
        // It has no peers, and there are tools that want a URL of each member.
        peer_ur_ls: shared.identity.client_urls.clone(),
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

const SERVING: i32 = 1;
const SERVICE_UNKNOWN: i32 = 3;

/// The same for as long as the client listens: it does not change before the server ends.
pub(super) fn watch_health(
    inbound: Streaming<HealthRequest>,
    mut stopping: watch::Receiver<bool>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    let told = stream::unfold((inbound, false), |(mut inbound, is_told)| async move {
        if is_told {
            std::future::pending::<()>().await;
        }
        let missing = || Status::internal("Missing request message.");
        let request = inbound.message().await.and_then(|request| request.ok_or_else(missing));
        let answer = request.map(|request| {
            let status = if request.service.is_empty() { SERVING } else { SERVICE_UNKNOWN };
            Outgoing::small(&HealthResponse { status })
        });
        Some((answer, (inbound, true)))
    });
    told.take_until(async move { stopped(&mut stopping).await })
}

/// Who can ask is served. Only the server as a whole has a name here, the empty one.
pub(super) fn health(request: &HealthRequest) -> Result<HealthResponse, Status> {
    if request.service.is_empty() {
        Ok(HealthResponse { status: SERVING })
    } else {
        Err(Status::not_found("unknown service"))
    }
}
