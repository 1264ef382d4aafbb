use std::collections::BTreeSet;

use super::*;
use crate::mvcc::Error;

const KEEP_ALL: Retention = Retention { changes: usize::MAX, bytes: usize::MAX };

fn store() -> Store {
    Store::new(KEEP_ALL)
}

fn put(store: &mut Store, key: &str, value: &str) -> i64 {
    let revision =
        store.put(Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()), 0);
    drop(store.commit());
    revision
}

fn delete(store: &mut Store, key: &str) {
    store.delete(&Span::One(key));
    drop(store.commit());
}

fn value_at(store: &Store, key: &str, revision: i64) -> Option<String> {
    store.get_at(key.as_bytes(), revision).map(|record| String::from_utf8(record.value.to_vec()).unwrap())
}

fn keys_at(store: &Store, span: &Span<&str>, revision: i64) -> Vec<String> {
    store.iter_at(span, revision).map(|record| String::from_utf8(record.key.to_vec()).unwrap()).collect()
}

#[test]
fn every_revision_can_be_read_back() {
    let mut store = store();
    assert_eq!(store.revision(), 1);
    assert_eq!(put(&mut store, "a", "1"), 2);
    assert_eq!(put(&mut store, "a", "2"), 3);
    delete(&mut store, "a");
    assert_eq!(put(&mut store, "a", "3"), 5);
    let seen: Vec<_> = (1..=6).map(|revision| value_at(&store, "a", revision)).collect();
    let expected = [None, Some("1"), Some("2"), None, Some("3"), Some("3")];
    assert_eq!(seen, expected.map(|value| value.map(str::to_owned)));
}

#[test]
fn a_key_made_again_starts_at_version_1() {
    let mut store = store();
    put(&mut store, "a", "1");
    put(&mut store, "a", "2");
    assert_eq!(store.get(b"a").unwrap().version, 2);
    delete(&mut store, "a");
    put(&mut store, "a", "3");
    let record = store.get(b"a").unwrap();
    assert_eq!((record.version, record.create_revision, record.mod_revision), (1, 5, 5));
}

#[test]
fn deleting_nothing_costs_no_revision() {
    let mut store = store();
    store.delete(&Span::From("a"));
    assert_eq!(store.commit().count(), 0);
    assert_eq!(store.revision(), 1);
}

#[test]
fn what_is_rolled_back_was_never_there() {
    let mut store = store();
    put(&mut store, "a", "1");
    store.put("a".into(), "2".into(), 0);
    store.put("b".into(), "1".into(), 0);
    store.delete(&Span::From("a"));
    assert_eq!(store.view_revision(), 3);
    assert!(store.get(b"a").is_none());
    store.rollback();
    assert_eq!(store.commit().count(), 0);
    assert_eq!((store.revision(), store.view_revision(), store.key_count()), (2, 2, 1));
    assert_eq!(value_at(&store, "a", 2).as_deref(), Some("1"));
    assert_eq!(store.changes_from(0).count(), 1);
    assert_eq!(store.weight(), store.get(b"a").unwrap().weight());
}

#[test]
fn spans_are_read_in_order_at_any_revision() {
    let mut store = store();
    for key in ["b", "a", "c", "ab"] {
        put(&mut store, key, key);
    }
    delete(&mut store, "ab");
    assert_eq!(keys_at(&store, &Span::From("a"), 5), ["a", "ab", "b", "c"]);
    assert_eq!(keys_at(&store, &Span::From("a"), 6), ["a", "b", "c"]);
    assert_eq!(keys_at(&store, &Span::Until("a", "c"), 3), ["a", "b"]);
    assert!(keys_at(&store, &Span::Until("c", "a"), 6).is_empty());
}

