//! A member is taken for dead, and is back before etcd takes the line that would tell the others.

use std::cell::Cell;
use std::time::Duration;

use rallypoint_core::round::NAMED_LOSSES;

use crate::check::{Told, Violation};
use crate::finale::{MOMENT, settle, state};
use crate::findings::second;
use crate::scenarios::{start, tell, world};
use crate::world::World;

/// Seeds 3201262204 and 3204097505: etcd is full when the leader has looked for a member in vain. There is some space for a
/// moment, in which that one comes back. Half a minute later the others were told that it had died.
#[test]
fn nobody_is_told_of_the_death_of_a_member_that_was_back_before_it_could_be_told() {
    let untold = Cell::new(0);
    tell(100, |seed| {
        let mut world = world(seed, 2, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().expect("somebody leads");
        let members: Vec<usize> =
            (1..4).map(|next| (leader + next) % 4).take(1 + seed as usize % 3).collect();
        let lease = world.setup.lease;
        for member in &members {
            world.cut(*member, lease + second(1));
        }
        let all = world.check.holders_count();
        let here = members.len();
        assert!(world.run_while(world.now + lease * 2, |world| world.check.holders_count() > all - here)?);
        // The leader has asked for all of them by then, and has not looked twice.
        world.run_for(Duration::from_millis(300))?;
        world.fill(second(3));
        world.run_for(second(3))?;
        // Whoever tries first has it.
        world.run_while(world.now + second(2), |world| world.check.holders_count() < all)?;
        world.fill(second(30));
        world.run_for(second(30) + MOMENT)?;
        let died = |(_, told): &(String, Told)| matches!(told, Told::Lost(_, _, "died"));
        if !world.check.news.iter().any(died) {
            untold.set(untold.get() + 1);
            assert_eq!(world.check.commits, 1, "{}", state(&world));
        }
        settle(&mut world, MOMENT)
    });
    assert!(untold.get() > 0, "the leader was first in each world");
}

/// One of so many dies, and all others ask for another round: too many are lost to name all. The leader, and one without a name.
fn one_is_lost_without_a_name(world: &mut World, nodes: usize) -> Result<(usize, usize), Violation> {
    start(world, nodes)?;
    settle(world, MOMENT)?;
    let leader = world.leader().expect("somebody leads");
    world.crash((leader + 1) % nodes);
    world.run_for(world.setup.lease + MOMENT * 2)?;
    let lost = world.check.round().news.lost.clone();
    let is_named = |id: &String| lost.iter().any(|lost| lost.node == *id);
    let unnamed = world.living().find(|index| *index != leader && !is_named(&world.processes[*index].id));
    Ok((leader, unnamed.expect("too many are lost to name all")))
}

/// Seed 3503310830: all members are lost, as they ask for another round, and only some of them are named. The next leader takes
/// one of the others for dead, and has nothing else to tell until that one is back. It was told later that it had died.
#[test]
fn nobody_is_told_of_the_death_of_a_member_that_was_lost_without_a_name_and_is_back() {
    let untold = Cell::new(0);
    tell(100, |seed| {
        let nodes = NAMED_LOSSES + 3;
        let mut world = world(seed, nodes, nodes);
        let (leader, member) = one_is_lost_without_a_name(&mut world, nodes)?;
        let lease = world.setup.lease;
        world.cut(member, lease * 2 + second(2));
        let all_join = |world: &World| world.check.round().news.joined == nodes - 1;
        assert!(all_join(&world) && world.run_while(world.now + lease * 2, all_join)?, "{}", state(&world));
        world.crash(leader);
        // There are as many again as the group was told.
        world.start("newcomer")?;
        assert!(world.run_while(world.now + lease * 2, |world| world.leader().is_none())?);
        // For the next one to look twice. It tells of a death within a second.
        world.run_for(Duration::from_millis(500))?;
        world.processes[member].cut_until = world.now + Duration::from_millis(seed % 10 * 40);
        let is_back = |world: &World| world.check.holds_key(&world.processes[member]);
        assert!(!is_back(&world) && world.run_while(world.now + lease * 2, |world| !is_back(world))?);
        // For a line that is on its way, and for the leader to hear of that.
        world.run_for(Duration::from_millis(20))?;
        let id = world.processes[member].id.clone();
        let died = |(_, told): &(String, Told)| matches!(told, Told::Lost(who, _, "died") if *who == id);
        if !world.check.news.iter().any(died) {
            untold.set(untold.get() + 1);
            world.run_for(MOMENT)?;
            assert!(!world.check.news.iter().any(died), "{}", state(&world));
        }
        world.start("last")?;
        // What its watches have to tell may come as late as before.
        settle(&mut world, lease * 2 + MOMENT)
    });
    assert!(untold.get() > 0, "it was told in time in each world");
}

/// As many are here as the group was told, and so many are lost. Who has died was only told with the next other news.
#[test]
fn the_death_of_a_member_that_was_lost_without_a_name_is_told_soon() {
    tell(100, |seed| {
        let nodes = NAMED_LOSSES + 3;
        let mut world = world(seed, nodes, nodes);
        let (leader, member) = one_is_lost_without_a_name(&mut world, nodes)?;
        let lease = world.setup.lease;
        world.crash(member);
        let all_join = |world: &World| world.check.round().news.joined == nodes - 1;
        assert!(all_join(&world) && world.run_while(world.now + lease * 2, all_join)?, "{}", state(&world));
        world.crash(leader);
        world.start("newcomer")?;
        assert!(world.run_while(world.now + lease * 2, |world| world.leader().is_none())?);
        world.run_for(MOMENT * 2)?;
        let id = world.processes[member].id.clone();
        let died = |(_, told): &(String, Told)| matches!(told, Told::Lost(who, _, "died") if *who == id);
        assert!(world.check.news.iter().any(died), "seed {seed}: {}", state(&world));
        ["one", "two"].iter().try_for_each(|name| world.start(name).map(|_| ()))?;
        settle(&mut world, MOMENT)
    });
}
