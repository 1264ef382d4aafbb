//! Watches: every event or a fresh read, whatever happens to the connection and the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::{Duration, Instant};

use rallypoint_core::{Credentials, EtcdSettings};
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v3::{Client, Event, KeyRange, Watch, WatchUpdate};
use rallypoint_testkit::{Etcd, Proxy, Version};

async fn connect(endpoint: &str) -> Client {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.request_timeout = Duration::from_secs(30);
    Client::connect(settings).await.unwrap()
}

async fn next(watch: &mut Watch) -> WatchUpdate {
    tokio::time::timeout(Duration::from_secs(30), watch.next()).await.expect("an update in time").unwrap()
}

/// The next events, in text: `a=1` for a write, `a!` for a deletion.
async fn events(watch: &mut Watch) -> Vec<String> {
    match next(watch).await {
        WatchUpdate::Events(events) => events.iter().map(text).collect(),
        other => panic!("{other:?}"),
    }
}

fn text(event: &Event) -> String {
    match event {
        Event::Put(entry) => format!("{}={}", entry.key.escape_ascii(), entry.value.escape_ascii()),
        Event::Delete { key, .. } => format!("{}!", key.escape_ascii()),
    }
}

#[tokio::test]
async fn events_come_in_order_from_the_revision_asked_for() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
        settings.prefix = "/me/".into();
        let client = Client::connect(settings).await.unwrap();
        let first = client.put("a", "1", None).await.unwrap().header().unwrap().revision();
        client.put("b", "2", None).await.unwrap();

        let mut all = client.watch(KeyRange::prefix(""), first);
        let mut only_b = client.watch(KeyRange::key("b"), first + 2);
        client.put("b", "3", None).await.unwrap();
        client.delete("a", None).await.unwrap();
        let _ = etcd.etcdctl(&["put", "/other/a", "unseen"]);
        let mut seen = Vec::new();
        while seen.len() < 4 {
            seen.extend(events(&mut all).await);
        }
        assert_eq!(seen, ["a=1", "b=2", "b=3", "a!"]);
        assert_eq!(events(&mut only_b).await, ["b=3"]);
    }
}

/// Writes `from..to` as the values of `key`.
async fn count(client: &Client, key: &str, from: u32, to: u32) {
    for i in from..to {
        client.put(key, i.to_string(), None).await.unwrap();
    }
}

/// Reads on until the value `last`. Nothing may be missing before it, but for what a fresh read stands for.
async fn expect_count(watch: &mut Watch, from: u32, last: u32) {
    let mut expected = from;
    while expected <= last {
        match next(watch).await {
            WatchUpdate::Events(events) => {
                for event in events {
                    assert_eq!(text(&event), format!("n={expected}"));
                    expected += 1;
                }
            }
            WatchUpdate::Snapshot { entries, .. } => {
                let Some(entry) = entries.first() else { continue };
                let found: u32 = String::from_utf8_lossy(&entry.value).parse().unwrap();
                assert!(found + 1 >= expected, "{found} was told before");
                expected = found + 1;
            }
        }
    }
}