#[test]
fn a_compaction_keeps_what_is_valid_at_it() {
    let mut store = store();
    put(&mut store, "a", "1"); // 2
    put(&mut store, "b", "1"); // 3
    put(&mut store, "a", "2"); // 4
    delete(&mut store, "b"); // 5
    put(&mut store, "a", "3"); // 6
    store.compact(5).unwrap();
    store.clean(usize::MAX);
    assert_eq!(value_at(&store, "a", 5).as_deref(), Some("2"));
    assert_eq!(value_at(&store, "a", 6).as_deref(), Some("3"));
    assert_eq!((store.key_count(), store.index.len()), (1, 1));
    assert_eq!(store.changes_from(0).map(|change| change.mod_revision).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(store.weight(), store.index[&b"a"[..]].iter().map(|record| record.weight()).sum::<usize>());
    assert_eq!(store.compact(5), Err(Error::Compacted));
    assert_eq!(store.compact(7), Err(Error::FutureRevision));
}

#[test]
fn a_compaction_keeps_its_own_changes_for_watches() {
    let mut store = store();
    store.put("a".into(), "1".into(), 0);
    store.put("b".into(), "1".into(), 0);
    drop(store.commit());
    store.delete(&Span::One("b"));
    store.put("b".into(), "2".into(), 0);
    store.put("c".into(), "1".into(), 0);
    store.delete(&Span::One("c"));
    drop(store.commit());
    store.compact(3).unwrap();
    store.clean(usize::MAX);
    let kept: Vec<_> = store.changes_from(0).map(|change| (change.key.clone(), change.version)).collect();
    assert_eq!(kept, [("b".into(), 0), ("b".into(), 1), ("c".into(), 1), ("c".into(), 0)]);
    assert_eq!(keys_at(&store, &Span::From("a"), 3), ["a", "b"]);
    store.put("b".into(), "3".into(), 0);
    store.put("c".into(), "3".into(), 0);
    drop(store.commit());
    store.compact(4).unwrap();
    store.clean(usize::MAX);
    assert_eq!(value_at(&store, "b", 4).as_deref(), Some("3"));
    assert_eq!(store.changes_from(0).count(), 2);
    assert_eq!(
        store.weight(),
        store.iter_at(&Span::From("a"), 4).map(|record| record.weight()).sum::<usize>()
    );
}

#[test]
fn a_key_written_for_weeks_does_not_fill_the_memory() {
    let mut store = Store::new(Retention { changes: 100, bytes: usize::MAX });
    put(&mut store, "untouched", "1");
    for _ in 0..10_000 {
        put(&mut store, "counter", "1");
        store.enforce_retention();
        store.clean(usize::MAX);
    }
    delete(&mut store, "gone");
    assert!(store.changes_from(0).count() <= 101);
    assert!(store.index.get(&b"counter"[..]).unwrap().len() <= 101);
    assert_eq!(store.get(b"counter").unwrap().version, 10_000);
    assert_eq!(value_at(&store, "untouched", store.revision()).as_deref(), Some("1"));
    assert!(store.compacted() >= store.revision() - 101);
}

#[test]
fn large_values_are_forgotten_sooner() {
    let mut store = Store::new(Retention { changes: usize::MAX, bytes: 10_000 });
    for _ in 0..100 {
        put(&mut store, "k", &"v".repeat(1_000));
        store.enforce_retention();
        store.clean(usize::MAX);
        assert!(store.weight() <= 12_000, "{}", store.weight());
    }
    put(&mut store, "k", &"v".repeat(20_000));
    store.enforce_retention();
    store.clean(usize::MAX);
    assert_eq!(store.get(b"k").unwrap().value.len(), 20_000);
}

#[test]
fn a_scan_goes_on_where_it_stopped() {
    let mut store = store();
    for key in ["a", "b", "c", "d", "e"] {
        put(&mut store, key, "1");
    }
    delete(&mut store, "c");
    let span = Span::Until("a", "e");
    for step in 1..6 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let scan = store.scan(&span, after.as_ref(), store.revision(), step, |record| {
                found.push(String::from_utf8(record.key.to_vec()).unwrap());
            });
            assert!(scan.visited <= step);
            after = scan.last;
            if scan.is_done {
                break;
            }
        }
        assert_eq!(found, ["a", "b", "d"], "in steps of {step}");
    }
    let none = store.scan(&span, None, store.revision(), 0, |_| {});
    assert!(!none.is_done && none.visited == 0 && none.last.is_none());
}

