//! The native rendezvous in a world where everything that can go wrong does: see `world`.
//!
//! Each seed is a world of its own, the same one each time. A seed that fails is printed with the command that
//! replays it. `RALLYPOINT_SIM_SEEDS` is how many are tried.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod chaos;
mod check;
mod etcd;
mod faults;
mod finale;
mod findings;
mod model;
mod network;
mod operator;
mod planted;
mod process;
mod scenarios;
mod seeds;
mod truth;
mod world;

use planted::Planted;

/// How many seeds are tried unless told otherwise: enough to find what is rare, in less than a minute.
const SEEDS: u64 = 20_000;

#[test]
fn every_seed_keeps_the_promises() {
    let first = seeds::from_environment("RALLYPOINT_SIM_FIRST").unwrap_or(0);
    let count = seeds::from_environment("RALLYPOINT_SIM_SEEDS").unwrap_or(SEEDS);
    let failures = seeds::search(first..first + count, Planted::None, 5);
    for failure in &failures {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed", failures.len());
}

#[test]
fn a_seed_is_the_same_world_each_time() {
    for seed in 0..20 {
        let live = || chaos::live(seed, Planted::None, false).unwrap();
        assert_eq!(live(), live(), "seed {seed}");
    }
}

/// A check is only worth what it catches.
#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for planted in planted::ALL {
        let failures = seeds::search(0..SEEDS, planted, 1);
        failures.iter().for_each(|failure| println!("{planted:?}: {failure}"));
        let found = failures.iter().any(|failure| planted.breaks().contains(&failure.violation.promise));
        if !found {
            missed.push(planted);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// One seed, step by step: the one in `RALLYPOINT_SIM_SEED`, or the first; with the bug in
/// `RALLYPOINT_SIM_PLANTED`, or none.
#[test]
fn replay() {
    let seed = seeds::from_environment("RALLYPOINT_SIM_SEED");
    let planted = std::env::var("RALLYPOINT_SIM_PLANTED").map_or(Planted::None, |name| Planted::named(&name));
    if let Err(violation) = chaos::live(seed.unwrap_or(0), planted, seed.is_some()) {
        panic!("{violation}");
    }
}
