//! How the state carries out a delete of very many keys, step by step. What such a delete is: see `removal`.

use std::sync::Arc;

use crate::durable::Change;
use crate::mvcc::Record;
use crate::removal::{Progress, Removal, Removed, STEP, Stage, What};
use crate::state::State;

impl State {
    /// Goes on with a delete; none if it was taken back with something else.
    pub(crate) fn remove_some(&mut self) -> Option<Progress> {
        let mut removal = self.removal.take()?;
        let progress = match removal.stage {
            Stage::Find(_) => self.find(&mut removal),
            Stage::Mark(marked) => self.mark(&mut removal, marked),
            Stage::Tell(told) => {
                if self.tell(&mut removal, told) {
                    let revision = self.store.revision();
                    let (found, lease) = (std::mem::take(&mut removal.found), removal.lease.take());
                    self.forget_past();
                    self.delete_keys(removal.into_rest());
                    return Some(Progress::Done(Removed { revision, found, _lease: lease }));
                }
                Progress::Again
            }
        };
        self.removal = Some(removal);
        Some(progress)
    }

    fn find(&self, removal: &mut Removal) -> Progress {
        let Removal { what, stage, found, bytes, .. } = removal;
        let Stage::Find(after) = stage else { return Progress::Again };
        let mut add = |record: &Arc<Record>| {
            *bytes += record.weight();
            found.push(Arc::clone(record));
        };
        let is_done = match what {
            What::Keys(span) => {
                let scan = self.store.scan(span, after.as_ref(), i64::MAX, STEP, add);
                *after = scan.last;
                scan.is_done
            }
            What::Lease(id) => {
                let keys: Vec<_> = self.leases.keys_after(*id, after.as_ref()).take(STEP).collect();
                keys.iter().filter_map(|key| self.store.get(key)).for_each(&mut add);
                *after = keys.last().map(|&last| last.clone());
                keys.len() < STEP
            }
        };
        if !is_done {
            return Progress::Again;
        }
        removal.stage = Stage::Mark(0);
        Progress::Found(removal.bytes)
    }

    fn mark(&mut self, removal: &mut Removal, marked: usize) -> Progress {
        let end = removal.found.len().min(marked + STEP);
        for last in &removal.found[marked..end] {
            let deletion = self.store.delete_found(last);
            if self.journal.is_some() {
                removal.deletions.push(deletion);
            }
        }
        removal.stage = Stage::Mark(end);
        if end < removal.found.len() {
            return Progress::Again;
        }
        let revision = self.store.commit_all();
        if let What::Lease(id) = removal.what {
            removal.lease = self.leases.take(id);
        }
        match &mut self.journal {
            Some(journal) => {
                journal.push(Change::Records(std::mem::take(&mut removal.deletions)));
                if let What::Lease(id) = removal.what {
                    journal.push(Change::Revoked { id });
                }
            }
            None => self.hub.tell_from((revision, 0)),
        }
        removal.stage = Stage::Tell(0);
        Progress::Again
    }

