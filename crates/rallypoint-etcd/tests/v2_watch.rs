//! Watches of the v2 client: nothing is missed, whatever happens to the server or the connection.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v2::{Action, Client, Delete, Get, Put, Response, Watched};
use rallypoint_testkit::{Etcd, Proxy, Version};
use tokio::time::timeout;

fn client(endpoint: &str) -> Client {
    let mut settings = EtcdSettings::new(endpoint).unwrap();
    settings.request_timeout = Duration::from_secs(3);
    Client::connect_lazily(settings).unwrap()
}

/// The event that comes, within a time that no healthy machine needs.
async fn event(watcher: &mut rallypoint_etcd::v2::Watcher) -> Response {
    match timeout(Duration::from_secs(30), watcher.next()).await.expect("an event in time").unwrap() {
        Watched::Event(event) => *event,
        Watched::Cleared => panic!("cleared"),
    }
}

/// Begins to wait, acts while the wait is under way, and gives what came of both.
async fn event_during<T>(
    watcher: &mut rallypoint_etcd::v2::Watcher,
    act: impl Future<Output = T>,
) -> (Response, T) {
    let act = async {
        // Time to begin the poll; were it not enough, the event would come from the history.
        tokio::time::sleep(Duration::from_millis(200)).await;
        act.await
    };
    tokio::join!(event(watcher), act)
}

#[tokio::test]
async fn every_change_of_a_key_comes_in_order_and_no_other() {
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().start();
        let client = client(&etcd.endpoint());
        let before = client.find("/k", Get::new()).await.unwrap().etcd_index;
        client.set("/other", "x").await.unwrap();
        client.set("/k", "1").await.unwrap();
        client.set("/k2", "x").await.unwrap();
        client.put("/k", Put::value("2").prev_value("1")).await.unwrap();
        client.delete("/k", Delete::key()).await.unwrap();

        let mut watcher = client.watch("/k", before + 1);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let event = event(&mut watcher).await;
            assert_eq!(watcher.from(), event.node.modified_index + 1);
            seen.push((event.action, event.node.value));
        }
        let again = client.watch("/k", before + 1).past().await.unwrap();
        assert!(matches!(again, Some(Watched::Event(event)) if event.node.value.as_deref() == Some("1")));

        let value = |value: &str| Some(value.to_owned());
        let expected =
            [(Action::Set, value("1")), (Action::CompareAndSwap, value("2")), (Action::Delete, None)];
        assert_eq!(seen, expected);

        assert_eq!(watcher.past().await.unwrap(), None, "nothing more");
        let quiet = timeout(Duration::from_millis(300), watcher.next()).await;
        assert!(quiet.is_err(), "nothing more: {quiet:?}");
        let (event, _) = event_during(&mut watcher, client.set("/k", "3")).await;
        assert_eq!(event.node.value, value("3"));
    }
}

