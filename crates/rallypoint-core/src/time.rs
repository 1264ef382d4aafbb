//! Times to wait.

use std::time::Duration;

/// Later than any job lasts, and not so late that a clock overflows.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A time that can be added to any clock: one beyond [`FOR_EVER`] becomes it.
#[must_use]
pub fn bounded(time: Duration) -> Duration {
    time.min(FOR_EVER)
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
}
