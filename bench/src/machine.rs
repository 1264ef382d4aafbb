//! The machine and the programs that figures come from. No names and no paths: they are nobody's business.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rallypoint_testkit::Version;
use serde::{Deserialize, Serialize};

/// What it is, and what runs on it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gb: f64,
    pub(crate) kernel: String,
    /// Each program with its version.
    pub(crate) versions: Vec<String>,
}

impl Machine {
    /// This one. `pythons` are interpreters whose packages to name.
    pub(crate) fn here(pythons: &[&Path]) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kilobytes: f64 = memory.trim_end_matches(" kB").parse().unwrap_or(f64::NAN);
        let mut versions = vec![format!("rallypoint {}", env!("CARGO_PKG_VERSION"))];
        versions.extend([Version::V35, Version::V34].iter().filter_map(|etcd| {
            let said = output(Command::new(etcd.binary()).arg("--version"))?;
            Some(said.lines().next()?.replace("etcd Version: ", "etcd "))
        }));
        versions.extend(pythons.iter().flat_map(|python| packages(python)));
        let mut seen = std::collections::HashSet::new();
        versions.retain(|version| seen.insert(version.clone()));
        Machine {
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown".to_owned()),
            memory_gb: (kilobytes / 1024.0 / 1024.0).round(),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            versions,
        }
    }
}

/// The versions of those packages that matter, without importing them.
fn packages(python: &Path) -> Vec<String> {
    const SCRIPT: &str = "import importlib.metadata as m, platform
print('Python', platform.python_version())
for name in ('torch', 'python-etcd', 'lm-resiliency', 'nvidia-resiliency-ext'):
    try: print(name, m.version(name))
    except m.PackageNotFoundError: pass";
    let said = output(Command::new(python).args(["-c", SCRIPT])).unwrap_or_default();
    said.lines().map(str::to_owned).collect()
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    String::from_utf8(output.stdout).ok()
}

/// The load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// Now, as `2026-11-15 10:02 UTC`.
pub(crate) fn now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn utc(seconds: u64) -> String {
    let (mut days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02} {:02}:{:02} UTC", month + 1, days + 1, minutes / 60, minutes % 60)
}

/// PyTorch's TCPStore looks up the name of each peer. Where nobody answers, what it is measured with is the resolver.
pub(crate) fn names_are_found_at_once() -> io::Result<()> {
    let began = Instant::now();
    // Whether there is a name does not matter.
    let _ = Command::new("getent").args(["hosts", "::ffff:127.0.0.1"]).output();
    let took = began.elapsed();
    if took < Duration::from_secs(1) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the name of ::ffff:127.0.0.1 was looked up for {took:.1?}, which would be measured with PyTorch's TCPStore: \
         put `::ffff:127.0.0.1 localhost` into /etc/hosts, or run it where `unshare --mount` is allowed, or --no-torch"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(1_709_210_096), "2024-02-29 12:34 UTC");
        assert_eq!(utc(1_794_700_799), "2026-11-14 23:59 UTC");
    }

    #[test]
    fn the_machine_names_what_runs_on_it() {
        let machine = Machine::here(&[]);
        assert!(machine.cores > 0 && machine.memory_gb > 0.0);
        assert!(machine.versions.iter().any(|version| version.starts_with("etcd 3.5")), "{machine:?}");
    }
}
