use bytes::Bytes;

use super::*;
use crate::mvcc::Retention;

struct Bench {
    store: Store,
    hub: Hub,
}

impl Bench {
    fn new() -> Self {
        Bench { store: Store::new(Retention { changes: usize::MAX, bytes: usize::MAX }), hub: Hub::default() }
    }

    fn put(&mut self, key: &str, value: &str) {
        self.store.put(Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()), 0);
        self.commit();
    }

    fn delete(&mut self, key: &str) {
        self.store.delete(&Span::One(key));
        self.commit();
    }

    fn commit(&mut self) {
        for change in self.store.commit() {
            self.hub.publish(change);
        }
    }

    fn watch(&mut self, stream: StreamKey, key: &'static str, end: &'static str, start_revision: i64) -> i64 {
        self.hub.create(&self.store, stream, request(key, end, start_revision));
        match self.next(stream) {
            Some(Message::Created { id, .. }) => id,
            other => panic!("{other:?}"),
        }
    }

    fn next(&mut self, stream: StreamKey) -> Option<Message> {
        loop {
            match self.hub.poll(&self.store, stream, usize::MAX, Waker::noop()) {
                Polled::Message(message) => return Some(message),
                Polled::Again => {}
                Polled::Pending | Polled::Closed | Polled::NoRoom(_) => return None,
            }
        }
    }

    /// The events of the next message, as `revision key`.
    fn events(&mut self, stream: StreamKey) -> Vec<String> {
        match self.next(stream) {
            Some(Message::Events { events, .. }) => events
                .iter()
                .map(|told| {
                    format!("{} {}", told.record.mod_revision, String::from_utf8_lossy(&told.record.key))
                })
                .collect(),
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }
}

fn request(key: &'static str, end: &'static str, start_revision: i64) -> WatchRequest {
    WatchRequest {
        id: 0,
        span: Span::new(Bytes::from(key), Bytes::from(end)),
        start_revision,
        filter: Filter::default(),
        prev_kv: false,
        fragment: false,
        progress_notify: false,
        share: None,
    }
}

#[test]
fn a_watcher_is_told_of_its_keys_from_its_revision_on() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.put("a", "1"); // 2
    bench.put("b", "1"); // 3
    bench.put("a", "2"); // 4
    bench.watch(stream, "a", "", 3);
    assert_eq!(bench.events(stream), ["4 a"]);
    bench.put("b", "2");
    assert!(bench.events(stream).is_empty());
    bench.delete("a");
    bench.put("a", "3");
    assert_eq!(bench.events(stream), ["6 a", "7 a"]);
    assert!(bench.events(stream).is_empty());
}

#[test]
fn a_watcher_of_the_future_waits_for_it() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.watch(stream, "a", "", 4);
    bench.put("a", "1");
    bench.put("a", "2");
    assert!(bench.events(stream).is_empty());
    bench.put("a", "3");
    assert_eq!(bench.events(stream), ["4 a"]);
}

#[test]
fn a_revision_is_one_message_however_large() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    let value = Bytes::from(vec![0; BATCH_BYTES]);
    for _ in 0..2 {
        for key in ["a1", "a2", "a3"] {
            bench.store.put(key.into(), value.clone(), 0);
        }
        bench.commit();
    }
    bench.watch(stream, "a", "b", 1);
    assert_eq!(bench.events(stream), ["2 a1", "2 a2", "2 a3"]);
    assert_eq!(bench.events(stream), ["3 a1", "3 a2", "3 a3"]);
}

#[test]
fn one_that_falls_behind_the_compaction_is_dropped() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    let id = bench.watch(stream, "a", "", 0);
    let other = bench.watch(stream, "b", "", 0);
    bench.put("a", "1"); // 2
    bench.put("a", "2"); // 3
    bench.store.compact(3).unwrap();
    assert!(matches!(
        bench.next(stream),
        Some(Message::Compacted { id: told, compact_revision: 3 }) if told == id
    ));
    bench.put("a", "3");
    bench.put("b", "1");
    assert!(matches!(bench.next(stream), Some(Message::Events { id, .. }) if id == other));
    assert_eq!(bench.hub.len(), 1);
}

