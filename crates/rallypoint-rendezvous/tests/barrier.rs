//! A group of ours on the v2 wire: its keys, its times, and what PyTorch's rendezvous does wrong and ours does not.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v2::{Client, Delete, Get, Put};
use rallypoint_etcd::{ErrorKind, v2};
use rallypoint_rendezvous::{
    EtcdBarrier, GroupChange, HeldPort, Registry, Rendezvous, RendezvousError, RendezvousHandler,
    RendezvousParameters,
};
use rallypoint_testkit::{Cluster, Etcd, Proxy, Silent, Version, refused_endpoint};
use serde_json::json;
use support::Kind::Ours;
use support::{Run, meet};

#[test]
fn a_process_of_its_own() {
    support::node::run_if_asked();
}

const ROOT: &str = "/torchelastic/p2p/run_job";

fn server(version: Version) -> Etcd {
    Etcd::builder(version).v2().start()
}

async fn client(etcd: &Etcd) -> Client {
    Client::connect(EtcdSettings::new(&etcd.endpoint()).unwrap()).await.unwrap()
}

fn parameters(endpoint: &str, min: usize, max: usize) -> RendezvousParameters {
    let mut parameters = RendezvousParameters::new("etcd", endpoint, "job", min, max).unwrap();
    parameters.local_addr = Some("127.0.0.1".to_owned());
    parameters.config.insert("last_call_timeout".to_owned(), "1".to_owned());
    parameters
}

async fn node(etcd: &Etcd, min: usize, max: usize) -> Arc<EtcdBarrier> {
    Arc::new(EtcdBarrier::connect(&parameters(&etcd.endpoint(), min, max)).await.unwrap())
}

async fn nodes(etcd: &Etcd, count: usize, min: usize, max: usize) -> Vec<Arc<EtcdBarrier>> {
    join_all((0..count).map(|_| node(etcd, min, max))).await
}

/// Lets all of them meet; what they met, by rank.
async fn all_meet(nodes: &[Arc<EtcdBarrier>]) -> Vec<Rendezvous> {
    let met = join_all(nodes.iter().map(|node| node.next_rendezvous())).await;
    let mut met: Vec<Rendezvous> = met.into_iter().map(Result::unwrap).collect();
    met.sort_by_key(|met| met.rank);
    for (rank, one) in met.iter().enumerate() {
        assert_eq!((one.rank, one.world_size, one.round), (rank, met.len(), met[0].round));
        assert_eq!(one.master, met[0].master);
        assert_eq!(one.held_port.as_ref().map(HeldPort::port), (rank == 0).then_some(one.master.port));
    }
    met
}

/// The names in a folder.
async fn names(client: &Client, folder: &str) -> Vec<String> {
    let found = client.find(folder, Get::new().sorted()).await.unwrap().node;
    found.map(|node| node.nodes.iter().map(|node| node.name().to_owned()).collect()).unwrap_or_default()
}

async fn value(client: &Client, key: &str) -> Option<String> {
    client.find(key, Get::new()).await.unwrap().node.and_then(|node| node.value)
}

