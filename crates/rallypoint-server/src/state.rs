//! Everything the v3 protocol is about: the store, the leases and the watches, as one.
//!
//! Plain data; whoever holds it decides what time it is. Each write is one revision, and on return the leases
//! know of it and the watchers are marked.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use etcd_client::proto::{PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTxnRequest};
use prost::Message;

use crate::auth::{Auth, AuthError, Caller, Hash};
use crate::durable::{Change, Journal, LoadedV3, Promise, V3Batch};
use crate::lease::{Leases, TimeToLive};
use crate::mvcc::{self, DeleteDone, Error, PutDone, Reading, Retention, Span, Store, TxnDone};
use crate::removal::{Removal, STEP, What};
use crate::watch::{Hub, StreamKey, WatchRequest};

/// What a client may ask for at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of one write.
    pub(crate) request_bytes: usize,
    /// Operations in each list of a transaction.
    pub(crate) txn_ops: usize,
    /// Roughly the bytes of all keys, leases and watches.
    pub(crate) quota_bytes: usize,
}

/// What etcd adds to a request before it compares its size with the limit.
const ENVELOPE: usize = 19;

/// Leases that are ended before others get at the state.
const EXPIRE_AT_ONCE: usize = 100;
/// Changes of the past that each commit forgets where there are any, and those that are forgotten before others get at
/// the state.
const FORGET_AT_COMMIT: usize = 32;
const FORGET_AT_ONCE: usize = 2_000;

/// What was begun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Done,
    /// There is much to delete: [`State::remove_some`] goes on with it.
    InSteps,
}

/// What is to be done about leases.
#[derive(Debug)]
pub(crate) enum Expiry {
    /// When the next one ends.
    Next(Option<Instant>),
    /// One with very many keys has ended: [`State::remove_some`] goes on with it.
    InSteps,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) leases: Leases,
    pub(crate) hub: Hub,
    /// Who may do what.
    pub(crate) auth: Auth,
    /// Somebody has raised the alarm that there is no room.
    pub(crate) is_alarmed: bool,
    /// What is on its way to the disk, where all is kept there.
    pub(crate) journal: Option<Journal<Change>>,
    /// A delete that is carried out in steps. Nobody else may change keys meanwhile.
    pub(crate) removal: Option<Removal>,
    /// Changes that were carried out, and those that the disk had no room for.
    pub(crate) applied: u64,
    pub(crate) failed: u64,
    /// Of the token that the server was given: it asks for that whatever is on disk.
    token: Option<Hash>,
    limits: Limits,
}

impl State {
    pub(crate) fn new(limits: Limits, store: Store) -> Self {
        let (leases, hub, auth) = (Leases::default(), Hub::default(), Auth::default());
        State {
            store,
            leases,
            hub,
            auth,
            is_alarmed: false,
            journal: None,
            removal: None,
            applied: 0,
            failed: 0,
            token: None,
            limits,
        }
    }

    /// As it was. The time of its leases begins anew.
    pub(crate) fn restored(limits: Limits, retention: Retention, now: Instant, loaded: LoadedV3) -> Self {
        let LoadedV3 { revision, compacted, records, leases, auth } = loaded;
        let mut state = State::new(limits, Store::restored(retention, revision, compacted, records));
        state.leases = Leases::restored(now, leases);
        state.auth = auth;
        for record in state.store.iter_at(&Span::From(&b""[..]), revision).filter(|record| record.lease != 0)
        {
            state.leases.attach(&record.key, record.lease);
        }
        state
    }

    /// From now on all that changes is told to the journal, and seen by readers and watchers once it has settled.
    pub(crate) fn keep(&mut self, journal: Journal<Change>) {
        self.store.hold();
        self.journal = Some(journal);
    }

    /// What is to be written, and the promise to those who wait for it.
    pub(crate) fn take_changes(&mut self) -> Option<(V3Batch, Promise)> {
        let taken = self.journal.as_mut()?.take()?;
        let (revision, compacted) = (self.store.revision(), self.store.compacted());
        Some((V3Batch { changes: taken.changes, revision, compacted }, taken.promise))
    }

