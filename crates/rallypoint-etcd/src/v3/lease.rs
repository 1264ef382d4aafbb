//! A lease that is kept alive through outages, and says clearly when it is lost.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use rallypoint_core::Backoff;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::client::Client;
use super::connections::{Connection, Connections};
use crate::{Error, ErrorKind, Result};

/// What is known of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// The last refresh was answered.
    Alive,
    /// Refreshes go unanswered since then. The lease may live on: while etcd has no leader no lease ends, and
    /// a new leader gives each its full time again.
    Unsure {
        /// When the last answered refresh was sent.
        since: Instant,
    },
    /// etcd says that it is not there any more. Its keys are gone. This is final.
    Lost,
}

/// A lease that is refreshed until it is dropped, revoked or lost.
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
    client: Client,
    keeper: JoinHandle<()>,
}

impl Lease {
    pub(super) fn keep(client: Client, connections: Arc<Connections>, id: i64, ttl: Duration) -> Self {
        let (report, reports) = watch::channel(LeaseState::Alive);
        let keeper = Keeper { connections, id, ttl, last_answer: Instant::now(), report };
        Lease { id, ttl, reports, told: LeaseState::Alive, client, keeper: tokio::spawn(keeper.run()) }
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
        // The keeper ends only after it has reported the loss, or with the lease itself.
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
        self.keeper.abort();
        self.client.lease_revoke(self.id).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

struct Keeper {
    connections: Arc<Connections>,
    id: i64,
    ttl: Duration,
    /// When the last refresh that was answered had been sent.
    last_answer: Instant,
    report: watch::Sender<LeaseState>,
}

impl Keeper {
    /// Three refreshes fit into the time to live, so that one that fails is no death.
    fn interval(&self) -> Duration {
        self.ttl / 3
    }

    async fn run(mut self) {
        let mut backoff = self.backoff();
        loop {
            // Not all at once, when many leases were granted together.
            let pause = self.interval().mul_f64(0.9 + 0.1 * fastrand::f64());
            tokio::time::sleep_until(self.last_answer + pause).await;
            let before = self.last_answer;
            let error = self.refresh_until_failure().await;
            if self.last_answer > before {
                backoff = self.backoff();
            }
            if error.kind() == ErrorKind::LeaseNotFound {
                warn!(lease = self.id, "the lease is lost");
                self.report(LeaseState::Lost);
                return;
            }
            debug!(%error, lease = self.id, "a refresh failed");
            self.report(LeaseState::Unsure { since: self.last_answer });
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_millis(50), self.interval().min(Duration::from_secs(2)))
    }

    /// Refreshes on one stream for as long as that goes well.
    async fn refresh_until_failure(&mut self) -> Error {
        let connection = match self.connections.current().await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let error = match self.refresh_on(&connection).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if error.kind() != ErrorKind::LeaseNotFound {
            self.connections.failed(&connection);
        }
        error
    }

    async fn refresh_on(&mut self, connection: &Connection) -> Result<std::convert::Infallible> {
        let limit = self.interval().min(self.connections.settings.request_timeout);
        let late = || Error::new(ErrorKind::Timeout, "lease keep-alive").endpoint(&connection.url);
        let failed = |error| connection.error("lease keep-alive", error);

        let sent = Instant::now();
        let mut lease = connection.lease();
        // Opening the stream is a refresh in itself.
        let opened = timeout(limit, lease.keep_alive(self.id)).await.map_err(|_| late())?;
        let (mut requests, mut answers): (LeaseKeeper, LeaseKeepAliveStream) = opened.map_err(failed)?;
        self.answered(sent);
        loop {
            tokio::time::sleep_until(self.last_answer + self.interval()).await;
            let sent = Instant::now();
            requests.keep_alive().await.map_err(failed)?;
            let answer = timeout(limit, answers.message()).await.map_err(|_| late())?.map_err(failed)?;
            match answer {
                Some(answer) if answer.ttl() > 0 => self.answered(sent),
                Some(_) => return Err(Error::new(ErrorKind::LeaseNotFound, "lease keep-alive")),
                None => return Err(Error::new(ErrorKind::Interrupted, "lease keep-alive")),
            }
        }
    }

    fn answered(&mut self, sent: Instant) {
        self.last_answer = sent;
        self.report(LeaseState::Alive);
    }

    fn report(&self, now: LeaseState) {
        self.report.send_replace(now);
    }
}
