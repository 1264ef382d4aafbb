//! Promises 6 to 10 in calm weather, where each can be told apart.

use std::time::Duration;

use fastrand::Rng;
use rallypoint_core::round::{
    Change, Lost, PLACES_PER_REQUEST, RankPolicy, Refusal, RunSettings, WhenExcluded, Why,
};

use crate::check::Violation;
use crate::faults::Loss;
use crate::finale::{self, MOMENT, is_settled, settle, state};
use crate::network::{LATEST, Weather};
use crate::process::{Crash, Phase, Process};
use crate::world::{Setup, World};

/// So long that whoever sits it out is found out.
const LONG: Duration = Duration::from_secs(3_600);

pub(crate) fn world(seed: u64, min_nodes: usize, max_nodes: usize) -> World {
    let setup = Setup {
        settings: RunSettings { min_nodes, max_nodes, policy: RankPolicy::Sticky },
        lease: Duration::from_secs(5),
        last_call: LONG,
        replacement: Duration::ZERO,
        run_ttl: Duration::from_secs(600),
        closed_ttl: Duration::from_secs(600),
        places: &[PLACES_PER_REQUEST],
        racks: None,
        when_excluded: &[WhenExcluded::End],
    };
    World::new(seed, setup, Weather::default())
}

pub(crate) fn start(world: &mut World, nodes: usize) -> Result<(), Violation> {
    (0..nodes).try_for_each(|node| world.start(&format!("n{node}")).map(|_| ()))
}

