//! An etcd that is away, out of reach, or refuses, under a group at work: nobody is told of what did not happen.

use std::time::Duration;

use rallypoint_testkit::{Etcd, Host, Version};

use super::world::{LEASE, OPTIONS, PATIENT, SOON, Settings, World, change, ranks};

const GROUP: Settings = Settings { min: 2, max: 4, options: OPTIONS };

#[test]
fn nobody_dies_of_an_outage_though_a_newcomer_is_the_first_to_come_back() {
    // The last call is long enough for all to come back.
    let mut world = World::new(3, 5, Settings { min: 2, max: 4, options: PATIENT });
    world.meet(4);
    world.group.pop().unwrap().order("leave");
    let before = world.rounds();
    let hosts = world.hosts();
    hosts[..3].iter().for_each(Host::cut);
    std::thread::sleep(LEASE * 2);
    let newcomer = world.start(4, "");
    hosts[..3].iter().for_each(Host::mend);
    for process in &world.group {
        // It waits, and the first who heard of it asks for a round.
        let told = process.next("change");
        let is_so = ["Waiting", "Left"].iter().any(|what| change(&told).starts_with(what));
        assert!(is_so, "{told}");
    }
    world.group.push(newcomer);
    let after = world.rounds();
    assert_eq!(ranks(&before), ranks(&after)[..3]);
    assert_eq!(after[0]["world_size"], 4);
    assert_eq!(after[0]["round"].as_u64(), before[0]["round"].as_u64().map(|round| round + 1));
}

#[test]
fn a_node_that_is_cut_off_for_3_seconds_keeps_its_lease_of_5() {
    let options = "lease_timeout=5,last_call_timeout=0.3";
    let mut world = World::new(3, 3, Settings { min: 2, max: 3, options });
    world.meet(3);
    for host in 0..2 {
        world.host(host).cut();
        std::thread::sleep(Duration::from_secs(3));
        world.host(host).mend();
    }
    world.is_calm_for(Duration::from_secs(4));
}

#[test]
fn a_permission_that_is_lost_for_a_while_is_no_news_and_a_death_after_that_is() {
    let mut world = World::new(3, 3, Settings { min: 2, max: 3, options: OPTIONS });
    world.meet(3);
    // From now on nobody may do anything who does not say who they are, and these do not.
    world.cluster.nodes()[0].ask_for_passwords("guest", "secret", "rallypoint/");
    world.is_calm_for(LEASE * 2);
    world.cluster.nodes()[0].ask_for_no_passwords();
    world.is_calm_for(LEASE * 2);
    world.one_dies(0);
    assert_eq!(world.soon()[0]["world_size"], 2);
}

#[test]
fn a_group_outlives_an_etcd_without_space() {
    let builder = Etcd::builder(Version::V35).unsafe_no_fsync().arg("--quota-backend-bytes=1048576");
    let mut world = World::with(&builder, 3, 4, GROUP);
    let before = world.meet(3);
    world.cluster.nodes()[0].exhaust_space();
    world.is_calm_for(LEASE * 2);
    world.cluster.nodes()[0].free_space();
    world.is_calm_for(Duration::from_secs(1));

    // What happens meanwhile is told when there is room again.
    world.cluster.nodes()[0].exhaust_space();
    world.group.remove(2).kill();
    std::thread::sleep(LEASE * 2);
    world.cluster.nodes()[0].free_space();
    for process in &world.group {
        assert!(change(&process.next_within("change", SOON)).starts_with("Died"));
    }
    let after = world.soon();
    assert_eq!(after[0]["world_size"], 2);
    assert_eq!(before.len(), 3);
}

#[test]
fn nobody_notices_that_etcds_leader_is_killed_or_that_a_follower_lags() {
    let mut world = World::new(3, 4, GROUP);
    world.meet(3);
    let leader = world.cluster.leader();
    world.cluster.node(leader).kill();
    world.is_calm_for(LEASE + Duration::from_secs(1));
    world.cluster.node(leader).restart();

    // Each of the followers, as some node talks to it.
    let leader = world.cluster.leader();
    for follower in (0..3).filter(|server| *server != leader) {
        let (one, other) = (world.network.host(follower), world.network.host(leader));
        one.cut_from(&other);
        world.is_calm_for(LEASE + Duration::from_secs(1));
        one.mend_to(&other);
    }
    // One that hangs, while some node talks to it.
    for follower in (0..3).filter(|server| *server != leader) {
        world.cluster.node(follower).pause();
        world.is_calm_for(LEASE + Duration::from_secs(1));
        world.cluster.node(follower).resume();
    }
    // A node that asks now is not told of an old round.
    let leader = world.cluster.leader();
    let (one, other) = (world.network.host((leader + 1) % 3), world.network.host(leader));
    one.cut_from(&other);
    world.group[0].order("meet");
    let _ = world.whole();
    one.mend_to(&other);
    world.one_dies(0);
    assert_eq!(world.soon()[0]["world_size"], 2);
}
