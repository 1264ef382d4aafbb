//! How a group that has lost somebody waits for a replacement, and what it is told of that.

use std::time::Duration;

use crate::finale::{MOMENT, is_settled, settle, state};
use crate::findings::second;
use crate::scenarios::{start, tell, world};
use crate::world::World;

#[test]
fn a_group_that_lost_a_member_waits_for_a_replacement_before_it_meets_smaller() {
    for (comes, leader_goes) in [(true, false), (false, false), (false, true)] {
        tell(50, |seed| {
            let mut world = world(seed, 2, 6);
            (world.setup.last_call, world.setup.replacement) = (second(1), second(30));
            start(&mut world, 5)?;
            settle(&mut world, second(1) + MOMENT)?;
            assert_eq!(world.check.commits, 1, "nobody is waited for where nobody was lost");
            world.leave(4)?;
            let began = world.now;
            world.run_for(second(10))?;
            if leader_goes {
                world.leave(world.leader().expect("somebody leads"))?;
            }
            world.run_for(second(18))?;
            assert_eq!(world.check.commits, 1, "they would be fewer than before: {}", state(&world));
            if comes {
                // As many as before are enough: more could come.
                world.start("replacement")?;
                settle(&mut world, MOMENT)?;
                assert_eq!(world.members().len(), 5);
            } else {
                world.run_for(began + second(30) + MOMENT - world.now)?;
                assert!(is_settled(&world), "it is waited no longer than that: {}", state(&world));
                assert_eq!(world.members().len(), 4 - usize::from(leader_goes));
            }
            // That is the size of the group from then on.
            assert_eq!(world.check.commits, 2);
            Ok(())
        });
    }
}

/// What the group is told to be left of the wait.
fn left(world: &World) -> Duration {
    Duration::from_millis(world.check.round().news.last_call_ms.expect("it waits"))
}

/// All who are left are here: the last call, which is an hour long, is for nobody. The next leader knows no more than was told.
#[test]
fn where_all_are_here_it_is_the_wait_for_a_replacement_that_is_told() {
    tell(30, |seed| {
        let mut world = world(seed, 2, 6);
        world.setup.replacement = second(30);
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        world.leave(4)?;
        let began = world.now;
        world.run_for(second(10))?;
        assert!((second(15)..second(31)).contains(&left(&world)), "{}", state(&world));
        world.leave(world.leader().expect("somebody leads"))?;
        world.run_for(began + second(30) + MOMENT - world.now)?;
        assert!(is_settled(&world) && world.members().len() == 4, "{}", state(&world));
        Ok(())
    });
}

/// The last call was for one that turns out to be dead. Nobody has come or gone since the group was told.
#[test]
fn who_waits_is_told_when_it_is_no_longer_the_last_call_that_it_waits_for() {
    tell(30, |seed| {
        let mut world = world(seed, 2, 6);
        world.setup.replacement = second(60);
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().expect("somebody leads");
        let [dies, leaves] = [1, 2].map(|other| (leader + other) % 6);
        world.crash(dies);
        world.leave(leaves)?;
        world.run_for(second(3))?;
        assert!(left(&world) > second(100), "{}", state(&world));
        let lease = world.setup.lease;
        world.run_for(lease + second(5))?;
        assert!(left(&world) < second(61), "{}", state(&world));
        Ok(())
    });
}

/// Seed 3104898972: what the group was told is the last call, for one that was not known to be dead. The next leader cannot tell
/// which of the two that was, and neither is longer than itself.
#[test]
fn a_replacement_is_not_waited_for_as_long_as_the_last_call_that_an_earlier_leader_has_told() {
    tell(30, |seed| {
        let mut world = world(seed, 2, 6);
        world.setup.replacement = second(10);
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().expect("somebody leads");
        world.crash((leader + 1) % 6);
        world.leave((leader + 2) % 6)?;
        world.run_for(second(3))?;
        assert!(left(&world) > second(100), "{}", state(&world));
        world.leave(leader)?;
        let lease = world.setup.lease;
        world.run_for(lease + second(5) + second(10))?;
        assert!(is_settled(&world) && world.members().len() == 3, "{}", state(&world));
        Ok(())
    });
}

/// And the other way round: it was for a replacement, which has come. One who is alive does not come back.
#[test]
fn the_last_call_is_not_as_long_as_the_wait_for_a_replacement_that_an_earlier_leader_has_told() {
    tell(30, |seed| {
        let mut world = world(seed, 2, 6);
        (world.setup.last_call, world.setup.replacement) = (second(5), second(3_600));
        start(&mut world, 6)?;
        settle(&mut world, MOMENT)?;
        let leader = world.leader().expect("somebody leads");
        world.hang((leader + 1) % 6, second(600));
        world.leave((leader + 2) % 6)?;
        world.run_for(second(3))?;
        assert!(left(&world) > second(100), "{}", state(&world));
        world.leave(leader)?;
        world.run_for(second(3))?;
        for id in ["one", "two", "three"] {
            world.start(id)?;
        }
        world.run_for(second(5) + MOMENT)?;
        assert_eq!((world.check.commits, world.check.round().world_size), (2, 6), "{}", state(&world));
        Ok(())
    });
}
