//! Values under keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rallypoint_store::StoreError;

use crate::suite::Fixture;

crate::cases![
    a_value_that_was_set_is_read_and_can_be_replaced,
    keys_and_values_are_any_bytes,
    values_fit_up_to_the_limit_and_beyond_it_the_error_names_it,
    compare_set_follows_c10d,
    one_of_many_compare_sets_wins,
    append_creates_and_extends,
    concurrent_appends_are_all_there,
    a_deleted_key_is_gone_once,
    keys_are_counted_and_listed,
    many_keys_are_set_and_read_at_once,
    multi_set_wants_a_value_for_each_key,
    clones_share_the_data_and_have_their_own_timeout,
    there_is_time_to_ask_even_with_no_time_to_wait,
];

async fn a_value_that_was_set_is_read_and_can_be_replaced(on: Arc<Fixture>) {
    on.store.set(b"key", b"first").await.unwrap();
    assert_eq!(on.another().get(b"key").await.unwrap(), b"first");
    on.another().set(b"key", b"second").await.unwrap();
    assert_eq!(on.store.get(b"key").await.unwrap(), b"second");
    assert_eq!(on.store.num_keys().await.unwrap(), 1);
}

async fn keys_and_values_are_any_bytes(on: Arc<Fixture>) {
    let all: Vec<u8> = (0..=255).collect();
    let long = vec![b'k'; 4096];
    let long_odd: Vec<u8> = (0..4096).map(|i| (i * 7 % 256) as u8).collect();
    let odd: Vec<&[u8]> = vec![
        b"",
        b"\0",
        b"\0\0",
        b"?",
        b"ab?",
        b"/",
        b"//",
        b"a/b",
        b"/a",
        b"a/",
        b"..",
        b"a/../b",
        b".",
        b"_hidden",
        b"-",
        b"%2F",
        b"+",
        b" ",
        b"#",
        b"&=;",
        b"\xff",
        b"\xff\xff",
        b"\xff\xff\xff",
        b"\xfe\xff",
        b"\n\r\t",
        "ключ".as_bytes(),
        b"a\0b",
        b"q/",
        b"k/",
        b"op/",
        b"=",
        b"#1,1,1",
        &all,
        &long,
        &long_odd,
    ];
    for (i, key) in odd.iter().enumerate() {
        on.store.set(key, &[format!("{i}:").as_bytes(), key].concat()).await.unwrap();
    }
    for (i, key) in odd.iter().enumerate() {
        let value = on.another().get(key).await.unwrap();
        assert_eq!(value, [format!("{i}:").as_bytes(), key].concat(), "{}", key.escape_ascii());
    }
    assert!(on.store.check(&odd).await.unwrap());
    let mut sorted: Vec<&[u8]> = odd.to_vec();
    sorted.sort_unstable();
    on.assert_keys(&sorted).await;
    for value in &odd {
        on.store.set(b"value", value).await.unwrap();
        assert_eq!(on.store.get(b"value").await.unwrap(), *value, "{}", value.escape_ascii());
    }
    for key in &odd {
        assert!(on.store.delete_key(key).await.unwrap(), "{}", key.escape_ascii());
    }
    on.assert_keys(&[b"value"]).await;
}

