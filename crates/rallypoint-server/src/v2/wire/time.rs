//! Points in time, as the caller gives them and as etcd prints them.

use std::fmt;
use std::time::Duration;

use rallypoint_core::time::date;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Nanoseconds since 1970, UTC. The tree never asks for the time; whoever calls it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(u64);

impl Time {
    /// As far as etcd can count: its nanoseconds are signed, and end in the year 2262.
    const END: u64 = i64::MAX as u64;

    pub(crate) fn since_epoch(time: Duration) -> Self {
        Time(u64::try_from(time.as_nanos()).map_or(Time::END, |nanos| nanos.min(Time::END)))
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Time(nanos.min(Time::END))
    }

    /// The moment after it.
    pub(crate) fn next(self) -> Self {
        Time::from_nanos(self.0 + 1)
    }

    /// When a TTL of so many seconds ends. None for one that etcd cannot count: it never ends.
    pub(crate) fn after(self, seconds: u64) -> Option<Self> {
        let nanos = seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(self.0)?;
        (nanos <= Time::END).then_some(Time(nanos))
    }

    /// How long it is from an earlier time until this one.
    pub(crate) fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The TTL to show for an end at this time: full seconds, the begun one counted.
    pub(crate) fn ttl(self, now: Time) -> u64 {
        self.0.saturating_sub(now.0).div_ceil(NANOS_PER_SECOND)
    }
}

/// RFC 3339 in UTC, the fraction without its trailing zeros.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0 / NANOS_PER_SECOND, self.0 % NANOS_PER_SECOND);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date(days);
        write!(f, "{year:04}-{month:02}-{day:02}T")?;
        write!(f, "{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)?;
        if nanos != 0 {
            let fraction = format!("{nanos:09}");
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_as_dates() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_399, 500_000_000, "2000-02-28T23:59:59.5Z"),
            (951_782_400, 1, "2000-02-29T00:00:00.000000001Z"),
            (1_709_251_199, 123_456_780, "2024-02-29T23:59:59.12345678Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00Z"),
            (1_735_689_599, 0, "2024-12-31T23:59:59Z"),
        ] {
            assert_eq!(Time::since_epoch(Duration::new(seconds, nanos)).to_string(), text);
        }
    }

    #[test]
    fn a_ttl_counts_the_begun_second_and_ends_at_zero() {
        let now = Time::since_epoch(Duration::from_millis(1500));
        let end = now.after(2).unwrap();
        assert_eq!(end.ttl(now), 2);
        assert_eq!(end.ttl(Time::since_epoch(Duration::from_millis(1501))), 2);
        assert_eq!(end.ttl(Time::since_epoch(Duration::from_millis(2500))), 1);
        assert_eq!(end.ttl(Time::since_epoch(Duration::from_millis(9000))), 0);
        assert_eq!(end.since(now), Duration::from_secs(2));
    }

    #[test]
    fn a_ttl_past_the_end_of_time_never_ends() {
        let now = Time::since_epoch(Duration::from_secs(1_700_000_000));
        assert!(now.after(7_000_000_000).is_some());
        assert_eq!(now.after(9_223_372_036), None);
        assert_eq!(now.after(u64::MAX), None);
    }
}
