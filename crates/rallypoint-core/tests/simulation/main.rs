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

/// A bug is found if one of many seeds breaks one of the promises that it is about.
fn finds(planted: Planted, promises: &[u8]) {
    let failures = seeds::search(0..20_000, planted, 1);
    failures.iter().for_each(|failure| println!("{failure}"));
    let found = failures.iter().any(|failure| promises.contains(&failure.violation.promise));
    assert!(found, "{planted:?} was not found");
}

#[test]
fn a_commit_without_the_leaders_comparison_is_found() {
    finds(Planted::CommitByAnyLeader, &[2]);
}

#[test]
fn a_rank_from_a_stale_plan_is_found() {
    finds(Planted::RankFromAnyPlan, &[1]);
}

#[test]
fn a_lost_wake_up_is_found() {
    finds(Planted::LostWakeUp, &[4, 6, 7, 8, 9]);
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
