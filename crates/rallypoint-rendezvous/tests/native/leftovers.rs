//! What a run leaves in etcd: nothing, after a while.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::round::{EventRecord, What};
use rallypoint_etcd::v3::{Client, KeyRange};
use rallypoint_rendezvous::{CloseOutcome, GroupChange, RendezvousHandler as _, native};
use rallypoint_testkit::{Etcd, Version};

use super::{change, node, nodes, round_of, settings, within};

/// All keys, each with its lease.
async fn keys(client: &Client) -> Vec<(String, i64)> {
    let answer = client.read(&KeyRange::prefix("")).await.unwrap();
    answer.kvs().iter().map(|kv| (String::from_utf8_lossy(kv.key()).into_owned(), kv.lease())).collect()
}

/// Waits until no key is left that contains `part`.
async fn gone(client: &Client, part: &str) {
    loop {
        let from = client.get("none", None).await.unwrap().header().unwrap().revision() + 1;
        if !keys(client).await.iter().any(|(key, _)| key.contains(part)) {
            return;
        }
        within(client.watch(KeyRange::prefix(""), from).next()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_hangs_on_a_lease_and_a_closed_run_leaves_only_its_mark() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint(), 2, 2);
    settings.closed_ttl = Duration::from_secs(2);
    settings.run_ttl = settings.lease * 3;
    let client = Client::connect(settings.etcd.clone()).await.unwrap();
    let group = nodes(&settings, ["a", "b"]).await;
    let mut all = BTreeSet::new();
    for _ in 0..3 {
        for round in round_of(&group).await {
            round.store.set(b"k", b"v").await.unwrap();
            round.store.add(b"n", 1).await.unwrap();
            round.store.queue_push(b"q", b"v").await.unwrap();
        }
        all.extend(keys(&client).await);
    }
    assert!(all.len() > 20, "{all:?}");
    assert!(all.iter().all(|(_, lease)| *lease != 0), "{all:?}");
    // Only the last round's data is kept.
    gone(&client, "/store/1-").await;
    gone(&client, "/store/2-").await;
    assert!(keys(&client).await.iter().any(|(key, _)| key.contains("/store/3-")));

    assert_eq!(group[0].shutdown("done").await.unwrap(), CloseOutcome::Closed);
    change(&group[1]).await;
    assert_eq!(group[1].shutdown("done").await.unwrap(), CloseOutcome::AlreadyClosed);
    let (events, left): (Vec<_>, Vec<_>) =
        keys(&client).await.into_iter().partition(|(key, _)| key.contains("/event/"));
    assert!(left.len() == 1 && left[0].0.ends_with("/group/round"), "{left:?}");
    // What the run has been can be looked at until its leases end: three rounds, and the close.
    assert!(events.len() >= 4, "{events:?}");
    gone(&client, "").await;
}

/// All of them end at the same time, as the workers of a job do.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_well_leaves_its_mark_and_nothing_else_time_after_time() {
    let etcd = Etcd::start(Version::V35);
    for nodes_of_run in [2, 3, 20] {
        for _ in 0..10 {
            let settings = settings(&etcd.endpoint(), nodes_of_run, nodes_of_run);
            let client = Client::connect(settings.etcd.clone()).await.unwrap();
            let names: Vec<String> = (0..nodes_of_run).map(|n| format!("n{n}")).collect();
            let group = nodes(&settings, names.iter().map(String::as_str)).await;
            for round in round_of(&group).await {
                round.store.set(format!("{}", round.rank).as_bytes(), b"v").await.unwrap();
            }
            let ends: Vec<_> = group
                .iter()
                .map(|node| {
                    let node = Arc::clone(node);
                    tokio::spawn(async move { node.shutdown("done").await })
                })
                .collect();
            for end in ends {
                let outcome = within(end).await.unwrap().unwrap();
                assert!(matches!(outcome, CloseOutcome::Closed | CloseOutcome::AlreadyClosed), "{outcome:?}");
            }
            let of_run = format!("/{}/", settings.run_id);
            let is_left = |key: &str| key.contains(&of_run) && !key.contains("/event/");
            let left: Vec<_> = keys(&client).await.into_iter().filter(|(key, _)| is_left(key)).collect();
            assert!(left.len() == 1 && left[0].0.ends_with("/group/round"), "{nodes_of_run} nodes: {left:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_a_run_whose_nodes_all_died() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint(), 1, 1);
    settings.run_ttl = settings.lease * 3;
    let client = Client::connect(settings.etcd.clone()).await.unwrap();
    let lonely = node(&settings, "a").await;
    let round = within(lonely.next_rendezvous()).await.unwrap();
    round.store.set(b"k", b"v").await.unwrap();
    drop((round, lonely));
    assert!(keys(&client).await.len() >= 4);
    gone(&client, "").await;
}

/// A node that hangs while the others meet again, on another lease, knows only the one that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_node_is_kept_also_when_the_lease_that_it_knows_is_gone() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 1, 2);
    let client = Client::connect(settings.etcd.clone()).await.unwrap();
    let group = nodes(&settings, ["a", "b"]).await;
    round_of(&group).await;
    let lease_of_the_round = async || {
        let keys = keys(&client).await;
        keys.iter().find(|(key, _)| key.ends_with("group/round")).map_or(0, |(_, lease)| *lease)
    };
    let before = lease_of_the_round().await;
    let revoked = etcd.etcdctl(&["lease", "revoke", &format!("{before:x}")]);
    assert!(revoked.contains("revoked"), "{revoked}");
    // One of them goes on without the other.
    assert_eq!(change(&group[0]).await, GroupChange::StateLost);
    within(group[0].next_rendezvous()).await.unwrap();
    assert!(![0, before].contains(&lease_of_the_round().await), "it has another");

    let what = What::Unhealthy { problems: vec!["a GPU is lost".to_owned()] };
    group[1].record(&EventRecord::new(1, "b", 1, what.clone())).await;
    let events = native::events(&client, &settings.run_id).await.unwrap();
    assert!(events.iter().any(|event| event.record.what == what), "{events:?}");
}