/// Reads on until a key has this value: `a=1`.
async fn expect_value(watch: &mut Watch, value: &str) {
    loop {
        let told: Vec<String> = match next(watch).await {
            WatchUpdate::Events(events) => events.iter().map(text).collect(),
            WatchUpdate::Snapshot { entries, .. } => {
                entries.into_iter().map(|entry| text(&Event::Put(entry))).collect()
            }
        };
        if told.last().is_some_and(|last| last == value) {
            return;
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_again_and_again_loses_nothing() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let watcher = connect(&proxy.endpoint()).await;
    let writer = connect(&etcd.endpoint()).await;
    let mut watch = watcher.watch(KeyRange::key("n"), 1);
    for cuts in 0..5 {
        let (first, next) = (cuts * 400, cuts * 400 + 400);
        let writing = async {
            count(&writer, "n", first, first + 100).await;
            proxy.cut();
            count(&writer, "n", first + 100, next).await;
        };
        tokio::join!(expect_count(&mut watch, first, next - 1), writing);
    }
    assert!(proxy.accepted() > 5, "the connection was really cut");
}

#[tokio::test]
async fn a_restarted_and_a_paused_server_lose_nothing() {
    let mut etcd = Etcd::start(Version::V35);
    let client = connect(&etcd.endpoint()).await;
    let mut watch = client.watch(KeyRange::key("n"), 1);
    count(&client, "n", 0, 5).await;
    expect_count(&mut watch, 0, 4).await;
    etcd.kill();
    etcd.restart();
    client.status().await.unwrap();
    count(&client, "n", 5, 10).await;
    expect_count(&mut watch, 5, 9).await;
    etcd.pause();
    let read = tokio::time::timeout(Duration::from_secs(3), watch.next()).await;
    assert!(read.is_err(), "nothing to tell while the server stands still");
    etcd.resume();
    client.status().await.unwrap();
    count(&client, "n", 10, 15).await;
    expect_count(&mut watch, 10, 14).await;
}

#[tokio::test]
async fn what_was_compacted_away_is_made_up_for_by_a_fresh_read() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let watcher = connect(&proxy.endpoint()).await;
    let writer = connect(&etcd.endpoint()).await;
    let mut watch = watcher.watch(KeyRange::prefix(""), 1);
    writer.put("n", "0", None).await.unwrap();
    assert_eq!(events(&mut watch).await, ["n=0"]);

    proxy.refuse(true);
    proxy.cut();
    count(&writer, "n", 1, 5).await;
    let revision = writer.put("m", "x", None).await.unwrap().header().unwrap().revision();
    let _ = etcd.etcdctl(&["compaction", &revision.to_string()]);
    proxy.refuse(false);

    let WatchUpdate::Snapshot { revision: read_at, entries } = next(&mut watch).await else {
        panic!("the events are gone")
    };
    assert_eq!(read_at, revision);
    let found: Vec<_> = entries.iter().map(|entry| (entry.key.as_slice(), entry.value.as_slice())).collect();
    assert_eq!(found, [(&b"m"[..], &b"x"[..]), (b"n", b"4")]);
    writer.delete("m", None).await.unwrap();
    assert_eq!(events(&mut watch).await, ["m!"]);
}

#[tokio::test]
async fn a_reader_that_is_too_slow_gets_a_fresh_read_and_holds_nobody_up() {
    let etcd = Etcd::builder(Version::V35).unsafe_no_fsync().start();
    let client = connect(&etcd.endpoint()).await;
    let mut slow = client.watch(KeyRange::key("n"), 1);
    let mut quick = client.watch(KeyRange::key("n"), 1);
    // One at a time, so that each is a message of its own.
    let reading = tokio::spawn(async move {
        expect_count(&mut quick, 0, 2999).await;
    });
    count(&client, "n", 0, 3000).await;
    reading.await.unwrap();
    let mut last = String::new();
    let mut snapshots = 0;
    while last != "n=2999" {
        match next(&mut slow).await {
            WatchUpdate::Events(events) => last = text(events.last().unwrap()),
            WatchUpdate::Snapshot { entries, .. } => {
                snapshots += 1;
                last = format!("n={}", entries[0].value.escape_ascii());
            }
        }
    }
    assert_eq!(snapshots, 1);
    client.put("n", "on", None).await.unwrap();
    assert_eq!(events(&mut slow).await, ["n=on"]);
}

#[tokio::test]
async fn thousands_of_watches_share_a_stream_come_back_after_a_cut_and_end_when_dropped() {
    let etcd = Etcd::start(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let watcher = connect(&proxy.endpoint()).await;
    let writer = connect(&etcd.endpoint()).await;
    let mut watches: Vec<Watch> = (0..3000).map(|_| watcher.watch(KeyRange::key("go"), 1)).collect();
    writer.put("go", "1", None).await.unwrap();
    for watch in &mut watches {
        assert_eq!(events(watch).await, ["go=1"]);
    }
    proxy.cut();
    writer.put("go", "2", None).await.unwrap();
    for watch in &mut watches {
        expect_value(watch, "go=2").await;
    }
    watches.truncate(10);
    // The server hears of it on the stream: as soon as it does, it is so.
    let gone = async {
        while etcd.metric("etcd_debugging_mvcc_watcher_total") != 10.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("dropped watches end at the server");
    writer.put("go", "3", None).await.unwrap();
    for watch in &mut watches {
        assert_eq!(events(watch).await, ["go=3"]);
    }
}

/// An etcd with a user `root` (password `secret`), and one `guest` who may do nothing.
fn with_users(etcd: Etcd) -> Etcd {
    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "guest:guest"],
        &["auth", "enable"],
    ] {
        let _ = etcd.etcdctl(args);
    }
    etcd
}

async fn connect_as(endpoint: &str, user: &str, password: &str) -> Client {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.request_timeout = Duration::from_secs(2);
    settings.credentials = Some(Credentials::new(user, password));
    Client::connect(settings).await.unwrap()
}

#[tokio::test]
async fn a_key_that_may_not_be_watched_is_an_error() {
    for version in Version::all() {
        let etcd = with_users(Etcd::start(version));
        let client = connect_as(&etcd.endpoint(), "guest", "guest").await;
        let mut watch = client.watch(KeyRange::key("secret"), 1);
        let error = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("\"secret\""), "{error}");
    }
}

