//! What the system must allow for many workers.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of the launcher itself.
const OWN_FILES: u64 = 128;
/// Of each worker: its two streams, and a log file for each.
const FILES_PER_WORKER: u64 = 4;
/// The system has no more for this process, or for any.
const NO_MORE: [rustix::io::Errno; 2] = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];

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

/// What to do about an error, if it came of a limit.
pub(crate) fn advice(error: &std::io::Error) -> Option<String> {
    let number = rustix::io::Errno::from_io_error(error)?;
    if NO_MORE.contains(&number) {
        let limit = getrlimit(Resource::Nofile).maximum.map_or("none".to_owned(), |most| most.to_string());
        return Some(format!(
            "too many open files (the hard limit is {limit}): raise it, as with ulimit -Hn"
        ));
    }
    if number == rustix::io::Errno::AGAIN {
        return Some(
            "too many processes and threads: raise ulimit -u, or the limit of this container".to_owned(),
        );
    }
    None
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
