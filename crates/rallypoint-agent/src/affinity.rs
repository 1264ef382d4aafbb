//! Processes that may run on some CPUs alone.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this thread, and what it starts, may run on.
pub fn allowed_cpus() -> io::Result<BTreeSet<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Starts a process that may run on these CPUs alone. A process has the CPUs of the thread that starts it, so this thread
/// has them for that moment.
pub(crate) fn spawn_on(command: &mut Command, cpus: &BTreeSet<usize>) -> io::Result<Child> {
    if cpus.is_empty() {
        return command.spawn();
    }
    let before = sched_getaffinity(None)?;
    let mut wanted = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| wanted.set(*cpu));
    sched_setaffinity(None, &wanted)?;
    let child = command.spawn();
    sched_setaffinity(None, &before)?;
    child
}
