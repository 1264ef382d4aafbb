//! Everything the v3 protocol is about: the store, the leases and the watches, as one.
//!
//! Plain data; whoever holds it decides what time it is. Each write is one revision, and on return the leases
//! know of it and the watchers are marked.

use std::sync::Arc;
use std::time::Instant;

use etcd_client::proto::{PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTxnRequest};
use prost::Message;

use crate::durable::{Change, Journal, LoadedV3, Promise, V3Batch};
use crate::lease::{Leases, TimeToLive};
use crate::mvcc::{self, DeleteDone, Error, PutDone, Reading, Retention, Span, Store, TxnDone};
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

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) leases: Leases,
    pub(crate) hub: Hub,
    /// What is on its way to the disk, where all is kept there.
    pub(crate) journal: Option<Journal<Change>>,
    limits: Limits,
}

impl State {
    pub(crate) fn new(limits: Limits, store: Store) -> Self {
        State { store, leases: Leases::default(), hub: Hub::default(), journal: None, limits }
    }

    /// As it was. The time of its leases begins anew.
    pub(crate) fn restored(limits: Limits, retention: Retention, now: Instant, loaded: LoadedV3) -> Self {
        let LoadedV3 { revision, compacted, records, leases } = loaded;
        let mut state = State::new(limits, Store::restored(retention, revision, compacted, records));
        state.leases = Leases::restored(now, leases);
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

    /// What was taken is on disk, up to this revision.
    pub(crate) fn settle(&mut self, revision: i64) {
        for change in self.store.settle(revision) {
            self.hub.publish(change);
        }
        if let Some(journal) = &mut self.journal {
            journal.settle();
        }
    }

    /// What was taken was not kept: all is as it is on disk. The promise to those who wait for what came after it.
    pub(crate) fn go_back(&mut self, now: Instant, loaded: LoadedV3) -> Option<Promise> {
        let before = State::restored(self.limits, self.store.retention(), now, loaded);
        self.store = before.store;
        self.store.hold();
        let after = std::mem::replace(&mut self.leases, before.leases);
        self.leases.go_on_from(&after);
        self.journal.as_mut().map(Journal::give_up)
    }

    /// Roughly the memory of all it holds.
    pub(crate) fn weight(&self) -> usize {
        self.store.weight() + self.leases.weight() + self.hub.weight()
    }

    /// Begins a read.
    pub(crate) fn range(&self, request: PbRangeRequest) -> Result<Reading, Error> {
        mvcc::check_range(&request)?;
        Reading::new(&self.store, request)
    }

    /// Like every write, it is taken back if it cannot be `answer`ed.
    pub(crate) fn put<T>(
        &mut self,
        request: PbPutRequest,
        answer: impl FnOnce(PutDone) -> Result<T, Error>,
    ) -> Result<T, Error> {
        mvcc::check_put(&request)?;
        self.check_size(&request)?;
        self.make_room()?;
        let leases = &self.leases;
        let done = mvcc::put(&mut self.store, request, &|id| leases.contains(id));
        self.end(done.and_then(answer))
    }

    pub(crate) fn delete<T>(
        &mut self,
        request: &PbDeleteRequest,
        answer: impl FnOnce(DeleteDone) -> Result<T, Error>,
    ) -> Result<T, Error> {
        mvcc::check_delete(request)?;
        self.check_size(request)?;
        let done = mvcc::delete(&mut self.store, request);
        self.end(answer(done))
    }

    pub(crate) fn txn<T>(
        &mut self,
        request: PbTxnRequest,
        answer: impl FnOnce(TxnDone) -> Result<T, Error>,
    ) -> Result<T, Error> {
        mvcc::check_txn(&request, self.limits.txn_ops)?;
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

    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Error> {
        self.store.compact(revision)?;
        // Also when nothing is forgotten: the revision of the compaction is to survive.
        if let Some(journal) = &mut self.journal {
            journal.push(Change::Forgotten(self.store.take_forgotten()));
        }
        Ok(())
    }

    pub(crate) fn grant(&mut self, now: Instant, id: i64, ttl: i64) -> Result<(i64, i64), Error> {
        self.make_room()?;
        let (id, ttl) = self.leases.grant(now, id, ttl)?;
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

    pub(crate) fn keep_alive(&mut self, now: Instant, id: i64) -> Option<i64> {
        self.leases.keep_alive(now, id)
    }

    pub(crate) fn time_to_live(&self, now: Instant, id: i64, with_keys: bool) -> Option<TimeToLive> {
        self.leases.time_to_live(now, id, with_keys)
    }

    /// Revokes leases whose time is up, some at a time; when the next one's is.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        for _ in 0..EXPIRE_AT_ONCE {
            let Some(id) = self.leases.expired(now) else { break };
            self.revoke(id).expect("a lease that expires exists");
        }
        self.leases.next_deadline()
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
        for change in self.store.commit() {
            self.leases.attach(&change.key, change.lease);
            match &mut self.journal {
                None => self.hub.publish(change),
                Some(journal) => journal.push(Change::Record(Arc::clone(change))),
            }
        }
        self.store.enforce_retention();
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
        self.is_disk_full() || (self.weight() > self.limits.quota_bytes && !self.store.has_past())
    }

    fn is_disk_full(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_full)
    }

    /// Whether there is room for more, in memory and on disk.
    fn make_room(&mut self) -> Result<(), Error> {
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
        if self.weight() > self.limits.quota_bytes { Err(Error::NoSpace) } else { Ok(()) }
    }
}
