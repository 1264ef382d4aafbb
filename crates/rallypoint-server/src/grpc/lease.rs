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
use crate::durable::{Lost, Ticket, kept};
use crate::shared::{Granted, Shared};
use crate::stopped::stopped;

/// An answer, and the ticket that it must wait for.
type Kept<T> = (Result<T, Status>, Option<Ticket>);

pub(super) fn grant(shared: &Shared, request: PbLeaseGrantRequest) -> Kept<PbLeaseGrantResponse> {
    let (granted, ticket) = shared.grant(request.id, request.ttl);
    let answer = granted.map_err(Status::from).map(|Granted { id, ttl, revision }| PbLeaseGrantResponse {
        header: Some(shared.header_at(revision)),
        id,
        ttl,
        error: String::new(),
    });
    (answer, ticket)
}

pub(super) fn revoke(shared: &Shared, request: PbLeaseRevokeRequest) -> Kept<PbLeaseRevokeResponse> {
    let (revision, ticket) = shared.change(|state| {
        state.revoke(request.id)?;
        Ok::<_, Status>(state.store.revision())
    });
    (revision.map(|revision| PbLeaseRevokeResponse { header: Some(shared.header_at(revision)) }), ticket)
}

pub(super) fn time_to_live(
    shared: &Shared,
    request: PbLeaseTimeToLiveRequest,
) -> Kept<PbLeaseTimeToLiveResponse> {
    let ((revision, lease), ticket) = shared.look(|state| {
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
    (Ok(response), ticket)
}

pub(super) fn list(shared: &Shared, _: PbLeaseLeasesRequest) -> Kept<PbLeaseLeasesResponse> {
    let (response, ticket) = shared.look(|state| PbLeaseLeasesResponse {
        header: Some(shared.header_at(state.store.revision())),
        leases: state.leases.ids().map(|id| PbLeaseStatus { id }).collect(),
    });
    (Ok(response), ticket)
}

/// Answers each keep-alive; a lease that does not exist has a TTL of 0. Ends with the client or the server.
pub(super) fn keep_alive(
    shared: Arc<Shared>,
    inbound: Streaming<PbLeaseKeepAliveRequest>,
    mut stopping: tokio::sync::watch::Receiver<bool>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    let answers = inbound.then(move |request| {
        let shared = Arc::clone(&shared);
        async move {
            let PbLeaseKeepAliveRequest { id } = request?;
            loop {
                let (answer, ticket) = shared.change(|state| PbLeaseKeepAliveResponse {
                    header: Some(shared.header_at(state.store.revision())),
                    id,
                    ttl: state.keep_alive(Instant::now(), id).unwrap_or(0),
                });
                match kept(ticket).await {
                    Ok(()) => break Ok(Outgoing::small(&answer)),
                    // A write of somebody else was taken back, and with it what this one has seen.
                    Err(Lost::NoSpace) => {}
                    Err(lost) => break Err(lost.into()),
                }
            }
        }
    });
    answers.take_until(async move { stopped(&mut stopping).await })
}
