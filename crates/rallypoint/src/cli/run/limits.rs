//! What the system must allow for many workers.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

use crate::cli::exit::{NODE, Problem};
use crate::cli::ulimit::{FILES_PER_WORKER, OWN_FILES, advice};

/// Without these it would not come as far as its workers.
const LEAST_FILES: u64 = 32;
/// Threads for what may block that are always there.
const BLOCKING_THREADS: usize = 2;
/// Threads of the launcher itself, beside one for each CPU: those that may block, two for the console, and some to spare.
const OWN_THREADS: usize = BLOCKING_THREADS + 4;
/// For a thread that was started to run.
const TO_COME: Duration = Duration::from_secs(10);
/// For a thread that is to stay.
const EVER: Duration = Duration::from_secs(1 << 32);

/// Makes room for so many workers, as far as this process may. No more than that: workers inherit it.
pub(crate) fn make_room(workers: usize) {
    let limit = getrlimit(Resource::Nofile);
    if let Some(wanted) = raised(workers, limit.current, limit.maximum) {
        // Where it fails, the workers may still be few enough.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

fn raised(workers: usize, now: Option<u64>, most: Option<u64>) -> Option<u64> {
    let needed = (workers as u64).saturating_mul(FILES_PER_WORKER).saturating_add(OWN_FILES);
    let wanted = needed.min(most.unwrap_or(u64::MAX));
    now.filter(|now| *now < wanted).map(|_| wanted)
}

/// That the launcher itself has the open files that it needs. To be asked before anything is started.
pub(crate) fn check_files() -> Result<(), Problem> {
    make_room(0);
    let opened: io::Result<Vec<File>> = (0..LEAST_FILES).map(|_| File::open("/dev/null")).collect();
    opened.map(drop).map_err(|error| cannot_start(&error))
}

/// That the launcher itself has the threads that it needs. To be asked before anything is started.
pub(crate) fn check_threads() -> Result<(), Problem> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let gate = Mutex::new(());
    let started = thread::scope(|scope| {
        // All of them are there at once, until it is dropped.
        let _closed = gate.lock();
        (0..cpus + OWN_THREADS)
            .try_for_each(|_| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock())).map(drop))
    });
    started.map_err(|error| cannot_start(&error))
}

/// The launcher's runtime. Some of its threads for what may block are there from the beginning and stay: where no more can be
/// started later, what they are to do would wait for ever.
pub(crate) fn runtime() -> Result<Runtime, Problem> {
    let runtime = Builder::new_multi_thread().enable_all().thread_keep_alive(EVER).build();
    let runtime = runtime.map_err(|error| cannot_start(&error))?;
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let (here, come) = mpsc::channel();
    for _ in 0..BLOCKING_THREADS {
        let (gate, here) = (Arc::clone(&gate), here.clone());
        runtime.spawn_blocking(move || {
            let _ = here.send(());
            drop(gate.lock());
        });
    }
    let come = (0..BLOCKING_THREADS).try_for_each(|_| come.recv_timeout(TO_COME));
    drop(closed);
    // Whoever took the last ones did so since they were counted.
    come.map(|()| runtime).map_err(|_| cannot_start(&Errno::AGAIN.into()))
}

/// With what to raise, if that is the reason.
pub(crate) fn cannot_start(error: &io::Error) -> Problem {
    let why = advice(error).unwrap_or_else(|| error.to_string());
    Problem::new(NODE, format!("cannot start the launcher: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_takes_and_may() {
        assert_eq!(raised(8, Some(1024), Some(4096)), None);
        assert_eq!(raised(400, Some(1024), Some(1 << 20)), Some(1728));
        assert_eq!(raised(400, Some(256), Some(512)), Some(512));
        assert_eq!(raised(400, Some(512), Some(512)), None);
        assert_eq!(raised(400, None, None), None);
    }
}
