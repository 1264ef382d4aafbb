//! Who is kept out, and whole segments.

use std::num::NonZeroUsize;
use std::time::Duration;

use rallypoint_core::round::{RankPolicy, What};
use rallypoint_rendezvous::native::{self, NodeState, WhenExcluded};
use rallypoint_rendezvous::{
    ExclusionOutcome, GroupChange, RendezvousError, RendezvousHandler, RendezvousParameters, Whom,
};
use rallypoint_server::{Config, Server};
use rallypoint_testkit::{Etcd, Version};

use super::{change, completed, meet, node, nodes, round_of, settings, within};

async fn client(settings: &native::NativeSettings) -> rallypoint_etcd::v3::Client {
    rallypoint_etcd::v3::Client::connect(settings.etcd.clone()).await.unwrap()
}

/// On etcd and on the embedded server: a member is excluded by another, a spare takes its place, and it is let in again.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_excluded_is_told_and_a_spare_takes_its_place() {
    let etcd = Etcd::start(Version::V35);
    let embedded = Server::bind(Config::default()).unwrap();
    for endpoint in [etcd.endpoint(), embedded.address().to_string()] {
        let mut settings = settings(&endpoint, 3, 3);
        // Nothing of what follows waits for a lease or a last call to end.
        (settings.lease, settings.last_call) = (Duration::from_secs(600), Duration::from_secs(3600));
        settings.run_ttl = Duration::from_secs(1800);
        let group = nodes(&settings, ["a", "b", "c"]).await;
        let first = round_of(&group).await;
        let spare = node(&settings, "spare").await;
        let standby = meet(&spare);
        within(spare.progress().wait_for(|progress| progress.spare)).await.unwrap();

        let b = Whom::Node("b".to_owned());
        let stranger = node(&settings, "stranger").await;
        let refused = stranger.exclude(b.clone(), "out of spite", None).await.unwrap();
        assert_eq!(refused, ExclusionOutcome::NotAMember);
        let done = group[0].exclude(b.clone(), "it fails first", None).await.unwrap();
        assert_eq!(done, ExclusionOutcome::Done);
        let kept_out = GroupChange::MemberKeptOut { node: "b".to_owned(), rank: Some(first[1].rank) };
        for member in [&group[0], &group[2]] {
            assert_eq!(change(member).await, kept_out);
        }
        let told = GroupChange::KeptOut { reason: "it fails first".to_owned(), until: None };
        assert_eq!(change(&group[1]).await, told);
        // Nobody waits for it, and it need not even have left.
        let second = completed(vec![meet(&group[0]), meet(&group[2]), standby]).await;
        let ranks: Vec<usize> = second.iter().map(|round| round.rank).collect();
        assert_eq!(ranks, [first[0].rank, first[2].rank, first[1].rank]);

        let error = within(group[1].next_rendezvous()).await.unwrap_err();
        let RendezvousError::Excluded { reason, until: None, .. } = &error else { panic!("{error:?}") };
        assert_eq!(reason, "it fails first");
        let client = client(&settings).await;
        let status = native::status(&client, &settings.run_id).await.unwrap().unwrap();
        assert_eq!(
            status.excluded.iter().map(|it| (&it.whom, it.by.as_str())).collect::<Vec<_>>(),
            [(&b, "a")]
        );
        let events = native::events(&client, &settings.run_id).await.unwrap();
        let is_told = |what: &What| matches!(what, What::Excluded { whom, .. } if *whom == b);
        assert!(events.iter().any(|event| is_told(&event.record.what)), "{events:?}");

        let include = || native::include(&client, &settings.run_id, None);
        assert_eq!(include().await.unwrap(), ExclusionOutcome::Done);
        assert_eq!(include().await.unwrap(), ExclusionOutcome::NotExcluded);
        let again = meet(&group[1]);
        within(group[1].progress().wait_for(|progress| progress.spare)).await.unwrap();
        within(group[1].leave()).await.unwrap();
        assert!(matches!(again.await.unwrap(), Err(RendezvousError::GracefulExit { .. })));
        // Who was told its machine may keep that out, whether it is a member or not.
        let mut pod = settings.clone();
        pod.host = Some("m1".to_owned());
        let pod = node(&pod, "pod").await;
        assert_eq!(pod.itself(), Some(Whom::Host("m1".to_owned())));
        for (host, outcome) in [("m1", ExclusionOutcome::Done), ("m2", ExclusionOutcome::NotAMember)] {
            let done = pod.exclude(Whom::Host(host.to_owned()), "it is hot", None).await.unwrap();
            assert_eq!(done, outcome, "{host}");
        }
        let error = within(pod.next_rendezvous()).await.unwrap_err();
        assert!(matches!(error, RendezvousError::Excluded { .. }), "{error:?}");
        let gone = native::exclude(&client, "no-such-run", b, "so", None).await.unwrap();
        assert_eq!(gone, ExclusionOutcome::NoRun);
    }
    // The barrier with PyTorch's nodes has nowhere to write it.
    let parameters =
        RendezvousParameters::new("etcd", &embedded.address().to_string(), "barrier", 1, 1).unwrap();
    let barrier = rallypoint_rendezvous::EtcdBarrier::connect(&parameters).await.unwrap();
    let said = barrier.exclude(Whom::Node("a".to_owned()), "so", None).await.unwrap_err().to_string();
    assert!(said.contains("no place"), "{said}");
    embedded.stop().await.unwrap();
}