#[test]
fn filters_and_previous_values() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    let mut no_put = request("a", "", 0);
    no_put.filter.no_put = true;
    no_put.prev_kv = true;
    bench.hub.create(&bench.store, stream, no_put);
    bench.next(stream);
    bench.put("a", "1");
    assert!(bench.next(stream).is_none());
    bench.delete("a");
    let Some(Message::Events { events, .. }) = bench.next(stream) else { panic!("no events") };
    assert!(events[0].record.is_deletion());
    assert_eq!(events[0].prev.as_ref().unwrap().value, "1");
}

#[test]
fn progress_comes_after_the_events() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.watch(stream, "a", "", 0);
    bench.put("a", "1");
    bench.hub.ask_progress(stream);
    assert_eq!(bench.events(stream), ["2 a"]);
    assert!(matches!(bench.next(stream), Some(Message::Progress { id: -1, revision: 2 })));
    assert!(bench.next(stream).is_none());
}

#[test]
fn ids_are_given_in_order_around_those_taken() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    let create = |bench: &mut Bench, id| {
        bench.hub.create(&bench.store, stream, WatchRequest { id, ..request("a", "", 0) });
        match bench.next(stream) {
            Some(Message::Created { id, .. }) => Ok(id),
            Some(Message::Refused { reason, .. }) => Err(reason),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(create(&mut bench, 1), Ok(1));
    assert_eq!(create(&mut bench, 0), Ok(0));
    assert_eq!(create(&mut bench, 0), Ok(2));
    assert!(create(&mut bench, 2).unwrap_err().contains("duplicate watch ID"));
    bench.hub.cancel(&bench.store, stream, 2);
    assert!(matches!(bench.next(stream), Some(Message::Canceled { id: 2, .. })));
    bench.hub.cancel(&bench.store, stream, 2);
    assert!(bench.next(stream).is_none());
}

#[test]
fn nothing_is_left_of_a_stream_that_ends() {
    let mut bench = Bench::new();
    let (stream, other) = (bench.hub.open(), bench.hub.open());
    for _ in 0..10 {
        bench.watch(stream, "a", "", 0);
        bench.watch(stream, "a", "b", 0);
    }
    bench.watch(other, "a", "", 0);
    bench.put("a", "1");
    bench.hub.drop_stream(stream);
    assert_eq!((bench.hub.len(), bench.hub.stream_count()), (1, 1));
    assert_eq!(bench.events(other), ["2 a"]);
}

#[test]
fn a_stream_that_never_reads_costs_the_same_after_any_number_of_changes() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.watch(stream, "a", "", 0);
    for _ in 0..1000 {
        bench.put("a", "1");
    }
    assert_eq!(bench.hub.streams[stream].behind.len(), 1);
    assert!(bench.hub.take_wakers().len() <= 1);
}

#[test]
fn a_message_waits_for_room_and_is_not_lost() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.watch(stream, "a", "", 0);
    bench.put("a", &"v".repeat(1000));
    let Polled::NoRoom(bytes) = bench.hub.poll(&bench.store, stream, 999, Waker::noop()) else {
        panic!("it is larger than that")
    };
    assert!(bytes > 1000);
    let Polled::Message(_) = bench.hub.poll(&bench.store, stream, bytes, Waker::noop()) else {
        panic!("now there is room")
    };
    assert!(bench.events(stream).is_empty());
}

#[test]
fn who_watches_one_key_looks_at_its_changes_alone() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.watch(stream, "a", "", 0);
    bench.put("a", "1"); // 2
    for _ in 0..3 * SCAN_LIMIT {
        bench.put("b", "");
    }
    bench.delete("a");
    let polled = bench.hub.poll(&bench.store, stream, usize::MAX, Waker::noop());
    let Polled::Message(Message::Events { events, .. }) = polled else { panic!("{polled:?}") };
    let told: Vec<_> = events.iter().map(|told| told.record.mod_revision).collect();
    assert_eq!(told, [2, 3 + 3 * i64::try_from(SCAN_LIMIT).unwrap()]);
}

#[test]
fn a_deletion_at_the_compaction_is_told() {
    let mut bench = Bench::new();
    let stream = bench.hub.open();
    bench.put("a", "1"); // 2
    bench.delete("a"); // 3
    bench.store.compact(3).unwrap();
    bench.store.clean(usize::MAX);
    bench.watch(stream, "a", "", 3);
    assert_eq!(bench.events(stream), ["3 a"]);
}
