//! How long to wait before the next try: exponential, capped, with full jitter, so that clients that failed
//! together do not come back together.

use std::time::Duration;

/// The waits of one sequence of tries.
///
/// ```
/// use std::time::Duration;
/// use rallypoint_core::Backoff;
///
/// let mut backoff = Backoff::default();
/// assert!(backoff.next(0.5) <= Duration::from_millis(50));
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    ceiling: Duration,
    max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
    }
}

impl Backoff {
    /// Waits of up to `first`, then up to twice that, and so on up to `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        Backoff { ceiling: first.min(max), max }
    }

    /// The next wait. `random` is the caller's, from 0 up to 1.
    ///
    /// At least a quarter of the ceiling, so that an unlucky draw is no busy loop.
    pub fn next(&mut self, random: f64) -> Duration {
        let wait = self.ceiling.mul_f64(0.25 + 0.75 * random.clamp(0.0, 1.0));
        self.ceiling = (self.ceiling * 2).min(self.max);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_stay_within_their_bounds() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for (random, millis) in [(1.0, 100), (1.0, 200), (1.0, 350), (0.0, 87), (1.0, 350)] {
            assert_eq!(backoff.next(random).as_millis(), millis);
        }
    }
}
