//! How a run ends: what stays of it, and who tidies up.

use std::time::Duration;

use rallypoint_core::round::{Op, Reply, Request, Txn};

use crate::finale::{MOMENT, settle, state};
use crate::findings::second;
use crate::scenarios::{start, tell, world};
use crate::world::World;

/// Finding 10: of those that leave a closed run together, each sees the others' keys.
#[test]
fn a_run_that_ended_well_leaves_its_mark_and_nothing_else() {
    tell(60, |seed| {
        for nodes in [2, 3, 20] {
            let mut world = world(seed, nodes, nodes);
            start(&mut world, nodes)?;
            settle(&mut world, MOMENT)?;
            for index in 0..nodes {
                world.close(index, "done")?;
                world.leave(index)?;
            }
            world.run_for(MOMENT * 2)?;
            assert_eq!(left(&world), [world.keys.round()], "{nodes} nodes");
            // A round and its end: what a run has been can be looked at for a while.
            assert_eq!(world.etcd.prefix(&world.keys.events()).count(), 2);
        }
        Ok(())
    });
}

/// What etcd has of the run, but for its past.
fn left(world: &World) -> Vec<&str> {
    let keys = world.etcd.prefix(crate::world::RUN).map(|entry| entry.key.as_str());
    keys.filter(|key| !key.starts_with(&world.keys.events())).collect()
}

/// A spare that has died is still there when the run ends. What only members have a use for goes with the last of them.
#[test]
fn a_dead_spare_keeps_nothing_of_a_run_that_ended_well() {
    tell(60, |seed| {
        let mut world = world(seed, 2, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        let spare = world.start("spare")?;
        world.run_for(MOMENT)?;
        world.crash(spare);
        for index in 0..3 {
            world.close(index, "done")?;
            world.leave(index)?;
        }
        world.run_for(MOMENT * 2)?;
        assert_eq!(left(&world), [world.keys.round(), world.keys.node("spare")]);
        Ok(())
    });
}

/// In a large group only the leader tidies up. Somebody comes just then.
#[test]
fn who_comes_late_does_not_keep_the_leader_of_a_large_group_from_tidying_up() {
    tell(200, |seed| {
        let mut world = world(seed, 20, 20);
        start(&mut world, 20)?;
        settle(&mut world, MOMENT)?;
        let nodes = world.keys.nodes();
        let record = world.etcd.prefix(&nodes).next().expect("they are there").value.clone();
        for index in 0..20 {
            world.close(index, "done")?;
            world.leave(index)?;
        }
        let end = world.now + MOMENT;
        assert!(world.run_while(end, |world| world.etcd.prefix(&nodes).nth(1).is_some())?);
        // It hears of it, and tidies up: its request is under way.
        world.run_for(Duration::from_millis(1 + seed % 5))?;
        let Ok(Reply::Granted(lease)) = world.etcd.apply(world.now, &Request::Grant(second(60))) else {
            panic!("the model grants")
        };
        let put = Op::Put { key: world.keys.node("late"), value: record, lease };
        let txn = Request::Txn(Txn { then: vec![put], ..Txn::default() });
        world.etcd.apply(world.now, &txn).expect("the model writes");
        world.publish()?;
        world.run_for(Duration::from_millis(100))?;
        world.etcd.apply(world.now, &Request::Revoke(lease)).expect("the model revokes");
        world.publish()?;
        world.run_for(MOMENT * 2)?;
        assert_eq!(left(&world), [world.keys.round()]);
        Ok(())
    });
}

/// A registration of the leader's was carried out late, and its answer was lost: its key is not as it knows it.
#[test]
fn the_leader_of_a_large_group_tidies_up_though_its_key_was_written_behind_its_back() {
    tell(60, |seed| {
        let mut world = world(seed, 20, 20);
        start(&mut world, 20)?;
        settle(&mut world, MOMENT)?;
        let leader = format!("n{}", world.leader().expect("one leads"));
        let own = world.etcd.get(&world.keys.node(&leader)).expect("it is there").clone();
        let put = Op::Put { key: own.key, value: own.value, lease: own.lease };
        let txn = Request::Txn(Txn { then: vec![put], ..Txn::default() });
        world.etcd.apply(world.now, &txn).expect("the model writes");
        world.publish()?;
        for index in 0..20 {
            world.close(index, "done")?;
            world.leave(index)?;
        }
        world.run_for(MOMENT * 2)?;
        assert_eq!(left(&world), [world.keys.round()]);
        Ok(())
    });
}

/// The leader waits for the others before it tidies up, and its watches break meanwhile.
#[test]
fn a_leader_that_has_lost_sight_of_a_closed_run_tidies_up() {
    tell(60, |seed| {
        for after in 0..12 {
            let mut world = world(seed, 1, 1);
            start(&mut world, 1)?;
            settle(&mut world, MOMENT)?;
            for spare in ["spare1", "spare2"] {
                world.start(spare)?;
            }
            world.run_for(MOMENT)?;
            world.compact();
            world.close(0, "done")?;
            world.run_for(Duration::from_millis(after))?;
            world.break_streams(0);
            world.run_for(MOMENT * 2)?;
            assert_eq!(left(&world), [world.keys.round()], "after {after} ms: {}", state(&world));
        }
        Ok(())
    });
}

/// A member was stopped when the run was closed, for longer than its lease or not. It is the last to leave, without a key or
/// with one, and the leader of a large group has not waited for it.
#[test]
fn who_comes_back_to_a_closed_run_tidies_up() {
    for (nodes, stop) in [(3, 9), (18, 9), (18, 3)] {
        tell(30, |seed| {
            let mut world = world(seed, nodes, nodes);
            start(&mut world, nodes)?;
            settle(&mut world, MOMENT)?;
            let stopped = usize::try_from(seed).unwrap() % nodes;
            world.stall(stopped, second(stop));
            world.operator_closes("over");
            world.run_for(second(stop) + MOMENT * 2)?;
            assert!(world.living().next().is_none(), "{}", state(&world));
            assert_eq!(left(&world), [world.keys.round()], "{nodes} nodes, {stop} s");
            Ok(())
        });
    }
}

/// Who leaves a closed run takes nothing from a member that is still at work: it may want the round's store.
#[test]
fn the_store_of_a_closed_run_is_there_for_its_last_member() {
    tell(20, |seed| {
        let mut world = world(seed, 3, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.hang(2, second(60));
        world.operator_closes("over");
        world.run_for(MOMENT * 2)?;
        assert_eq!(world.etcd.prefix(&world.keys.stores()).count(), 3, "{:?}", left(&world));
        world.run_for(second(62))?;
        assert_eq!(left(&world), [world.keys.round()]);
        Ok(())
    });
}
