//! Behind `etcd grpc-proxy`, as a site with many nodes has it.

use std::time::Duration;

use rallypoint_rendezvous::native::NativeSettings;
use rallypoint_rendezvous::{CloseOutcome, GroupChange, RendezvousHandler as _};
use rallypoint_testkit::{Etcd, GrpcProxy, Version};

use super::{change, completed, meet, node, nodes, round_of, settings, within};

/// The same run, by another way.
fn at(settings: &NativeSettings, endpoint: &str) -> NativeSettings {
    let mut by_it = settings.clone();
    by_it.etcd = super::settings(endpoint, 1, 1).etcd;
    by_it
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_lives_behind_a_proxy_and_outlives_it() {
    let etcd = Etcd::start(Version::V35);
    let mut proxies = [GrpcProxy::start(&etcd), GrpcProxy::start(&etcd)];
    let direct = settings(&etcd.endpoint(), 2, 4);
    let [one, other] = [&proxies[0], &proxies[1]].map(|proxy| at(&direct, &proxy.endpoint()));
    let mut group = nodes(&one, ["a", "b"]).await;
    group.push(node(&other, "c").await);
    group.push(node(&direct, "d").await);
    let first = round_of(&group).await;
    assert_eq!((first[0].round, first[0].world_size), (1, 4));
    first[0].store.set(b"k", b"v").await.unwrap();
    for round in &first {
        assert_eq!(round.store.get(b"k").await.unwrap(), b"v");
    }

    // Nobody is missed, though the proxy refreshes leases when it sees fit.
    tokio::time::sleep(direct.lease * 3).await;
    for node in &group {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
    }

    // Dropped without a word: as good as killed.
    drop(group.remove(1));
    for member in &group {
        let died = GroupChange::Died { node: "b".to_owned(), rank: Some(first[1].rank) };
        assert_eq!(change(member).await, died);
    }
    let second = round_of(&group).await;
    assert_eq!((second[0].round, second[0].world_size), (2, 3));

    // A proxy that is away for a moment is an etcd that is: nobody is told of it.
    for proxy in &mut proxies {
        proxy.kill();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxies.iter_mut().for_each(GrpcProxy::restart);
    tokio::time::sleep(direct.lease * 3).await;
    let late = node(&other, "late").await;
    let waiting = meet(&late);
    for member in &group {
        assert_eq!(change(member).await, GroupChange::Waiting { count: 1 });
    }
    let mut meetings: Vec<_> = group.iter().map(meet).collect();
    meetings.push(waiting);
    let third = completed(meetings).await;
    assert_eq!((third[0].round, third[0].world_size), (3, 4));
    let ranks = |rounds: &[rallypoint_rendezvous::Rendezvous]| {
        rounds.iter().map(|round| round.rank).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&third)[..3], ranks(&second)[..]);

    // Who leaves is gone at once, and a close reaches all.
    within(late.leave()).await.unwrap();
    for member in &group {
        let left = GroupChange::Left { node: "late".to_owned(), rank: Some(third[3].rank) };
        assert_eq!(change(member).await, left);
    }
    assert_eq!(within(group[0].set_closed("done")).await.unwrap(), CloseOutcome::Closed);
    for member in &group[1..] {
        // Until it hears of that, it says again who left.
        within(async {
            while !matches!(member.changed().await, GroupChange::Closed { .. }) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}
