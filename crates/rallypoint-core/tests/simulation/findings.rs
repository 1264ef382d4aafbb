//! What was found on real clusters and by reading, one story each. Each failed before it was mended.

use std::time::Duration;

use rallypoint_core::round::{
    Change, CloseOutcome, Joined, Op, PLACES_PER_REQUEST, RankPolicy, Refusal, Reply, Request, RoundRecord,
    RunSettings, Txn, WhenExcluded,
};

use crate::check::Violation;
use crate::faults::Loss;
use crate::finale::{self, MOMENT, is_settled, settle, state};
use crate::network::Weather;
use crate::process::{Crash, Phase};
use crate::scenarios::{start, tell, world};
use crate::world::World;

pub(crate) fn second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ranks(world: &World) -> Vec<Option<usize>> {
    world.processes.iter().map(|process| process.is_in().map(|joined| joined.rank)).collect()
}

/// Finding 1 and 7: etcd is started again empty, or restored from a snapshot of before, whatever its revision is by then.
#[test]
fn a_group_is_whole_again_after_etcd_has_lost_its_data() {
    tell(60, |seed| {
        for snapshot in [None, Some(0), Some(1)] {
            for (overtakes, compacted) in [(false, false), (true, false), (true, true)] {
                let mut world = world(seed, 3, 6);
                start(&mut world, 6)?;
                if snapshot == Some(0) {
                    world.run_for(Duration::from_millis(4))?;
                    world.back_up();
                }
                settle(&mut world, MOMENT)?;
                if snapshot == Some(1) {
                    world.back_up();
                }
                // Another round, so that the snapshot is of an earlier one.
                world.join(2)?;
                settle(&mut world, MOMENT)?;
                let before = ranks(&world);
                world.run_for(second(7))?;
                world.lose_data(Loss { empty: snapshot.is_none(), overtakes, compacted })?;
                let lease = world.setup.lease;
                world.run_for(MOMENT)?;
                settle(&mut world, lease + second(5) - MOMENT)?;
                // The last call is an hour long: nobody has sat it out.
                assert_eq!(ranks(&world), before, "{}", state(&world));
                finale::lose_one(&mut world, &mut fastrand::Rng::with_seed(seed))?;
            }
        }
        Ok(())
    });
}

/// Seed 90333823: a run has begun anew on an etcd that had lost it, and then somebody restores the older one. Its rounds
/// have higher numbers, and its revisions too.
#[test]
fn a_group_is_whole_again_after_etcd_is_restored_to_an_older_run() {
    tell(60, |seed| {
        let mut world = world(seed, 1, 2);
        start(&mut world, 2)?;
        settle(&mut world, MOMENT)?;
        for _ in 0..1 + seed % 3 {
            world.join(1)?;
            settle(&mut world, MOMENT)?;
        }
        world.run_for(second(seed % 5))?;
        world.back_up();
        world.crash(0);
        world.crash(1);
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        world.setup.last_call = second(20);
        world.start("anew")?;
        settle(&mut world, second(22))?;
        world.run_for(second(10))?;
        world.lose_data(Loss::default())?;
        let lease = world.setup.lease;
        world.run_for(MOMENT)?;
        settle(&mut world, lease + second(5) - MOMENT)
    });
}

