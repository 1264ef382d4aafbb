//! The barrier under simulation: whatever is lost, late, stalled, dead, cut off or started again empty, never two
//! nodes with one rank in a version, never a group of another size than was asked for, closed stays closed, nobody
//! is told what is not so, no group meets again for nothing, and nobody spins. And once nothing goes wrong any
//! more, those who live meet.
//!
//! Each seed is a world of its own, the same one each time. A seed that fails is printed with the command that
//! replays it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod by_hand;
mod plan;
#[path = "../seeds/mod.rs"]
mod seeds;
mod server;
mod stories;
mod torch;
mod truth;
mod world;

use std::time::Duration;

use plan::{Bug, Plan};
use world::World;

/// How many seeds are tried unless told otherwise. A planted bug has to show itself in one of them.
const SEEDS: u64 = 20_000;

#[test]
fn every_seed_keeps_the_promises() {
    let failures = seeds::search(seeds::wanted(SEEDS), 20, |seed| World::new(seed, Plan::stormy(seed)).run());
    for failure in &failures {
        println!("{}", failure.report("barrier_simulation", None));
    }
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
}

/// Worlds that once found what nobody had thought of.
#[test]
fn seeds_that_once_failed_keep_the_promises() {
    for seed in [1_702_378_218] {
        if let Err(problem) = World::new(seed, Plan::stormy(seed)).run() {
            panic!("seed {seed}: {problem}");
        }
    }
}

/// A check is only worth what it catches.
#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let plan = |seed| Plan { bug: Some(bug), ..Plan::stormy(seed) };
        // What goes wrong is to be what the bug makes go wrong.
        let is_shown = |problem: &String| bug.shows_as().iter().any(|words| problem.contains(words));
        let live = |seed| {
            World::new(seed, plan(seed)).run().or_else(|it| if is_shown(&it) { Err(it) } else { Ok(()) })
        };
        let failures = seeds::search(0..SEEDS, 1, live);
        for failure in &failures {
            println!("{}", failure.report("barrier_simulation", Some(&format!("{bug:?}"))));
        }
        if failures.is_empty() {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// One seed, step by step: the one in `RALLYPOINT_SIM_SEED`, or the first; with the bug in
/// `RALLYPOINT_SIM_PLANTED`, or none.
#[test]
fn replay() {
    let seed = seeds::replayed();
    let bug = seeds::planted().map(|name| Bug::named(&name));
    let plan = Plan { bug, ..Plan::stormy(seed.unwrap_or(0)) };
    let mut world = World::new(seed.unwrap_or(0), plan);
    world.loud = seed.is_some();
    if let Err(problem) = world.run() {
        panic!("{problem}");
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
