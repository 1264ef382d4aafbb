//! Waiting for keys, and barriers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use rallypoint_store::{Store, StoreError};

use crate::suite::Fixture;

crate::cases![
    get_waits_for_the_key,
    any_kind_of_write_ends_a_wait,
    a_wait_in_vain_ends_at_the_timeout_and_names_what_is_missing,
    wait_takes_its_own_timeout,
    wait_is_for_all_keys,
    check_does_not_wait,
    multi_get_waits_for_all_keys,
    other_keys_do_not_end_a_wait,
    many_waiters_are_all_woken,
    a_barrier_opens_for_the_last_and_stays_open,
    a_barrier_in_vain_is_a_timeout_of_the_barrier,
];

/// Starts `waiter` first; `act` runs once the waiter has had the time to begin.
async fn while_waiting<T>(waiter: impl Future<Output = T>, act: impl Future<Output = ()>) -> T {
    let act = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        act.await;
    };
    join(waiter, act).await.0
}

async fn get_waits_for_the_key(on: Arc<Fixture>) {
    let other = on.another();
    let value =
        while_waiting(on.store.get(b"late"), async { other.set(b"late", b"come").await.unwrap() }).await;
    assert_eq!(value.unwrap(), b"come");
    // Deleted, it is waited for again.
    on.store.delete_key(b"late").await.unwrap();
    let value =
        while_waiting(on.store.get(b"late"), async { other.set(b"late", b"back").await.unwrap() }).await;
    assert_eq!(value.unwrap(), b"back");
}

async fn any_kind_of_write_ends_a_wait(on: Arc<Fixture>) {
    type Act = fn(Box<dyn Store>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
    let writes: [(&[u8], &[u8], Act); 5] = [
        (b"set", b"1", |s| Box::pin(async move { s.set(b"set", b"1").await.unwrap() })),
        (b"add", b"3", |s| Box::pin(async move { assert_eq!(s.add(b"add", 3).await.unwrap(), 3) })),
        (b"append", b"x", |s| Box::pin(async move { s.append(b"append", b"x").await.unwrap() })),
        (b"cas", b"y", |s| Box::pin(async move { drop(s.compare_set(b"cas", b"", b"y").await.unwrap()) })),
        (b"multi", b"z", |s| Box::pin(async move { s.multi_set(&[b"multi"], &[b"z"]).await.unwrap() })),
    ];
    for (key, value, write) in writes {
        let waited = while_waiting(on.store.get(key), write(on.another())).await;
        assert_eq!(waited.unwrap(), value, "{}", key.escape_ascii());
    }
}

async fn a_wait_in_vain_ends_at_the_timeout_and_names_what_is_missing(on: Arc<Fixture>) {
    on.store.set(b"there", b"").await.unwrap();
    on.store.set_timeout(Duration::from_millis(300));
    let began = Instant::now();
    let errors = [
        on.store.get(b"missing").await.unwrap_err(),
        on.store.wait(&[b"there", b"missing"], None).await.unwrap_err(),
        on.store.multi_get(&[b"there", b"missing"]).await.unwrap_err(),
    ];
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("missing") && text.contains("0.300") && !text.contains("there"), "{text}");
        let StoreError::Timeout { after, .. } = error else { panic!("{error:?}") };
        assert_eq!(after, Duration::from_millis(300));
    }
}

async fn wait_takes_its_own_timeout(on: Arc<Fixture>) {
    let began = Instant::now();
    let error = on.store.wait(&[b"missing"], Some(Duration::from_millis(100))).await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

async fn wait_is_for_all_keys(on: Arc<Fixture>) {
    on.store.wait(&[], None).await.unwrap();
    let other = on.another();
    let mut first_alone = false;
    let waited = while_waiting(on.store.wait(&[b"a", b"b", b"a"], None), async {
        other.set(b"a", b"1").await.unwrap();
        let short = other.wait(&[b"a", b"b"], Some(Duration::from_millis(100))).await;
        first_alone = short.is_ok();
        other.set(b"b", b"2").await.unwrap();
    })
    .await;
    waited.unwrap();
    assert!(!first_alone);
    on.store.wait(&[b"a", b"b"], Some(Duration::from_millis(1))).await.unwrap();
}

async fn check_does_not_wait(on: Arc<Fixture>) {
    assert!(on.store.check(&[]).await.unwrap());
    assert!(!on.store.check(&[b"a"]).await.unwrap());
    on.store.set(b"a", b"").await.unwrap();
    assert!(on.store.check(&[b"a", b"a"]).await.unwrap());
    assert!(!on.store.check(&[b"a", b"b"]).await.unwrap());
}

async fn multi_get_waits_for_all_keys(on: Arc<Fixture>) {
    on.store.set(b"a", b"1").await.unwrap();
    let other = on.another();
    let values = while_waiting(on.store.multi_get(&[b"b", b"a", b"c"]), async {
        other.set(b"c", b"3").await.unwrap();
        other.add(b"b", 2).await.unwrap();
    })
    .await;
    assert_eq!(values.unwrap(), [b"2", b"1", b"3"]);
}

async fn other_keys_do_not_end_a_wait(on: Arc<Fixture>) {
    let other = on.another();
    let store = on.another();
    store.set_timeout(Duration::from_millis(600));
    let waited = while_waiting(store.get(b"key"), async {
        for neighbour in [&b"ke"[..], b"key2", b"key/a", b"key\0", b"Key"] {
            other.set(neighbour, b"x").await.unwrap();
        }
    })
    .await;
    assert!(matches!(waited, Err(StoreError::Timeout { .. })), "{waited:?}");
}

async fn many_waiters_are_all_woken(on: Arc<Fixture>) {
    let waiters = (0..100).map(|_| {
        let store = on.another();
        async move { store.get(b"go").await.unwrap() }
    });
    let other = on.another();
    let woken = while_waiting(join_all(waiters), async { other.set(b"go", b"now").await.unwrap() }).await;
    assert!(woken.iter().all(|value| value == b"now"));
}

async fn a_barrier_opens_for_the_last_and_stays_open(on: Arc<Fixture>) {
    on.store.barrier(b"alone", 1, None).await.unwrap();
    let early = (0..3).map(|_| {
        let store = on.another();
        async move {
            store.barrier(b"four", 4, None).await.unwrap();
            Instant::now()
        }
    });
    let other = on.another();
    let mut last_came = Instant::now();
    let opened = while_waiting(join_all(early), async {
        last_came = Instant::now();
        other.barrier(b"four", 4, None).await.unwrap();
    })
    .await;
    assert!(opened.iter().all(|at| *at >= last_came), "nobody passes before the last has come");
    on.store.barrier(b"four", 4, Some(Duration::from_secs(20))).await.unwrap();
}

async fn a_barrier_in_vain_is_a_timeout_of_the_barrier(on: Arc<Fixture>) {
    let error = on.store.barrier(b"gate", 2, Some(Duration::from_millis(100))).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StoreError::Timeout { what: "barrier", .. }) && text.contains("gate"), "{text}");
}
