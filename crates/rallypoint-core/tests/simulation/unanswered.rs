//! The leader writes a line that tells of something, or a round, and has no answer: etcd may have taken it, or may take it later.

use std::cell::Cell;
use std::time::Duration;

use rallypoint_core::round::{RankRecord, What};
use rallypoint_core::timeline::Event;

use crate::check::{Told, Violation, parse};
use crate::finale::{MOMENT, settle, state};
use crate::findings::second;
use crate::network::{LATEST, TIMEOUT};
use crate::scenarios::{start, tell, world};
use crate::world::World;

/// Of what this process asks for next, the request of that number is carried out late.
fn delay_request(world: &mut World, of: usize, number: u64) -> Result<(), Violation> {
    let made = world.processes[of].requests;
    let end = world.now + second(2);
    assert!(world.run_while(end, |world| world.processes[of].requests < made + number - 1)?);
    world.weather.late = 1.0;
    assert!(world.run_while(end, |world| world.processes[of].requests < made + number)?);
    world.weather.late = 0.0;
    Ok(())
}

/// A member of four is cut off, and away for so long after its lease has ended. The line that tells of its death is carried out
/// late. The member, and how many had their keys before.
fn a_death_is_told_late(world: &mut World, away: Duration) -> Result<(usize, usize), Violation> {
    start(world, 4)?;
    settle(world, MOMENT)?;
    let leader = world.leader().expect("somebody leads");
    let member = (leader + 1) % 4;
    let lease = world.setup.lease;
    // Once it is sure, it reads all anew before it asks for the first that it misses.
    world.run_for(lease + MOMENT)?;
    world.end_lease(member)?;
    world.run_for(MOMENT)?;
    world.cut(member, lease + away);
    let all = world.check.holders_count();
    assert!(world.run_while(world.now + lease * 2, |world| world.check.holders_count() == all)?);
    // It asks, and looks twice.
    delay_request(world, leader, 4)?;
    Ok((member, all))
}

/// The member is back before the leader has given up on the line. It was told to have died by the next one.
#[test]
fn nobody_is_told_of_a_death_by_another_line_when_the_member_is_back_by_then() {
    let untold = Cell::new(0);
    tell(100, |seed| {
        let mut world = world(seed, 2, 4);
        let (_, all) = a_death_is_told_late(&mut world, second(2))?;
        world.run_for(TIMEOUT - Duration::from_millis(10))?;
        let died = |(_, told): &(String, Told)| matches!(told, Told::Lost(_, _, "died"));
        let is_told = |world: &World| world.check.news.iter().any(died);
        if !is_told(&world) && world.check.holders_count() == all {
            untold.set(untold.get() + 1);
            world.run_for(LATEST + MOMENT)?;
            assert!(!is_told(&world), "{}", state(&world));
            assert_eq!(world.check.commits, 1, "{}", state(&world));
        }
        settle(&mut world, LATEST + MOMENT)
    });
    assert!(untold.get() > 0, "etcd has taken each line in time");
}

/// Seed 3801338094: the member is back while the line that tells of its death has no answer, leaves, and may come again. It was told
/// that somebody waits, and not that the member had left.
#[test]
fn who_leaves_while_its_death_is_being_told_is_told_to_have_left() {
    let left = [const { Cell::new(0) }; 2];
    tell(100, |seed| {
        let mut world = world(seed, 2, 4);
        let (member, all) = a_death_is_told_late(&mut world, second(1))?;
        world.run_while(world.now + TIMEOUT, |world| world.check.holders_count() < all)?;
        world.run_for(Duration::from_millis(100))?;
        let comes_again = seed % 2 == 0;
        world.processes[member].returns = comes_again;
        world.leave(member)?;
        world.run_for(LATEST + MOMENT)?;
        let id = world.processes[member].id.clone();
        let told = |why: &str| {
            let is_it = |told: &Told| matches!(told, Told::Lost(who, _, told) if *who == id && *told == why);
            world.check.news.iter().any(|(_, told)| is_it(told))
        };
        assert!(told("left") || told("died"), "{}", state(&world));
        let count = &left[usize::from(comes_again)];
        count.set(count.get() + u32::from(!told("died")));
        settle(&mut world, LATEST + MOMENT)
    });
    assert!(left.iter().all(|left| left.get() > 0), "etcd has taken each line in time");
}

