//! What every process tells of itself.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((0.0..3600.0).contains(&(now - start_time() + 2.0)), "{} {now}", start_time());
    }
}
