//! Queues.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use rallypoint_store::StoreError;

use crate::suite::Fixture;

crate::cases![
    a_queue_gives_back_in_order,
    an_empty_queue_is_an_error_or_a_wait,
    each_item_goes_to_one_popper,
    queues_are_apart_from_keys,
    check_and_wait_see_a_queue,
    queues_of_similar_names_are_apart,
];

async fn a_queue_gives_back_in_order(on: Arc<Fixture>) {
    let other = on.another();
    assert_eq!(on.store.queue_len(b"q").await.unwrap(), 0);
    for i in 0..12u8 {
        let pusher = if i % 2 == 0 { &on.store } else { &other };
        pusher.queue_push(b"q", &[i, 0, 0xff]).await.unwrap();
    }
    assert_eq!(other.queue_len(b"q").await.unwrap(), 12);
    for i in 0..12u8 {
        assert_eq!(on.store.queue_pop(b"q", i % 3 == 0).await.unwrap(), [i, 0, 0xff]);
    }
    assert_eq!(on.store.queue_len(b"q").await.unwrap(), 0);
    on.store.queue_push(b"q", b"").await.unwrap();
    assert_eq!(on.store.queue_pop(b"q", true).await.unwrap(), b"");
}

async fn an_empty_queue_is_an_error_or_a_wait(on: Arc<Fixture>) {
    let error = on.store.queue_pop(b"q", false).await.unwrap_err();
    assert!(matches!(error, StoreError::QueueEmpty { .. }), "{error:?}");
    let hasty = on.another();
    hasty.set_timeout(Duration::from_millis(100));
    let error = hasty.queue_pop(b"q", true).await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout { what: "queue_pop", .. }), "{error:?}");

    let other = on.another();
    let push = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        other.queue_push(b"q", b"late").await.unwrap();
    };
    let (popped, ()) = join(on.store.queue_pop(b"q", true), push).await;
    assert_eq!(popped.unwrap(), b"late");
}

async fn each_item_goes_to_one_popper(on: Arc<Fixture>) {
    let pushing = join_all((0..4u8).map(|i| {
        let store = on.another();
        async move {
            for j in 0..15u8 {
                store.queue_push(b"q", &[i, j]).await.unwrap();
            }
        }
    }));
    let popping = join_all((0..4).map(|_| {
        let store = on.another();
        async move {
            let mut items = Vec::new();
            for _ in 0..15 {
                items.push(store.queue_pop(b"q", true).await.unwrap());
            }
            items
        }
    }));
    let (_, items) = join(pushing, popping).await;
    // What one pushed after another comes out after it.
    for popped in &items {
        for pusher in 0..4 {
            let order: Vec<u8> = popped.iter().filter(|item| item[0] == pusher).map(|item| item[1]).collect();
            assert!(order.is_sorted(), "{order:?}");
        }
    }
    let distinct: HashSet<Vec<u8>> = items.concat().into_iter().collect();
    assert_eq!(distinct.len(), 60);
    assert_eq!(on.store.queue_len(b"q").await.unwrap(), 0);
}

async fn queues_are_apart_from_keys(on: Arc<Fixture>) {
    on.store.queue_push(b"q", b"1").await.unwrap();
    assert_eq!(on.store.num_keys().await.unwrap(), 0);
    on.assert_keys(&[]).await;
    on.store.set(b"q", b"value").await.unwrap();
    assert_eq!(on.store.queue_len(b"q").await.unwrap(), 1);
    assert_eq!(on.store.get(b"q").await.unwrap(), b"value");
    assert!(on.store.delete_key(b"q").await.unwrap());
    assert!(!on.store.delete_key(b"q").await.unwrap());
    assert_eq!(on.store.queue_pop(b"q", false).await.unwrap(), b"1");
}

async fn check_and_wait_see_a_queue(on: Arc<Fixture>) {
    assert!(!on.store.check(&[b"q"]).await.unwrap());
    let other = on.another();
    let push = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        other.queue_push(b"q", b"1").await.unwrap();
    };
    let (waited, ()) = join(on.store.wait(&[b"q"], None), push).await;
    waited.unwrap();
    assert!(on.store.check(&[b"q"]).await.unwrap());
    on.store.queue_pop(b"q", false).await.unwrap();
    assert!(!on.store.check(&[b"q"]).await.unwrap());
}

async fn queues_of_similar_names_are_apart(on: Arc<Fixture>) {
    let names: [&[u8]; 8] = [b"", b"a", b"a/", b"a/b", b"a\0", b"\xff", b"\xff\xff\xff", b"?"];
    for name in names {
        on.store.queue_push(name, name).await.unwrap();
    }
    for name in names {
        assert_eq!(on.store.queue_len(name).await.unwrap(), 1, "{}", name.escape_ascii());
        assert_eq!(on.store.queue_pop(name, false).await.unwrap(), name);
    }
}