    /// What was taken is on disk, up to this revision. To be called until it is true: then all were told.
    pub(crate) fn settle(&mut self, revision: i64) -> bool {
        let was = self.store.settle(revision);
        if was < revision {
            self.hub.tell_from((was + 1, 0));
        }
        let is_told = self.publish_some();
        if let Some(journal) = self.journal.as_mut().filter(|_| is_told) {
            journal.settle();
        }
        is_told
    }

    /// Tells watchers of some of what readers see and they do not know; whether that was all.
    pub(crate) fn publish_some(&mut self) -> bool {
        let Some(place) = self.hub.told_to() else { return true };
        for (count, change) in self.store.changes_at(place).enumerate() {
            if count == STEP {
                self.hub.tell_from(change.at());
                return false;
            }
            self.hub.publish(change);
        }
        self.hub.told_all();
        true
    }

    /// What was taken was not kept: all is as it is on disk. The promise to those who wait for what came after it.
    pub(crate) fn go_back(&mut self, now: Instant, loaded: LoadedV3) -> Option<Promise> {
        let before = State::restored(self.limits, self.store.retention(), now, loaded);
        self.store = before.store;
        self.store.hold();
        let after = std::mem::replace(&mut self.leases, before.leases);
        self.leases.go_on_from(&after);
        let after = std::mem::replace(&mut self.auth, before.auth);
        if let Some(hash) = self.token.clone() {
            // Where there is no room on the disk it is asked for all the same.
            self.auth.ask_for(hash);
            self.auth.take_changed();
        }
        self.auth.go_on_from(after);
        self.failed += 1;
        let promise = self.journal.as_mut().map(Journal::give_up);
        self.give_up_removal();
        promise
    }

    /// Whether nobody may change keys: a delete is carried out in steps.
    pub(crate) fn is_removing(&self) -> bool {
        self.removal.is_some()
    }

    /// Ends a delete that has changed nothing yet, or that was taken back.
    pub(crate) fn give_up_removal(&mut self) {
        if let Some(removal) = self.removal.take() {
            self.delete_keys(removal.into_rest());
        }
    }

    /// Takes back what a panic has left half done.
    pub(crate) fn rollback(&mut self) {
        self.store.rollback();
        if !self.removal.as_ref().is_some_and(Removal::is_committed) {
            self.give_up_removal();
        }
    }

    /// Roughly the memory of all it holds.
    pub(crate) fn weight(&self) -> usize {
        self.store.weight() + self.leases.weight() + self.hub.weight() + self.auth.weight()
    }

    /// Begins a read.
    pub(crate) fn range(&self, caller: &Caller, request: PbRangeRequest) -> Result<Reading, Error> {
        mvcc::check_range(&request)?;
        self.auth.check_range(caller, &request)?;
        Reading::new(&self.store, request)
    }

    /// Like every write, it is taken back if it cannot be `answer`ed.
    pub(crate) fn put<T>(
        &mut self,
        caller: &Caller,
        request: PbPutRequest,
        answer: impl FnOnce(PutDone) -> Result<T, Error>,
    ) -> Result<T, Error> {
        mvcc::check_put(&request)?;
        self.check_size(&request)?;
        self.auth.check_put(caller, &request, &self.leases)?;
        self.make_room()?;
        let leases = &self.leases;
        let done = mvcc::put(&mut self.store, request, &|id| leases.contains(id));
        self.end(done.and_then(answer))
    }

    pub(crate) fn delete<T>(
        &mut self,
        caller: &Caller,
        request: &PbDeleteRequest,
        answer: impl FnOnce(DeleteDone) -> Result<T, Error>,
    ) -> Result<T, Error> {
        mvcc::check_delete(request)?;
        self.check_size(request)?;
        self.auth.check_delete(caller, request)?;
        let done = mvcc::delete(&mut self.store, request);
        self.end(answer(done))
    }

