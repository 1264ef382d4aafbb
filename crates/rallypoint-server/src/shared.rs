//! The state behind its lock, for all connections.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use etcd_client::proto::PbResponseHeader;
use rallypoint_metrics::prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::sync::{Notify, Semaphore};

use crate::aside::Aside;
use crate::auth::Passwords;
use crate::durable::{Journal, LoadedV3, Promise, Ticket, V3Batch};
use crate::identity::{Identity, RAFT_TERM};
use crate::mvcc::Error;
use crate::removal::{Progress, Removed};
use crate::state::{Expiry, State};
use crate::turns::Turns;

/// What the connections of the v3 half share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Held for one request or one message at a time, and never across an await.
    state: Mutex<State>,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    /// Where passwords are hashed.
    pub(crate) passwords: Passwords,
    /// One hash of all data at a time, and one snapshot: each holds on to what it has seen.
    pub(crate) hashes: Semaphore,
    pub(crate) snapshots: Arc<Semaphore>,
    /// Where large answers are sorted and built.
    pub(crate) aside: Aside,
    /// Of those who look at the line they wait in.
    pub(crate) turns: Turns,
    /// How long it took to bring changes to the disk.
    pub(crate) commits: Histogram,
    /// A lease was granted that ends before all others.
    sooner: Notify,
    /// There is something to forget.
    unclean: Notify,
    /// Keys may be changed again.
    idle: Notify,
}

/// What the handlers need to know of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) quota_bytes: usize,
    /// Bytes of events in one message of a watch that asked for fragments.
    pub(crate) fragment_bytes: usize,
    pub(crate) progress_interval: std::time::Duration,
    /// For a message to come in whole.
    pub(crate) request_timeout: std::time::Duration,
}

/// A lease that was granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) id: i64,
    pub(crate) ttl: i64,
    pub(crate) revision: i64,
}

impl Shared {
    pub(crate) fn new(state: State, identity: Identity, settings: Settings, passwords: Passwords) -> Self {
        Shared {
            state: Mutex::new(state),
            identity,
            settings,
            passwords,
            hashes: Semaphore::new(1),
            snapshots: Arc::new(Semaphore::new(1)),
            aside: Aside::default(),
            turns: Turns::default(),
            commits: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            sooner: Notify::new(),
            unclean: Notify::new(),
            idle: Notify::new(),
        }
    }

