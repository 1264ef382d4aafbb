//! Nodes on an etcd that answers, and refuses for a while: the role of their user is gone.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::Credentials;
use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_rendezvous::{RendezvousError, RendezvousHandler as _};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Version};

use super::passwords::{ask, undisturbed};
use super::{Meeting, change, completed, meet, node, nodes, round_of, within};

/// The role is gone for longer than leases live.
async fn without_the_role(etcd: &Etcd, settings: &NativeSettings) {
    etcd.revoke_role("trainer");
    tokio::time::sleep(settings.lease * 3).await;
    etcd.grant_role("trainer");
}

async fn until_there(node: &Arc<NativeHandler>, joined: usize) {
    let mut progress = rallypoint_rendezvous::RendezvousHandler::progress(&**node);
    within(progress.wait_for(|progress| progress.joined >= joined)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_round_waits_on() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let mut settings = ask(&etcd, 3);
        settings.run.min_nodes = 3;
        let mut group = nodes(&settings, ["a", "b"]).await;
        let mut meetings: Vec<_> = group.iter().map(meet).collect();
        until_there(&group[0], 2).await;
        without_the_role(&etcd, &settings).await;
        group.push(node(&settings, "c").await);
        meetings.push(meet(&group[2]));
        completed(meetings).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_meets_again_when_it_may_and_a_spare_waits_on() {
    let etcd = Etcd::start(Version::V35);
    let settings = ask(&etcd, 2);
    let group = nodes(&settings, ["a", "b"]).await;
    let before = round_of(&group).await;
    let (_spare, waiting) = spare_of(&settings).await;
    etcd.revoke_role("trainer");
    let again = meet(&group[1]);
    tokio::time::sleep(settings.lease * 2).await;
    etcd.grant_role("trainer");
    change(&group[0]).await;
    let after = completed(vec![meet(&group[0]), again]).await;
    assert_eq!(after.iter().map(|round| round.rank).collect::<Vec<_>>(), [before[0].rank, before[1].rank]);
    assert!(!waiting.is_finished(), "there is no place for the spare");
    drop(group);
    let alone = within(waiting);
    let other = node(&settings, "other").await;
    let other = meet(&other);
    assert_eq!(alone.await.unwrap().unwrap().world_size, 2);
    within(other).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_at_work_is_left_in_peace_for_as_long_as_it_takes() {
    let all = Version::all().into_iter().map(|version| {
        tokio::spawn(async move {
            let etcd = Etcd::start(version);
            let settings = ask(&etcd, 3);
            let group = nodes(&settings, ["a", "b", "c"]).await;
            round_of(&group).await;
            undisturbed(&group, settings.lease * 2).await;
            for _ in 0..2 {
                etcd.revoke_role("trainer");
                undisturbed(&group, settings.lease * 4).await;
                etcd.grant_role("trainer");
                undisturbed(&group, settings.lease * 3).await;
            }
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_renewed_is_no_word_for_a_node_that_may_do_nothing_else() {
    let all = Version::all().into_iter().map(|version| {
        tokio::spawn(async move {
            let etcd = Etcd::start(version);
            let settings = ask(&etcd, 3);
            etcd.add_user("other", "secret", &format!("rallypoint/{}/", settings.run_id));
            let (proxy, mut others) = (Proxy::start(&etcd.endpoint()), settings.clone());
            others.etcd.credentials = Some(Credentials::new("other", "secret"));
            others.etcd.endpoints = proxy.endpoint().parse().unwrap();
            let mut group = nodes(&settings, ["a", "b"]).await;
            group.push(node(&others, "c").await);
            round_of(&group).await;
            let heard = |node: &Arc<NativeHandler>| node.contact().unwrap().at.elapsed();
            etcd.revoke_role("other");
            proxy.cut();
            // etcd 3.4 renews the lease with its key, later ones a lease that has none.
            let long = settings.lease * 3;
            within(async {
                while heard(&group[2]) < long {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await;
            assert!(group[..2].iter().all(|node| heard(node) < long), "the others may all");
            etcd.grant_role("other");
            within(async {
                while heard(&group[2]) >= long {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await;
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_never_let_in_is_told_at_once_and_others_when_their_time_is_over() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = ask(&etcd, 2);
    let waiting = node(&settings, "a").await;
    let patient = meet(&waiting);
    until_there(&waiting, 1).await;
    settings.join_timeout = Duration::from_secs(6);
    let b = node(&settings, "b").await;
    etcd.revoke_role("trainer");
    let refused = within(meet(&b)).await.unwrap().unwrap_err();
    assert!(matches!(refused, RendezvousError::Connection { .. }), "{refused:?}");
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    etcd.grant_role("trainer");
    completed(vec![patient, meet(&b)]).await;
    let (_spare, spare) = spare_of(&settings).await;
    etcd.revoke_role("trainer");
    for meeting in [meet(&b), spare] {
        let refused = within(meeting).await.unwrap().unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{refused}");
    }
}

/// A node that stands by, of a group that is full.
async fn spare_of(settings: &NativeSettings) -> (Arc<NativeHandler>, Meeting) {
    let spare = node(settings, "spare").await;
    let waiting = meet(&spare);
    let mut progress = rallypoint_rendezvous::RendezvousHandler::progress(&*spare);
    within(progress.wait_for(|progress| progress.spare)).await.unwrap();
    (spare, waiting)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_an_etcd_that_is_gone_is_told_so() {
    for pauses in [false, true] {
        let mut etcd = Etcd::start(Version::V35);
        let mut settings = super::settings(&etcd.endpoint(), 2, 2);
        settings.join_timeout = Duration::from_secs(6);
        let group = nodes(&settings, ["a", "b"]).await;
        round_of(&group).await;
        let (_spare, spare) = spare_of(&settings).await;
        settings.run_id.push_str("-other");
        let a = node(&settings, "a").await;
        let waiting = meet(&a);
        until_there(&a, 1).await;
        if pauses {
            etcd.pause();
        } else {
            etcd.kill();
        }
        for meeting in [waiting, spare] {
            let error = within(meeting).await.unwrap().unwrap_err().to_string();
            assert!(error.contains(&etcd.endpoint()) && error.contains("has not answered for"), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_to_an_etcd_without_a_quorum_is_told_so_when_its_time_is_over() {
    let mut cluster = Cluster::start(Version::V35, 3);
    let mut settings = super::settings(&cluster.endpoints(), 1, 2);
    settings.join_timeout = Duration::from_secs(4);
    // Whoever waited for as long to tidy up would be too late.
    settings.lease = super::LIMIT;
    let a = node(&settings, "a").await;
    cluster.node(0).kill();
    cluster.node(1).kill();
    let error = within(meet(&a)).await.unwrap().unwrap_err();
    assert!(matches!(error, RendezvousError::Connection { .. }), "{error:?}");
    assert!(error.to_string().contains("has not answered for"), "{error}");
    within(a.leave()).await.unwrap_err();
}
