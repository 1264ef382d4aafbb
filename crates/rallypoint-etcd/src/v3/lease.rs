//! A lease that is kept alive through outages, and says clearly when it is lost.

use std::time::Duration;

use tokio::sync::watch;

use super::lease_hub::{KeepAlive, LeaseHub};
use super::lease_state::LeaseState;
use super::requests::Requests;
use crate::Result;

/// A lease that is refreshed until it is dropped, revoked or lost.
///
/// It is refreshed four times in its time to live, and outlives a cut of 0.6 of that: while answers are late, new
/// connections are tried in short steps.
///
/// Dropped, it lives on for its time to live and then takes its keys with it; [`revoke`](Lease::revoke) does so
/// at once.
#[derive(Debug)]
pub struct Lease {
    id: i64,
    ttl: Duration,
    /// Each answered refresh, and each change.
    reports: watch::Receiver<LeaseState>,
    /// What [`changed`](Lease::changed) has told.
    told: LeaseState,
    requests: Requests,
    keep_alive: KeepAlive,
}

impl Lease {
    pub(super) fn keep(requests: Requests, hub: &LeaseHub, id: i64, ttl: Duration) -> Self {
        let (report, reports) = watch::channel(LeaseState::Alive);
        let keep_alive = hub.keep(id, ttl, report);
        Lease { id, ttl, reports, told: LeaseState::Alive, requests, keep_alive }
    }

    /// The id to attach keys with.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The time to live that the server granted.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// What is known of it now.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        *self.reports.borrow()
    }

    /// Waits for the state to change, and returns it.
    pub async fn changed(&mut self) -> LeaseState {
        loop {
            let state = self.next().await;
            if std::mem::replace(&mut self.told, state) != state {
                return state;
            }
        }
    }

    /// Waits for the next answered refresh, or a change, and returns the state. Pending once that is final.
    pub async fn next(&mut self) -> LeaseState {
        // Reports end only after that of the loss.
        if self.reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        *self.reports.borrow_and_update()
    }

    /// Waits until the lease is lost. Pending for as long as it is not.
    pub async fn lost(&self) {
        let mut state = self.reports.clone();
        if state.wait_for(|state| *state == LeaseState::Lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the lease and deletes its keys.
    pub async fn revoke(self) -> Result<()> {
        drop(self.keep_alive);
        self.requests.lease_revoke(self.id).await
    }
}
