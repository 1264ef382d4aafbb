//! Watches.

use std::pin::pin;

use etcd_client::proto::{PbDeleteRequest, PbWatchRequest, PbWatchResponse};
use futures::channel::mpsc;
use futures::future::{Either, select};

use super::v3_support::{Raw, Watch, within};
use super::{delete_op, put_op, revision, txn};

/// The headers of the answer come with the first message, so who has them has its watch.
pub(super) async fn headers(client: &Raw) {
    let (requests, inbound) = mpsc::unbounded();
    let opening =
        pin!(client.stream_of::<PbWatchRequest, PbWatchResponse>("/etcdserverpb.Watch/Watch", inbound));
    // On the same connection: headers that were sent at once would be here before the answer.
    let put = pin!(client.put_kv("w/headers", "1"));
    let Either::Right((_, opening)) = select(opening, put).await else {
        panic!("it is open without a watch")
    };
    requests.unbounded_send(Watch::key("w/headers").into()).unwrap();
    let mut answers = within(opening).await.unwrap();
    let revision = client.put_kv("w/headers", "2").await;
    assert!(within(answers.message()).await.unwrap().unwrap().created);
    let told = within(answers.message()).await.unwrap().unwrap();
    assert_eq!(told.events[0].kv.as_ref().unwrap().mod_revision, revision);
}

