//! The Lease service.

use std::sync::Arc;
use std::time::Instant;

use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseStatus,
    PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse,
};
use futures::{Stream, StreamExt};
use tonic::{Status, Streaming};

use super::streaming::Outgoing;
use crate::shared::Shared;
use crate::stopped::stopped;

pub(super) fn grant(shared: &Shared, request: PbLeaseGrantRequest) -> Result<PbLeaseGrantResponse, Status> {
    let (id, ttl) = shared.grant(request.id, request.ttl)?;
    let header = shared.header_at(shared.read(|state| state.store.revision()));
    Ok(PbLeaseGrantResponse { header: Some(header), id, ttl, error: String::new() })
}

pub(super) fn revoke(
    shared: &Shared,
    request: PbLeaseRevokeRequest,
) -> Result<PbLeaseRevokeResponse, Status> {
    let revision = shared.write(|state| {
        state.revoke(request.id)?;
        Ok::<_, Status>(state.store.revision())
    })?;
    Ok(PbLeaseRevokeResponse { header: Some(shared.header_at(revision)) })
}

pub(super) fn time_to_live(
    shared: &Shared,
    request: PbLeaseTimeToLiveRequest,
) -> Result<PbLeaseTimeToLiveResponse, Status> {
    let (revision, lease) = shared.read(|state| {
        let lease = state.time_to_live(Instant::now(), request.id, request.keys);
        (state.store.revision(), lease)
    });
    let mut response = PbLeaseTimeToLiveResponse {
        header: Some(shared.header_at(revision)),
        id: request.id,
        ttl: -1,
        ..Default::default()
    };
    if let Some(lease) = lease {
        response.ttl = lease.ttl;
        response.granted_ttl = lease.granted;
        response.keys = lease.keys.into_iter().map(Into::into).collect();
    }
    Ok(response)
}

pub(super) fn list(shared: &Shared, _: PbLeaseLeasesRequest) -> Result<PbLeaseLeasesResponse, Status> {
    Ok(shared.read(|state| PbLeaseLeasesResponse {
        header: Some(shared.header_at(state.store.revision())),
        leases: state.leases.ids().map(|id| PbLeaseStatus { id }).collect(),
    }))
}

/// Answers each keep-alive; a lease that does not exist has a TTL of 0. Ends with the client or the server.
pub(super) fn keep_alive(
    shared: Arc<Shared>,
    inbound: Streaming<PbLeaseKeepAliveRequest>,
    mut stopping: tokio::sync::watch::Receiver<bool>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    let answers = inbound.map(move |request| {
        let PbLeaseKeepAliveRequest { id } = request?;
        let answer = shared.write(|state| PbLeaseKeepAliveResponse {
            header: Some(shared.header_at(state.store.revision())),
            id,
            ttl: state.keep_alive(Instant::now(), id).unwrap_or(0),
        });
        Ok(Outgoing::small(&answer))
    });
    answers.take_until(async move { stopped(&mut stopping).await })
}
