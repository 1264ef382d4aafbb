//! The state behind its lock, for all connections.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use etcd_client::proto::PbResponseHeader;
use tokio::sync::Notify;

use crate::durable::{Journal, LoadedV3, Promise, Ticket, V3Batch};
use crate::identity::{Identity, RAFT_TERM};
use crate::mvcc::Error;
use crate::state::State;

/// What the connections of the v3 half share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Held for one request or one message at a time, and never across an await.
    state: Mutex<State>,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    /// A lease was granted that ends before all others.
    sooner: Notify,
}

/// What the handlers need to know of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) quota_bytes: usize,
    /// Bytes of events in one message of a watch that asked for fragments.
    pub(crate) fragment_bytes: usize,
    pub(crate) progress_interval: std::time::Duration,
}

/// A lease that was granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) id: i64,
    pub(crate) ttl: i64,
    pub(crate) revision: i64,
}

impl Shared {
    pub(crate) fn new(state: State, identity: Identity, settings: Settings) -> Self {
        Shared { state: Mutex::new(state), identity, settings, sooner: Notify::new() }
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
        drop(state);
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
            match self.write(|state| state.expire(Instant::now())) {
                None => self.sooner.notified().await,
                // There are more. Others come first.
                Some(deadline) if deadline <= Instant::now() => tokio::task::yield_now().await,
                Some(deadline) => tokio::select! {
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
            state.store.rollback();
            self.state.clear_poison();
            state
        })
    }
}

fn ticket(state: &State) -> Option<Ticket> {
    state.journal.as_ref().and_then(Journal::ticket)
}
