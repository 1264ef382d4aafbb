//! How many files, and so connections, a process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a process needs beside the connections.
const OTHER_FILES: u64 = 64;

/// Lets this process have as many files open as the system allows it, as etcd does. It is inherited by processes that it
/// starts, so a program does it only where it is nothing but a server.
pub fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        tracing::warn!(?current, "the limit of open files cannot be raised, and with it that of connections");
    }
}

/// How many connections there may be, of those that are wanted.
pub(crate) fn connections_within(wanted: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX)).max(1)
}
