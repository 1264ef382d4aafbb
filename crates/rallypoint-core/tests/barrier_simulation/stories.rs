//! What the seeds found, each as a story of its own; and what a group goes through without being told.

use std::time::Duration;

use rallypoint_core::barrier::{Loss, NodeEvent};

use crate::plan::Plan;
use crate::world::{Fault, World};

/// What all nodes are told after this time, but for what is on their way.
fn told_after(world: &World, seconds: u64) -> Vec<NodeEvent> {
    let after = world.told.iter().filter(|(at, ..)| *at > Duration::from_secs(seconds));
    after.map(|(_, _, event)| event.clone()).collect()
}

/// What happens in it happens in its first minute.
fn quiet(nodes: usize, min: usize, max: usize) -> Plan {
    Plan { faults_until: Duration::from_secs(60), ..Plan::quiet(nodes, min, max) }
}

fn joined(world: &World) -> usize {
    world.told.iter().filter(|(_, _, event)| matches!(event, NodeEvent::Joined { .. })).count()
}

/// The group goes on, and each member says why, within a keep-alive's time and five seconds.
#[test]
fn a_server_that_is_started_again_empty_is_filled_by_the_group() {
    for (seed, nodes) in (0..50).flat_map(|seed| [(seed, 2), (seed, 5)]) {
        let mut world = World::new(seed, quiet(nodes, nodes, nodes));
        world.fault_at(30, Fault::Lose { restored: false });
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        let told = told_after(&world, 30);
        assert!(told.iter().all(|event| matches!(event, NodeEvent::Recovered(_))), "seed {seed}: {told:?}");
        assert!(told.contains(&NodeEvent::Recovered(Loss::Everything)), "seed {seed}: {told:?}");
        let last = world.told.last().map(|(at, ..)| *at);
        assert!(last < Some(Duration::from_secs(30 + 15)), "seed {seed}: {last:?}");
        assert_eq!(joined(&world), nodes, "seed {seed}: nobody meets again");
    }
}

/// One restored to the time before the version was final.
#[test]
fn a_server_that_is_restored_older_makes_the_group_go_on_or_meet_again() {
    for seed in 0..200 {
        let mut world = World::new(seed, quiet(3, 3, 3));
        world.fault_at(0, Fault::Snapshot);
        world.fault_at(30, Fault::Lose { restored: true });
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        let last = world.told.last().map(|(at, ..)| *at);
        assert!(last < Some(Duration::from_secs(30 + 15)), "seed {seed}: {last:?}");
    }
}

#[test]
fn a_silence_of_etcd_is_nobodys_death() {
    for (seed, seconds) in (0..50).flat_map(|seed| [(seed, 5), (seed, 9), (seed, 30)]) {
        let mut world = World::new(seed, quiet(4, 4, 4));
        world.fault_at(20, Fault::Outage(Duration::from_secs(seconds)));
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        let told = told_after(&world, 20);
        let fine = |event: &NodeEvent| *event == NodeEvent::Recovered(Loss::KeepAlive);
        assert!(told.iter().all(fine), "seed {seed}, {seconds} s: {told:?}");
    }
}

/// The spare saw the folder end as soon as the members did, and set up a version of its own.
#[test]
fn a_spare_lets_the_members_put_back_what_etcd_lost() {
    for seed in 0..50 {
        let plan = Plan { run_ttl: Duration::from_secs(20), ..quiet(4, 2, 3) };
        let mut world = World::new(seed, plan);
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        assert_eq!(joined(&world), 3, "seed {seed}: nobody meets again");
    }
}

/// It did not know that etcd had been away, and took the place of a member that was about to return.
#[test]
fn a_spare_after_a_silence_leaves_the_group_to_its_members() {
    for seed in 0..50 {
        let mut world = World::new(seed, quiet(3, 2, 2));
        world.fault_at(20, Fault::Outage(Duration::from_secs(12)));
        world.fault_at(31, Fault::Start { torch: false });
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        assert_eq!(joined(&world), 2, "seed {seed}: nobody meets again");
    }
}

/// Only who put the record back knew that PyTorch's nodes do not put their keep-alives back; the others took them for
/// dead.
#[test]
fn the_end_of_the_folder_is_no_death_of_pytorchs_nodes() {
    for seed in 0..50 {
        let plan = Plan { run_ttl: Duration::from_secs(20), torch: 2, ..quiet(3, 5, 5) };
        let mut world = World::new(seed, plan);
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        let told = told_after(&world, 20);
        assert!(told.iter().all(|event| matches!(event, NodeEvent::Recovered(_))), "seed {seed}: {told:?}");
    }
}

fn out_of_time(world: &World) -> Vec<(Duration, Option<Duration>)> {
    let over = world.told.iter().filter_map(|(at, _, event)| match event {
        NodeEvent::OutOfTime { silent } => Some((*at, *silent)),
        _ => None,
    });
    over.collect()
}

/// Nothing was wrong, and the spare said that there was no version in time.
#[test]
fn a_spare_waits_as_long_as_the_run_lives() {
    let patience = Duration::from_secs(8);
    for seed in 0..50 {
        let mut world = World::new(seed, Plan { patience, ..quiet(3, 2, 2) });
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        assert_eq!((joined(&world), out_of_time(&world)), (2, Vec::new()), "seed {seed}");
    }
}

/// It gave up as soon as etcd was away, as its time had counted from its beginning.
#[test]
fn a_spare_waits_for_etcd_as_long_as_everybody() {
    let patience = Duration::from_secs(15);
    for seed in 0..50 {
        let mut world = World::new(seed, Plan { patience, end: Duration::from_secs(60), ..quiet(3, 2, 2) });
        world.fault_at(20, Fault::Outage(Duration::from_secs(60)));
        let _ = world.run();
        let [(at, Some(silent))] = out_of_time(&world)[..] else {
            panic!("seed {seed}: {:?}", out_of_time(&world))
        };
        // It asks every few seconds.
        let (least, most) = (Duration::from_secs(20) + patience, Duration::from_secs(25) + patience);
        assert!(at > least && at < most && silent >= patience, "seed {seed}: {at:?}, {silent:?}");
    }
}

/// Who is no spare has its time and no more, also where etcd is silent.
#[test]
fn who_waits_for_too_few_nodes_gives_up_in_time() {
    let patience = Duration::from_secs(15);
    for (seed, outage) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut world = World::new(seed, Plan { patience, end: Duration::from_secs(30), ..quiet(1, 2, 2) });
        if outage {
            world.fault_at(6, Fault::Outage(Duration::from_secs(60)));
        }
        let _ = world.run();
        let [(at, silent)] = out_of_time(&world)[..] else {
            panic!("seed {seed}: {:?}", out_of_time(&world))
        };
        assert!(at >= patience && at < patience + Duration::from_secs(1), "seed {seed}: {at:?}");
        assert_eq!(silent.is_some(), outage, "seed {seed}: {silent:?}");
    }
}