async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    let began = tokio::time::Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A node that only waits asks etcd for little, and is not told for that that etcd is silent.
#[track_caller]
fn is_in_contact(waits: &EtcdBarrier) {
    let moment = tokio::time::Instant::now();
    assert!(waits.contact().unwrap().at >= moment);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_the_record_and_the_times_are_the_seeds() {
    for version in Version::WITH_V2 {
        let etcd = server(version);
        let nodes = nodes(&etcd, 2, 2, 2).await;
        all_meet(&nodes).await;
        let client = client(&etcd).await;
        assert_eq!(
            value(&client, &format!("{ROOT}/rdzv/active_version")).await.as_deref().map(sorted_keep_alives),
            Some(
                r#"{"status": "final", "version": "1", "participants": [0, 1], "keep_alives": ["/torchelastic/p2p/run_job/rdzv/v_1/rank_0", "/torchelastic/p2p/run_job/rdzv/v_1/rank_1"], "num_workers_waiting": 0}"#
                    .to_owned()
            )
        );
        assert_eq!(value(&client, &format!("{ROOT}/rdzv/version_counter")).await.as_deref(), Some("1"));
        assert_eq!(names(&client, &format!("{ROOT}/rdzv/v_1")).await, ["kv", "rank_0", "rank_1"]);
        let ttl = |key: String| {
            let client = client.clone();
            async move { client.get(&key, Get::new()).await.unwrap().node.ttl }
        };
        assert!((7000..=7200).contains(&ttl(ROOT.to_owned()).await.unwrap()));
        assert!((1..=10).contains(&ttl(format!("{ROOT}/rdzv/v_1/rank_0")).await.unwrap()));
        assert_eq!(ttl(format!("{ROOT}/rdzv/active_version")).await, None);
        assert_eq!(
            value(&client, &format!("{ROOT}/rdzv/v_1/kv/TUFTVEVSX0FERFI=")).await.as_deref(),
            Some("MTI3LjAuMC4x")
        );
    }
}

/// The nodes of two confirm in either order.
fn sorted_keep_alives(record: &str) -> String {
    let (zero, one) =
        ("/torchelastic/p2p/run_job/rdzv/v_1/rank_0", "/torchelastic/p2p/run_job/rdzv/v_1/rank_1");
    record.replace(&format!(r#""{one}", "{zero}""#), &format!(r#""{zero}", "{one}""#))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_in_its_last_call_or_frozen_ends_by_itself_if_its_nodes_die() {
    let etcd = server(Version::V34);
    let mut given = parameters(&etcd.endpoint(), 1, 2);
    given.config.insert("last_call_timeout".to_owned(), "3600".to_owned());
    let alone = Arc::new(EtcdBarrier::connect(&given).await.unwrap());
    let meeting = tokio::spawn({
        let alone = Arc::clone(&alone);
        async move { alone.next_rendezvous().await }
    });
    let client = client(&etcd).await;
    let key = format!("{ROOT}/rdzv/active_version");
    let record = || async { client.find(&key, Get::new()).await.unwrap().node };
    until(|| async { record().await.is_some_and(|node| node.value.unwrap().contains("[0]")) }).await;
    let record = record().await.unwrap();
    assert!(record.value.unwrap().contains("joinable") && (1..=10).contains(&record.ttl.unwrap()));
    meeting.abort();
    drop(alone);

    // A rank that nobody confirms: whoever joins finds the version frozen, and gone with its TTL.
    let frozen = r#"{"status": "frozen", "version": "9", "participants": [0], "keep_alives": []}"#;
    client.put(&key, Put::value(frozen).ttl(Duration::from_secs(2))).await.unwrap();
    let met = node(&etcd, 1, 1).await.next_rendezvous().await.unwrap();
    assert_eq!((met.rank, met.world_size), (0, 1));
}

/// Defect 4: PyTorch's nodes wait ten seconds for their own keep-alives to run out.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_comes_back_deletes_its_keep_alive() {
    let etcd = server(Version::V35);
    let nodes = nodes(&etcd, 4, 4, 4).await;
    assert_eq!(all_meet(&nodes).await[0].round, 1);
    assert_eq!(all_meet(&nodes).await[0].round, 2);
    let client = client(&etcd).await;
    assert_eq!(
        names(&client, &format!("{ROOT}/rdzv/v_1")).await,
        ["kv"],
        "no keep-alive had the time to run out"
    );
    assert_eq!(names(&client, &format!("{ROOT}/rdzv/v_2")).await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_leaves_is_gone_at_once_and_the_others_need_no_last_call() {
    let etcd = server(Version::V34);
    let mut given = parameters(&etcd.endpoint(), 2, 3);
    given.config.insert("last_call_timeout".to_owned(), "3600".to_owned());
    let connect = || async { Arc::new(EtcdBarrier::connect(&given).await.unwrap()) };
    let mut nodes = vec![connect().await, connect().await, connect().await];
    let met = all_meet(&nodes).await;
    assert_eq!(met.len(), 3);
    let leaver = nodes.remove(0);
    leaver.leave().await.unwrap();
    for node in &nodes {
        assert!(matches!(node.changed().await, GroupChange::Left { .. }));
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 1);
    }
    assert_eq!(all_meet(&nodes).await.len(), 2, "although the last call lasts an hour");
}

/// Defect 5: PyTorch's nodes learn of a death only if somebody waits.
#[test]
fn survivors_are_told_of_a_death_though_nobody_waits() {
    let etcd = server(Version::V35);
    // Long enough for the third one to get in on a busy machine.
    let run = Run { last_call: 5, ..Run::new(&etcd, 2, 3) };
    let mut nodes = vec![run.node(Ours), run.node(Ours), run.node(Ours)];
    let met = meet(&mut nodes);
    let victim = met[1].rank;
    drop(nodes.remove(1));
    for node in &mut nodes {
        let change = node.get(&json!({"do": "changed"}));
        let change = change.as_str().unwrap();
        assert!(change.starts_with("Died") && change.contains(&format!("Some({victim})")), "{change}");
    }
    meet(&mut nodes);
}

/// Defect 3: PyTorch's lease thread ends with the first error it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_keep_alive_is_renewed_again_after_errors() {
    let etcd = server(Version::V34);
    let proxy = Proxy::start(&etcd.endpoint());
    let node = EtcdBarrier::connect(&parameters(&proxy.endpoint(), 1, 1)).await.unwrap();
    node.next_rendezvous().await.unwrap();
    let (client, key) = (client(&etcd).await, format!("{ROOT}/rdzv/v_1/rank_0"));
    let left = || async { client.find(&key, Get::new()).await.unwrap().node.and_then(|node| node.ttl) };
    proxy.refuse(true);
    proxy.cut();
    // The next renewal is due, and fails. There is time left for the one after that.
    until(|| async { left().await.is_none_or(|left| left <= 4) }).await;
    assert!(left().await.is_some());
    proxy.refuse(false);
    until(|| async { left().await.is_none_or(|left| left >= 9) }).await;
    assert!(left().await.is_some(), "it ran out");
    // And the ones after that.
    until(|| async { left().await.is_none_or(|left| left <= 7) }).await;
    until(|| async { left().await.is_none_or(|left| left >= 9) }).await;
    assert!(left().await.is_some(), "it ran out");
    assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_place_is_lost_says_so() {
    let etcd = server(Version::V35);
    let node = node(&etcd, 1, 1).await;
    node.next_rendezvous().await.unwrap();
    let client = client(&etcd).await;
    let next = r#"{"status": "final", "version": "2", "participants": [0], "keep_alives": ["/x/rank_0"], "num_workers_waiting": 0}"#;
    client.set(&format!("{ROOT}/rdzv/active_version"), next).await.unwrap();
    assert_eq!(node.changed().await, GroupChange::Excluded);
    assert_eq!(node.num_nodes_waiting().await.unwrap(), 1);
    assert_eq!(node.next_rendezvous().await.map(|met| met.world_size).unwrap(), 1);
}

/// Defect 6: PyTorch ignores the timeout.
#[tokio::test]
async fn loading_extra_data_keeps_its_timeout() {
    let etcd = server(Version::V34);
    let node = node(&etcd, 1, 1).await;
    let wait = Some(Duration::from_millis(300));
    let late = node.load_extra_data(1, "key", wait).await.unwrap_err();
    assert!(matches!(late, RendezvousError::Timeout { .. }), "{late:?}");
    assert!(late.to_string().contains("\"key\""), "{late}");
    node.store_extra_data(1, "other", json!(1)).await.unwrap();
    assert!(node.load_extra_data(1, "key", wait).await.is_err());
    let loading = node.load_extra_data(1, "key", None);
    let storing = node.store_extra_data(1, "key", json!(["é", 2]));
    let (loaded, stored) = tokio::join!(loading, storing);
    stored.unwrap();
    assert_eq!(loaded.unwrap(), json!(["é", 2]));
}

/// Defect 7: PyTorch takes one endpoint, and does not wait for a new leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_endpoints_outlives_the_leader() {
    let etcd = server(Version::V35);
    let list = format!("{},{}", refused_endpoint(), etcd.endpoint());
    let alone = EtcdBarrier::connect(&parameters(&list, 1, 1)).await.unwrap();
    assert_eq!(alone.next_rendezvous().await.unwrap().world_size, 1);

    let mut cluster = Cluster::start_with(&Etcd::builder(Version::V34).v2(), 3);
    let given = parameters(&cluster.endpoints(), 2, 2);
    let nodes = [EtcdBarrier::connect(&given).await.unwrap(), EtcdBarrier::connect(&given).await.unwrap()];
    let leader = cluster.leader();
    let first = nodes[0].next_rendezvous();
    tokio::pin!(first);
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut first).await.is_err());
    cluster.node(leader).kill();
    let (one, two) = tokio::join!(first, nodes[1].next_rendezvous());
    let ranks = [one.unwrap().rank, two.unwrap().rank];
    assert!(ranks == [0, 1] || ranks == [1, 0], "{ranks:?}");
}

