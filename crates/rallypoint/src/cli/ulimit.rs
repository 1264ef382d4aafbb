//! What is said of the system's limits, where one of them is the reason.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Open files of the launcher itself, with some to spare.
pub(crate) const OWN_FILES: u64 = 128;
/// Of each worker: its two streams, and a log file for each.
pub(crate) const FILES_PER_WORKER: u64 = 4;

/// What to do about an error, if it came of a limit.
pub(crate) fn advice(error: &io::Error) -> Option<String> {
    let too_many_processes = || {
        let limit =
            getrlimit(Resource::Nproc).current.map_or("unlimited".to_owned(), |most| most.to_string());
        format!(
            "too many processes and threads (ulimit -u is {limit}, for all that this user runs): raise it, or the limit of this container"
        )
    };
    let processes = || (Errno::from_io_error(error)? == Errno::AGAIN).then(too_many_processes);
    files(error).or_else(processes)
}

/// The same where only open files can be meant: elsewhere "try again" has other reasons.
pub(crate) fn files(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let limit =
                getrlimit(Resource::Nofile).maximum.map_or("none".to_owned(), |most| most.to_string());
            Some(format!(
                "too many open files (the hard limit is {limit}): raise it, as with ulimit -Hn; a launcher needs {OWN_FILES}, and {FILES_PER_WORKER} more for each worker"
            ))
        }
        Errno::NFILE => Some("too many open files on this machine: raise fs.file-max".to_owned()),
        _ => None,
    }
}
