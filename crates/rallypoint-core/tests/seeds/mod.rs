//! Tries many seeds on all cores, and says how to replay those that fail.
//!
//! `RALLYPOINT_SIM_SEEDS` is how many are tried, `RALLYPOINT_SIM_FIRST` the first of them, `RALLYPOINT_SIM_SEED` the
//! one that is replayed, with the bug that `RALLYPOINT_SIM_PLANTED` names.

use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A seed in whose world a promise was broken.
#[derive(Debug)]
pub(crate) struct FailedSeed<Problem> {
    pub(crate) seed: u64,
    pub(crate) problem: Problem,
}

impl<Problem: Display> FailedSeed<Problem> {
    /// What was wrong, and the command that shows it again.
    pub(crate) fn report(&self, simulation: &str, planted: Option<&str>) -> String {
        let FailedSeed { seed, problem } = self;
        let with = planted.map(|bug| format!("RALLYPOINT_SIM_PLANTED={bug} ")).unwrap_or_default();
        let command = format!("cargo test -p rallypoint-core --test {simulation} replay -- --nocapture");
        format!("seed {seed}: {problem}\n    {with}RALLYPOINT_SIM_SEED={seed} {command}")
    }
}

/// The seeds to try: so many, unless the environment says otherwise.
pub(crate) fn wanted(count: u64) -> Range<u64> {
    let first = number("RALLYPOINT_SIM_FIRST").unwrap_or(0);
    first..first + number("RALLYPOINT_SIM_SEEDS").unwrap_or(count)
}

/// The seed to replay, if there is one.
pub(crate) fn replayed() -> Option<u64> {
    number("RALLYPOINT_SIM_SEED")
}

/// The name of the bug to replay it with, if there is one.
pub(crate) fn planted() -> Option<String> {
    std::env::var("RALLYPOINT_SIM_PLANTED").ok()
}

/// Tries the seeds, until so many have failed. A panic is a problem, too.
pub(crate) fn search<Problem: From<String> + Send>(
    seeds: Range<u64>,
    enough: usize,
    live: impl Fn(u64) -> Result<(), Problem> + Sync,
) -> Vec<FailedSeed<Problem>> {
    let next = AtomicU64::new(seeds.start);
    let found = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while found.load(Ordering::Relaxed) < enough {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(problem) = caught(|| live(seed)) {
                        found.fetch_add(1, Ordering::Relaxed);
                        failures.lock().unwrap().push(FailedSeed { seed, problem });
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_by_key(|failure| failure.seed);
    failures
}

fn caught<Problem: From<String>>(live: impl Fn() -> Result<(), Problem>) -> Result<(), Problem> {
    catch_unwind(AssertUnwindSafe(live)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Problem::from(format!("panic: {}", text.unwrap_or_default())))
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}
