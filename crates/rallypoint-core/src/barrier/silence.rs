//! When etcd was last heard of. A silence of etcd is nobody's death: keep-alives end while it is away, and their
//! owners find their way back when it returns.

use std::time::Duration;

use super::KEEP_ALIVE_TTL;

/// A shorter silence ends no keep-alive: PyTorch's nodes renew theirs at half the time, ours more often.
const LONG: Duration = Duration::from_millis(4_500);

/// What has waited for this process is heard within this time after it goes on.
const WAITED: Duration = Duration::from_secs(1);

/// ```text
///                        a request fails
/// Heard ◄─────────────────────────────────────────► Silent
///       a word; if it comes after a long time, whoever is missing gets a grace
/// ```
///
/// That nothing was asked for is no silence: who has nothing to renew may hear nothing for long. Who renews a
/// keep-alive hears something more often, so a long time is a silence, also while the request has not failed yet. Who
/// begins to renew, having met, does not know what kind of time it was that ended just before: the others get a grace.
///
/// The word that ends a long time may be an old one, which waited while this process was stopped. If the next thing is a
/// request that fails, the silence goes on.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// When etcd was heard last.
    last: Option<Duration>,
    /// A request since then has failed.
    failed: bool,
    /// When a long time without a word was over.
    over: Option<Duration>,
    /// The same for one in which nothing was asked for.
    quiet_until: Option<Duration>,
    grace_until: Duration,
}

impl Silence {
    pub(super) fn heard(&mut self, now: Duration, renews: bool) {
        if self.last.is_some_and(|last| now.saturating_sub(last) > LONG) {
            if self.failed || renews {
                self.excuse(now);
            } else {
                self.quiet_until = Some(now);
            }
            self.over = Some(now);
        } else if self.over.zip(self.last).is_some_and(|(over, last)| self.failed && last < over + WAITED) {
            self.excuse(now);
            self.over = None;
        }
        self.failed = false;
        self.last = Some(now);
    }

    /// This node has met others, whose keep-alives it looks after from now on.
    pub(super) fn met(&mut self) {
        if let Some(quiet_until) = self.quiet_until.take() {
            self.excuse(quiet_until);
        }
    }

    pub(super) fn failed(&mut self) {
        self.failed = true;
    }

    /// Keep-alives are gone whose owners may live.
    pub(super) fn excuse(&mut self, now: Duration) {
        self.grace_until = self.grace_until.max(now + KEEP_ALIVE_TTL);
    }

    /// Until when a keep-alive that is gone is no death.
    pub(super) fn grace_until(&self) -> Duration {
        self.grace_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request that would have told it had not failed yet when a keep-alive was seen to have ended.
    #[test]
    fn who_renews_a_keep_alive_knows_a_silence_by_its_length() {
        let seconds = Duration::from_secs;
        for (renews, grace_until) in [(true, seconds(15)), (false, seconds(0))] {
            let mut silence = Silence::default();
            silence.heard(seconds(0), renews);
            silence.heard(seconds(5), renews);
            assert_eq!(silence.grace_until(), grace_until);
        }
    }

    /// A process that was stopped for as long as etcd was away, while it waited for others.
    #[test]
    fn who_has_waited_without_a_word_does_not_know_whether_etcd_was_away() {
        let seconds = Duration::from_secs;
        let mut silence = Silence::default();
        silence.heard(seconds(0), false);
        silence.heard(seconds(8), false);
        assert_eq!(silence.grace_until(), seconds(0));
        silence.met();
        assert_eq!(silence.grace_until(), seconds(18));
    }

    /// The word that ended its sleep had waited for it, and etcd was away.
    #[test]
    fn a_word_that_ends_a_long_time_may_be_an_old_one() {
        let seconds = Duration::from_secs;
        for (second_word, grace_until) in [(seconds(8), seconds(21)), (seconds(10), seconds(18))] {
            let mut silence = Silence::default();
            silence.heard(seconds(3), true);
            silence.heard(seconds(8), true);
            silence.heard(second_word, true);
            silence.failed();
            silence.heard(seconds(11), true);
            assert_eq!(silence.grace_until(), grace_until);
        }
    }
}