/// Defect 9: PyTorch fails to close a run that has no state.
#[tokio::test]
async fn a_run_without_a_state_can_be_closed() {
    let etcd = server(Version::V34);
    let node = node(&etcd, 1, 1).await;
    assert!(!node.is_closed().await.unwrap());
    node.set_closed("enough").await.unwrap();
    assert!(node.is_closed().await.unwrap());
    node.set_closed("again").await.unwrap();
    let refused = node.next_rendezvous().await.unwrap_err();
    assert!(matches!(&refused, RendezvousError::Closed { reason, .. } if reason == "enough"), "{refused:?}");
    let client = client(&etcd).await;
    let record = value(&client, &format!("{ROOT}/rdzv/active_version")).await;
    assert_eq!(record.as_deref(), Some(r#"{"status": "closed", "reason": "enough"}"#));
}

/// Defect 10: with PyTorch, a node beyond max makes the full group meet again, for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_group_is_not_disturbed_and_a_spare_takes_a_place_that_gets_free() {
    let etcd = server(Version::V35);
    let mut nodes = nodes(&etcd, 2, 2, 2).await;
    all_meet(&nodes).await;
    let spare = node(&etcd, 2, 2).await;
    let mut progress = spare.progress();
    let waiting = tokio::spawn({
        let spare = Arc::clone(&spare);
        async move { spare.next_rendezvous().await }
    });
    progress.wait_for(|progress| progress.spare).await.unwrap();
    is_in_contact(&spare);
    // A newcomer to a group with room would have counted itself by now: it does so before it waits.
    let client = client(&etcd).await;
    let record = value(&client, &format!("{ROOT}/rdzv/active_version")).await.unwrap();
    assert!(record.contains(r#""num_workers_waiting": 0"#), "{record}");
    for node in &nodes {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
    }
    nodes.pop().unwrap().leave().await.unwrap();
    assert!(nodes[0].num_nodes_waiting().await.unwrap() <= 1);
    nodes[0].changed().await;
    let (met, other) = tokio::join!(nodes[0].next_rendezvous(), waiting);
    assert_eq!((met.unwrap().world_size, other.unwrap().unwrap().world_size), (2, 2));
}

/// Nothing was wrong, and the spare said at its timeout that there was no version; and when etcd was silent, that time had
/// begun with the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_spare_waits_as_long_as_the_run_lives_and_for_etcd_as_long_as_everybody() {
    let mut etcd = server(Version::V35);
    let nodes = nodes(&etcd, 2, 2, 2).await;
    all_meet(&nodes).await;
    let mut given = parameters(&etcd.endpoint(), 2, 2);
    given.config.insert("timeout".to_owned(), "2".to_owned());
    let spare = EtcdBarrier::connect(&given).await.unwrap();
    let mut waiting = spare.next_rendezvous();
    let early = tokio::time::timeout(Duration::from_millis(2_200), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    etcd.pause();
    let error = waiting.await.unwrap_err().to_string();
    assert!(error.contains(" has failed: it has not answered for "), "{error}");
    etcd.resume();
}

/// Defect 12: PyTorch lets most errors through as they are.
#[tokio::test(flavor = "multi_thread")]
async fn every_failure_to_connect_is_a_connection_error() {
    let silent = Silent::start();
    let etcd = server(Version::V34);
    let v3_only = Etcd::start(Version::V35);
    let https = {
        let mut given = parameters(&etcd.endpoint(), 1, 1);
        given.config.insert("protocol".to_owned(), "https".to_owned());
        given
    };
    for given in [
        parameters(&refused_endpoint(), 1, 1),
        parameters(&silent.endpoint(), 1, 1),
        parameters("no-such-host.invalid:1", 1, 1),
        parameters(&v3_only.endpoint(), 1, 1),
        https,
    ] {
        let error = EtcdBarrier::connect(&given).await.unwrap_err();
        assert!(matches!(error, RendezvousError::Connection { .. }), "{error:?}");
        assert!(error.to_string().contains(&given.endpoint), "{error}");
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.downcast_ref::<rallypoint_etcd::Error>().is_some(), "{source:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_gives_up_leaves_nothing_behind_that_others_must_wait_for() {
    let etcd = server(Version::V34);
    let mut given = parameters(&etcd.endpoint(), 2, 2);
    given.config.insert("timeout".to_owned(), "3".to_owned());
    let hasty = EtcdBarrier::connect(&given).await.unwrap();
    let late = hasty.next_rendezvous().await.unwrap_err();
    assert!(matches!(late, RendezvousError::NotMet { .. }), "{late:?}");
    assert_eq!(
        late.to_string(),
        r#"run "job": too few nodes: 2 nodes are needed, and 1 node is here after 3 s"#
    );
    let client = client(&etcd).await;
    assert_eq!(value(&client, &format!("{ROOT}/rdzv/active_version")).await, None);

    let patient = node(&etcd, 2, 2).await;
    let (left, met) = tokio::join!(patient.next_rendezvous(), async {
        let mut progress = patient.progress();
        progress.wait_for(|progress| progress.joined == 1).await.unwrap();
        is_in_contact(&patient);
        patient.leave().await.unwrap();
        all_meet(&nodes(&etcd, 2, 2, 2).await).await
    });
    assert!(matches!(left, Err(RendezvousError::GracefulExit { .. })), "{left:?}");
    assert_eq!(met.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_goes_on_with_the_next_one() {
    let etcd = server(Version::V35);
    let (first, second) = (node(&etcd, 2, 2).await, node(&etcd, 2, 2).await);
    for _ in 0..3 {
        assert!(tokio::time::timeout(Duration::from_millis(100), first.next_rendezvous()).await.is_err());
    }
    assert_eq!(all_meet(&[first, second]).await.len(), 2);
}

#[tokio::test]
async fn a_corrupt_state_is_an_error_that_names_it() {
    let etcd = server(Version::V34);
    let (node, client) = (node(&etcd, 1, 1).await, client(&etcd).await);
    for corrupt in ["", "[1, 2]", r#"{"status": "joinable"}"#] {
        client.set(&format!("{ROOT}/rdzv/active_version"), corrupt).await.unwrap();
        for error in [node.next_rendezvous().await.unwrap_err(), node.is_closed().await.unwrap_err()] {
            assert!(matches!(error, RendezvousError::State { .. }), "{error:?}");
            assert!(error.to_string().contains("active_version"), "{error}");
        }
    }
}

/// etcd 3.5 cannot put off the end of a folder, so the folder of a run ends after two hours with all that is in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_outlives_the_end_of_its_folder() {
    let etcd = server(Version::V35);
    let mut nodes = nodes(&etcd, 2, 2, 3).await;
    all_meet(&nodes).await;
    let client = client(&etcd).await;
    let refused = client.put(ROOT, Put::refresh(Duration::from_secs(7200))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::V2(v2::Code::NotAFile), "{refused}");
    let before = value(&client, &format!("{ROOT}/rdzv/active_version")).await;
    client.delete(ROOT, Delete::tree()).await.unwrap();
    until(|| async { names(&client, &format!("{ROOT}/rdzv/v_1")).await == ["rank_0", "rank_1"] }).await;
    assert_eq!(value(&client, &format!("{ROOT}/rdzv/active_version")).await, before);
    for node in &nodes {
        assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
    }
    let late = node(&etcd, 2, 3).await;
    let meeting = tokio::spawn({
        let late = Arc::clone(&late);
        async move { late.next_rendezvous().await }
    });
    for node in &nodes {
        assert_eq!(node.changed().await, GroupChange::Waiting { count: 1 });
    }
    let (met, third) = tokio::join!(all_meet_with(&nodes), meeting);
    assert_eq!((met, third.unwrap().unwrap().world_size), (vec![3, 3], 3));
    nodes.push(late);
}

/// Another node has made the folders again, and has not yet written the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_being_put_back_is_waited_for() {
    let etcd = server(Version::V35);
    let proxy = Proxy::start(&etcd.endpoint());
    let node = EtcdBarrier::connect(&parameters(&proxy.endpoint(), 1, 1)).await.unwrap();
    node.next_rendezvous().await.unwrap();
    let client = client(&etcd).await;
    let (state, counter) = (format!("{ROOT}/rdzv/active_version"), format!("{ROOT}/rdzv/version_counter"));
    let record = value(&client, &state).await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    client.delete(ROOT, Delete::tree()).await.unwrap();
    client.put(ROOT, Put::dir().ttl(Duration::from_secs(7200))).await.unwrap();
    client.put(&counter, Put::value("1")).await.unwrap();
    proxy.refuse(false);
    let early = tokio::time::timeout(Duration::from_secs(2), node.changed()).await;
    assert!(early.is_err(), "{early:?}");
    client.create(&state, &record).await.unwrap();
    until(|| async { names(&client, &format!("{ROOT}/rdzv/v_1")).await == ["rank_0"] }).await;
    assert_eq!(node.num_nodes_waiting().await.unwrap(), 0);
    let late = tokio::time::timeout(Duration::from_millis(500), node.changed()).await;
    assert!(late.is_err(), "{late:?}");
}

async fn all_meet_with(nodes: &[Arc<EtcdBarrier>]) -> Vec<usize> {
    let met = join_all(nodes.iter().map(|node| node.next_rendezvous())).await;
    met.into_iter().map(|met| met.unwrap().world_size).collect()
}

#[tokio::test]
async fn the_registry_makes_it_by_its_name() {
    let etcd = server(Version::V34);
    let registry = Registry::with_defaults();
    let node = registry.create(parameters(&etcd.endpoint(), 1, 1)).await.unwrap();
    assert_eq!((node.backend(), node.run_id()), ("etcd", "job"));
    assert_eq!(node.next_rendezvous().await.unwrap().rank, 0);
    assert_eq!(node.members().await.unwrap().len(), 1);
    node.shutdown("done").await.unwrap();
    assert!(node.is_closed().await.unwrap());

    let mut unknown = parameters("", 1, 1);
    unknown.backend = "zk".to_owned();
    let error = registry.create(unknown).await.unwrap_err().to_string();
    assert!(error.starts_with("The rendezvous backend 'zk' is not registered."), "{error}");
}
