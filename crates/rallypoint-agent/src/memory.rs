//! Whether a worker was killed for lack of memory, as the kernel counts it.

use std::path::{Path, PathBuf};

/// Where control groups are to be found.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// How often the kernel has killed a process for lack of memory, by a count that covers this process and its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryKills {
    file: PathBuf,
    count: u64,
}

impl MemoryKills {
    /// The count as it stands; none where there is none to be read.
    pub(crate) fn now() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        files(&groups).into_iter().find_map(Self::read)
    }

    fn read(file: PathBuf) -> Option<Self> {
        let count = count(&std::fs::read_to_string(&file).ok()?)?;
        Some(MemoryKills { file, count })
    }
}

/// What to make of a SIGKILL that this program did not send; `before` is the count when the workers were started.
pub(crate) fn hint(before: Option<MemoryKills>) -> String {
    explain(before.map(|before| {
        let grown = MemoryKills::read(before.file.clone());
        (before.file, grown.map_or(0, |now| now.count.saturating_sub(before.count)))
    }))
}

fn explain(grown: Option<(PathBuf, u64)>) -> String {
    let told = match grown {
        Some((file, 1..)) => {
            let file = file.display();
            return format!(
                "out of memory: the kernel has killed for lack of it (oom_kill in {file}); give the workers more, or let \
                 them use less"
            );
        }
        Some((file, 0)) => {
            format!("by the count in {} it was not the kernel for lack of memory", file.display())
        }
        None => "the kernel does where memory runs out; `dmesg` may tell".to_owned(),
    };
    format!("rallypoint did not send it, so somebody else did: {told}")
}

/// The files with a count, the nearest first.
fn files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(kind), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let group = group.trim_start_matches('/');
        let root = Path::new(CONTROL_GROUPS);
        match kind {
            // Version 2. In a container the group may be named as the host sees it.
            "" => files.extend([root.join(group).join("memory.events"), root.join("memory.events")]),
            // Version 1.
            "memory" => {
                let root = root.join("memory");
                files.extend([root.join(group).join("memory.oom_control"), root.join("memory.oom_control")]);
            }
            _ => {}
        }
    }
    // Of the whole machine.
    files.push("/proc/vmstat".into());
    files
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_looked_for_in_the_groups_of_either_version_and_then_in_the_machine() {
        let named = |groups: &str| -> Vec<String> {
            files(groups).iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            named("0::/pod/a\n"),
            ["/sys/fs/cgroup/pod/a/memory.events", "/sys/fs/cgroup/memory.events", "/proc/vmstat"]
        );
        assert_eq!(
            named("9:name=systemd:/\n4:memory:/job\n"),
            [
                "/sys/fs/cgroup/memory/job/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control",
                "/proc/vmstat"
            ]
        );
        assert_eq!(named(""), ["/proc/vmstat"]);
    }

    #[test]
    fn the_count_is_read_from_each_of_them() {
        assert_eq!(count("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"), Some(4));
        assert_eq!(count("pgfault 7\n"), None);
    }

    #[test]
    fn what_is_known_is_said_and_no_more() {
        let file = || PathBuf::from("/sys/fs/cgroup/memory.events");
        assert!(explain(Some((file(), 1))).starts_with("out of memory: the kernel has killed"));
        assert!(explain(Some((file(), 0))).contains("it was not the kernel"));
        assert!(explain(None).contains("rallypoint did not send it"));
    }
}
