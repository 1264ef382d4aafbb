//! A real three-node etcd that loses its leader, stops for a while, or forgets its history.

use std::time::Duration;

use rallypoint_etcd::v3::Client;
use rallypoint_rendezvous::RendezvousHandler as _;
use rallypoint_testkit::{Cluster, Etcd, Version};

use super::{completed, meet, nodes, round_of, settings, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_round_is_formed_though_etcds_leader_is_killed_on_the_way() {
    let mut cluster = Cluster::start(Version::V35, 3);
    let settings = settings(&cluster.endpoints(), 5, 5);
    let group = nodes(&settings, ["a", "b", "c", "d", "e"]).await;
    let meetings: Vec<_> = group[..4].iter().map(meet).collect();
    within(group[0].progress().changed()).await.unwrap();
    let leader = cluster.leader();
    cluster.node(leader).kill();
    let mut meetings = meetings;
    meetings.push(meet(&group[4]));
    completed(meetings).await;

    // And the group goes on: nobody is told anything, nobody is missed.
    tokio::time::sleep(settings.lease * 2).await;
    for node in &group {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
    }
    cluster.node(leader).restart();
    assert_eq!(round_of(&group).await[0].round, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_group_outlives_an_etcd_that_is_away_for_20_seconds() {
    let all: Vec<_> = Version::all().into_iter().map(|version| tokio::spawn(outlive(version))).collect();
    for one in all {
        one.await.unwrap();
    }
}

async fn outlive(version: Version) {
    let mut cluster = Cluster::start(version, 3);
    let settings = settings(&cluster.endpoints(), 3, 4);
    let group = nodes(&settings, ["a", "b", "c"]).await;
    round_of(&group).await;
    for index in 0..3 {
        cluster.node(index).pause();
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    for index in 0..3 {
        cluster.node(index).resume();
    }
    // Long enough for everybody to be missed who could be.
    tokio::time::sleep(settings.lease * 5).await;
    for node in &group {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0, "on {version:?}");
    }
    // They are all there, and can meet.
    assert_eq!(round_of(&group).await[0].round, 2, "on {version:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_forgets_its_history_in_every_phase_disturbs_nobody() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 3, 3);
    let client = Client::connect(settings.etcd.clone()).await.unwrap();
    let compact = async || {
        // A revision of its own: none can be compacted twice.
        let revision = client.put("other", "", None).await.unwrap().header().unwrap().revision();
        let said = etcd.etcdctl(&["compact", "--physical", &revision.to_string()]);
        assert!(said.contains("compacted"), "{said}");
    };
    let group = nodes(&settings, ["a", "b", "c"]).await;
    let mut expected = 0;
    for phase in 0..4 {
        expected += 1;
        let mut meetings = Vec::new();
        for (index, node) in group.iter().enumerate() {
            meetings.push(meet(node));
            if index == phase {
                within(node.progress().changed()).await.ok();
                compact().await;
            }
        }
        assert_eq!(completed(meetings).await[0].round, expected);
        compact().await;
    }
    for node in &group {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
    }
}