    /// Whether all who are to know of it do.
    fn tell(&mut self, removal: &mut Removal, told: usize) -> bool {
        let end = removal.found.len().min(told + STEP);
        for record in removal.found[told..end].iter().filter(|record| record.lease != 0) {
            self.leases.attach(&record.key, 0);
        }
        removal.stage = Stage::Tell(end);
        // What goes to the disk first is told once it is there.
        let is_told = self.journal.is_some() || self.publish_some();
        is_told && end == removal.found.len()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Instant;

    use etcd_client::proto::{PbDeleteRequest, PbPutRequest};

    use super::*;
    use crate::auth::Caller;
    use crate::durable::{Journal, Writer};
    use crate::mvcc::{Retention, Span, Store};
    use crate::state::{Begun, Limits};
    use crate::watch::{Filter, Message, Polled, StreamKey, WatchRequest};

    const KEYS: usize = 3 * STEP + 7;

    /// Many keys on a lease, and one that is not.
    fn state(journal: Option<Journal<Change>>) -> State {
        let most = usize::MAX;
        let limits = Limits { request_bytes: most, txn_ops: most, quota_bytes: most };
        let mut state = State::new(limits, Store::new(Retention { changes: most, bytes: most }));
        if let Some(journal) = journal {
            state.keep(journal);
        }
        state.grant(Instant::now(), 7, 100).unwrap();
        for key in 0..KEYS {
            put(&mut state, &format!("k{key:06}"), 7);
        }
        put(&mut state, "other", 0);
        state.take_changes();
        while !state.settle(state.store.revision()) {}
        state
    }

    fn put(state: &mut State, key: &str, lease: i64) {
        let put = PbPutRequest { key: key.into(), lease, ..Default::default() };
        state.put(&Caller::default(), put, |_| Ok(())).unwrap();
    }

    fn watch(state: &mut State) -> StreamKey {
        let stream = state.hub.open();
        let request = WatchRequest {
            id: 0,
            span: Span::From("k".into()),
            start_revision: 0,
            filter: Filter::default(),
            prev_kv: true,
            fragment: false,
            progress_notify: false,
            share: None,
        };
        state.watch(stream, request);
        assert!(matches!(next(state, stream), Some(Message::Created { .. })));
        stream
    }

    fn next(state: &mut State, stream: StreamKey) -> Option<Message> {
        loop {
            match state.hub.poll(&state.store, stream, usize::MAX, Waker::noop()) {
                Polled::Message(message) => return Some(message),
                Polled::Again => {}
                _ => return None,
            }
        }
    }

    fn count(state: &State, revision: i64) -> usize {
        state.store.iter_at(&Span::From("k"), revision).count()
    }

    /// Goes through a delete and looks at each step what others see.
    fn carry_out(state: &mut State, stream: StreamKey) -> Removed {
        let before = state.store.revision();
        loop {
            assert!(state.is_removing());
            let visible = state.store.visible();
            let left = if visible == before { KEYS + 1 } else { 1 };
            assert_eq!(count(state, visible), left, "readers see all of it or nothing");
            if state.hub.told_to().is_some() {
                state.hub.ask_progress(stream);
                while let Some(message) = next(state, stream) {
                    if let Message::Progress { revision, .. } = message {
                        assert_eq!(revision, before, "not all were told");
                    } else {
                        assert!(matches!(message, Message::Events { .. }), "{message:?}");
                    }
                }
            }
            if let Progress::Done(removed) = state.remove_some().unwrap() {
                return removed;
            }
        }
    }

    #[test]
    fn a_delete_in_steps_is_one_revision_and_seen_whole_or_not_at_all() {
        let mut state = state(None);
        let stream = watch(&mut state);
        let (key, range_end) = (b"k".to_vec(), b"l".to_vec());
        let delete = PbDeleteRequest { key, range_end, prev_kv: false };
        assert_eq!(state.begin_delete(&Caller::default(), &delete), Ok(Begun::InSteps));
        let before = state.store.revision();
        // One that has left its place in a line does not wait.
        state.delete_key(&"other".into());
        let removed = carry_out(&mut state, stream);
        assert_eq!((removed.revision, removed.found.len()), (before + 1, KEYS));
        assert_eq!((state.store.revision(), count(&state, i64::MAX)), (before + 2, 0));
        assert_eq!(state.leases.key_count(7), 0);
        assert!(!state.is_removing() && state.hub.told_to().is_none());
        // Small ones are as ever.
        let small = PbDeleteRequest { range_end: b"k000100".to_vec(), ..delete };
        assert_eq!(state.begin_delete(&Caller::default(), &small), Ok(Begun::Done));
    }

    #[test]
    fn watchers_are_told_of_very_many_deletions_in_one_message() {
        let mut state = state(None);
        let stream = watch(&mut state);
        state.begin_revoke(7).unwrap();
        while !matches!(state.remove_some(), Some(Progress::Done(_))) {}
        assert_eq!(state.revoke(7), Err(crate::mvcc::Error::LeaseNotFound));
        let Some(Message::Events { events, .. }) = next(&mut state, stream) else {
            panic!("nothing was told")
        };
        assert_eq!(events.len(), KEYS);
        assert!(events.iter().all(|told| told.record.is_deletion() && told.prev.is_some()));
        assert!(next(&mut state, stream).is_none());
    }

    #[test]
    fn a_delete_in_steps_reaches_the_disk_as_one() {
        let mut state = state(Some(Journal::new(Writer::bell().0)));
        let stream = watch(&mut state);
        assert_eq!(state.begin_revoke(7), Ok(Begun::InSteps));
        let before = state.store.revision();
        while !state.store.is_clean() || state.store.revision() == before {
            // Nothing of it may be written before it is committed.
            assert!(state.take_changes().is_none());
            state.remove_some().unwrap();
        }
        let (batch, _) = state.take_changes().unwrap();
        assert!(
            matches!(&batch.changes[..], [Change::Records(all), Change::Revoked { id: 7 }] if all.len() == KEYS)
        );
        assert!(next(&mut state, stream).is_none(), "it is not on disk yet");
        while !matches!(state.remove_some(), Some(Progress::Done(_))) {}
        while !state.settle(batch.revision) {}
        assert!(
            matches!(next(&mut state, stream), Some(Message::Events { events, .. }) if events.len() == KEYS)
        );
    }

    #[test]
    fn one_that_is_given_up_has_changed_nothing() {
        let mut state = state(None);
        let before = (state.store.revision(), state.store.weight());
        state.begin_revoke(7).unwrap();
        while !matches!(state.remove_some(), Some(Progress::Found(bytes)) if bytes > 0) {}
        state.delete_key(&"nothing".into());
        state.give_up_removal();
        assert_eq!((state.store.revision(), state.store.weight()), before);
        assert_eq!((state.leases.key_count(7), count(&state, i64::MAX)), (KEYS, KEYS + 1));
        // One that a panic has cut off is taken back too.
        state.begin_revoke(7).unwrap();
        for _ in 0..6 {
            state.remove_some().unwrap();
        }
        assert!(state.store.weight() > before.1);
        state.rollback();
        assert_eq!((state.store.revision(), state.store.weight()), before);
        assert!(state.remove_some().is_none());
    }
}
