//! Watches of v2 keys: who is told of what, and that nobody who does not listen costs anything.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use v2_support::{Answer, Limits, TIMEOUT, Target};

/// The next event of a watch, as `action key modifiedIndex`.
async fn next(watch: &mut Response) -> String {
    let chunk = timeout(TIMEOUT, watch.chunk()).await.expect("an event in time").unwrap();
    summary(&chunk.expect("the watch goes on"))
}

fn summary(event: &[u8]) -> String {
    let event: Value = serde_json::from_slice(event).unwrap();
    let node = &event["node"];
    format!(
        "{} {} {}",
        event["action"].as_str().unwrap(),
        node["key"].as_str().unwrap(),
        node["modifiedIndex"]
    )
}

async fn only_event(watch: Response) -> String {
    summary(Answer::read(watch).await.body.as_bytes())
}

async fn index(target: &Target) -> u64 {
    target.get("", "").await.index.unwrap()
}

/// The value of one of our metrics without labels.
async fn metric(target: &Target, name: &str) -> u64 {
    let text = target.client.get(target.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    line.parse().unwrap()
}

async fn until_metric(target: &Target, name: &str, wanted: u64) {
    let reached = async {
        while metric(target, name).await != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, reached).await.unwrap_or_else(|_| panic!("{name} never became {wanted}"));
}

const WATCHERS: &str = "etcd_debugging_store_watchers";

#[tokio::test]
async fn headers_go_out_at_once_with_the_index_of_the_start() {
    for target in Target::every().await {
        target.put("/a", "value=1").await;
        let at = index(&target).await;
        let watch = target.watch("/a", "").await;
        target.put("/other", "value=1").await;
        target.put("/a", "value=2").await;
        let answer = Answer::read(watch).await;
        assert_eq!(answer.index, Some(at), "{}", target.name);
        assert!(answer.has_cluster && answer.has_raft && answer.content_type == "application/json");
        assert_eq!(summary(answer.body.as_bytes()), format!("set /a {}", at + 2), "{}", target.name);
        assert!(answer.body.contains("\"prevNode\"") && answer.body.ends_with("}\n"));
    }
}

#[tokio::test]
async fn setting_the_same_value_fires_and_a_failed_compare_is_silent() {
    for target in Target::every().await {
        target.put("/a", "value=1").await;
        let at = index(&target).await;
        let watch = target.watch("/a", "").await;
        assert_eq!(target.put("/a", "value=2&prevValue=x").await.status, 412);
        assert_eq!(target.put("/a", "value=2&prevExist=false").await.status, 412);
        target.put("/a", "value=1").await;
        assert_eq!(only_event(watch).await, format!("set /a {}", at + 1), "{}", target.name);
    }
}

#[tokio::test]
async fn a_watch_can_begin_in_the_past_now_and_in_the_future() {
    for target in Target::every().await {
        let at = index(&target).await;
        for value in ["1", "2"] {
            target.put("/d/a", &format!("value={value}")).await;
        }
        target.put("/d/b", "value=3").await;
        let past = target.watch("/d/a", &format!("waitIndex={}", at + 2)).await;
        assert_eq!(only_event(past).await, format!("set /d/a {}", at + 2), "{}", target.name);
        let past = target.watch("/d", &format!("recursive=true&waitIndex={}", at + 1)).await;
        assert_eq!(only_event(past).await, format!("set /d/a {}", at + 1), "{}", target.name);
        let now = target.watch("/d/a", "waitIndex=0").await;
        let future = target.watch("/d/a", &format!("waitIndex={}", at + 5)).await;
        target.put("/d/a", "value=4").await;
        assert_eq!(only_event(now).await, format!("set /d/a {}", at + 4), "{}", target.name);
        target.put("/d/a", "value=5").await;
        assert_eq!(only_event(future).await, format!("set /d/a {}", at + 5), "{}", target.name);
    }
}

#[tokio::test]
async fn after_a_thousand_events_the_past_is_cleared() {
    for target in Target::all().await {
        target.put("/first", "value=1").await;
        let first = index(&target).await;
        for _ in 0..20 {
            let writes = (0..50).map(|_| target.put("/a", "value=1"));
            futures::future::join_all(writes).await;
        }
        let at = index(&target).await;
        assert_eq!(at, first + 1000);
        let kept = target.watch("/a", &format!("waitIndex={}", first + 1)).await;
        assert_eq!(only_event(kept).await, format!("set /a {}", first + 1), "{}", target.name);
        let cleared = target.call(Method::GET, "/first", &format!("wait=true&waitIndex={first}")).await;
        assert_eq!((cleared.status, cleared.index), (400, Some(at)), "{}", target.name);
        let body: Value = serde_json::from_str(&cleared.body).unwrap();
        assert_eq!(body["errorCode"], 401);
        let cause = format!("the requested history has been cleared [{}/{first}]", first + 1);
        assert_eq!(body["cause"], cause.as_str(), "{}", target.name);
    }
}

#[tokio::test]
async fn hidden_nodes_are_seen_by_who_knows_their_name() {
    for target in Target::every().await {
        let at = index(&target).await;
        let (above, by_name) =
            (target.watch("/d", "recursive=true").await, target.watch("/d/_h", "recursive=true").await);
        target.put("/d/_h/a", "value=1").await;
        target.put("/d/b", "value=1").await;
        assert_eq!(only_event(above).await, format!("set /d/b {}", at + 2), "{}", target.name);
        assert_eq!(only_event(by_name).await, format!("set /d/_h/a {}", at + 1), "{}", target.name);
    }
}

#[tokio::test]
async fn the_end_of_a_directory_wakes_the_watchers_of_its_children_and_costs_one_index() {
    let targets = Target::all().await;
    // All at once: nobody likes to wait.
    let each = targets.iter().map(async |target| {
        // Long enough for all that comes before its end.
        target.put("/d", "dir=true&ttl=4").await;
        target.put("/d/a/b", "value=1").await;
        let at = target.put("/d/a/c", "value=1&ttl=4").await.index.unwrap();
        let watches = [
            target.watch("/d/a/b", "").await,
            target.watch("/d/a", "recursive=true").await,
            target.watch("/d", "").await,
            target.watch("", "recursive=true").await,
        ];
        for watch in watches {
            assert_eq!(only_event(watch).await, format!("expire /d {}", at + 1), "{}", target.name);
        }
        assert_eq!(index(target).await, at + 1, "{}", target.name);
        assert_eq!(target.get("/d/a/b", "").await.status, 404);
    });
    futures::future::join_all(each).await;
}

#[tokio::test]
async fn a_ttl_of_zero_ends_at_once_and_is_told() {
    for target in Target::every().await {
        let at = index(&target).await;
        let mut stream = target.watch("/a", "stream=true").await;
        let set = target.put("/a", "value=1&ttl=0").await;
        assert!(set.status == 201 && set.body.contains("expiration") && !set.body.contains("ttl"), "{set:?}");
        assert_eq!(next(&mut stream).await, format!("set /a {}", at + 1), "{}", target.name);
        assert_eq!(next(&mut stream).await, format!("expire /a {}", at + 2), "{}", target.name);
        target.until_gone("/a").await;
    }
}

#[tokio::test]
async fn a_refresh_wakes_nobody_and_puts_the_end_off() {
    for target in Target::every().await {
        target.put("/a", "value=1&ttl=100").await;
        let at = index(&target).await;
        let watch = target.watch("/a", "").await;
        assert_eq!(target.put("/a", "refresh=true&ttl=100&prevExist=true").await.status, 200);
        assert_eq!(target.put("/a", "refresh=true&ttl=1").await.status, 200);
        // The first word that comes is of its end.
        assert_eq!(only_event(watch).await, format!("expire /a {}", at + 3), "{}", target.name);
        let past = target.watch("/a", &format!("waitIndex={}", at + 1)).await;
        assert_eq!(only_event(past).await, format!("expire /a {}", at + 3), "{}", target.name);
    }
}

#[tokio::test]
async fn a_stream_goes_on() {
    for target in Target::every().await {
        let at = index(&target).await;
        let mut stream = target.watch("/d", "recursive=true&stream=true").await;
        for n in 1..=150 {
            target.put(&format!("/d/{n}"), "value=1").await;
            assert_eq!(next(&mut stream).await, format!("set /d/{n} {}", at + n), "{}", target.name);
        }
    }
}

#[tokio::test]
async fn a_stream_of_the_past_gets_all_of_it_and_each_end_once() {
    // Here etcd is no example: it gives the first event only, and tells of ends twice.
    let target = Target::embedded().await;
    let at = index(&target).await;
    for n in 1..=300 {
        target.put("/a", &format!("value={n}")).await;
    }
    let mut stream = target.watch("/a", &format!("stream=true&waitIndex={}", at + 1)).await;
    let mut text = Vec::new();
    target.delete("/a", "").await;
    target.put("/a", "value=last").await;
    while text.iter().filter(|&&byte| byte == b'\n').count() < 302 {
        text.extend(timeout(TIMEOUT, stream.chunk()).await.unwrap().unwrap().unwrap());
    }
    let events: Vec<String> =
        text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(summary).collect();
    let wanted: Vec<String> =
        (1..=302).map(|n| format!("{} /a {}", if n == 301 { "delete" } else { "set" }, at + n)).collect();
    assert_eq!(events, wanted);
}

#[tokio::test]
async fn who_goes_away_leaves_no_watcher_behind() {
    let target = Target::embedded().await;
    let mut watches = Vec::new();
    for n in 0..100 {
        watches.push(target.watch("/a", if n % 2 == 0 { "" } else { "stream=true" }).await);
    }
    assert_eq!(metric(&target, WATCHERS).await, 100);
    drop(watches);
    until_metric(&target, WATCHERS, 0).await;
}

#[tokio::test]
async fn who_does_not_read_is_cut_off_and_holds_nobody_up() {
    let target = Target::embedded().await;
    let mut slow = TcpStream::connect(target.address).await.unwrap();
    slow.write_all(b"GET /v2/keys/a?wait=true&stream=true HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    until_metric(&target, WATCHERS, 1).await;
    let mut fast = target.watch("/a", "stream=true").await;
    // More than the buffers of both kernels and of the server hold.
    let value = format!("value={}", "x".repeat(256 * 1024));
    for _ in 0..200 {
        assert!(target.put("/a", &value).await.status < 300);
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.extend(timeout(TIMEOUT, fast.chunk()).await.unwrap().unwrap().unwrap());
        }
    }
    assert_eq!(metric(&target, "rallypoint_v2_watchers_cut_total").await, 1);
    assert_eq!(metric(&target, WATCHERS).await, 1);
    // What was in its queue still comes, and then the end.
    let mut rest = Vec::new();
    timeout(TIMEOUT, async {
        while !rest.ends_with(b"\r\n0\r\n\r\n") {
            assert_ne!(slow.read_buf(&mut rest).await.unwrap(), 0);
        }
    })
    .await
    .expect("the stream ends");
    assert!(rest.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn there_are_only_so_many_watchers() {
    let target = Target::embedded_with(Limits { watchers: 3, ..Limits::default() }).await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(target.watch("/a", "").await);
    }
    let refused = target.call(Method::GET, "/a", "wait=true").await;
    assert_eq!(refused.status, 500);
    assert!(refused.body.contains("too many watchers: the limit is 3"), "{}", refused.body);
    target.put("/a", "value=1").await;
    for watch in watches {
        only_event(watch).await;
    }
    drop(target.watch("/a", "").await);
}

#[tokio::test]
async fn one_write_wakes_a_thousand_watchers() {
    let target = Target::embedded().await;
    let watches = futures::future::join_all((0..1000).map(|_| target.watch("/a", ""))).await;
    let at = index(&target).await;
    target.put("/a", "value=1").await;
    for event in futures::future::join_all(watches.into_iter().map(only_event)).await {
        assert_eq!(event, format!("set /a {}", at + 1));
    }
    assert_eq!(metric(&target, WATCHERS).await, 0);
}