#[tokio::test]
async fn a_recursive_watch_sees_what_is_below() {
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().start();
        let client = client(&etcd.endpoint());
        let before = client.set("/d/a", "1").await.unwrap().node.modified_index;
        client.set("/e/a", "1").await.unwrap();
        client.set("/d/b/c", "2").await.unwrap();
        client.set("/d/a", "3").await.unwrap();
        let mut watcher = client.watch("/d", before + 1).recursive();
        assert_eq!(event(&mut watcher).await.node.key, "/d/b/c");
        assert_eq!(event(&mut watcher).await.node.value.as_deref(), Some("3"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_after_the_server_was_killed_and_restarted() {
    for version in Version::WITH_V2 {
        let mut etcd = Etcd::builder(version).v2().start();
        let client = client(&etcd.endpoint());
        let before = client.set("/k", "1").await.unwrap().node.modified_index;
        let mut watcher = client.watch("/k", before + 1);
        let act = async {
            tokio::task::block_in_place(|| etcd.kill());
            tokio::task::block_in_place(|| etcd.restart());
            client.set("/k", "2").await.unwrap()
        };
        let (event, written) = event_during(&mut watcher, act).await;
        assert_eq!(event.node, written.node);
    }
}

#[tokio::test]
async fn a_watch_goes_on_after_the_server_was_stopped_and_continued() {
    for version in Version::WITH_V2 {
        let mut etcd = Etcd::builder(version).v2().start();
        let client = client(&etcd.endpoint());
        let before = client.set("/k", "1").await.unwrap().node.modified_index;
        let mut watcher = client.watch("/k", before + 1);
        let act = async {
            etcd.pause();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            etcd.resume();
            client.set("/k", "2").await.unwrap()
        };
        let (event, written) = event_during(&mut watcher, act).await;
        assert_eq!(event.node, written.node);
    }
}

#[tokio::test]
async fn a_cut_loses_no_change() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let proxy = Proxy::start(&etcd.endpoint());
    let (watching, writing) = (client(&proxy.endpoint()), client(&etcd.endpoint()));
    let before = writing.set("/k", "0").await.unwrap().node.modified_index;
    let mut watcher = watching.watch("/k", before + 1);
    let act = async {
        for i in 1..=20 {
            proxy.cut();
            writing.set("/k", &i.to_string()).await.unwrap();
            proxy.refuse(i % 3 == 0);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        proxy.refuse(false);
    };
    let watch = async {
        for i in 1..=20 {
            assert_eq!(event(&mut watcher).await.node.value, Some(i.to_string()));
        }
    };
    tokio::join!(watch, act);
    assert!(proxy.accepted() > 5, "it was cut: {}", proxy.accepted());
}

#[tokio::test]
async fn an_index_that_is_no_longer_kept_is_said_to_be() {
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().start();
        let client = client(&etcd.endpoint());
        let before = client.set("/k", "1").await.unwrap().node.modified_index;
        let writes = (0..1100).map(|i| {
            let client = client.clone();
            async move { client.set(&format!("/other/{}", i % 10), "x").await.unwrap() }
        });
        use futures::stream::StreamExt;
        futures::stream::iter(writes).buffer_unordered(32).collect::<Vec<_>>().await;

        let mut watcher = client.watch("/k", before + 1);
        assert_eq!(watcher.next().await.unwrap(), Watched::Cleared);
        let fresh = client.find("/k", Get::new()).await.unwrap();
        assert_eq!(
            fresh.node.unwrap().modified_index,
            before,
            "the fresh read tells what the events would have"
        );
        let mut watcher = client.watch("/k", fresh.etcd_index + 1);
        let (event, _) = event_during(&mut watcher, client.set("/k", "2")).await;
        assert_eq!(event.node.value.as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn a_watch_with_no_server_left_fails_and_says_so() {
    let mut etcd = Etcd::builder(Version::V35).v2().start();
    let client = client(&etcd.endpoint()).retrying_for(Duration::from_secs(2));
    let before = client.set("/k", "1").await.unwrap().node.modified_index;
    let mut watcher = client.watch("/k", before + 1);
    etcd.kill();
    let error = timeout(Duration::from_secs(20), watcher.next()).await.unwrap().unwrap_err();
    let text = error.to_string();
    assert!(error.is_transient() && text.contains("watch \"/k\" at http://127.0.0.1:"), "{text}");
    etcd.restart();
    client.set("/k", "2").await.unwrap();
    assert_eq!(event(&mut watcher).await.node.value.as_deref(), Some("2"), "and can go on where it was");
}

#[tokio::test]
async fn a_server_that_hangs_is_left_for_another() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let hanging = Proxy::start(&etcd.endpoint());
    let first = client(&hanging.endpoint());
    let before = first.set("/k", "1").await.unwrap().node.modified_index;
    // Several, because each begins at an endpoint of its choice.
    let both = format!("{},{}", hanging.endpoint(), etcd.endpoint());
    let mut watchers: Vec<_> = (0..20).map(|_| client(&both).watch("/k", before + 1)).collect();
    let act = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        hanging.drop_replies(true);
        client(&etcd.endpoint()).set("/k", "2").await.unwrap()
    };
    let (events, written) = tokio::join!(futures::future::join_all(watchers.iter_mut().map(event)), act);
    assert!(events.iter().all(|event| event.node == written.node));
    assert!(hanging.accepted() > 1, "some began where nothing comes back");
}