    /// Begins a delete, if it is one of so many keys that it is carried out in steps.
    pub(crate) fn begin_delete(
        &mut self,
        caller: &Caller,
        request: &PbDeleteRequest,
    ) -> Result<Begun, Error> {
        let span = Span::new(&request.key[..], &request.range_end[..]);
        if matches!(span, Span::One(_)) || self.store.scan(&span, None, i64::MAX, STEP, |_| {}).is_done {
            return Ok(Begun::Done);
        }
        mvcc::check_delete(request)?;
        self.check_size(request)?;
        self.auth.check_delete(caller, request)?;
        let span = Span::new(request.key.clone().into(), request.range_end.clone().into());
        self.removal = Some(Removal::new(What::Keys(span)));
        Ok(Begun::InSteps)
    }

    /// Deletes a key of the server's own accord, now or once nobody has the keys for itself.
    pub(crate) fn delete_key(&mut self, key: &Bytes) {
        if let Some(removal) = &mut self.removal {
            return removal.then_delete(key.clone());
        }
        self.store.delete(&Span::One(key));
        self.commit();
    }

    pub(crate) fn delete_keys(&mut self, keys: Vec<Bytes>) {
        for key in keys {
            self.delete_key(&key);
        }
    }

    pub(crate) fn txn<T>(
        &mut self,
        caller: &Caller,
        request: PbTxnRequest,
        answer: impl FnOnce(TxnDone) -> Result<T, Error>,
    ) -> Result<T, Error> {
        mvcc::check_txn(&request, self.limits.txn_ops)?;
        self.auth.check_txn(caller, &request, &self.leases)?;
        if !mvcc::is_read_only(&request) {
            self.check_size(&request)?;
            if mvcc::has_put(&request) {
                self.make_room()?;
            }
        }
        let leases = &self.leases;
        let done = mvcc::txn(&mut self.store, request, &|id| leases.contains(id));
        self.end(done.and_then(answer))
    }

    /// Ends a write that can be answered, or takes it back.
    fn end<T>(&mut self, answer: Result<T, Error>) -> Result<T, Error> {
        match &answer {
            Ok(_) => self.commit(),
            Err(_) => self.store.rollback(),
        }
        answer
    }

    /// Adds to users and roles, which needs room.
    pub(crate) fn manage_more(
        &mut self,
        caller: &Caller,
        change: impl FnOnce(&mut Auth) -> Result<(), AuthError>,
    ) -> Result<(), Error> {
        self.auth.check_admin(caller)?;
        self.make_room()?;
        self.manage(caller, change)
    }

    /// Changes users and roles.
    pub(crate) fn manage(
        &mut self,
        caller: &Caller,
        change: impl FnOnce(&mut Auth) -> Result<(), AuthError>,
    ) -> Result<(), Error> {
        self.auth.check_admin(caller)?;
        let done = change(&mut self.auth);
        self.keep_users();
        Ok(done?)
    }

    /// From now on only who has the token with this hash is let in, as root, and whom that lets in.
    pub(crate) fn ask_for(&mut self, hash: Hash) {
        self.auth.ask_for(hash.clone());
        self.token = Some(hash);
        self.keep_users();
    }

    fn keep_users(&mut self) {
        self.applied += 1;
        let changed = self.auth.take_changed();
        if let Some(journal) = &mut self.journal {
            changed.into_iter().for_each(|(name, value)| journal.push(Change::Auth { name, value }));
        }
    }

    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Error> {
        self.store.compact(revision)?;
        self.applied += 1;
        // Also when nothing is forgotten: the revision of the compaction is to survive.
        if let Some(journal) = &mut self.journal {
            journal.push(Change::Forgotten(self.store.take_forgotten()));
        }
        Ok(())
    }

    pub(crate) fn grant(&mut self, now: Instant, id: i64, ttl: i64) -> Result<(i64, i64), Error> {
        self.make_room()?;
        let (id, ttl) = self.leases.grant(now, id, ttl)?;
        self.applied += 1;
        if let Some(journal) = &mut self.journal {
            journal.push(Change::Granted { id, ttl });
        }
        Ok((id, ttl))
    }

    pub(crate) fn revoke(&mut self, id: i64) -> Result<(), Error> {
        for key in self.leases.revoke(id)? {
            self.store.delete(&Span::One(key));
        }
        if let Some(journal) = &mut self.journal {
            journal.push(Change::Revoked { id });
        }
        self.commit();
        Ok(())
    }