/// Somebody comes and leaves while the line has no answer. It was carried out later, and the group met again for nobody.
#[test]
fn a_group_does_not_meet_again_for_who_has_left_before_a_late_line_tells_of_it() {
    let untold = Cell::new(0);
    tell(100, |seed| {
        let mut world = world(seed, 2, 4);
        world.setup.last_call = second(1);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.run_for(MOMENT)?;
        let leader = world.leader().expect("somebody leads");
        let newcomer = world.start("newcomer")?;
        let all = world.check.holders_count();
        assert!(world.run_while(world.now + MOMENT, |world| world.check.holders_count() == all)?);
        delay_request(&mut world, leader, 1)?;
        world.leave(newcomer)?;
        world.run_for(TIMEOUT + Duration::from_millis(100))?;
        if world.check.round().news.waiting == 0 && world.check.commits == 1 {
            untold.set(untold.get() + 1);
            world.run_for(LATEST + MOMENT)?;
            assert_eq!(world.check.commits, 1, "{}", state(&world));
        }
        settle(&mut world, LATEST + MOMENT)
    });
    assert!(untold.get() > 0, "etcd has taken each line in time");
}

/// etcd has taken the line, and its answer is lost. What it tells was written once more with the next one.
#[test]
fn what_a_line_without_an_answer_has_told_is_written_down_once() {
    tell(100, |seed| {
        let mut world = world(seed, 2, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let earlier = world.leader().expect("somebody leads");
        let lease = world.setup.lease;
        world.run_for(lease + MOMENT)?;
        // Who hangs asks for nothing, and there is no round before all is told.
        (0..4).for_each(|index| world.hang(index, second(30)));
        world.crash(earlier);
        let leads = |world: &World| world.leader().is_none_or(|leader| leader == earlier);
        assert!(world.run_while(world.now + lease * 2, leads)?);
        let leader = world.leader().expect("somebody leads");
        let number = world.processes[leader].requests + 1 + seed % 10;
        world.run_while(world.now + second(5), |world| world.processes[leader].requests < number)?;
        // No answer passes.
        world.weather.lost = 1.0;
        world.run_for(Duration::from_millis(6))?;
        world.weather.lost = 0.0;
        world.run_for(second(10))?;
        // There is something else to tell.
        world.start("newcomer")?;
        world.run_for(MOMENT)?;
        let is_it = |event: &Event| matches!(event.record.what, What::Leads { .. });
        let events = Event::read_all(world.etcd.prefix(&world.keys.events()));
        assert_eq!(events.iter().filter(|event| is_it(event)).count(), 1, "seed {seed}: {events:?}");
        Ok(())
    });
}

/// Seed 4001221051: a member leaves when it is in a plan whose commit has no answer, and etcd is full after that. The round is
/// complete long after, and who has left is told of with the next one.
#[test]
fn who_has_left_long_before_its_round_is_complete_is_told_to_have_left() {
    let with_the_next = Cell::new(0);
    tell(100, |seed| {
        let mut world = world(seed, 2, 5);
        world.setup.last_call = second(1);
        world.setup.places = &[2];
        start(&mut world, 4)?;
        let (end, ranks) = (world.now + MOMENT, world.keys.ranks());
        assert!(world.run_while(end, |world| world.etcd.prefix(&ranks).count() < 4)?);
        let leader = world.leader().expect("somebody leads");
        // The last of the places are not answered yet, and the commit follows.
        world.cut(leader, second(1));
        world.run_for(Duration::from_millis(50))?;
        // The places that the commit looks for are those of the others.
        let has_rank_1 = |index: &usize| {
            let place = world.etcd.get(&world.keys.rank(&world.processes[*index].id));
            place.is_some_and(|place| parse::<RankRecord>(place).is_ok_and(|place| place.rank == 1))
        };
        let member = (0..4).find(has_rank_1).expect("four have places");
        world.leave(member)?;
        world.run_for(Duration::from_millis(50))?;
        world.fill(LATEST + second(3));
        world.run_for(LATEST + second(3))?;
        assert_eq!(world.check.commits, 0);
        assert!(world.run_while(world.now + second(5), |world| world.check.commits == 0)?);
        world.start("newcomer")?;
        let lease = world.setup.lease;
        settle(&mut world, lease * 2 + MOMENT)?;
        let without = &world.check.round().without;
        with_the_next.set(with_the_next.get() + u32::from(!without.is_empty()));
        Ok(())
    });
    assert!(with_the_next.get() > 0, "the member was in no round");
}
