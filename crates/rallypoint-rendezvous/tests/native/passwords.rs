//! A group on an etcd that asks for passwords, as a user who may touch nothing but the keys of its run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_core::Credentials;
use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_rendezvous::{GroupChange, RendezvousHandler as _};
use rallypoint_testkit::{Etcd, Version};

use super::{change, nodes, round_of, settings};

pub(super) fn ask(etcd: &Etcd, max: usize) -> NativeSettings {
    let mut settings = settings(&etcd.endpoint(), 2, max);
    etcd.ask_for_passwords("trainer", "secret", &format!("rallypoint/{}/", settings.run_id));
    settings.etcd.credentials = Some(Credentials::new("trainer", "secret"));
    settings
}

/// Nobody is told anything for this long.
pub(super) async fn undisturbed(group: &[Arc<NativeHandler>], time: Duration) {
    let changes = futures::future::select_all(group.iter().map(|node| Box::pin(node.changed())));
    if let Ok((change, ..)) = tokio::time::timeout(time, changes).await {
        panic!("{change:?}");
    }
}

/// What is left beside a lease on a machine that has other things to do.
const LATE: Duration = Duration::from_secs(10);

/// Ends one of them without a word, and waits for the others to be told.
async fn lose_one(group: &mut Vec<Arc<NativeHandler>>, limit: Duration) {
    drop(group.pop());
    let began = Instant::now();
    for member in group {
        let change = change(member).await;
        assert!(matches!(change, GroupChange::Died { .. }), "{change:?}");
    }
    assert!(began.elapsed() < limit, "told after {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_touch_only_the_run_meets_works_and_is_told_of_a_death() {
    for version in Version::all() {
        let etcd = Etcd::start(version);
        let settings = ask(&etcd, 2);
        let mut group = nodes(&settings, ["a", "b"]).await;
        let rounds = round_of(&group).await;
        rounds[0].store.set(b"k", b"v").await.unwrap();
        assert_eq!(rounds[1].store.get(b"k").await.unwrap(), b"v");
        undisturbed(&group, settings.lease * 3).await;
        lose_one(&mut group, settings.lease + LATE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_taken_away_for_a_while_ends_no_round_and_hides_no_death() {
    let all: Vec<_> = Version::all()
        .into_iter()
        .flat_map(|version| [2, 5].map(|seconds| tokio::spawn(without_the_role(version, seconds))))
        .collect();
    for one in all {
        one.await.unwrap();
    }
}

async fn without_the_role(version: Version, seconds: u64) {
    let etcd = Etcd::start(version);
    let mut settings = ask(&etcd, 3);
    settings.lease = Duration::from_secs(5);
    let mut group = nodes(&settings, ["a", "b", "c"]).await;
    round_of(&group).await;
    undisturbed(&group, settings.lease * 2).await;
    etcd.revoke_role("trainer");
    undisturbed(&group, Duration::from_secs(seconds)).await;
    etcd.grant_role("trainer");
    undisturbed(&group, settings.lease * 3).await;
    lose_one(&mut group, settings.lease + LATE).await;
    assert_eq!(round_of(&group).await[0].round, 2, "on {version:?}");
}