/// An exclusion by host has an end, which is etcd's: who waits it out gets in then, and did not count before.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_out_an_exclusion_gets_in_when_it_expires() {
    let etcd = Etcd::start(Version::V34);
    let mut settings = settings(&etcd.endpoint(), 1, 2);
    settings.when_excluded = WhenExcluded::Wait;
    let first = node(&settings, "a").await;
    round_of(std::slice::from_ref(&first)).await;
    let client = client(&settings).await;
    let status = native::status(&client, &settings.run_id).await.unwrap().unwrap();
    let b = Whom::Node("b".to_owned());
    let time = Some(Duration::from_secs(8));
    let done = native::exclude(&client, &settings.run_id, b, "it is hot", time).await.unwrap();
    assert_eq!(done, ExclusionOutcome::Done);
    // A member of this host would be meant, too.
    assert!(!status.nodes[0].host.is_empty());
    let waits = node(&settings, "b").await;
    let meeting = meet(&waits);
    let mut progress = waits.progress();
    let told = within(progress.wait_for(|progress| progress.kept_out.is_some())).await.unwrap().clone();
    assert!(told.kept_out.is_some_and(|it| it.reason == "it is hot" && it.until_ms.is_some()));
    let status = native::status(&client, &settings.run_id).await.unwrap().unwrap();
    let b = status.nodes.iter().find(|node| node.node == "b").unwrap();
    assert_eq!((b.state, status.waiting, status.spares), (NodeState::Excluded, 0, 0));
    assert_eq!(first.num_nodes_waiting().await.unwrap(), 0, "it does not count as there");
    // It expires.
    assert_eq!(change(&first).await, GroupChange::Waiting { count: 1 });
    assert_eq!(completed(vec![meet(&first), meeting]).await[0].world_size, 2);
    // A lease of its own is gone with it.
    let left = native::excluded(&client, &settings.run_id).await.unwrap();
    assert_eq!(left, Some(Vec::new()));
}

/// A leftover of a rack disturbs nobody; a segment that has lost a node is filled up by it, or steps back as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn only_whole_segments_are_seated() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint(), 2, 4);
    let size = NonZeroUsize::new(2).unwrap();
    settings.run.policy = RankPolicy::Segment { size };
    (settings.lease, settings.last_call) = (Duration::from_secs(600), Duration::from_secs(3600));
    settings.run_ttl = Duration::from_secs(1800);
    assert!(settings.check().unwrap_err().to_string().contains("set 'rack'"));
    let of = |rack: &str| {
        let mut settings = settings.clone();
        settings.rack = rack.to_owned();
        settings
    };
    let group = [
        node(&of("r1"), "a1").await,
        node(&of("r2"), "b1").await,
        node(&of("r2"), "b2").await,
        node(&of("r1"), "a2").await,
    ];
    let meetings: Vec<_> = group[..3].iter().map(meet).collect();
    let lone = node(&of("r3"), "c1").await;
    let standby = meet(&lone);
    // Four are there, and only one segment is whole.
    let mut progress = lone.progress();
    within(progress.wait_for(|it| it.joined == 4 && it.seatable == Some(2))).await.unwrap();
    let all: Vec<_> = meetings.into_iter().chain([meet(&group[3])]).collect();
    let first = completed(all).await;
    let pair = |rounds: &[rallypoint_rendezvous::Rendezvous], one: usize, other: usize| {
        rounds[one].rank / 2 == rounds[other].rank / 2
    };
    assert!(pair(&first, 0, 3) && pair(&first, 1, 2), "{first:?}");
    within(progress.wait_for(|progress| progress.spare)).await.unwrap();
    let spare = node(&of("r2"), "b3").await;
    let fills = meet(&spare);
    within(spare.progress().wait_for(|progress| progress.spare)).await.unwrap();
    assert_eq!(group[0].num_nodes_waiting().await.unwrap(), 0, "nobody is disturbed");

    // b1 goes, and b3 is of its rack.
    within(group[1].leave()).await.unwrap();
    change(&group[0]).await;
    let second = completed(vec![meet(&group[0]), fills, meet(&group[2]), meet(&group[3])]).await;
    let ranks = |rounds: &[rallypoint_rendezvous::Rendezvous]| {
        rounds.iter().map(|round| round.rank).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&second), ranks(&first));
    // a2 goes, and nobody of its rack is there: a1 steps back, and the others go on as one segment.
    within(group[3].leave()).await.unwrap();
    change(&group[2]).await;
    let steps_back = meet(&group[0]);
    let third = completed(vec![meet(&spare), meet(&group[2])]).await;
    assert_eq!(third[0].world_size, 2);
    within(group[0].progress().wait_for(|progress| progress.spare)).await.unwrap();
    within(group[0].leave()).await.unwrap();
    within(lone.leave()).await.unwrap();
    for left in [steps_back, standby] {
        assert!(matches!(left.await.unwrap(), Err(RendezvousError::GracefulExit { .. })));
    }
}