    /// Revokes a lease, or begins to if it has very many keys.
    pub(crate) fn begin_revoke(&mut self, id: i64) -> Result<Begun, Error> {
        if self.leases.key_count(id) <= STEP {
            return self.revoke(id).map(|()| Begun::Done);
        }
        self.removal = Some(Removal::new(What::Lease(id)));
        Ok(Begun::InSteps)
    }

    pub(crate) fn keep_alive(&mut self, now: Instant, id: i64) -> Option<i64> {
        self.leases.keep_alive(now, id)
    }

    pub(crate) fn time_to_live(&self, now: Instant, id: i64, with_keys: bool) -> Option<TimeToLive> {
        self.leases.time_to_live(now, id, with_keys)
    }

    /// Revokes leases whose time is up, some at a time.
    pub(crate) fn expire(&mut self, now: Instant) -> Expiry {
        let mut keys = 0;
        for _ in 0..EXPIRE_AT_ONCE {
            let Some(id) = self.leases.expired(now).filter(|_| keys <= STEP) else { break };
            keys += self.leases.key_count(id);
            if self.begin_revoke(id) == Ok(Begun::InSteps) {
                return Expiry::InSteps;
            }
        }
        Expiry::Next(self.leases.next_deadline())
    }

    pub(crate) fn watch(&mut self, stream: StreamKey, request: WatchRequest) {
        if self.make_memory().is_ok() {
            self.hub.create(&self.store, stream, request);
        } else {
            self.hub.refuse(&self.store, stream, "etcdserver: mvcc: database space exceeded");
        }
    }

    /// Ends a revision: tells the leases and the watchers, and forgets what need not be kept.
    fn commit(&mut self) {
        self.applied += 1;
        for change in self.store.commit() {
            self.leases.attach(&change.key, change.lease);
            match &mut self.journal {
                None => self.hub.publish(change),
                Some(journal) => journal.push(Change::Record(Arc::clone(change))),
            }
        }
        self.forget_past();
    }

    /// Compacts what need not be kept, and forgets some of what was compacted.
    pub(crate) fn forget_past(&mut self) {
        self.store.enforce_retention();
        self.forget(FORGET_AT_COMMIT);
    }

    /// Forgets some of what was compacted; whether that was all of it.
    pub(crate) fn forget_some(&mut self) -> bool {
        self.forget(FORGET_AT_ONCE);
        self.store.is_clean()
    }

    fn forget(&mut self, most: usize) {
        self.store.clean(most);
        self.note_forgotten();
    }

    /// What was forgotten goes from the disk too.
    fn note_forgotten(&mut self) {
        if let Some(journal) = &mut self.journal {
            let forgotten = self.store.take_forgotten();
            if !forgotten.is_empty() {
                journal.push(Change::Forgotten(forgotten));
            }
        }
    }

    fn check_size(&self, request: &impl Message) -> Result<(), Error> {
        if request.encoded_len() + ENVELOPE > self.limits.request_bytes {
            return Err(Error::RequestTooLarge);
        }
        Ok(())
    }

    /// Whether nothing more is taken in. What can be forgotten does not count.
    pub(crate) fn is_full(&self) -> bool {
        self.is_alarmed
            || self.is_disk_full()
            || (self.weight() > self.limits.quota_bytes && !self.store.has_past())
    }

    fn is_disk_full(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_full)
    }

    /// Whether there is room for more, in memory and on disk.
    fn make_room(&mut self) -> Result<(), Error> {
        if self.is_alarmed {
            return Err(Error::NoSpace);
        }
        if self.is_disk_full() {
            // On disk too the past goes first. There is room once that has settled.
            let _ = self.compact(self.store.visible());
            return Err(Error::NoSpace);
        }
        self.make_memory()
    }

    /// Whether there is room for more in memory. The past goes before anything is refused.
    fn make_memory(&mut self) -> Result<(), Error> {
        if self.weight() <= self.limits.quota_bytes {
            return Ok(());
        }
        // It fails only when there is no past left.
        let _ = self.compact(self.store.visible());
        let is_all = self.forget_some();
        // What is still to be forgotten is room.
        if is_all && self.weight() > self.limits.quota_bytes { Err(Error::NoSpace) } else { Ok(()) }
    }
}
