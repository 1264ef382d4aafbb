//! etcd is restored while something is under way, and who does that does not know it yet.

use std::cell::Cell;
use std::time::Duration;

use rallypoint_core::round::Change;

use crate::faults::Loss;
use crate::finale::{MOMENT, quiet, settle, state};
use crate::scenarios::{start, tell, world};
use crate::world::World;

/// Seed 3104679734: the snapshot is of a time among the places of a round. Its leader knows that all were written, and hears
/// of the loss just after it has sent the commit. Some may be written after the loss, and those before it are gone.
#[test]
fn a_round_is_not_completed_without_the_places_that_a_restored_etcd_has_lost() {
    for (kept, written) in [(4, 6), (2, 4), (2, 8), (6, 10), (10, 12)] {
        tell(100, |seed| {
            let nodes = written.max(6);
            let mut world = world(seed, nodes, nodes);
            world.setup.places = &[2];
            start(&mut world, nodes)?;
            // What the watches tell comes late, every other time.
            for index in 0..nodes {
                world.lag(index, Duration::from_millis(seed / 2 % 2 * 200));
            }
            let (end, ranks) = (world.now + MOMENT, world.keys.ranks());
            let fewer = |than: usize| {
                let ranks = ranks.clone();
                move |world: &World| world.etcd.prefix(&ranks).count() < than
            };
            assert!(world.run_while(end, fewer(kept))?);
            world.back_up();
            assert!(world.run_while(end, fewer(written))?);
            world.run_for(Duration::from_micros(seed % 10 * 400))?;
            world.lose_data(Loss { overtakes: seed % 2 == 0, ..Loss::default() })?;
            let lease = world.setup.lease;
            world.run_for(MOMENT)?;
            settle(&mut world, lease + Duration::from_secs(5) - MOMENT)
        });
    }
}

/// Seed 3200358901: a process leads that was started again. etcd is restored to a time when the earlier one of its name was
/// there, and the watch on all nodes is the first to tell the leader. It took that for the process that had replaced it.
#[test]
fn a_leader_is_not_replaced_by_an_earlier_process_of_its_name_that_a_restore_brings_back() {
    tell(300, |seed| {
        let mut world = world(seed, 3, 3);
        let earlier = world.start("n0")?;
        world.run_for(MOMENT)?;
        world.back_up();
        world.crash(earlier);
        world.run_for(Duration::from_secs(2))?;
        let later = world.start("n0")?;
        let lease = world.setup.lease;
        world.run_for(lease * 2)?;
        assert_eq!(world.leader(), Some(later));
        // The key of this one is lost: it registers again, and the watch tells of that.
        world.start("n1")?;
        world.run_for(MOMENT)?;
        world.weather.slow = 0.5;
        world.lose_data(Loss { overtakes: true, ..Loss::default() })?;
        world.weather.slow = 0.0;
        world.run_for(lease)?;
        world.start("n2")?;
        settle(&mut world, lease + Duration::from_secs(5))
    });
}

/// Seed 3403593265: etcd has lost everything while a process was cut off, and a later one of its name meets by itself. The
/// earlier one comes back, and has its name for a moment, as revisions count from the beginning again. It says which round it
/// was in: by that the leader took its own round back.
#[test]
fn a_leader_does_not_take_its_round_back_for_what_an_earlier_process_of_its_name_says() {
    tell(300, |seed| {
        let mut world = world(seed, 1, 1);
        world.etcd.advance(20, false);
        let earlier = world.start("n0")?;
        world.run_for(MOMENT)?;
        let lease = world.setup.lease;
        world.cut(earlier, Duration::from_secs(2));
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        let later = world.start("n0")?;
        world.run_for(Duration::from_millis(1_990))?;
        assert_eq!((world.leader(), world.members()), (Some(later), vec![earlier, later]));
        // It hears of what becomes of its key before it can have it back.
        world.weather.slow = 0.5;
        world.run_for(lease)?;
        world.weather.slow = 0.0;
        settle(&mut world, lease + Duration::from_secs(5))?;
        assert_eq!(world.members(), vec![later]);
        Ok(())
    });
}

