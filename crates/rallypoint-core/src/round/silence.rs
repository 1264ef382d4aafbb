//! Since when etcd serves this node, and what may be concluded from a key that is gone.
//!
//! ```text
//!            etcd has served this node
//!   silent ────────────────────────────▶ served since S ──── a lease and a second later ───▶ sure
//!      ▲                                                                                       │
//!      └─────────── nothing was heard for most of a lease, or something was refused ───────────┘
//! ```
//!
//! A node's key may be gone because etcd itself was away, and with it every refresh of a lease. Its owner takes up its
//! place again as soon as it notices. So a key that is gone means a death only to a node that etcd has served without
//! a gap for as long as that may take. A node that has just been started does not know what was before.
//!
//! An etcd that refuses, for want of a permission or of space, is as good as silent: it refuses the others' refreshes
//! and registrations too. Its watches go on telling whose keys are gone, and it refreshes a lease without keys for
//! anybody. So it serves a node only by what it could have refused, and what else it says counts after that.

use std::time::Duration;

/// What a node may take on top of a lease to take up its place again.
const RETURN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Silence {
    lease: Duration,
    served: Option<Served>,
    /// When a watch last read afresh.
    cut: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Served {
    /// Without a gap since then.
    since: Duration,
    last: Duration,
}

impl Silence {
    pub(super) fn new(lease: Duration) -> Self {
        Silence { lease, served: None, cut: None }
    }

    /// A lease is refreshed several times within its time: none runs out in a shorter gap.
    fn gap(&self) -> Duration {
        self.lease.mul_f64(0.6)
    }

    fn unbroken(&self, now: Duration) -> Option<Served> {
        self.served.filter(|served| now.saturating_sub(served.last) <= self.gap())
    }

    /// etcd has done what only who may write here can ask for.
    pub(super) fn served(&mut self, now: Duration) {
        let since = self.unbroken(now).map_or(now, |served| served.since);
        self.served = Some(Served { since, last: now });
    }

    /// etcd has said something else.
    pub(super) fn heard(&mut self, now: Duration) {
        self.served = self.unbroken(now).map(|served| Served { last: now, ..served });
    }

    /// etcd has refused something. Or it has lost data: a key may be gone whose owner does not know of it yet.
    pub(super) fn forget(&mut self) {
        self.served = None;
    }

    /// A watch was cut off and has read afresh. etcd may have been restored meanwhile, to a moment at which a node had no
    /// key; its owner has noticed the same, and takes up its place again.
    pub(super) fn cut(&mut self, now: Duration) {
        self.cut = Some(now);
    }

    /// Whether a key that is gone is a death.
    pub(super) fn is_sure(&self, now: Duration) -> bool {
        self.sure_at(now).is_some_and(|at| at <= now)
    }

    /// When that will be so if etcd goes on serving; none if it has been silent.
    pub(super) fn sure_at(&self, now: Duration) -> Option<Duration> {
        let after_cut = self.cut.map_or(Duration::ZERO, |cut| cut + RETURN);
        self.unbroken(now).map(|served| (served.since + self.lease + RETURN).max(after_cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_has_just_been_started_is_sure_of_nothing() {
        let mut silence = Silence::new(at(5));
        assert!(!silence.is_sure(at(0)));
        for second in 10..=15 {
            silence.served(at(second));
            assert!(!silence.is_sure(at(second)), "after {second} s");
        }
        silence.served(at(16));
        assert!(silence.is_sure(at(16)));
    }

    #[test]
    fn a_gap_is_noticed_before_it_ends() {
        let mut silence = Silence::new(at(5));
        for second in 0..=10 {
            silence.served(at(second));
        }
        assert!(silence.is_sure(at(13)));
        assert!(!silence.is_sure(at(14)), "this process may have been stopped itself");
        silence.served(at(14));
        assert_eq!(silence.sure_at(at(14)), Some(at(20)));
    }

    #[test]
    fn an_etcd_that_refuses_is_silent_until_it_serves_again() {
        let mut silence = Silence::new(at(5));
        (0..=10).for_each(|second| silence.served(at(second)));
        assert!(silence.is_sure(at(10)));
        silence.forget();
        (10..=20).for_each(|second| silence.heard(at(second)));
        assert_eq!(silence.sure_at(at(20)), None);
        silence.served(at(20));
        assert_eq!(silence.sure_at(at(20)), Some(at(26)));
    }
}