async fn values_fit_up_to_the_limit_and_beyond_it_the_error_names_it(on: Arc<Fixture>) {
    let Some(limit) = on.limit else { return };
    let fits: Vec<u8> = (0..limit.fits).map(|i| (i % 251) as u8).collect();
    on.store.set(b"large", &fits).await.unwrap();
    assert_eq!(on.another().get(b"large").await.unwrap(), fits);
    for &size in limit.too_large {
        let began = Instant::now();
        match on.store.set(b"larger", &vec![b'x'; size]).await {
            Err(error @ StoreError::TooLarge { .. }) => {
                let text = error.to_string();
                let StoreError::TooLarge { limit, .. } = error else { unreachable!() };
                assert!(text.contains(&limit.to_string()) && text.contains("larger"), "{text}");
            }
            other => panic!("{size} bytes: {other:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{size} bytes took {:?}", began.elapsed());
    }
    assert!(!on.store.check(&[b"larger"]).await.unwrap());
    on.store.set(b"small", b"goes on").await.unwrap();
}

async fn compare_set_follows_c10d(on: Arc<Fixture>) {
    let store = &on.store;
    // Nothing there: only an empty expectation sets it, and the expectation comes back.
    assert_eq!(store.compare_set(b"a", b"x", b"y").await.unwrap(), b"x");
    assert!(!store.check(&[b"a"]).await.unwrap());
    assert_eq!(store.compare_set(b"a", b"", b"y").await.unwrap(), b"y");
    // Something there: what is there after the call comes back.
    assert_eq!(store.compare_set(b"a", b"q", b"w").await.unwrap(), b"y");
    assert_eq!(store.compare_set(b"a", b"", b"w").await.unwrap(), b"y");
    assert_eq!(store.compare_set(b"a", b"y", b"w").await.unwrap(), b"w");
    assert_eq!(store.get(b"a").await.unwrap(), b"w");
    // An empty value equals an empty expectation.
    store.set(b"b", b"").await.unwrap();
    assert_eq!(store.compare_set(b"b", b"", b"now").await.unwrap(), b"now");
    assert_eq!(store.compare_set(b"b", b"now", b"").await.unwrap(), b"");
    assert_eq!(store.get(b"b").await.unwrap(), b"");
    // A counter compares as the number it reads as.
    store.add(b"c", 3).await.unwrap();
    assert_eq!(store.compare_set(b"c", b"4", b"9").await.unwrap(), b"3");
    assert_eq!(store.compare_set(b"c", b"3", b"9").await.unwrap(), b"9");
    assert_eq!(store.add(b"c", 1).await.unwrap(), 10);
}

async fn one_of_many_compare_sets_wins(on: Arc<Fixture>) {
    for (round, expected) in [&b""[..], b"winner"].into_iter().enumerate() {
        let tries = (0..16).map(|i| {
            let store = on.another();
            async move {
                let mine = format!("{round}/{i}");
                (mine.clone(), store.compare_set(b"key", expected, mine.as_bytes()).await.unwrap())
            }
        });
        let results = join_all(tries).await;
        let value = on.store.get(b"key").await.unwrap();
        let winners = results.iter().filter(|(mine, got)| mine.as_bytes() == *got).count();
        assert_eq!(winners, 1);
        assert!(results.iter().all(|(_, got)| *got == value), "all see the winner's value");
        on.store.set(b"key", b"winner").await.unwrap();
    }
}

async fn append_creates_and_extends(on: Arc<Fixture>) {
    on.store.append(b"a", b"po").await.unwrap();
    on.store.append(b"a", b"tato").await.unwrap();
    assert_eq!(on.store.get(b"a").await.unwrap(), b"potato");
    on.store.append(b"empty", b"").await.unwrap();
    assert!(on.store.check(&[b"empty"]).await.unwrap());
    on.store.add(b"c", 1).await.unwrap();
    on.store.append(b"c", b"2").await.unwrap();
    assert_eq!(on.store.get(b"c").await.unwrap(), b"12");
    assert_eq!(on.store.add(b"c", 1).await.unwrap(), 13);
}

async fn concurrent_appends_are_all_there(on: Arc<Fixture>) {
    join_all((0..8u8).map(|i| {
        let store = on.another();
        async move {
            for _ in 0..10 {
                store.append(b"all", &[b'a' + i, b'.']).await.unwrap();
            }
        }
    }))
    .await;
    let all = on.store.get(b"all").await.unwrap();
    assert_eq!(all.len(), 160);
    for i in 0..8u8 {
        assert_eq!(all.chunks(2).filter(|part| *part == [b'a' + i, b'.']).count(), 10);
    }
}

async fn a_deleted_key_is_gone_once(on: Arc<Fixture>) {
    on.store.set(b"key", b"value").await.unwrap();
    let deletes = join_all((0..4).map(|_| {
        let store = on.another();
        async move { store.delete_key(b"key").await.unwrap() }
    }))
    .await;
    assert_eq!(deletes.iter().filter(|gone| **gone).count(), 1);
    assert!(!on.store.check(&[b"key"]).await.unwrap());
    assert!(!on.store.delete_key(b"never there").await.unwrap());
    on.store.set(b"key", b"again").await.unwrap();
    assert_eq!(on.store.get(b"key").await.unwrap(), b"again");
}

async fn keys_are_counted_and_listed(on: Arc<Fixture>) {
    assert_eq!(on.store.num_keys().await.unwrap(), 0);
    on.assert_keys(&[]).await;
    on.store.set(b"b", b"").await.unwrap();
    on.store.add(b"a", 1).await.unwrap();
    on.store.append(b"c/d", b"x").await.unwrap();
    on.store.set(b"b", b"again").await.unwrap();
    assert_eq!(on.store.num_keys().await.unwrap(), 3);
    on.assert_keys(&[b"a", b"b", b"c/d"]).await;
    on.store.delete_key(b"b").await.unwrap();
    assert_eq!(on.store.num_keys().await.unwrap(), 2);
}

async fn many_keys_are_set_and_read_at_once(on: Arc<Fixture>) {
    let store = &on.store;
    store.multi_set(&[b"x", b"y"], &[b"1", b"2"]).await.unwrap();
    assert_eq!(store.multi_get(&[b"y", b"x", b"y"]).await.unwrap(), [b"2", b"1", b"2"]);
    store.multi_set(&[b"twice", b"twice"], &[b"first", b"last"]).await.unwrap();
    assert_eq!(store.get(b"twice").await.unwrap(), b"last");
    store.multi_set(&[], &[]).await.unwrap();
    assert_eq!(store.multi_get(&[]).await.unwrap(), Vec::<Vec<u8>>::new());

    let keys: Vec<String> = (0..300).map(|i| format!("many/{i}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    store.multi_set(&keys, &keys).await.unwrap();
    assert_eq!(on.another().multi_get(&keys).await.unwrap(), keys);
    assert!(store.check(&keys).await.unwrap());
    store.add(b"x", 4).await.unwrap();
    assert_eq!(store.multi_get(&[b"x"]).await.unwrap(), [b"5"]);
}

async fn multi_set_wants_a_value_for_each_key(on: Arc<Fixture>) {
    let error = on.store.multi_set(&[b"x", b"y"], &[b"1"]).await.unwrap_err();
    assert!(matches!(error, StoreError::LengthMismatch { keys: 2, values: 1 }), "{error:?}");
    assert!(!on.store.check(&[b"x"]).await.unwrap());
}

async fn clones_share_the_data_and_have_their_own_timeout(on: Arc<Fixture>) {
    on.store.set_timeout(Duration::from_secs(7));
    let clone = on.another();
    assert_eq!(clone.timeout(), Duration::from_secs(7));
    clone.set_timeout(Duration::from_millis(20));
    assert_eq!(on.store.timeout(), Duration::from_secs(7));
    clone.set(b"key", b"value").await.unwrap();
    assert_eq!(on.store.get(b"key").await.unwrap(), b"value");
    assert!(matches!(clone.get(b"missing").await, Err(StoreError::Timeout { .. })));
}

async fn there_is_time_to_ask_even_with_no_time_to_wait(on: Arc<Fixture>) {
    on.store.set(b"key", b"value").await.unwrap();
    let store = on.another();
    store.set_timeout(Duration::ZERO);
    assert_eq!(store.get(b"key").await.unwrap(), b"value");
    store.wait(&[b"key"], Some(Duration::ZERO)).await.unwrap();
    assert_eq!(store.multi_get(&[b"key"]).await.unwrap(), [b"value"]);
    assert!(matches!(store.get(b"missing").await, Err(StoreError::Timeout { .. })));
}