/// Seed 3802877401: the same of a member, where somebody leads who stands by, and may never have seen the later process: only the
/// member's place tells of that. The earlier one was in a later round than the run has now.
#[test]
fn who_stands_by_and_leads_does_not_take_a_round_back_for_what_an_earlier_process_says() {
    let led = Cell::new(0);
    tell(300, |seed| {
        let mut world = world(seed, 1, 1);
        world.etcd.advance(60, false);
        let earlier = world.start("n0")?;
        for _ in 0..seed % 3 {
            world.run_for(MOMENT)?;
            world.join(earlier)?;
        }
        world.run_for(MOMENT)?;
        let lease = world.setup.lease;
        world.cut(earlier, MOMENT * 2);
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        let later = world.start("n0")?;
        world.run_for(MOMENT / 2)?;
        let spare = world.start("n1")?;
        world.run_for(MOMENT / 2)?;
        // All may lead then.
        world.scribble(world.keys.leader())?;
        world.run_for(Duration::from_millis(1_990))?;
        assert!(world.members().contains(&later));
        led.set(led.get() + u32::from(world.leader() == Some(spare)));
        // The leader hears of what becomes of the key when the later process has it again.
        world.weather.slow = 0.5;
        world.run_for(lease)?;
        world.weather.slow = 0.0;
        settle(&mut world, lease + Duration::from_secs(5))
    });
    assert!(led.get() > 0, "the member has led in each world");
}

/// After seed 3200506649: a member is cut off. The others meet without it, and when they are gone, somebody comes from a round
/// that etcd has lost, and takes theirs back. All that the member sees by then is that there is no round.
#[test]
fn who_missed_a_round_that_was_taken_back_is_told_that_the_state_is_lost() {
    tell(60, |seed| {
        let mut world = world(seed, 2, 3);
        world.setup.last_call = Duration::from_secs(1);
        let lost = [world.start("n0")?, world.start("n1")?];
        for _ in 0..3 {
            world.run_for(MOMENT)?;
            lost.iter().try_for_each(|index| world.join(*index))?;
        }
        world.run_for(MOMENT)?;
        let lease = world.setup.lease;
        world.crash(lost[1]);
        world.cut(lost[0], lease * 6);
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        let new = [world.start("n2")?, world.start("n3")?, world.start("n4")?];
        world.run_for(MOMENT)?;
        assert_eq!(world.members(), new);
        world.cut(new[0], lease * 12);
        world.run_for(lease * 2)?;
        assert_eq!(world.members(), new[1..]);
        world.crash(new[1]);
        world.crash(new[2]);
        world.run_for(lease * 10 + MOMENT)?;
        let told = world.processes[new[0]].told.clone();
        assert!(matches!(told, Some((1, Change::StateLost | Change::Excluded))), "{told:?}");
        settle(&mut world, lease + Duration::from_secs(5))
    });
}

/// Members of a round that etcd has lost are counted as lost by their number. Who was late was counted once more.
#[test]
fn a_member_that_comes_late_from_a_round_that_was_lost_is_counted_once() {
    tell(20, |seed| {
        let mut world = world(seed, 4, 4);
        start(&mut world, 4)?;
        settle(&mut world, MOMENT)?;
        let lease = world.setup.lease;
        world.cut(2, lease * 3);
        world.cut(3, lease * 4);
        world.lose_data(Loss { empty: true, ..Loss::default() })?;
        world.run_for(lease * 2)?;
        assert_eq!(
            world.check.round().news.lost_count,
            4,
            "two have asked, and the others are counted as lost"
        );
        world.run_for(lease + MOMENT)?;
        let news = &world.check.round().news;
        assert_eq!((news.joined, news.lost_count), (3, 4), "seed {seed}: {news:?}");
        settle(&mut world, lease * 2 + Duration::from_secs(5))
    });
}

/// Seed 4002000769: a member comes from a round that etcd has lost, and dies. The others are too few for the next. Its place is there
/// for as long as its round is the last one, as that of any member is.
#[test]
fn the_place_of_a_dead_member_of_a_round_that_was_lost_is_there_until_the_next() {
    let kept = Cell::new(0);
    tell(20, |seed| {
        let mut world = world(seed, 3, 3);
        start(&mut world, 3)?;
        settle(&mut world, MOMENT)?;
        world.back_up();
        (0..3).try_for_each(|index| world.join(index))?;
        settle(&mut world, MOMENT)?;
        let lease = world.setup.lease;
        // This one is waited for until the other is dead.
        world.hang(2, lease * 3);
        world.lose_data(Loss { overtakes: true, ..Loss::default() })?;
        world.run_for(MOMENT)?;
        world.crash(1);
        world.run_for(lease * 3)?;
        let place = world.keys.rank(&world.processes[1].id);
        // Where the dead one has led, the next leader has never seen it.
        kept.set(kept.get() + u32::from(world.etcd.get(&place).is_some()));
        settle(&mut world, MOMENT)?;
        quiet(&mut world, lease * 3)?;
        world.start("newcomer")?;
        settle(&mut world, MOMENT)?;
        world.run_for(MOMENT)?;
        assert!(world.etcd.get(&place).is_none(), "seed {seed}: {}", state(&world));
        Ok(())
    });
    assert!(kept.get() > 0, "the dead member has led in each world");
}