/// Seeds 100692 and 103220: a process is slow to register, and a later one of its name has come and gone by then. Then etcd
/// is restored to a moment at which the later one was there. It has replaced nobody.
#[test]
fn nobody_is_replaced_by_a_later_process_that_had_gone_before_it_came() {
    tell(60, |seed| {
        let mut world = world(seed, 2, 3);
        world.start("n1")?;
        world.start("n2")?;
        let older = world.start("n0")?;
        world.cut(older, second(12));
        world.run_for(second(3))?;
        let later = world.start("n0")?;
        settle_but(&mut world, older)?;
        world.back_up();
        if seed % 2 == 0 {
            world.leave(later)?;
        } else {
            // Its key is there still when the older one comes.
            world.run_for(second(8))?;
            world.crash(later);
        }
        world.run_for(second(40))?;
        settle(&mut world, second(5))?;
        assert!(world.processes[older].is_in().is_some(), "{}", state(&world));
        world.lose_data(Loss { overtakes: seed % 3 == 0, ..Loss::default() })?;
        let lease = world.setup.lease;
        world.run_for(MOMENT)?;
        settle(&mut world, lease + second(5) - MOMENT)?;
        assert!(world.processes[older].is_in().is_some(), "{}", state(&world));
        Ok(())
    });
}

/// All but one process meet.
fn settle_but(world: &mut World, one: usize) -> Result<(), Violation> {
    let end = world.now + MOMENT;
    let met = |world: &World| world.living().all(|it| it == one || world.processes[it].is_in().is_some());
    let met = world.run_while(end, |world| !met(world))?;
    assert!(met, "{}", state(world));
    Ok(())
}

