//! The blocking face, on a real etcd, from plain threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::thread;
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_store::{BlockingStore, EtcdStore, MemoryStore, StoreError};
use rallypoint_testkit::{Etcd, Version};

fn open(etcd: &Etcd) -> BlockingStore {
    let settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
    BlockingStore::open(EtcdStore::connect(settings, "/blocking")).unwrap()
}

#[test]
fn threads_share_a_store_and_wait_for_each_other() {
    let etcd = Etcd::start(Version::V35);
    let store = open(&etcd);
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            thread::spawn(move || store.get(b"go").unwrap())
        })
        .collect();
    let other = open(&etcd);
    other.set(b"go", b"now").unwrap();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), b"now");
    }
    let counting: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            thread::spawn(move || {
                for _ in 0..25 {
                    store.add(b"c", 1).unwrap();
                }
                store.barrier(b"done", 4, None).unwrap();
            })
        })
        .collect();
    for counter in counting {
        counter.join().unwrap();
    }
    assert_eq!(other.get(b"c").unwrap(), b"100");
}

#[test]
fn every_operation_has_its_blocking_form() {
    let store = BlockingStore::open(async { Ok(MemoryStore::new()) }).unwrap();
    store.set_timeout(Duration::from_millis(50));
    assert_eq!(store.timeout(), Duration::from_millis(50));
    store.multi_set(&[b"a", b"b"], &[b"1", b"2"]).unwrap();
    store.append(b"a", b"1").unwrap();
    assert_eq!(store.multi_get(&[b"b", b"a"]).unwrap(), [&b"2"[..], b"11"]);
    assert_eq!(store.compare_set(b"b", b"2", b"3").unwrap(), b"3");
    assert_eq!((store.num_keys().unwrap(), store.list_keys().unwrap().len()), (2, 2));
    assert!(store.check(&[b"a"]).unwrap() && store.delete_key(b"a").unwrap());
    store.wait(&[b"b"], None).unwrap();
    store.queue_push(b"q", b"x").unwrap();
    assert_eq!(store.queue_len(b"q").unwrap(), 1);
    assert_eq!(store.queue_pop(b"q", true).unwrap(), b"x");
    assert!(matches!(store.get(b"missing"), Err(StoreError::Timeout { .. })));
}

#[tokio::test]
async fn on_a_thread_of_a_runtime_it_is_an_error_and_not_a_standstill() {
    let opened = BlockingStore::open(async { Ok(MemoryStore::new()) });
    assert!(matches!(opened, Err(StoreError::BlockingInAsync)));
}
