//! When a silence is too long, and how it is told.

use std::time::Duration;

/// A node that does not answer is waited for as long.
const LONGEST_LEAD: Duration = Duration::from_secs(4);

/// When a worker is too long silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) timeout: Duration,
    /// Before its first sign.
    pub(crate) start: Option<Duration>,
    /// Once it has come to its end.
    pub(crate) end: Option<Duration>,
}

impl Limits {
    /// So long before its timeout a silence is looked into.
    pub(crate) fn lead(self) -> Duration {
        (self.shortest() / 4).min(LONGEST_LEAD)
    }

    /// The shortest of them.
    pub(crate) fn shortest(self) -> Duration {
        self.all().min().unwrap_or(self.timeout)
    }

    fn all(self) -> impl Iterator<Item = Duration> {
        [self.timeout].into_iter().chain(self.start).chain(self.end)
    }

    /// A silence in whole seconds, as it is told. What has reached a limit is not told as less than that: nodes are asked at slightly
    /// different moments, and a fraction of a second before the limit is the limit.
    pub(crate) fn seconds(self, silent: Duration) -> u64 {
        let up = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let whole = silent.as_secs();
        let is_reached = self.all().any(|limit| whole < up(limit) && up(limit) <= up(silent));
        if is_reached { up(silent) } else { whole }
    }

    /// The limits of a silence that is looked into.
    pub(crate) fn early(self) -> Self {
        let early = |limit: Duration| limit.saturating_sub(self.lead());
        Limits { timeout: early(self.timeout), start: self.start.map(early), end: self.end.map(early) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_not_told_as_less_than_the_limit_that_it_has_reached() {
        let millis = Duration::from_millis;
        let limits = |timeout| Limits { timeout: millis(timeout), start: Some(millis(5_000)), end: None };
        for (timeout, silent, seconds) in [
            (10_000, 10_050, 10),
            (10_000, 9_970, 10),
            (10_000, 9_000, 9),
            (10_000, 13_700, 13),
            (2_500, 2_600, 3),
            (600_000, 5_300, 5),
        ] {
            assert_eq!(limits(timeout).seconds(millis(silent)), seconds, "{silent} of {timeout}");
        }
    }

    /// A node that does not answer is waited for before the timeout, and nobody is found to hang before it.
    #[test]
    fn a_silence_is_looked_into_a_little_before_the_timeout() {
        let lead = |timeout, start| {
            let (timeout, start) = (Duration::from_secs(timeout), Some(Duration::from_secs(start)));
            Limits { timeout, start, end: None }.lead()
        };
        assert_eq!([lead(8, 100), lead(600, 3600), lead(600, 2)].map(|it| it.as_millis()), [2000, 4000, 500]);
    }
}