#[test]
fn a_compaction_in_steps_forgets_the_same_as_one_at_once() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut at_once, mut in_steps) = (store(), store());
        in_steps.hold();
        let (mut written, mut on_disk) = (BTreeSet::new(), 0);
        for _ in 0..random.usize(20..200) {
            for _ in 0..random.usize(1..4) {
                let key = random.u32(..6).to_string();
                let deletes = random.u32(..3) == 0;
                for store in [&mut at_once, &mut in_steps] {
                    if deletes {
                        store.delete(&Span::One(&key));
                    } else {
                        store.put(Bytes::copy_from_slice(key.as_bytes()), "v".into(), 0);
                    }
                }
            }
            drop(at_once.commit());
            written.extend(in_steps.commit().map(|change| change.at()));
            let revision = in_steps.revision();
            in_steps.settle(revision);
            if random.u32(..8) == 0 {
                let compacted = in_steps.compacted();
                let to = random.i64(compacted.max(1)..=revision);
                assert_eq!(at_once.compact(to), in_steps.compact(to));
                at_once.clean(usize::MAX);
            }
            in_steps.clean(random.usize(..5));
            assert!(in_steps.weight() >= at_once.weight());
            assert_eq!(at_once.all(), in_steps.all(), "seed {seed}");
            for place in in_steps.take_forgotten() {
                assert!(written.remove(&place), "seed {seed}: {place:?} was forgotten twice");
            }
            on_disk += usize::from(!in_steps.is_clean());
            assert!(at_once.all().iter().all(|place| written.contains(place)), "seed {seed}");
        }
        assert!(on_disk > 0, "seed {seed}: it was never in the middle");
        in_steps.clean(usize::MAX);
        in_steps.take_forgotten().iter().for_each(|place| _ = written.remove(place));
        assert_eq!(written.into_iter().collect::<Vec<_>>(), in_steps.all(), "seed {seed}");
        let of = |store: &Store| (store.weight(), store.log_weight, store.log.len(), store.index.len());
        assert_eq!(of(&at_once), of(&in_steps), "seed {seed}");
    }
}

#[test]
fn a_revision_that_is_too_much_is_forgotten_once_there_is_another() {
    let mut store = Store::new(Retention { changes: 100, bytes: usize::MAX });
    for key in 0..1_000 {
        store.put(format!("{key:03}").into(), "v".into(), 0);
    }
    drop(store.commit());
    store.delete(&Span::From("0"));
    drop(store.commit());
    for _ in 0..3 {
        put(&mut store, "k", "v");
        store.enforce_retention();
        store.clean(usize::MAX);
    }
    assert!(store.log.len() <= 100 && store.index.len() == 1, "{} {}", store.log.len(), store.index.len());
    assert_eq!(store.passed_weight, store.log.range(..store.passed).map(|it| it.weight()).sum::<usize>());
}

#[test]
fn keys_are_counted_as_they_are_now() {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut store = store();
        for _ in 0..300 {
            for _ in 0..random.usize(1..4) {
                match random.u8(..3) {
                    0 | 1 => _ = store.put(KEYS[random.usize(..5)].into(), "v".into(), 0),
                    _ => _ = store.delete(&Span::From(KEYS[random.usize(..5)])),
                }
            }
            if random.u8(..4) == 0 {
                store.rollback();
            } else {
                drop(store.commit());
            }
            if random.u8(..10) == 0 && store.compact(store.revision()).is_ok() {
                store.clean(random.usize(..10));
            }
            let there = store.iter_at(&Span::From(&b""[..]), i64::MAX).count();
            assert_eq!(store.key_count(), there, "seed {seed}");
        }
        let (revision, compacted) = (store.revision(), store.compacted());
        let all: Vec<Record> = store
            .log
            .iter()
            .map(|it| Record { key: it.key.clone(), value: it.value.clone(), ..**it })
            .collect();
        if compacted < 0 {
            let restored = Store::restored(store.retention(), revision, compacted, all);
            assert_eq!(restored.key_count(), store.key_count(), "seed {seed}");
        }
    }
}