/// Finding 2: all leases have ended with etcd's outage, and the first to come is a newcomer.
#[test]
fn a_newcomer_that_leads_after_an_outage_takes_nobody_for_dead() {
    tell(100, |seed| {
        let mut world = world(seed, 3, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.run_for(second(20))?;
        let news = world.news;
        for index in 0..3 {
            world.cut(index, second(12));
        }
        world.run_for(second(12) - Duration::from_millis(5))?;
        world.start("newcomer")?;
        world.run_for(second(30))?;
        assert_eq!(world.news, news, "the group was disturbed: {}", state(&world));
        Ok(())
    });
}

/// etcd's own leader was stopped, and ends leases that were refreshed in time (etcd issue 15247). Nobody has died.
#[test]
fn a_lease_that_etcd_ends_too_early_is_no_death() {
    tell(60, |seed| {
        let mut world = world(seed, 3, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.run_for(second(20))?;
        let news = world.news;
        for index in 0..=usize::try_from(seed % 3).unwrap() {
            world.end_lease(index)?;
        }
        world.run_for(second(20))?;
        assert_eq!(world.news, news, "the group was disturbed: {}", state(&world));
        Ok(())
    });
}

/// Finding 3: the leader dies at each of its requests while the group meets again. It costs neither the last call, which
/// is an hour long here, nor anybody's rank.
#[test]
fn a_leader_lost_between_the_places_and_the_commit_costs_no_last_call_and_no_rank() {
    let live = |seed, crash: Option<Crash>| -> Result<u64, Violation> {
        let mut world = world(seed, 2, 5);
        start(&mut world, 5)?;
        settle(&mut world, MOMENT)?;
        let (leader, before) = (world.leader().unwrap(), ranks(&world));
        world.processes[leader].crash =
            crash.map(|crash| Crash { request: world.processes[leader].requests + crash.request, ..crash });
        world.join((leader + 1) % 5)?;
        let lease = world.setup.lease;
        settle(&mut world, MOMENT * 2 + lease)?;
        // The leader's own rank is free for who has none in the smaller group.
        for (index, rank) in ranks(&world).into_iter().enumerate().filter(|(_, rank)| rank.is_some()) {
            let world_size = world.check.round().world_size;
            let kept = rank == before[index] || before[index] >= Some(world_size);
            assert!(kept, "n{index} had {:?} and has {rank:?}: {}", before[index], state(&world));
        }
        Ok(world.processes[leader].requests)
    };
    tell(10, |seed| {
        for request in 1..=8 {
            for lost in [false, true] {
                live(seed, Some(Crash { request, lost }))?;
            }
        }
        live(seed, None).map(|_| ())
    });
}

/// Finding 3: a member that is alive, and whose program never comes back, blocks nobody for longer than the last call;
/// not even where only newcomers are left beside it.
#[test]
fn a_member_that_hangs_blocks_nobody_for_longer_than_the_last_call() {
    tell(30, |seed| {
        let mut world = world(seed, 1, 2);
        world.setup.last_call = second(10);
        start(&mut world, 2)?;
        settle(&mut world, MOMENT)?;
        world.hang(0, second(100_000));
        world.crash(1);
        let newcomer = world.start("newcomer")?;
        world.run_for(world.setup.lease + second(10) + MOMENT * 2)?;
        let rank = world.processes[newcomer].is_in().map(|joined| (joined.rank, joined.world_size));
        assert_eq!(rank, Some((0, 1)), "{}", state(&world));
        Ok(())
    });
}

/// Finding 4: a member at work whose name another process takes, whether it leads or not.
#[test]
fn a_replaced_member_is_told_and_by_whom() {
    tell(60, |seed| {
        let mut world = world(seed, 3, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        let old = usize::try_from(seed % 3).unwrap();
        let id = world.processes[old].id.clone();
        let new = world.start(&id)?;
        let lease = world.setup.lease;
        settle(&mut world, lease + MOMENT * 3)?;
        assert!(!world.processes[old].alive, "{}", state(&world));
        let by = world.processes[new].address.clone();
        let told = &world.processes[old].told;
        let replaced = matches!(told, Some((1, Change::Replaced { by: it })) if *it == by);
        let refused = world.processes[old].refusal == Some(Refusal::Replaced { by });
        assert!(replaced || refused, "it was told {told:?}");
        Ok(())
    });
}

/// Finding 4: nobody can read what stands at the group's record. Members at work are told so, and do not wait for ever.
#[test]
fn members_are_told_of_a_record_that_cannot_be_read() {
    tell(60, |seed| {
        let mut world = world(seed, 2, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.scribble(world.keys.round())?;
        world.run_for(MOMENT)?;
        for process in &world.processes {
            assert!(matches!(process.told, Some((1, Change::Corrupt(_)))), "{:?}", process.told);
            assert!(matches!(process.refusal, Some(Refusal::Corrupt(_))), "{:?}", process.refusal);
        }
        Ok(())
    });
}

/// Finding 5: the run's own lease ends in an outage, and a newcomer is there first. The members are told, and nobody
/// shares a store with the round of the same number.
#[test]
fn a_second_round_of_the_same_number_is_another_round() {
    tell(60, |seed| {
        let mut world = world(seed, 1, 4);
        world.setup.last_call = Duration::from_millis(200);
        world.setup.run_ttl = second(20);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        let first: Joined = world.processes[0].is_in().unwrap().clone();
        for index in 0..3 {
            world.cut(index, second(70));
        }
        world.run_for(second(60))?;
        let newcomer = world.start("newcomer")?;
        world.run_for(second(5))?;
        let second_round = world.processes[newcomer].is_in().unwrap().clone();
        assert_eq!(second_round.round, first.round);
        assert_ne!(second_round.plan, first.plan);
        settle(&mut world, second(60))?;
        assert_eq!(world.members().len(), 4, "{}", state(&world));
        Ok(())
    });
}

/// Finding 6: who is refused because the run is closed does not end the mark of that.
#[test]
fn a_close_before_the_first_node_holds_for_all_who_come() {
    tell(30, |seed| {
        let mut world = world(seed, 1, 2);
        world.operator_closes("not today");
        world.run_for(MOMENT)?;
        assert_eq!(world.operator.outcome, Some(CloseOutcome::Closed));
        for node in ["first", "second", "third"] {
            let index = world.start(node)?;
            world.run_for(MOMENT)?;
            assert_eq!(world.processes[index].refusal, Some(Refusal::Closed("not today".to_owned())));
        }
        Ok(())
    });
}

/// A member closes a run whose record is gone: it is told, and the close holds.
#[test]
fn a_close_of_a_run_whose_record_is_lost_holds() {
    tell(30, |seed| {
        let mut world = world(seed, 2, 2);
        start(&mut world, 2)?;
        settle(&mut world, MOMENT)?;
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        world.close(0, "done")?;
        world.run_for(MOMENT * 4)?;
        assert!(world.living().next().is_none(), "{}", state(&world));
        assert_eq!(world.check.round().closed.as_deref(), Some("done"));
        Ok(())
    });
}

/// Finding 8: a group whose user's role is gone for a while goes on where it was, and notices soon that it may again.
#[test]
fn a_permission_that_comes_back_is_noticed_within_seconds() {
    tell(240, |seed| {
        let mut world = world(seed, 2, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        world.run_for(second(7))?;
        let news = world.news;
        // With the role goes what is asked and each refresh of a lease with keys. The watches go on telling.
        let time = Duration::from_millis(500) * u32::try_from(seed % 60).unwrap();
        world.deny_all(time);
        if seed % 4 == 0 {
            (0..4).for_each(|index| world.break_streams(index));
        }
        world.run_for(time + world.setup.lease * 2 + MOMENT)?;
        assert_eq!(world.news, news, "the group was disturbed: {}", state(&world));
        finale::lose_one(&mut world, &mut fastrand::Rng::with_seed(seed))
    });
}

/// etcd 3.4 refreshes the lease of a node that may not do anything, and with it what makes that node the leader.
#[test]
fn a_leader_that_is_denied_everything_leaves_it_to_another() {
    tell(60, |seed| {
        let mut world = world(seed, 2, 4);
        world.lax = true;
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().unwrap();
        world.deny(leader, Duration::from_secs(600));
        let dead = (leader + 1) % 4;
        world.crash(dead);
        world.run_for(world.setup.lease + world.setup.last_call + second(5))?;
        let others = (0..4).filter(|index| ![leader, dead].contains(index));
        for index in others {
            let met = world.processes[index].is_in().is_some_and(|joined| joined.round > 1);
            assert!(met, "{}: {}", world.name(index), state(&world));
        }
        Ok(())
    });
}

/// Finding 12: what a later version adds does not end an earlier one's work.
#[test]
fn records_of_a_later_version_end_nobodys_work() {
    let mut world = world(1, 2, 2);
    start(&mut world, 2).unwrap();
    settle(&mut world, MOMENT).unwrap();
    let news = world.news;
    let key = world.keys.round();
    let entry = world.etcd.get(&key).unwrap().clone();
    let mut record: serde_json::Value = serde_json::from_str(&entry.value).unwrap();
    record["version"] = 7.into();
    record["settings"]["policy"] = "by the moon".into();
    record["tides"] = serde_json::json!({ "high": 3 });
    let put = Op::Put { key: key.clone(), value: record.to_string(), lease: entry.lease };
    let txn = Request::Txn(Txn { then: vec![put], ..Txn::default() });
    let Ok(Reply::Txn(_)) = world.etcd.apply(world.now, &txn) else { panic!("the model writes") };
    world.publish().unwrap();
    world.run_for(MOMENT).unwrap();
    assert_eq!(world.news, news, "somebody was told: {}", state(&world));
    // Somebody dies: the leader writes the record again, and what it does not know stays.
    let leader = world.leader().unwrap();
    world.crash(1 - leader);
    world.run_for(world.setup.lease + MOMENT).unwrap();
    let record: RoundRecord = world.round().unwrap();
    assert_eq!(record.settings.map(|settings| settings.policy), Some(RankPolicy::Other));
    assert_eq!(record.more["tides"]["high"], 3);
    assert!(record.news.lost_count > 0);
}

/// Finding 12: half of a large group dies at once. Their places are gone after the next round.
#[test]
fn the_places_of_many_dead_are_gone_after_one_round() {
    const NODES: usize = 300;
    let mut world = World::new(
        1,
        crate::world::Setup {
            settings: RunSettings { min_nodes: 10, max_nodes: NODES, policy: RankPolicy::Sticky },
            lease: second(5),
            last_call: second(30),
            replacement: Duration::ZERO,
            run_ttl: second(600),
            closed_ttl: second(600),
            places: &[PLACES_PER_REQUEST],
            racks: None,
            when_excluded: &[WhenExcluded::End],
        },
        Weather::default(),
    );
    start(&mut world, NODES).unwrap();
    settle(&mut world, MOMENT * 2).unwrap();
    for index in NODES / 2..NODES {
        world.crash(index);
    }
    let lease = world.setup.lease;
    world.run_for(lease).unwrap();
    settle(&mut world, second(5)).unwrap();
    world.run_for(MOMENT).unwrap();
    assert_eq!(world.etcd.prefix(&world.keys.ranks()).count(), NODES / 2);
    assert!(is_settled(&world) && world.processes.iter().all(|it| it.phase != Phase::Joining));
}

/// Those whose moment to follow a dead leader was at once waited for the next word from etcd.
#[test]
fn a_dead_leader_is_followed_within_half_a_second_of_its_leases_end() {
    tell(100, |seed| {
        let mut world = world(seed, 2, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().expect("there is one");
        world.crash(leader);
        let (end, key) = (world.now + world.setup.lease * 2, world.keys.leader());
        assert!(world.run_while(end, |world| world.etcd.get(&key).is_some())?);
        world.run_for(Duration::from_millis(500))?;
        assert!(world.leader().is_some(), "{}", state(&world));
        Ok(())
    });
}

/// A leader's key that hangs on no lease would stay for ever.
#[test]
fn a_leaders_key_that_is_nobodys_is_taken_over() {
    tell(60, |seed| {
        let mut world = world(seed, 3, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let (news, before) = (world.news, ranks(&world));
        let key = world.keys.leader();
        world.scribble(key)?;
        world.run_for(second(1))?;
        assert!(world.leader().is_some(), "{}", state(&world));
        assert_eq!((world.news, ranks(&world)), (news, before), "{}", state(&world));
        finale::lose_one(&mut world, &mut fastrand::Rng::with_seed(seed))
    });
}

/// What is no node's record has replaced nobody. One that hangs on no lease would be there when the node is gone.
#[test]
fn a_node_whose_key_is_overwritten_writes_it_again() {
    tell(60, |seed| {
        for (index, scribbled) in (0..3).flat_map(|index| [(index, true), (index, false)]) {
            let mut world = world(seed, 3, 3);
            start(&mut world, 3)?;
            settle(&mut world, MOMENT)?;
            let (news, before) = (world.news, ranks(&world));
            let key = world.keys.node(&format!("n{index}"));
            let own = world.etcd.get(&key).expect("it is there").value.clone();
            if scribbled {
                world.scribble(key.clone())?;
            } else {
                world.overwrite(key.clone(), own)?;
            }
            world.run_for(world.setup.lease + second(2))?;
            assert_eq!((world.news, ranks(&world)), (news, before), "{}", state(&world));
            let entry = world.etcd.get(&key).expect("it is there");
            assert!(entry.lease != 0 && entry.value.starts_with('{'), "{entry:?}");
        }
        Ok(())
    });
}

/// etcd is full from some moment on, perhaps between the grant of the run's lease and the record that names it. The lease's time
/// runs from the grant.
#[test]
fn a_runs_lease_that_was_named_late_is_refreshed_in_time() {
    for after in 0..40 {
        let mut world = world(after, 2, 2);
        world.setup.run_ttl = second(12);
        world.start("n0").unwrap();
        world.run_for(Duration::from_millis(after)).unwrap();
        world.fill(second(11));
        world.run_for(second(12)).unwrap();
        world.run_for(second(20)).unwrap();
        assert_eq!(world.check.losses, 0, "after {after} ms: {}", state(&world));
    }
}
