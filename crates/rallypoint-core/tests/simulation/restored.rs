//! etcd is restored while something is under way, and who does that does not know it yet.

use std::time::Duration;

use crate::faults::Loss;
use crate::finale::{MOMENT, settle};
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