#[tokio::test]
async fn a_permission_that_is_lost_is_told_once_a_second_and_one_that_comes_back_is_noticed() {
    for version in Version::all() {
        let etcd = with_users(Etcd::start(version));
        let root = |args: &[&str]| etcd.etcdctl(&[&["--user=root:secret"], args].concat());
        let _ = root(&["role", "add", "reader"]);
        let _ = root(&["role", "grant-permission", "reader", "readwrite", "n"]);
        let _ = root(&["user", "grant-role", "guest", "reader"]);
        let proxy = Proxy::start(&etcd.endpoint());
        let client = connect_as(&proxy.endpoint(), "guest", "guest").await;
        let mut watch = client.watch(KeyRange::key("n"), 1);
        let _ = root(&["put", "n", "0"]);
        expect_value(&mut watch, "n=0").await;

        let _ = root(&["user", "revoke-role", "guest", "reader"]);
        proxy.cut();
        // As a driver does it, that looks at other things all the time.
        let mut errors = Vec::new();
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(4500) {
            tokio::select! {
                update = watch.next() => match update {
                    Err(error) => errors.push((began.elapsed(), error.kind())),
                    Ok(update) => panic!("{update:?} without a permission"),
                },
                _ = ticks.tick() => {}
            }
        }
        assert!(errors.iter().all(|(_, kind)| *kind == ErrorKind::PermissionDenied), "{errors:?}");
        assert!((3..=5).contains(&errors.len()), "{errors:?}");

        let _ = root(&["user", "grant-role", "guest", "reader"]);
        let _ = root(&["put", "n", "1"]);
        let granted = Instant::now();
        loop {
            tokio::select! {
                update = watch.next() => match update {
                    Ok(WatchUpdate::Snapshot { entries, .. }) if entries[0].value == b"1" => break,
                    Ok(WatchUpdate::Events(events)) if events.iter().any(|event| text(event) == "n=1") => break,
                    _ => {}
                },
                _ = ticks.tick() => {}
            }
        }
        assert!(granted.elapsed() < Duration::from_secs(15), "{:?}", granted.elapsed());
        let _ = root(&["put", "n", "2"]);
        assert_eq!(events(&mut watch).await, ["n=2"]);
    }
}

#[tokio::test]
async fn a_password_whose_token_the_server_has_forgotten_is_shown_again() {
    for version in Version::all() {
        let mut etcd = with_users(Etcd::start(version));
        let client = connect_as(&etcd.endpoint(), "root", "secret").await;
        let mut watch = client.watch(KeyRange::key("n"), 1);
        client.put("n", "0", None).await.unwrap();
        assert_eq!(events(&mut watch).await, ["n=0"]);
        // Tokens are in the server's memory alone.
        etcd.terminate();
        etcd.restart();
        client.status().await.unwrap();
        client.put("n", "1", None).await.unwrap();
        expect_value(&mut watch, "n=1").await;
    }
}

#[tokio::test]
async fn a_server_that_comes_back_with_less_is_read_afresh() {
    let one = Etcd::start(Version::V35);
    let proxy = Proxy::start(&one.endpoint());
    let client = connect(&proxy.endpoint()).await;
    let writer = connect(&one.endpoint()).await;
    count(&writer, "n", 0, 20).await;
    let mut watch = client.watch(KeyRange::key("n"), 21);
    assert_eq!(events(&mut watch).await, ["n=19"]);
    // Another, empty, server answers where the first did.
    let two = Etcd::start(Version::V35);
    let _ = two.etcdctl(&["put", "n", "new"]);
    proxy.retarget(&two.endpoint());
    proxy.cut();
    let WatchUpdate::Snapshot { revision, entries } = next(&mut watch).await else { panic!("a fresh read") };
    assert_eq!((revision, entries[0].value.as_slice()), (2, &b"new"[..]));
    let _ = two.etcdctl(&["put", "n", "newer"]);
    assert_eq!(events(&mut watch).await, ["n=newer"]);
}

#[tokio::test]
async fn a_watch_from_now_on_tells_when_it_has_begun_and_loses_nothing_after_that() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let proxy = Proxy::start(&etcd.endpoint());
        let client = connect(&proxy.endpoint()).await;
        let writer = connect(&etcd.endpoint()).await;
        count(&writer, "n", 0, 5).await;
        let mut watch = client.watch_from_now(KeyRange::key("n"));
        assert!(events(&mut watch).await.is_empty(), "it has begun, and what was before is not its affair");
        // Where now was is remembered through a cut.
        proxy.refuse(true);
        proxy.cut();
        count(&writer, "n", 5, 10).await;
        proxy.refuse(false);
        expect_count(&mut watch, 5, 9).await;
    }
}
