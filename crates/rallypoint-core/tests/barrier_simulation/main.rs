//! The barrier under simulation: whatever is lost, late, stalled, dead, cut off or started again empty, never two
//! nodes with one rank in a version, never a group of another size than was asked for, closed stays closed, nobody
//! is told what is not so, no group meets again for nothing, and nobody spins. And once nothing goes wrong any
//! more, those who live meet.
//!
//! A seed that fails says how to run it alone.

mod plan;
mod server;
mod stories;
mod torch;
mod truth;
mod world;

use std::time::Duration;

use plan::{Bug, Plan};
use world::World;

const SEEDS: u64 = 20_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

/// Runs the seeds, or the one that `BARRIER_SEED` names; the first that fails, and how.
fn first_failure(test: &str, seeds: u64, plan: impl Fn(u64) -> Plan + Sync) -> Option<String> {
    let first = number("BARRIER_FIRST").unwrap_or(0);
    let seeds = number("BARRIER_SEEDS").unwrap_or(seeds);
    let seeds = number("BARRIER_SEED").map_or(first..first + seeds, |seed| seed..seed + 1);
    // Half of them each.
    let failure = |part: u64| {
        let mut seeds = seeds.clone().filter(|seed| seed % 2 == part);
        seeds.find_map(|seed| World::new(seed, plan(seed)).run().err().map(|problem| (seed, problem)))
    };
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| failure(1));
        (failure(0), odd.join().expect("a failure is no panic"))
    });
    let (seed, problem) = [even, odd].into_iter().flatten().min()?;
    Some(format!(
        "seed {seed}: {problem}\nto see it again: \
         BARRIER_LOG=1 BARRIER_SEED={seed} cargo test -p rallypoint-core --test barrier_simulation {test} -- --nocapture"
    ))
}

#[test]
fn nothing_that_goes_wrong_breaks_a_promise() {
    if let Some(failure) = first_failure("nothing_that_goes_wrong_breaks_a_promise", SEEDS, Plan::stormy) {
        panic!("{failure}");
    }
}

/// Each node dies at each of its steps, with its last request carried out and with it lost.
#[test]
fn a_node_can_die_at_every_step() {
    for (nodes, min, max) in [(3, 3, 3), (3, 2, 4), (4, 2, 3)] {
        for node in 0..nodes {
            for step in 1..30 {
                for arrives in [false, true] {
                    let plan = Plan { crash_at: Some((node, step, arrives)), ..Plan::quiet(nodes, min, max) };
                    for seed in 0..3 {
                        let outcome = World::new(seed, plan.clone()).run();
                        assert_eq!(outcome, Ok(()), "seed {seed}, {plan:?}");
                    }
                }
            }
        }
    }
}

/// Twice the nodes, about twice the requests and the time: nobody does work for everybody.
#[test]
fn the_work_of_a_node_does_not_grow_with_the_group() {
    let formed = |nodes: usize| {
        let plan = Plan { end: Duration::from_secs(30), ..Plan::quiet(nodes, nodes, nodes) };
        let mut world = World::new(1, plan);
        assert_eq!(world.run(), Ok(()));
        (world.requests as f64 / nodes as f64, world.met_at)
    };
    let (each_of_32, _) = formed(32);
    let (each_of_256, time) = formed(256);
    assert!(each_of_256 < 60.0 && each_of_256 < 3.0 * each_of_32, "{each_of_32} then {each_of_256} each");
    assert!(time < Duration::from_secs(10), "{time:?}");
}

#[test]
fn the_simulator_finds_planted_bugs() {
    for bug in Bug::ALL {
        let plan = |seed| Plan { bug: Some(bug), ..Plan::stormy(seed) };
        let found = (0..2_000).find_map(|seed| World::new(seed, plan(seed)).run().err().map(|it| (seed, it)));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}

/// Every seed that fails, to see which kinds there are.
#[test]
#[ignore = "a tool"]
fn survey() {
    let first = number("BARRIER_FIRST").unwrap_or(0);
    for seed in first..first + number("BARRIER_SEEDS").unwrap_or(1_000) {
        if let Err(problem) = World::new(seed, Plan::stormy(seed)).run() {
            println!("seed {seed}: {problem}");
        }
    }
}