    /// The header of an answer.
    pub(crate) fn header_at(&self, revision: i64) -> PbResponseHeader {
        let Identity { cluster_id, member_id, .. } = self.identity;
        PbResponseHeader { cluster_id, member_id, revision, raft_term: RAFT_TERM }
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.lock())
    }

    /// Reads what may not be on disk yet: with a ticket, the answer must wait for it.
    pub(crate) fn look<R>(&self, read: impl FnOnce(&State) -> R) -> (R, Option<Ticket>) {
        self.read(|state| (read(state), ticket(state)))
    }

    /// Changes the state, then wakes the watches that it concerns: they need the lock themselves.
    pub(crate) fn write<R>(&self, write: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = write(&mut state);
        let wakers = state.hub.take_wakers();
        let bell = state.journal.as_mut().and_then(Journal::bell);
        let is_clean = state.store.is_clean();
        drop(state);
        if !is_clean {
            self.unclean.notify_one();
        }
        for waker in wakers {
            waker.wake();
        }
        if let Some(bell) = bell {
            // It may have been rung already.
            let _ = bell.try_send(());
        }
        result
    }

    /// The same, for an answer: with a ticket, it must wait for that.
    pub(crate) fn change<R>(&self, write: impl FnOnce(&mut State) -> R) -> (R, Option<Ticket>) {
        self.write(|state| (write(state), ticket(state)))
    }

    /// Changes keys. What it was to do it with comes back if nobody may now: a delete is carried out in steps.
    pub(crate) fn try_change<A, R>(
        &self,
        with: A,
        write: impl FnOnce(&mut State, A) -> R,
    ) -> Result<(R, Option<Ticket>), A> {
        self.write(|state| match state.is_removing() {
            true => Err(with),
            false => Ok((write(state, with), ticket(state))),
        })
    }

    /// Changes keys as soon as that may be done.
    pub(crate) async fn change_in_turn<A, R>(
        &self,
        mut with: A,
        write: impl Fn(&mut State, A) -> R,
    ) -> (R, Option<Ticket>) {
        loop {
            match self.try_change(with, &write) {
                Ok(changed) => return changed,
                Err(back) => with = back,
            }
            self.idle().await;
        }
    }

    /// Waits until keys may be changed.
    pub(crate) async fn idle(&self) {
        let idle = self.idle.notified();
        if self.read(State::is_removing) {
            idle.await;
        }
    }

    /// Carries out a delete that was begun in steps, once there is room for an answer with so many bytes of keys. To be
    /// polled to its end.
    pub(crate) async fn remove(
        &self,
        mut make_room: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<(Removed, Option<Ticket>), Error> {
        let _over = Over(self);
        loop {
            let (progress, ticket) = self.change(State::remove_some);
            match progress {
                Some(Progress::Done(removed)) => return Ok((removed, ticket)),
                Some(Progress::Found(bytes)) => {
                    if let Err(error) = make_room(bytes) {
                        self.write(State::give_up_removal);
                        return Err(error);
                    }
                }
                Some(Progress::Again) => {}
                // With what it was built on, which the disk had no room for.
                None => return Err(Error::NoSpace),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Forgets what was compacted, for as long as it is polled.
    pub(crate) async fn forget(&self) {
        loop {
            self.unclean.notified().await;
            while !self.write(State::forget_some) {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) fn grant(&self, id: i64, ttl: i64) -> (Result<Granted, Error>, Option<Ticket>) {
        let ((granted, is_sooner), ticket) = self.change(|state| {
            let before = state.leases.next_deadline();
            let granted = state.grant(Instant::now(), id, ttl);
            let granted = granted.map(|(id, ttl)| Granted { id, ttl, revision: state.store.revision() });
            (granted, state.leases.next_deadline() != before)
        });
        if is_sooner {
            self.sooner.notify_one();
        }
        (granted, ticket)
    }

    /// What is to be written, and the promise to those who wait for it.
    pub(crate) fn take_changes(&self) -> Option<(V3Batch, Promise)> {
        self.lock().take_changes()
    }

    /// What was taken was not kept; the promise to those who wait for what came after it.
    pub(crate) fn go_back(&self, loaded: LoadedV3) -> Option<Promise> {
        let promise = self.write(|state| state.go_back(Instant::now(), loaded));
        // A lease may have come back that ends before all others.
        self.sooner.notify_one();
        promise
    }

    /// Whether there is no room on the disk.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.write(|state| state.journal.as_mut().map(|journal| journal.set_full(is_full)));
    }

    /// Ends leases when their time is up, for as long as it is polled.
    pub(crate) async fn expire_leases(&self) {
        loop {
            let (expiry, _) = self.change_in_turn((), |state, ()| state.expire(Instant::now())).await;
            match expiry {
                // If it was taken back, the lease is still there.
                Expiry::InSteps => {
                    _ = self.remove(|_| Ok(())).await.map(|(removed, _)| removed.into_revision());
                }
                Expiry::Next(None) => self.sooner.notified().await,
                // There are more. Others come first.
                Expiry::Next(Some(deadline)) if deadline <= Instant::now() => tokio::task::yield_now().await,
                Expiry::Next(Some(deadline)) => tokio::select! {
                    () = tokio::time::sleep_until(deadline.into()) => {}
                    () = self.sooner.notified() => {}
                },
            }
        }
    }

    /// After a panic, what it left half done is taken back.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.rollback();
            self.state.clear_poison();
            state
        })
    }
}

/// Tells those who wait that a delete is over, however it ended.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.idle.notify_waiters();
    }
}

fn ticket(state: &State) -> Option<Ticket> {
    state.journal.as_ref().and_then(Journal::ticket)
}
