//! Whether this machine has room for so many workers at all. What is certain is told before anything is made for them.

use std::path::{Path, PathBuf};

use crate::cli::exit::Problem;

/// A worker is a process, and the launcher has a thread that waits for it.
const TASKS: u64 = 2;
/// What the kernel alone needs for those, and for the least program there is.
const MEMORY: u64 = 128 << 10;
/// Where control groups are to be found.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// There is no more than so much of what workers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    what: What,
    most: u64,
    /// Who says so.
    by: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Processes and threads.
    Tasks,
    /// Bytes.
    Memory,
}

/// All that can be read.
pub(crate) fn limits() -> Vec<Limit> {
    let mut limits = Vec::new();
    for name in ["pid_max", "threads-max"] {
        let most = number(Path::new("/proc/sys/kernel").join(name));
        limits.extend(most.map(|most| Limit { what: What::Tasks, most, by: format!("kernel.{name}") }));
    }
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let total = total.and_then(|total| total.parse::<u64>().ok()).map(|kib| kib << 10);
    limits.extend(total.map(|most| Limit { what: What::Memory, most, by: "MemTotal".to_owned() }));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for (what, file) in files(&groups) {
        // A file without a limit says "max".
        limits.extend(number(file.clone()).map(|most| Limit { what, most, by: file.display().to_string() }));
    }
    limits
}

fn number(file: PathBuf) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The files of this process's control groups, of either version.
fn files(groups: &str) -> Vec<(What, PathBuf)> {
    let mut files = Vec::new();
    let root = Path::new(CONTROL_GROUPS);
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(kind), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let group = group.trim_start_matches('/');
        match kind {
            "" => files.extend([
                (What::Tasks, root.join(group).join("pids.max")),
                (What::Memory, root.join(group).join("memory.max")),
            ]),
            "pids" => files.push((What::Tasks, root.join(kind).join(group).join("pids.max"))),
            "memory" => files.push((What::Memory, root.join(kind).join(group).join("memory.limit_in_bytes"))),
            _ => {}
        }
    }
    files
}

/// Refuses more workers than there can be.
pub(crate) fn check(workers: usize, limits: &[Limit]) -> Result<(), Problem> {
    let workers = workers as u64;
    for Limit { what, most, by } in limits {
        let text = match what {
            What::Tasks if workers.saturating_mul(TASKS) >= *most => format!(
                "this system can have {most} processes and threads in all ({by}), and a worker takes {TASKS} at the least"
            ),
            What::Memory if workers.saturating_mul(MEMORY) >= *most => format!(
                "there are {} MiB of memory ({by}), and a worker takes {} KiB at the least",
                most >> 20,
                MEMORY >> 10
            ),
            What::Tasks | What::Memory => continue,
        };
        return Err(Problem::usage(format!(
            "--nproc-per-node {workers} is more than this machine has room for: {text}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_fit_is_refused_by_what_is_too_small() {
        let limit = |what, most, by: &str| Limit { what, most, by: by.to_owned() };
        let limits =
            [limit(What::Tasks, 32_768, "kernel.pid_max"), limit(What::Memory, 1 << 30, "memory.max")];
        let said = |workers| check(workers, &limits).err().map(|problem| problem.text);
        assert_eq!(said(8_000), None);
        assert!(said(8_192).is_some_and(|text| text.contains("1024 MiB of memory (memory.max)")));
        assert!(said(16_384).is_some_and(|text| text.contains("32768 processes and threads in all")));
        assert!(said(usize::MAX).is_some());
        assert_eq!(check(100_000, &[]).err().map(|problem| problem.text), None, "nothing is known");
    }

    #[test]
    fn limits_are_looked_for_in_groups_of_either_version() {
        let name = |(_, file): (What, PathBuf)| file.display().to_string();
        let names = |groups: &str| files(groups).into_iter().map(name).collect::<Vec<_>>();
        assert_eq!(names("0::/job"), ["/sys/fs/cgroup/job/pids.max", "/sys/fs/cgroup/job/memory.max"]);
        assert_eq!(
            names("4:memory:/job\n3:pids:/job\n2:cpu:/"),
            ["/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "/sys/fs/cgroup/pids/job/pids.max"]
        );
    }
}
