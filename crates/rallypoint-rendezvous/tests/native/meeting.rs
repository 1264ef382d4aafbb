//! Who gets in, and where.

use std::time::{Duration, Instant};

use rallypoint_core::round::{RankPolicy, RunSettings};
use rallypoint_rendezvous::native::{self, NativeSettings, NodeState};
use rallypoint_rendezvous::{
    CloseOutcome, FINISHED, GroupChange, NODE_FINISHED, Registry, RendezvousError, RendezvousHandler,
    RendezvousParameters,
};
use rallypoint_server::{Config, Server};
use rallypoint_testkit::{Etcd, Version};

use super::{change, completed, meet, node, nodes, round_of, settings, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_group_meets_at_once_on_every_etcd() {
    let etcds: Vec<Etcd> = Version::all().into_iter().map(Etcd::start).collect();
    let embedded = Server::bind(Config::default()).unwrap();
    let mut endpoints: Vec<String> = etcds.iter().map(Etcd::endpoint).collect();
    endpoints.push(embedded.address().to_string());
    for endpoint in endpoints {
        let mut settings = settings(&endpoint, 1, 5);
        settings.last_call = Duration::from_secs(3600);
        let names = ["a", "b", "c", "d", "e"];
        let group = nodes(&settings, names).await;
        let rounds = round_of(&group).await;
        assert_eq!(rounds[0].round, 1);
        // The data of a round is shared by its members.
        rounds[0].store.set(b"k", b"v").await.unwrap();
        assert_eq!(rounds[4].store.get(b"k").await.unwrap(), b"v");
        let members = group[2].members().await.unwrap();
        assert_eq!(members.iter().map(|member| member.rank).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(members[0].address, rounds[0].master.address);
        assert_eq!(group[0].num_nodes_waiting().await.unwrap(), 0);
    }
    embedded.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_call_waits_for_latecomers_and_ends() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 2, 4);
    let group = nodes(&settings, ["a", "b"]).await;
    let began = Instant::now();
    let rounds = round_of(&group).await;
    assert!(began.elapsed() >= settings.last_call, "there might have come more");
    assert_eq!(rounds[0].world_size, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_latecomer_is_waiting_and_gets_in_when_the_members_meet_again() {
    let etcd = Etcd::start(Version::V34);
    let mut settings = settings(&etcd.endpoint(), 2, 4);
    let group = nodes(&settings, ["a", "b"]).await;
    let first = round_of(&group).await;
    let ranks: Vec<usize> = first.iter().map(|round| round.rank).collect();
    // Meeting again does not sit out the last call.
    settings.last_call = Duration::from_secs(3600);

    let late = node(&settings, "late").await;
    let waiting = meet(&late);
    for member in &group {
        assert_eq!(change(member).await, GroupChange::Waiting { count: 1 });
        assert_eq!(member.num_nodes_waiting().await.unwrap(), 1);
    }
    let mut meetings: Vec<_> = group.iter().map(meet).collect();
    meetings.push(waiting);
    let second = completed(meetings).await;
    assert_eq!(second[0].round, 2);
    assert_eq!(second.iter().map(|round| round.rank).collect::<Vec<_>>(), [ranks[0], ranks[1], 2]);
    assert_eq!(group[0].num_nodes_waiting().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_disturbs_nobody_and_takes_the_place_and_rank_of_a_dead_member() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 3, 3);
    let mut group = nodes(&settings, ["a", "b", "c"]).await;
    let first = round_of(&group).await;
    let spare = node(&settings, "spare").await;
    let standby = meet(&spare);
    let mut progress = spare.progress();
    within(progress.wait_for(|progress| progress.spare)).await.unwrap();
    assert_eq!(group[0].num_nodes_waiting().await.unwrap(), 0);
    let status = native::status(&client(&settings).await, &settings.run_id).await.unwrap().unwrap();
    let spares: Vec<_> = status.nodes.iter().filter(|node| node.state == NodeState::Spare).collect();
    assert_eq!(spares.len(), 1);
    assert_eq!(spares[0].node, "spare");

    // Dropped without a word: as good as killed.
    let dead = group.remove(1);
    drop(dead);
    for member in &group {
        let died = GroupChange::Died { node: "b".to_owned(), rank: Some(first[1].rank) };
        assert_eq!(change(member).await, died);
    }
    let mut meetings: Vec<_> = group.iter().map(meet).collect();
    meetings.push(standby);
    let second = completed(meetings).await;
    let ranks: Vec<usize> = second.iter().map(|round| round.rank).collect();
    assert_eq!(ranks, [first[0].rank, first[2].rank, first[1].rank]);
}

async fn client(settings: &NativeSettings) -> rallypoint_etcd::v3::Client {
    rallypoint_etcd::v3::Client::connect(settings.etcd.clone()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_in_good_order_is_gone_at_once() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint(), 1, 3);
    // Nothing of what follows waits for a lease to end.
    settings.lease = Duration::from_secs(600);
    settings.run_ttl = Duration::from_secs(1800);
    let group = nodes(&settings, ["a", "b", "c"]).await;
    let first = round_of(&group).await;
    within(group[2].leave()).await.unwrap();
    for member in &group[..2] {
        let left = GroupChange::Left { node: "c".to_owned(), rank: Some(first[2].rank) };
        assert_eq!(change(member).await, left);
    }
    let second = round_of(&group[..2]).await;
    assert_eq!((second[0].round, second[0].world_size), (2, 2));
    // It may come back.
    let back = meet(&group[2]);
    assert_eq!(change(&group[0]).await, GroupChange::Waiting { count: 1 });
    let mut meetings: Vec<_> = group[..2].iter().map(meet).collect();
    meetings.push(back);
    assert_eq!(completed(meetings).await[0].round, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_asks_for_a_round_brings_the_others_along() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 2, 2);
    let group = nodes(&settings, ["a", "b"]).await;
    let first = round_of(&group).await;
    let again = meet(&group[0]);
    assert_eq!(
        change(&group[1]).await,
        GroupChange::Left { node: "a".to_owned(), rank: Some(first[0].rank) }
    );
    let second = completed(vec![again, meet(&group[1])]).await;
    assert_eq!(second[0].rank, first[0].rank);
    assert!(second[0].round == 2 && second[0].master.port != first[0].master.port, "a port of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_run_is_over_for_all_and_says_why() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 1, 2);
    let group = nodes(&settings, ["a", "b"]).await;
    round_of(&group).await;
    // Neither a spare nor one that never got in can close it.
    let spare = node(&settings, "spare").await;
    let standby = meet(&spare);
    within(spare.progress().wait_for(|progress| progress.spare)).await.unwrap();
    assert_eq!(spare.shutdown("a spare says so").await.unwrap(), CloseOutcome::NotAMember);
    assert!(matches!(within(standby).await.unwrap(), Err(RendezvousError::GracefulExit { .. })));
    assert!(!group[0].is_closed().await.unwrap());

    group[0].set_closed("training is done").await.unwrap();
    let closed = GroupChange::Closed { reason: "training is done".to_owned() };
    assert_eq!(change(&group[1]).await, closed);
    // It is what torchrun asks: its workers have to stop.
    assert_eq!(group[1].num_nodes_waiting().await.unwrap(), 1);
    for node in [&group[0], &group[1], &node(&settings, "late").await] {
        assert!(node.is_closed().await.unwrap());
        let error = within(node.next_rendezvous()).await.unwrap_err();
        assert!(matches!(&error, RendezvousError::Closed { reason, .. } if reason == "training is done"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_still_works_need_not_stop_when_the_run_is_closed_by_one_that_is_done() {
    let etcd = Etcd::start(Version::V35);
    for reason in [FINISHED, NODE_FINISHED] {
        let settings = settings(&etcd.endpoint(), 2, 2);
        let group = nodes(&settings, ["a", "b"]).await;
        round_of(&group).await;
        group[0].shutdown(reason).await.unwrap();
        assert_eq!(change(&group[1]).await, GroupChange::Closed { reason: reason.to_owned() });
        assert_eq!(group[1].num_nodes_waiting().await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_close_a_run_before_and_while_it_runs() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 2, 2);
    let operator = client(&settings).await;
    let mark = Duration::from_secs(60);
    let group = nodes(&settings, ["a", "b"]).await;
    let lonely = meet(&group[0]);
    within(group[0].progress().changed()).await.unwrap();
    assert_eq!(native::runs(&operator).await.unwrap(), [settings.run_id.as_str()]);
    assert!(native::close(&operator, &settings.run_id, "maintenance", mark).await.unwrap());
    assert!(!native::close(&operator, &settings.run_id, "again", mark).await.unwrap());
    let error = within(lonely).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("maintenance"), "{error}");

    assert!(native::close(&operator, "never was", "not today", mark).await.unwrap());
    let mut other = settings;
    other.run_id = "never was".to_owned();
    // Whoever is refused does not take the mark away with it.
    for name in ["a", "b", "a"] {
        let refused = node(&other, name).await;
        let error = within(refused.next_rendezvous()).await.unwrap_err().to_string();
        assert!(error.contains("not today"), "{error}");
        refused.leave().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_waits_for_as_long_as_the_run_lives() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 2, 2);
    let group = nodes(&settings, ["a", "b"]).await;
    round_of(&group).await;
    let mut hasty = settings.clone();
    hasty.join_timeout = Duration::from_secs(4);
    let spare = node(&hasty, "spare").await;
    let waits = meet(&spare);
    within(spare.progress().wait_for(|progress| progress.spare)).await.unwrap();
    tokio::time::sleep(hasty.join_timeout * 2).await;
    assert!(!waits.is_finished());
    group[1].leave().await.unwrap();
    change(&group[0]).await;
    let members = vec![meet(&group[0]), waits];
    assert_eq!(completed(members).await[0].round, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_settings_are_refused_with_both_values_and_harm_nobody() {
    let etcd = Etcd::start(Version::V35);
    let right = settings(&etcd.endpoint(), 2, 3);
    let group = nodes(&right, ["a", "b"]).await;
    round_of(&group).await;
    for (run, text) in [
        (RunSettings { max_nodes: 4, ..right.run }, "has max_nodes 3, this node has 4"),
        (RunSettings { min_nodes: 1, ..right.run }, "has min_nodes 2, this node has 1"),
        (RunSettings { policy: RankPolicy::Arrival, ..right.run }, "sticky, this node has arrival"),
    ] {
        let mut wrong = right.clone();
        wrong.run = run;
        let wrong = node(&wrong, "wrong").await;
        let error = within(wrong.next_rendezvous()).await.unwrap_err();
        assert!(matches!(error, RendezvousError::Mismatch { .. }), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(group[0].num_nodes_waiting().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_ever() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint(), 2, 2);
    settings.join_timeout = Duration::from_secs(3);
    let alone = node(&settings, "alone").await;
    let error = within(alone.next_rendezvous()).await.unwrap_err();
    assert!(matches!(error, RendezvousError::NotMet { needed: 2, here: 1, .. }), "{error:?}");
    // It has left: those who come now do not count on it.
    let status = native::status(&client(&settings).await, &settings.run_id).await.unwrap().unwrap();
    assert!(status.nodes.is_empty(), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_decide_with_the_policy_of_that_name() {
    let etcd = Etcd::start(Version::V35);
    let mut settings = settings(&etcd.endpoint(), 4, 4);
    settings.run.policy = RankPolicy::Hint;
    let places = [("a", "r2", "n9"), ("b", "r1", "n10"), ("c", "r2", "n11"), ("d", "r1", "n2")];
    let mut group = Vec::new();
    for (name, rack, hint) in places {
        let mut hinted = settings.clone();
        (hinted.rack, hinted.hint) = (rack.to_owned(), hint.to_owned());
        group.push(node(&hinted, name).await);
    }
    let ranks: Vec<usize> = round_of(&group).await.iter().map(|round| round.rank).collect();
    assert_eq!(ranks, [2, 1, 3, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registry_makes_it_from_torchruns_parameters() {
    let etcd = Etcd::start(Version::V35);
    let mut parameters =
        RendezvousParameters::new("rallypoint", &etcd.endpoint(), "torchruns job", 1, 1).unwrap();
    parameters.local_addr = Some("node7.example".to_owned());
    let handler = Registry::with_defaults().create(parameters.clone()).await.unwrap();
    let round = within(handler.next_rendezvous()).await.unwrap();
    assert_eq!((handler.backend(), handler.run_id()), ("rallypoint", "torchruns job"));
    assert_eq!((round.rank, round.world_size, round.master.address.as_str()), (0, 1, "node7.example"));
    assert_eq!(handler.shutdown("done").await.unwrap(), CloseOutcome::Closed);
    parameters.config.insert("lastcall".to_owned(), "1".to_owned());
    let error = Registry::with_defaults().create(parameters).await.unwrap_err().to_string();
    assert!(error.contains("'lastcall'"), "{error}");
}
