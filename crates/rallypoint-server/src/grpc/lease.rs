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

use super::call::{Call, OwnedCall};
use super::streaming::Outgoing;
use crate::auth::AuthError;
use crate::durable::{Lost, Ticket, kept};
use crate::mvcc::Error;
use crate::shared::Granted;
use crate::state::Begun;
use crate::stopped::stopped;

/// An answer, and the ticket that it must wait for.
type Kept<T> = (Result<T, Status>, Option<Ticket>);

pub(super) fn grant(call: Call<'_>, request: PbLeaseGrantRequest) -> Kept<PbLeaseGrantResponse> {
    let shared = call.shared;
    if let Err(error) = shared.read(|state| state.auth.check_known(call.caller)) {
        return (Err(error.into()), None);
    }
    let (granted, ticket) = shared.grant(request.id, request.ttl);
    let answer = granted.map_err(Status::from).map(|Granted { id, ttl, revision }| PbLeaseGrantResponse {
        header: Some(shared.header_at(revision)),
        id,
        ttl,
        error: String::new(),
    });
    (answer, ticket)
}

pub(super) async fn revoke(
    call: OwnedCall,
    request: PbLeaseRevokeRequest,
) -> Result<PbLeaseRevokeResponse, Status> {
    let OwnedCall { shared, caller, .. } = call;
    let id = request.id;
    let begun = shared.change_in_turn((), |state, ()| {
        state.auth.check_lease(&caller, id, &state.leases)?;
        Ok::<_, Error>((state.begin_revoke(id)?, state.store.revision()))
    });
    let (begun, mut ticket) = begun.await;
    let revision = match begun {
        Ok((Begun::Done, revision)) => revision,
        Ok((Begun::InSteps, _)) => {
            // A task of its own: others wait for its end, whether its client does or not.
            let steps = Arc::clone(&shared);
            let task = tokio::spawn(async move { steps.remove(|_| Ok(())).await });
            let removed = task.await.map_err(|error| Status::internal(error.to_string()))?;
            let (removed, last) = removed?;
            ticket = last;
            removed.into_revision()
        }
        // Also an error may tell of what is not on disk yet.
        Err(error) => {
            kept(ticket).await?;
            return Err(error.into());
        }
    };
    kept(ticket).await?;
    Ok(PbLeaseRevokeResponse { header: Some(shared.header_at(revision)) })
}

pub(super) fn time_to_live(
    call: Call<'_>,
    request: PbLeaseTimeToLiveRequest,
) -> Kept<PbLeaseTimeToLiveResponse> {
    let shared = call.shared;
    let (found, ticket) = shared.look(|state| {
        state.auth.check_known(call.caller)?;
        if request.keys {
            state.auth.check_lease_keys(call.caller, request.id, &state.leases)?;
        }
        let lease = state.time_to_live(Instant::now(), request.id, request.keys);
        Ok::<_, AuthError>((state.store.revision(), lease))
    });
    let (revision, lease) = match found {
        Ok(found) => found,
        Err(error) => return (Err(error.into()), ticket),
    };
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

pub(super) fn list(call: Call<'_>, _: PbLeaseLeasesRequest) -> Kept<PbLeaseLeasesResponse> {
    let shared = call.shared;
    let (response, ticket) = shared.look(|state| {
        state.auth.check_leases(call.caller, &state.leases)?;
        Ok::<_, AuthError>(PbLeaseLeasesResponse {
            header: Some(shared.header_at(state.store.revision())),
            leases: state.leases.ids().map(|id| PbLeaseStatus { id }).collect(),
        })
    });
    (response.map_err(Status::from), ticket)
}

/// Answers each keep-alive; a lease that does not exist has a TTL of 0. Ends with the client or the server.
pub(super) fn keep_alive(
    call: OwnedCall,
    inbound: Streaming<PbLeaseKeepAliveRequest>,
    mut stopping: tokio::sync::watch::Receiver<bool>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    let OwnedCall { shared, mut caller, .. } = call;
    let answers = inbound.then(move |request| {
        let shared = Arc::clone(&shared);
        caller.again();
        let known = shared.read(|state| state.auth.check_known(&caller));
        async move {
            let PbLeaseKeepAliveRequest { id } = request?;
            known?;
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
