//! The clocks of real etcd servers.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_health::{Checks, Surroundings};
use rallypoint_testkit::{Etcd, Version};

#[tokio::test]
async fn every_etcd_tells_its_time_and_one_that_does_not_answer_is_named() {
    let look = async |endpoint: &str| {
        let etcd = Some(EtcdSettings::new(endpoint).unwrap());
        let surroundings = Surroundings { etcd, ..Surroundings::default() };
        Checks::new(["clock".parse().unwrap()], surroundings, Duration::from_secs(20)).look().await
    };
    let etcds = [Etcd::start(Version::V34), Etcd::start(Version::V35)];
    for etcd in &etcds {
        assert_eq!(look(&etcd.endpoint()).await, []);
    }
    // One that answers is enough.
    assert_eq!(look(&format!("127.0.0.1:1,{}", etcds[0].endpoint())).await, []);
    let sick = look("127.0.0.1:1").await;
    assert!(
        sick[0].why.contains("no etcd tells its time") && sick[0].why.contains("127.0.0.1:1"),
        "{sick:?}"
    );
}
