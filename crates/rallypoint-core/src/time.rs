//! Times to wait, and moments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Later than any job lasts, and not so late that a clock overflows.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A time that can be added to any clock: one beyond [`FOR_EVER`] becomes it.
#[must_use]
pub fn bounded(time: Duration) -> Duration {
    time.min(FOR_EVER)
}

/// Milliseconds since 1970.
#[must_use]
pub fn millis(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A moment as people and machines both read it, from the time since 1970.
///
/// ```
/// let moment = std::time::Duration::from_millis(1_794_723_252_345);
/// assert_eq!(rallypoint_core::time::rfc3339(moment), "2026-11-15T06:14:12.345Z");
/// ```
#[must_use]
pub fn rfc3339(since: Duration) -> String {
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date of a day counted from 1970, by the rules of the Gregorian calendar.
#[must_use]
pub fn date(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is the last of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, after) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + after, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_clock_overflows() {
        let now = Instant::now();
        assert!(now.checked_add(bounded(Duration::MAX)).is_some_and(|end| end > now));
        assert_eq!(bounded(Duration::from_secs(7)), Duration::from_secs(7));
    }

    #[test]
    fn moments_are_written_as_the_calendar_has_them() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_825_600_000, "2000-02-29T12:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (1_794_723_252_345, "2026-11-15T06:14:12.345Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_millis(millis)), text);
        }
    }
}
