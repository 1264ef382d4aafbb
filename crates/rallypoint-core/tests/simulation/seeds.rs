//! Tries many seeds on all cores, and says how to replay those that fail.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::chaos;
use crate::check::Violation;
use crate::planted::Planted;

/// A seed in whose world a promise was broken.
#[derive(Debug)]
pub(crate) struct FailedSeed {
    pub(crate) seed: u64,
    planted: Planted,
    pub(crate) violation: Violation,
}

impl fmt::Display for FailedSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedSeed { seed, planted, violation } = self;
        let with = match planted {
            Planted::None => String::new(),
            planted => format!("RALLYPOINT_SIM_PLANTED={planted:?} "),
        };
        let command = "cargo test -p rallypoint-core --test simulation replay -- --nocapture";
        write!(f, "seed {seed}: {violation}\n    {with}RALLYPOINT_SIM_SEED={seed} {command}")
    }
}

/// Tries the seeds, until so many have failed.
pub(crate) fn search(seeds: Range<u64>, planted: Planted, enough: usize) -> Vec<FailedSeed> {
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
                    if let Err(violation) = try_seed(seed, planted) {
                        found.fetch_add(1, Ordering::Relaxed);
                        failures.lock().unwrap().push(FailedSeed { seed, planted, violation });
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_by_key(|failure| failure.seed);
    failures
}

/// A panic of the machine breaks every promise.
fn try_seed(seed: u64, planted: Planted) -> Result<(), Violation> {
    match catch_unwind(AssertUnwindSafe(|| chaos::live(seed, planted, false))) {
        Ok(result) => result.map(|_| ()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(Violation { promise: 0, what: format!("panic: {}", text.unwrap_or_default()) })
        }
    }
}

pub(crate) fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}
