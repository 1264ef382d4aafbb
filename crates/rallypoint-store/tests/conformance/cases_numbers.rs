//! Counters.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::join_all;
use rallypoint_store::StoreError;

use crate::suite::Fixture;

crate::cases![
    add_counts_from_zero_in_any_step,
    add_goes_on_from_a_number_that_was_set,
    add_refuses_what_is_no_number_and_leaves_it,
    sums_wrap_around,
    a_deleted_counter_starts_again,
    every_sum_of_a_contended_counter_is_seen_once,
    contended_adds_of_different_steps_are_all_counted,
    adds_and_other_writes_of_one_key_do_not_lose_each_other,
];

async fn add_counts_from_zero_in_any_step(on: Arc<Fixture>) {
    let other = on.another();
    assert_eq!(on.store.add(b"c", 5).await.unwrap(), 5);
    assert_eq!(other.add(b"c", -7).await.unwrap(), -2);
    assert_eq!(on.store.get(b"c").await.unwrap(), b"-2");
    assert_eq!(on.store.add(b"c", 0).await.unwrap(), -2);
    assert_eq!(other.add(b"c", 1).await.unwrap(), -1);
    assert_eq!(on.store.add(b"c", 1).await.unwrap(), 0);
    assert_eq!(on.store.add(b"c", 1).await.unwrap(), 1);
    assert_eq!(other.add(b"c", 10).await.unwrap(), 11);
    assert_eq!(other.get(b"c").await.unwrap(), b"11");
    assert_eq!(on.store.add(b"zero", 0).await.unwrap(), 0);
    assert_eq!(on.store.get(b"zero").await.unwrap(), b"0");
}

async fn add_goes_on_from_a_number_that_was_set(on: Arc<Fixture>) {
    for (value, sum) in [(&b"41"[..], 42), (b" 41abc", 42), (b"+5", 6), (b"-1", 0)] {
        on.store.set(b"n", value).await.unwrap();
        assert_eq!(on.store.add(b"n", 1).await.unwrap(), sum);
        assert_eq!(on.another().get(b"n").await.unwrap(), sum.to_string().into_bytes());
    }
    // Counting, then set, then counting: from what was set.
    on.store.add(b"n", 1).await.unwrap();
    on.another().set(b"n", b"100").await.unwrap();
    assert_eq!(on.store.add(b"n", 1).await.unwrap(), 101);
}

async fn add_refuses_what_is_no_number_and_leaves_it(on: Arc<Fixture>) {
    for value in [&b"abc"[..], b"", b"-", b"99999999999999999999"] {
        on.store.set(b"n", value).await.unwrap();
        let error = on.store.add(b"n", 1).await.unwrap_err();
        assert!(matches!(error, StoreError::NotANumber { .. }), "{error:?}");
        assert_eq!(on.store.get(b"n").await.unwrap(), value);
    }
}

async fn sums_wrap_around(on: Arc<Fixture>) {
    on.store.set(b"n", i64::MAX.to_string().as_bytes()).await.unwrap();
    assert_eq!(on.store.add(b"n", 1).await.unwrap(), i64::MIN);
    assert_eq!(on.store.get(b"n").await.unwrap(), i64::MIN.to_string().into_bytes());
    assert_eq!(on.store.add(b"n", -1).await.unwrap(), i64::MAX);
}

async fn a_deleted_counter_starts_again(on: Arc<Fixture>) {
    let other = on.another();
    for _ in 0..3 {
        assert_eq!(on.store.add(b"c", 2).await.unwrap(), 2);
        assert_eq!(other.add(b"c", 2).await.unwrap(), 4);
        assert!(other.delete_key(b"c").await.unwrap());
    }
}

async fn every_sum_of_a_contended_counter_is_seen_once(on: Arc<Fixture>) {
    let sums = join_all((0..8).map(|_| {
        let store = on.another();
        async move {
            let mut sums = Vec::new();
            for _ in 0..25 {
                sums.push(store.add(b"c", 1).await.unwrap());
            }
            sums
        }
    }))
    .await
    .concat();
    let distinct: HashSet<i64> = sums.iter().copied().collect();
    assert_eq!(distinct, (1..=200).collect());
    assert_eq!(on.store.get(b"c").await.unwrap(), b"200");
}

async fn contended_adds_of_different_steps_are_all_counted(on: Arc<Fixture>) {
    join_all([1, 1, -3, 10].map(|step| {
        let store = on.another();
        async move {
            for _ in 0..20 {
                store.add(b"c", step).await.unwrap();
            }
        }
    }))
    .await;
    assert_eq!(on.store.get(b"c").await.unwrap(), b"180");
}

async fn adds_and_other_writes_of_one_key_do_not_lose_each_other(on: Arc<Fixture>) {
    on.store.set(b"c", b"0").await.unwrap();
    let adds = async {
        let store = on.another();
        for _ in 0..20 {
            store.add(b"c", 1).await.unwrap();
        }
    };
    let swaps = async {
        let store = on.another();
        let mut done = 0;
        while done < 5 {
            let now = store.get(b"c").await.unwrap();
            let number: i64 = String::from_utf8(now.clone()).unwrap().parse().unwrap();
            let more = (number + 1000).to_string().into_bytes();
            if store.compare_set(b"c", &now, &more).await.unwrap() == more {
                done += 1;
            }
        }
    };
    tokio::join!(adds, swaps);
    assert_eq!(on.store.get(b"c").await.unwrap(), b"5020");
}
