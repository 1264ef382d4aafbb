//! What every process tells of itself.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The ticks of a second in /proc: a constant of the interface, whatever the kernel counts in.
const TICKS: f64 = 100.0;

/// Adds when the process was started, and what it is.
pub fn register(registry: &mut Registry) {
    let start: Gauge<f64, AtomicU64> = Gauge::default();
    start.set(start_time());
    registry.register("process_start_time_seconds", "When this process was started", start);
    let build: Family<[(&str, &str); 1], Gauge> = Family::default();
    build.get_or_create_owned(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
    registry.register("rallypoint_build_info", "The version of Rallypoint; always 1", build);
}

/// Adds what this process uses at this moment, for a registry that is told once. What the system does not say is left out.
pub fn usage(registry: &mut Registry) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).ok();
    if let Some(seconds) = read("stat").as_deref().and_then(cpu_seconds) {
        let spent: Counter<f64, AtomicU64> = Counter::default();
        spent.inc_by(seconds);
        registry.register("process_cpu_seconds", "Time that processors have spent on this process", spent);
    }
    let mut gauge = |name: &str, help: &str, value: Option<i64>| {
        if let Some(value) = value {
            let gauge: Gauge = Gauge::default();
            gauge.set(value);
            registry.register(name, help, gauge);
        }
    };
    let status = read("status").unwrap_or_default();
    gauge("process_resident_memory_bytes", "Memory of this process", kib(&status, "VmRSS:"));
    gauge("process_virtual_memory_bytes", "Addresses that this process uses", kib(&status, "VmSize:"));
    // One of them is of this look.
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1));
    gauge("process_open_fds", "Open files", open.and_then(|open| i64::try_from(open).ok()));
    gauge("process_max_fds", "Files that may be open", read("limits").as_deref().and_then(max_files));
}

/// The time of processors, in `/proc/self/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// A size in `/proc/self/status`, in bytes.
fn kib(status: &str, name: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<i64>().ok().map(|size| size << 10)
}

/// The soft limit of open files, in `/proc/self/limits`; none where there is no limit.
fn max_files(limits: &str) -> Option<i64> {
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// When this process was started, as the system has it; now, where it does not say.
fn start_time() -> f64 {
    let told = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        since_boot(&stat).zip(boot(&system)).map(|(since, boot)| boot + since)
    };
    told().unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

/// The seconds from boot to the start, in `/proc/self/stat`.
fn since_boot(stat: &str) -> Option<f64> {
    // The name before it may have spaces and parentheses of its own.
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19)?.parse::<f64>().ok().map(|ticks| ticks / TICKS)
}

/// When the system was started, in `/proc/stat`.
fn boot(system: &str) -> Option<f64> {
    system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2 3";
        assert_eq!(since_boot(stat), Some(123.45));
        assert_eq!(boot("cpu 1\nbtime 1000\nprocesses 3\n"), Some(1000.0));
        assert_eq!(cpu_seconds("7 (a) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0"), Some(2.0));
        assert_eq!(kib("VmPeak: 9 kB\nVmRSS:\t   2 kB\n", "VmRSS:"), Some(2048));
        let limits =
            "Max file size  unlimited unlimited bytes\nMax open files            1024    524288  files\n";
        assert_eq!(max_files(limits), Some(1024));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((0.0..3600.0).contains(&(now - start_time() + 2.0)), "{} {now}", start_time());
    }
}