pub(super) async fn basics(client: &Raw) {
    let first = client.put_kv("w/a", "1").await;
    client.put_kv("w/b", "1").await;
    let mut watcher = client.watcher(Watch { start_revision: first, ..Watch::span("w/", "w0") }).await;
    let created = watcher.next().await;
    assert!(created.created && created.events.is_empty(), "created comes first");
    assert_eq!((created.watch_id, created.header.unwrap().revision), (0, first + 1));
    assert_eq!(watcher.events_until(first + 1).await.len(), 2);

    client.txn(txn(vec![put_op("w/c", "1"), delete_op("w/a", ""), put_op("w/d", "1")])).await.unwrap();
    let answer = watcher.next().await;
    assert_eq!(answer.events.len(), 3, "a revision is one message");
    let deleted = &answer.events[1];
    let kv = deleted.kv.clone().unwrap();
    assert_eq!((deleted.r#type, &kv.key[..], kv.mod_revision), (1, &b"w/a"[..], first + 2));
    assert_eq!((kv.create_revision, kv.version, kv.value.len()), (0, 0, 0));
    assert_eq!(answer.header.unwrap().revision, first + 2);

    // A start in the future is waited for.
    let future = Watch { start_revision: first + 5, ..Watch::key("w/a") };
    assert_eq!(watcher.watch(future).await, 1, "ids count up");
    for _ in 0..3 {
        client.put_kv("w/a", "x").await;
    }
    loop {
        let answer = watcher.next().await;
        if answer.watch_id == 1 {
            assert_eq!(answer.events[0].kv.as_ref().unwrap().mod_revision, first + 5);
            break;
        }
    }

    // Without a key and an end, the first key there can be.
    let mut all = client.watching(Watch { range_end: vec![0], ..Watch::default() }).await;
    let revision = client.put_kv("w/all", "1").await;
    assert_eq!(all.events_until(revision).await.last().unwrap().kv.as_ref().unwrap().key, b"w/all");
}

pub(super) async fn refused(client: &Raw) {
    let mut watcher = client.watching(Watch { watch_id: 7, ..Watch::key("x") }).await;
    for (watch, reason) in [
        (Watch { watch_id: 7, ..Watch::key("x") }, "mvcc: duplicate watch ID provided on the WatchStream"),
        (Watch::span("b", "a"), "mvcc: watcher range is empty"),
        (Watch::span("a", "a"), "mvcc: watcher range is empty"),
    ] {
        watcher.send(watch);
        let answer = watcher.next().await;
        assert_eq!((answer.watch_id, answer.created, answer.canceled), (-1, true, true));
        assert_eq!(answer.cancel_reason, reason);
    }
    watcher.requests.unbounded_send(PbWatchRequest { request_union: None }).unwrap();
    assert_eq!(watcher.watch(Watch::key("y")).await, 0, "the stream goes on");
}

pub(super) async fn filters_and_previous(client: &Raw) {
    client.put_kv("f/a", "1").await;
    let mut no_put = client.watching(Watch { filters: vec![0], prev_kv: true, ..Watch::key("f/a") }).await;
    let mut no_delete = client.watching(Watch { filters: vec![1], prev_kv: true, ..Watch::key("f/a") }).await;
    client.put_kv("f/a", "2").await;
    client.delete_key("f/a").await;
    client.put_kv("f/a", "3").await;
    let deleted = no_put.next().await.events;
    assert_eq!((deleted.len(), deleted[0].r#type), (1, 1));
    assert_eq!(deleted[0].prev_kv.as_ref().unwrap().value, b"2");
    let first = no_delete.next().await.events;
    assert_eq!(first[0].prev_kv.as_ref().unwrap().value, b"1");
    let second = no_delete.next().await.events;
    assert!(second[0].prev_kv.is_none(), "a new key was nothing before");
}

pub(super) async fn progress_and_cancel(client: &Raw) {
    let mut watcher = client.watching(Watch::key("g/a")).await;
    watcher.ask_progress();
    let progress = watcher.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (-1, 0));
    assert_eq!(progress.header.unwrap().revision, revision(client).await);
    // etcd 3.5 tells no progress to a stream without a watch.
    assert_eq!(watcher.watch(Watch::key("g/other")).await, 1);
    watcher.cancel(99);
    watcher.cancel(0);
    let canceled = watcher.next().await;
    assert_eq!(
        (canceled.watch_id, canceled.canceled, canceled.created),
        (0, true, false),
        "none for one unknown"
    );
    client.put_kv("g/a", "1").await;
    watcher.ask_progress();
    assert!(watcher.next().await.events.is_empty(), "canceled is silent");
}

pub(super) async fn fragments(client: &Raw) {
    let value = "v".repeat(400 << 10);
    let start = revision(client).await;
    for key in 0..12 {
        client.put_kv(&format!("h/{key}"), &value).await;
    }
    let last =
        client.delete(PbDeleteRequest { key: "h/".into(), range_end: "h0".into(), prev_kv: false }).await;
    let last = last.unwrap().header.unwrap().revision;
    assert_eq!(last, start + 13);
    let whole = Watch { start_revision: last, prev_kv: true, ..Watch::span("h/", "h0") };
    let mut watcher = client.watching(whole.clone()).await;
    let answer = watcher.next().await;
    assert_eq!((answer.events.len(), answer.fragment), (12, false), "never split unless asked for");
    let mut watcher = client.watching(Watch { fragment: true, ..whole }).await;
    let mut sizes = Vec::new();
    loop {
        let answer = watcher.next().await;
        sizes.push(answer.events.len());
        if !answer.fragment {
            break;
        }
    }
    assert_eq!(sizes, [5, 5, 2], "each below 2 MiB");
}

/// A watch that a compaction ended keeps its id until the client cancels it too.
pub(super) async fn after_compaction(client: &Raw, lost: i64) {
    let from = |watch_id, start_revision| Watch { watch_id, start_revision, ..Watch::key("c/a") };
    let mut watcher = client.watching(from(7, lost)).await;
    let ended = watcher.next().await;
    assert!(ended.canceled && !ended.created && ended.compact_revision > lost, "{ended:?}");

    watcher.send(from(7, 0));
    let refused = watcher.next().await;
    assert_eq!((refused.created, refused.canceled, refused.watch_id), (true, true, -1), "{refused:?}");
    watcher.cancel(7);
    let canceled = watcher.next().await;
    assert_eq!((canceled.created, canceled.canceled, canceled.watch_id), (false, true, 7), "{canceled:?}");
    assert_eq!(watcher.watch(from(7, 0)).await, 7);

    // Ids that the server gives go around it too.
    let mut watcher = client.watching(from(0, lost)).await;
    assert!(watcher.next().await.canceled);
    assert_eq!(watcher.watch(from(0, 0)).await, 1);
    watcher.send(from(0, lost));
    assert_eq!(watcher.next().await.watch_id, 2);
    assert!(watcher.next().await.canceled);
    watcher.cancel(2);
    assert!(watcher.next().await.canceled);
    assert_eq!(watcher.watch(from(2, 0)).await, 2);
    let revision = client.put_kv("c/a", "4").await;
    let mut told: Vec<i64> = Vec::new();
    while told.len() < 2 {
        let answer = watcher.next().await;
        assert_eq!(answer.events[0].kv.as_ref().unwrap().mod_revision, revision);
        told.push(answer.watch_id);
    }
    told.sort_unstable();
    assert_eq!(told, [1, 2]);
}
