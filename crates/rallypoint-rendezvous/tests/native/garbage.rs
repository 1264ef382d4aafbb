//! What somebody has written by hand among the keys of a run.

use rallypoint_etcd::v3::Client;
use rallypoint_rendezvous::native::{self, NodeState};
use rallypoint_testkit::{Etcd, Version};

use super::{change, completed, meet, nodes, round_of, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_nobody_can_be_harms_no_group() {
    let etcd = Etcd::start(Version::V35);
    let settings = settings(&etcd.endpoint(), 2, 3);
    let run = native::run_prefix(&settings.run_id);
    let group = nodes(&settings, ["a", "b"]).await;
    round_of(&group).await;
    let real = etcd.etcdctl(&["get", "--print-value-only", &format!("{run}node/a")]);
    let mut record: serde_json::Value = serde_json::from_str(real.trim()).unwrap();
    record["round"] = u64::MAX.into();
    record["wants"] = "join".into();
    let _ = etcd.etcdctl(&["put", &format!("{run}node/poison"), &record.to_string()]);
    let _ = etcd.etcdctl(&["put", &format!("{run}node/noise"), "garbage"]);
    let again = meet(&group[0]);
    change(&group[1]).await;
    let rounds = completed(vec![again, meet(&group[1])]).await;
    assert_eq!(rounds[0].round, 2);

    let client = Client::connect(settings.etcd.clone()).await.unwrap();
    let status = native::status(&client, &settings.run_id).await.unwrap().unwrap();
    assert!(!status.is_corrupt && status.nodes.iter().all(|node| node.state == NodeState::Member));
    let unreadable: Vec<_> = status.unreadable.iter().map(|it| it.key.rsplit('/').next().unwrap()).collect();
    assert_eq!((status.nodes.len(), unreadable), (2, vec!["noise", "poison"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_close_a_run_that_nobody_can_read() {
    let etcd = Etcd::start(Version::V35);
    let client = Client::connect(settings(&etcd.endpoint(), 1, 1).etcd).await.unwrap();
    let _ = etcd.etcdctl(&["put", "rallypoint/bad/group/round", "garbage"]);
    let status = native::status(&client, "bad").await.unwrap().unwrap();
    assert!(status.is_corrupt && status.unreadable.len() == 1 && status.closed.is_none());
    let mark = std::time::Duration::from_secs(60);
    assert!(native::close(&client, "bad", "over", mark).await.unwrap());
    let status = native::status(&client, "bad").await.unwrap().unwrap();
    assert_eq!((status.is_corrupt, status.closed.as_deref()), (false, Some("over")));
}
