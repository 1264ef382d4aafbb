//! How often a node's workers may be started again.

use std::time::Duration;

/// The restarts of a node: some used, some left. By option, those that were used come back once its workers have run for
/// a while without a failure of their own. Waiting for other nodes is no such proof, so only the time counts in which
/// workers ran.
#[derive(Debug)]
pub(crate) struct Budget {
    max: u32,
    returns_after: Option<Duration>,
    used: u32,
    /// How long workers have run since the last failure that was paid for.
    worked: Duration,
}

impl Budget {
    pub(crate) fn new(max: u32, returns_after: Option<Duration>) -> Self {
        Budget { max, returns_after, used: 0, worked: Duration::ZERO }
    }

    /// How many are left once workers have run for so much longer.
    pub(crate) fn left_after(&self, more: Duration) -> u32 {
        let returned = self.returns_after.is_some_and(|after| self.worked.saturating_add(more) >= after);
        if returned { self.max } else { self.max.saturating_sub(self.used) }
    }

    /// How much longer workers have to run until those that were used come back.
    pub(crate) fn returns_in(&self) -> Option<Duration> {
        self.returns_after.filter(|_| self.used > 0).map(|after| after.saturating_sub(self.worked))
    }

    pub(crate) fn left(&self) -> u32 {
        self.left_after(Duration::ZERO)
    }

    /// Workers have run for so long, and this is what their end costs.
    pub(crate) fn charge(&mut self, ran: Duration, cost: u32) {
        self.used = self.max - self.left_after(ran);
        self.worked = if cost > 0 { Duration::ZERO } else { self.worked.saturating_add(ran) };
        self.used = self.used.saturating_add(cost).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_used_stays_used() {
        let mut budget = Budget::new(2, None);
        assert_eq!(budget.left(), 2);
        budget.charge(s(1_000_000), 1);
        assert_eq!(budget.left(), 1);
        budget.charge(s(1_000_000), 0);
        assert_eq!(budget.left(), 1);
        budget.charge(s(1_000_000), 1);
        assert_eq!((budget.left(), budget.left_after(Duration::MAX)), (0, 0));
    }

    #[test]
    fn by_option_restarts_come_back_after_work_without_a_failure() {
        let mut budget = Budget::new(2, Some(s(60)));
        assert_eq!(budget.returns_in(), None, "none was used");
        budget.charge(s(1), 1);
        budget.charge(s(1), 1);
        assert_eq!(budget.returns_in(), Some(s(60)));
        assert_eq!((budget.left(), budget.left_after(s(59)), budget.left_after(s(60))), (0, 0, 2));
        // A round that another node ended counts, though not as a whole.
        budget.charge(s(40), 0);
        assert_eq!(budget.returns_in(), Some(s(20)));
        assert_eq!((budget.left_after(s(19)), budget.left_after(s(20))), (0, 2));
        budget.charge(s(30), 1);
        assert_eq!(budget.left(), 1, "all came back, and one was used");
        budget.charge(s(59), 1);
        assert_eq!(budget.left(), 0, "the time began anew");
    }
}