/// Tries many seeds of one story.
pub(crate) fn tell(seeds: u64, story: impl Fn(u64) -> Result<(), Violation>) {
    for seed in 0..seeds {
        if let Err(violation) = story(seed) {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[test]
fn a_full_group_meets_at_once_and_a_smaller_one_after_the_last_call() {
    tell(20, |seed| {
        let mut full = world(seed, 2, 8);
        start(&mut full, 8)?;
        settle(&mut full, MOMENT)?;
        assert_eq!(full.check.commits, 1);

        let mut some = world(seed, 2, 8);
        some.setup.last_call = Duration::from_secs(20);
        start(&mut some, 5)?;
        some.run_for(Duration::from_secs(19))?;
        assert_eq!(some.check.commits, 0, "the last call is not over");
        settle(&mut some, Duration::from_secs(1) + MOMENT)?;
        assert_eq!((some.check.commits, some.check.round().world_size), (1, 5));
        Ok(())
    });
}

#[test]
fn nobody_meets_with_too_few() {
    tell(5, |seed| {
        let mut world = world(seed, 4, 8);
        world.setup.last_call = Duration::from_secs(1);
        start(&mut world, 3)?;
        world.run_for(Duration::from_secs(60))?;
        assert_eq!(world.check.commits, 0);
        world.start("last")?;
        settle(&mut world, Duration::from_secs(1) + MOMENT)
    });
}

#[test]
fn who_comes_to_a_running_group_is_waited_for_by_nobody_and_let_in() {
    tell(20, |seed| {
        let mut world = world(seed, 2, 8);
        world.setup.last_call = Duration::from_millis(500);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        let late = world.start("late")?;
        world.run_while(world.now + MOMENT, |world| world.processes[0].told.is_none())?;
        assert_eq!(world.processes[0].told, Some((1, Change::Waiting(1))));
        settle(&mut world, MOMENT)?;
        assert_eq!(world.processes[late].is_in().map(|joined| joined.rank), Some(3));
        Ok(())
    });
}

#[test]
fn a_lost_member_is_told_to_all_and_the_others_meet_without_the_last_call() {
    tell(200, |seed| {
        let mut world = world(seed, 2, 5);
        start(&mut world, 5)?;
        settle(&mut world, MOMENT)?;
        finale::lose_one(&mut world, &mut Rng::with_seed(seed))
    });
}

#[test]
fn a_spare_takes_the_place_of_a_lost_member_and_no_other_rank_changes() {
    tell(200, |seed| {
        let mut world = world(seed, 5, 5);
        start(&mut world, 7)?;
        settle(&mut world, MOMENT)?;
        world.run_for(MOMENT)?;
        assert_eq!(world.check.commits, 1, "a spare does not disturb the group: {}", state(&world));
        finale::lose_one(&mut world, &mut Rng::with_seed(seed))?;
        assert_eq!(world.members().len(), 5);
        Ok(())
    });
}

/// Its time to join may be short, and does not count once it knows that it stands by.
#[test]
fn a_spare_is_told_at_once_that_it_stands_by() {
    tell(100, |seed| {
        let mut world = world(seed, 5, 5);
        start(&mut world, 5)?;
        settle(&mut world, MOMENT)?;
        world.start("spare")?;
        let untold = |world: &World| world.round().is_none_or(|record| record.news.spares == 0);
        let end = world.now + Duration::from_millis(300);
        assert!(world.run_while(end, untold)?, "{}", state(&world));
        Ok(())
    });
}

/// Workers fail as soon as one elsewhere is gone, and their nodes ask for another round before anybody knows of a death.
#[test]
fn who_died_after_the_others_had_asked_for_a_round_is_named_with_the_next_one() {
    tell(20, |seed| {
        let mut world = world(seed, 9, 12);
        start(&mut world, 12)?;
        settle(&mut world, MOMENT)?;
        let dead = world.processes.iter().position(|it| it.is_in().is_some_and(|joined| joined.rank == 5));
        let dead = dead.expect("somebody has that rank");
        let name = world.processes[dead].id.clone();
        world.crash(dead);
        let others: Vec<usize> = world.living().collect();
        others.iter().try_for_each(|index| world.join(*index))?;
        let lease = world.setup.lease;
        settle(&mut world, lease * 2 + MOMENT)?;
        for index in others {
            let joined = world.processes[index].is_in().expect("they have met again");
            let lost = Lost { node: name.clone(), rank: 5, why: Why::Died };
            assert_eq!((joined.world_size, &joined.without), (11, &vec![lost]), "{}", state(&world));
        }
        Ok(())
    });
}

#[test]
fn a_running_group_outlives_an_outage_of_etcd() {
    tell(300, |seed| {
        let mut world = world(seed, 3, 6);
        world.setup.last_call = Duration::from_secs(1);
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        let begin = world.up_to(Duration::from_secs(10));
        world.run_for(begin)?;
        finale::outage(&mut world, &mut Rng::with_seed(seed))?;
        // It still knows a real death from an outage.
        finale::lose_one(&mut world, &mut Rng::with_seed(seed))
    });
}

#[test]
fn nodes_meet_again_when_all_of_the_run_was_lost_in_an_outage() {
    tell(50, |seed| {
        let mut world = world(seed, 3, 6);
        world.setup.last_call = Duration::from_secs(1);
        world.setup.run_ttl = Duration::from_secs(20);
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        world.etcd_away(Duration::from_secs(60), false);
        world.run_for(Duration::from_secs(61))?;
        settle(&mut world, Duration::from_secs(60))
    });
}

#[test]
fn other_settings_are_refused_with_both_values_and_harm_nobody() {
    tell(20, |seed| {
        let mut world = world(seed, 2, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let news = world.news;
        let settings = RunSettings { max_nodes: 9, ..world.setup.settings };
        let (stranger, double) = (world.start_with("stranger", settings)?, world.start_with("n1", settings)?);
        world.run_for(MOMENT)?;
        for index in [stranger, double] {
            let refusal = Refusal::Mismatch { setting: "max_nodes", ours: "9".into(), theirs: "4".into() };
            assert_eq!(world.processes[index].refusal, Some(refusal));
        }
        assert_eq!(world.news, news, "the group was disturbed: {}", state(&world));
        assert!(is_settled(&world), "{}", state(&world));
        Ok(())
    });
}

#[test]
fn only_members_close_and_whoever_comes_later_learns_why() {
    tell(50, |seed| {
        let mut world = world(seed, 2, 3);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let spare = world.living().find(|index| world.processes[*index].phase == Phase::Joining).unwrap();
        world.close(spare, "not its to close")?;
        world.run_for(MOMENT)?;
        assert_eq!(world.check.round().closed, None);
        assert!(!world.processes[spare].alive, "it has left");
        finale::end(&mut world, &mut Rng::with_seed(seed))
    });
}

/// The node's own lease has ended by then, so nothing happens to it any more that would make it go on.
#[test]
fn who_joins_while_it_closes_and_is_refused_leaves() {
    tell(50, |seed| {
        let mut world = world(seed, 2, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.cut(2, world.setup.lease * 3);
        world.close(2, "late")?;
        world.join(2)?;
        world.close(0, "early")?;
        world.run_for(MOMENT)?;
        world.leave(0)?;
        world.leave(1)?;
        settle(&mut world, Duration::from_secs(30))?;
        let refusal = &world.processes[2].refusal;
        assert!(refusal.is_none() || *refusal == Some(Refusal::Closed("early".to_owned())), "{refusal:?}");
        assert!(!world.processes[2].alive);
        Ok(())
    });
}

#[test]
fn a_restarted_process_comes_back_as_itself_within_its_lease() {
    tell(50, |seed| {
        let mut world = world(seed, 4, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let rank = world.processes[2].is_in().map(|joined| joined.rank);
        world.crash(2);
        let again = world.start("n2")?;
        settle(&mut world, MOMENT)?;
        assert_eq!(world.processes[again].is_in().map(|joined| joined.rank), rank);
        Ok(())
    });
}

#[test]
fn who_is_replaced_by_a_process_of_its_name_is_told_by_whom_and_the_others_that_it_was() {
    tell(50, |seed| {
        let mut world = world(seed, 4, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let old = seed as usize % 4;
        let rank = world.processes[old].is_in().map(|joined| joined.rank).expect("it is in the round");
        let new = world.start(&format!("n{old}"))?;
        let time = MOMENT + world.setup.lease;
        settle(&mut world, time)?;
        let by = world.processes[new].address.clone();
        assert_eq!(world.processes[old].told, Some((1, Change::Replaced { by })), "n{old}");
        let replaced = Change::MemberReplaced { node: format!("n{old}"), rank };
        for other in (0..4).filter(|other| *other != old) {
            assert_eq!(world.processes[other].told, Some((1, replaced.clone())), "n{other}");
        }
        Ok(())
    });
}

/// Seeds 3100929777 and 1102611695246: soon after a loss of data the others go on without a member that does not hear of it, and
/// leave. It comes back, leads, and takes back their round, which nobody is in.
#[test]
fn who_knows_that_the_others_went_on_without_it_is_not_told_of_a_loss_too() {
    tell(50, |seed| {
        let mut world = world(seed, 1, 1);
        start(&mut world, 1)?;
        settle(&mut world, MOMENT)?;
        world.start("spare")?;
        world.run_for(MOMENT)?;
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        world.run_for(MOMENT)?;
        settle(&mut world, MOMENT)?;
        assert!(world.processes[0].is_in().is_some(), "{}", state(&world));
        let lease = world.setup.lease;
        world.cut(0, lease * 5);
        world.hang(0, lease * 6);
        let end = world.now + lease * 4;
        assert!(world.run_while(end, |world| world.processes[1].is_in().is_none())?, "{}", state(&world));
        world.leave(1)?;
        world.run_for(lease * 5)?;
        let told = world.processes[0].told.as_ref().map(|(_, told)| told);
        assert_eq!(told, Some(&Change::Excluded), "{}", state(&world));
        settle(&mut world, lease * 2)
    });
}

/// Its key stands there again because etcd was restored from a snapshot, and not because it is back.
#[test]
fn nobody_is_replaced_by_the_process_that_had_its_name_before() {
    tell(50, |seed| {
        let mut world = world(seed, 4, 4);
        world.setup.last_call = Duration::from_secs(1);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        world.back_up();
        world.crash(2);
        let again = world.start("n2")?;
        settle(&mut world, MOMENT)?;
        world.run_for(MOMENT)?;
        let overtakes = seed % 2 == 0;
        world.lose_data(Loss { empty: false, overtakes, compacted: seed % 4 == 0 })?;
        world.run_for(MOMENT)?;
        settle(&mut world, Duration::from_secs(30))?;
        assert!(world.processes[again].is_in().is_some(), "{}", state(&world));
        Ok(())
    });
}

/// The life of a group, in which each process dies at each of its requests in turn: before it goes out, or right
/// after it was carried out. Whoever is left meets again.
#[test]
fn a_leader_may_die_at_every_step() {
    let live = |victim: usize, crash: Option<Crash>| -> Result<u64, Violation> {
        let mut world = world(7, 2, 6);
        world.setup.last_call = Duration::from_secs(2);
        start(&mut world, 4)?;
        world.processes[victim].crash = crash;
        let story = |world: &mut World| -> Result<(), Violation> {
            world.run_for(Duration::from_secs(4))?;
            world.start("n4")?;
            world.run_for(Duration::from_secs(4))?;
            let third = world.living().nth(2);
            if let Some(index) = third {
                world.leave(index)?;
            }
            world.run_for(Duration::from_secs(4))?;
            if let Some(index) = world.members().first().copied() {
                world.join(index)?;
            }
            world.run_for(Duration::from_secs(4))
        };
        story(&mut world)?;
        settle(&mut world, Duration::from_secs(20))?;
        let (requests, alive) = (world.processes[victim].requests, world.processes[victim].alive);
        assert!(crash.is_none() || !alive, "n{victim} was to die at {crash:?}");
        finale::end(&mut world, &mut Rng::with_seed(7))?;
        Ok(requests)
    };
    let mut leader_deaths = 0;
    for victim in 0..4 {
        let requests = live(victim, None).unwrap_or_else(|violation| panic!("without a death: {violation}"));
        // The first is for a lease that nothing hangs on yet.
        for request in 2..=requests {
            for lost in [false, true] {
                if let Err(violation) = live(victim, Some(Crash { request, lost })) {
                    panic!("n{victim} dies at its request {request}, lost: {lost}: {violation}");
                }
                leader_deaths += 1;
            }
        }
    }
    assert!(leader_deaths > 50, "only {leader_deaths} deaths");
}

/// A leader that leaves, or dies, does not make the others wait for another last call.
#[test]
fn the_last_call_goes_on_under_the_next_leader() {
    for dies in [false, true] {
        let mut world = world(1, 2, 8);
        world.setup.last_call = Duration::from_secs(20);
        start(&mut world, 5).unwrap();
        let began = world.now;
        for _ in 0..3 {
            world.run_for(Duration::from_secs(6)).unwrap();
            let leader = world.leader().unwrap();
            if dies {
                world.crash(leader);
            } else {
                world.leave(leader).unwrap();
            }
        }
        let least = began + Duration::from_secs(20);
        let most = least + if dies { world.setup.lease } else { Duration::ZERO } + Duration::from_secs(1);
        world.run_for(most - world.now).unwrap();
        let met = world.processes.iter().filter_map(Process::is_in).count();
        assert_eq!((met, dies), (2, dies));
    }
}

/// A round whose places take several transactions, which come late or not at all, and whose leader dies among them.
#[test]
fn a_large_round_is_whole_or_not_at_all() {
    const NODES: usize = 250;
    let live = |seed, weather, crash: Option<Crash>| -> Result<u64, Violation> {
        let mut world = world(seed, NODES - 10, NODES);
        world.setup.last_call = Duration::from_secs(2);
        world.weather = weather;
        start(&mut world, NODES)?;
        world.run_while(MOMENT * 5, |world| world.leader().is_none())?;
        let leader = world.leader().unwrap();
        world.processes[leader].crash = crash;
        world.run_for(Duration::from_secs(10))?;
        world.heal()?;
        world.run_for(LATEST)?;
        settle(&mut world, Duration::from_secs(20))?;
        Ok(world.processes[leader].requests)
    };
    let calm = Weather::default();
    let requests = live(3, calm, None).unwrap_or_else(|violation| panic!("in calm weather: {violation}"));
    for request in 3..=requests {
        for lost in [false, true] {
            if let Err(violation) = live(3, calm, Some(Crash { request, lost })) {
                panic!("the leader dies at its request {request}, lost: {lost}: {violation}");
            }
        }
    }
    let foul = Weather { slow: 0.3, lost: 0.05, late: 0.1, snapshot: 0.05, twice: 0.05, busy: false };
    tell(3, |seed| live(seed, foul, None).map(|_| ()));
}

/// The last member but one comes back as another process, leads, and dies at each step on its way to a round of its own.
/// The other one, which knew of nothing, is told all the same that its group is gone.
#[test]
fn a_member_hears_of_losses_that_the_last_leader_had_planned_for_and_not_told() {
    let live = |crash: Option<Crash>| -> Result<u64, Violation> {
        let mut world = world(1, 1, 2);
        world.setup.last_call = Duration::from_secs(1);
        start(&mut world, 2)?;
        settle(&mut world, MOMENT)?;
        let gone = world.setup.lease * 2;
        world.cut(1, gone + Duration::from_secs(10));
        world.crash(0);
        world.run_for(gone)?;
        let back = world.start("n0")?;
        world.processes[back].crash = crash;
        world.run_for(Duration::from_secs(5))?;
        let requests = world.processes[back].requests;
        if world.living().any(|index| index == back) {
            world.crash(back);
        }
        settle(&mut world, gone * 2)?;
        let alone = world.processes[1].is_in().map(|joined| (joined.round > 1, joined.world_size));
        assert_eq!(alone, Some((true, 1)), "{}", state(&world));
        Ok(requests)
    };
    let requests = live(None).unwrap_or_else(|violation| panic!("it dies after its round: {violation}"));
    for request in 2..=requests {
        for lost in [false, true] {
            if let Err(violation) = live(Some(Crash { request, lost })) {
                panic!("it dies at its request {request}, lost: {lost}: {violation}");
            }
        }
    }
}

/// Promise 10: requests and bytes of a node that is not the leader do not grow with the group, and a group at rest
/// costs nothing but its leases.
#[test]
fn what_a_node_costs_does_not_grow_with_the_group() {
    let mut costs = Vec::new();
    for nodes in [10, 100, 400] {
        let mut world = world(1, nodes, nodes);
        start(&mut world, nodes).unwrap();
        settle(&mut world, MOMENT * 2).unwrap_or_else(|violation| panic!("{nodes} nodes: {violation}"));
        world.run_for(MOMENT).unwrap();
        let leader = world.leader();
        let followers = || world.living().filter(|index| Some(*index) != leader);
        let requests = followers().map(|index| world.processes[index].requests).max().unwrap();
        let received = followers().map(|index| world.processes[index].received).max().unwrap();
        let leads = world.processes[leader.unwrap()].requests;
        println!(
            "{nodes} nodes: {requests} requests and {received} bytes each, {leads} requests by the leader"
        );
        costs.push((requests, received, leads));

        let all = |world: &World| world.processes.iter().map(|process| process.requests).sum::<u64>();
        let before = all(&world);
        world.run_for(Duration::from_secs(100)).unwrap();
        assert_eq!(all(&world), before, "a group at rest makes no requests");
    }
    for (requests, received, _) in &costs {
        assert!(*requests <= 2, "a node joins with a lease and one transaction: {costs:?}");
        assert!(*received < 1_500, "a node hears of the leader, of its place and of the round: {costs:?}");
    }
    // Places are written by the hundred.
    assert!(costs[2].2 <= costs[0].2 + 10, "{costs:?}");
}
