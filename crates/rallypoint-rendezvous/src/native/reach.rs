//! Whether etcd does what a node asks of it, and what is said where it does not.
//!
//! ```text
//!            no answer                     refused
//!   well ───────────────▶ silent ─────────────────────▶ refuses
//!    ▲ ▲                    │                              │
//!    │ └── anything heard ──┘                              │
//!    └────── it has done something that it could refuse ───┘
//! ```
//!
//! Of the requests and of the lease this is known apart: etcd refreshes a lease without keys for anybody. One that is full, or
//! that lets a node only read, answers reads: so where it has refused to take something, only that it takes something ends
//! that. What was asked and not answered is known apart, too: an etcd that can only refresh leases, as its disk hangs, or only
//! tell of what was, as it has lost its cluster, does nothing of what a node asks. What is said of a silence is the client's affair ([`rallypoint_etcd::Reach`]), whoever waits.

use std::collections::BTreeMap;
use std::time::Duration;

use rallypoint_etcd::Error;

/// How often a refusal is said, at first...
const PACE: Duration = Duration::from_secs(10);
/// ...and how often after as long.
const SLOW_PACE: Duration = Duration::from_secs(60);
/// What is refused is tried again every few seconds. If it was not for so long, nobody wants it any more.
const FRESH: Duration = Duration::from_secs(10);
/// A request that has no answer for so long is not answered: what is asked here takes milliseconds.
const LATE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Reach {
    asked: Asked,
    requests: Option<Trouble>,
    lease: Option<Trouble>,
    /// When it was last said.
    said: Option<Duration>,
}

/// What was asked, and whether the last of it was answered.
#[derive(Debug, Default)]
struct Asked {
    under_way: BTreeMap<u64, Duration>,
    /// The last answer, whatever it was.
    answered: Duration,
    /// What was asked at the first of these times was not answered, as was known at the second, nor was anything since.
    in_vain: Option<(Duration, Duration)>,
}

impl Asked {
    fn answered(&mut self, id: u64, now: Duration) {
        self.under_way.remove(&id);
        (self.answered, self.in_vain) = (now, None);
    }

    fn unanswered(&mut self, id: u64, now: Duration) {
        let asked = self.under_way.remove(&id).unwrap_or(now).max(self.answered);
        let since = self.in_vain.map_or(asked, |(since, _)| since.min(asked));
        self.in_vain = Some((since, now));
    }

    /// Since when nothing of it was answered.
    fn in_vain_since(&self, now: Duration) -> Option<Duration> {
        let under_way = self.under_way.values().min().map(|asked| self.answered.max(*asked));
        let fresh = |at: Duration| under_way.is_some() || now.saturating_sub(at) <= FRESH;
        let failed = self.in_vain.filter(|(_, at)| fresh(*at)).map(|(since, _)| since);
        failed.into_iter().chain(under_way).min().filter(|since| now.saturating_sub(*since) >= LATE)
    }
}

/// Times are those since the node's beginning.
#[derive(Debug)]
struct Trouble {
    since: Duration,
    /// None if etcd is silent.
    refusal: Option<Refusal>,
}

#[derive(Debug)]
struct Refusal {
    /// In etcd's words.
    error: Error,
    /// The last one.
    at: Duration,
    /// Whether it was to take something.
    writes: bool,
}

/// Why a node got nothing from etcd.
#[derive(Debug)]
pub(super) enum Complaint {
    Silent(Duration),
    Refuses(Error),
}

impl Reach {
    /// A request is sent.
    pub(super) fn asks(&mut self, id: u64, now: Duration) {
        self.asked.under_way.insert(id, now);
    }

    /// A request was answered, if only by a refusal.
    pub(super) fn answered(&mut self, id: u64, now: Duration) {
        self.asked.answered(id, now);
    }

    /// etcd has said something.
    pub(super) fn heard(&mut self) {
        self.requests.take_if(|trouble| trouble.refusal.is_none());
        self.lease.take_if(|trouble| trouble.refusal.is_none());
    }

    /// etcd has done what only who may read or write here can ask for.
    pub(super) fn served(&mut self, writes: bool) {
        self.heard();
        self.requests.take_if(|trouble| writes || trouble.refusal.as_ref().is_none_or(|it| !it.writes));
    }

    /// The lease was refreshed, or is another by now.
    pub(super) fn lease_is_well(&mut self) {
        self.heard();
        self.lease = None;
    }

    /// The lease is gone. If etcd did not let this node refresh it, that is over when etcd takes something from it.
    pub(super) fn lease_is_lost(&mut self) {
        self.heard();
        let refused = self.lease.take();
        self.requests = self.requests.take().or(refused);
    }

    /// A request was not answered.
    pub(super) fn unanswered(&mut self, id: u64, now: Duration) {
        self.asked.unanswered(id, now);
        self.requests.get_or_insert(Trouble { since: now, refusal: None });
    }

    /// A request was refused.
    pub(super) fn refused(&mut self, now: Duration, error: Error, writes: bool) {
        let refusal = Refusal { error, at: now, writes };
        self.requests = Some(refused_since(self.requests.as_ref(), now, refusal));
    }

    /// Refreshes of the lease go unanswered since then.
    pub(super) fn lease_is_unsure(&mut self, since: Duration) {
        self.lease = Some(Trouble { since, refusal: None });
    }

    /// A refresh of the lease was refused.
    pub(super) fn lease_is_refused(&mut self, now: Duration, since: Duration, error: Error) {
        let refusal = Refusal { error, at: now, writes: true };
        self.lease = Some(refused_since(self.lease.as_ref(), since, refusal));
    }

    fn all(&self) -> impl Iterator<Item = &Trouble> {
        self.requests.iter().chain(&self.lease)
    }

    /// The last that was refused, and since when.
    fn refusal(&self) -> Option<(Duration, &Refusal)> {
        let refused = self.all().filter_map(|it| it.refusal.as_ref().map(|refusal| (it.since, refusal)));
        refused.max_by_key(|(_, refusal)| refusal.at)
    }

    /// For how long etcd has not done what it was asked.
    pub(super) fn lasts(&self, now: Duration) -> Option<Duration> {
        self.since(now).map(|since| now.saturating_sub(since))
    }

    fn since(&self, now: Duration) -> Option<Duration> {
        let refused = self.refusal().filter(|(_, refusal)| now.saturating_sub(refusal.at) <= FRESH);
        let silent = || self.all().filter(|it| it.refusal.is_none()).map(|it| it.since).min();
        refused.map(|(since, _)| since).or_else(silent)
    }

    /// Since when etcd has done nothing of what this node asks, though it may refresh its lease or tell it of what happens.
    pub(super) fn in_vain_since(&self, now: Duration) -> Option<Duration> {
        self.since(now).into_iter().chain(self.asked.in_vain_since(now)).min()
    }

    /// When a request that is under way will have had no answer for too long.
    pub(super) fn late_at(&self, now: Duration) -> Option<Duration> {
        let late = self.asked.under_way.values().min().map(|asked| self.asked.answered.max(*asked) + LATE);
        late.filter(|at| *at > now)
    }

    /// When a refusal is to be said: each time at the earliest when there was one since.
    pub(super) fn says_at(&self) -> Option<Duration> {
        let (since, refusal) = self.refusal()?;
        let Some(said) = self.said else { return Some(since) };
        let pace = if said.saturating_sub(since) >= SLOW_PACE { SLOW_PACE } else { PACE };
        (refusal.at > said).then(|| since.max(said + pace))
    }

    /// What there is to say now of the etcd at `endpoints`.
    pub(super) fn say(&mut self, now: Duration, endpoints: &str) -> Option<String> {
        if self.says_at().is_none_or(|at| now < at) {
            return None;
        }
        self.said = Some(now);
        let (_, refusal) = self.refusal()?;
        Some(format!("etcd at {endpoints} refuses this node: {}", refusal.error))
    }

    /// Why nothing came of what was asked, if that is etcd's fault.
    pub(super) fn complaint(&mut self, now: Duration) -> Option<Complaint> {
        let lasts = now.saturating_sub(self.in_vain_since(now)?);
        let mut refusals = [&mut self.requests, &mut self.lease].into_iter().flatten();
        let fresh = |refusal: &mut Refusal| now.saturating_sub(refusal.at) <= FRESH;
        let refusal = refusals.find_map(|trouble| trouble.refusal.take_if(fresh));
        Some(refusal.map_or(Complaint::Silent(lasts), |refusal| Complaint::Refuses(refusal.error)))
    }
}

/// A refusal goes on since the first of them.
fn refused_since(before: Option<&Trouble>, now: Duration, refusal: Refusal) -> Trouble {
    let since = before.filter(|trouble| trouble.refusal.is_some()).map_or(now, |trouble| trouble.since);
    Trouble { since, refusal: Some(refusal) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_etcd::ErrorKind;

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn denied() -> Error {
        Error::new(ErrorKind::PermissionDenied, "put")
    }

    #[test]
    fn a_silence_lasts_from_its_beginning_until_anything_is_heard() {
        let mut reach = Reach::default();
        assert_eq!(reach.lasts(at(10)), None);
        reach.lease_is_unsure(at(10));
        reach.unanswered(1, at(12));
        assert_eq!(reach.says_at(), None, "it is the client's to say");
        assert!(matches!(reach.complaint(at(40)), Some(Complaint::Silent(for_long)) if for_long == at(30)));
        reach.heard();
        assert_eq!(reach.lasts(at(41)), None);
    }

    #[test]
    fn what_is_asked_in_vain_is_known_though_the_lease_is_refreshed() {
        let mut reach = Reach::default();
        reach.asks(1, at(10));
        assert!(reach.complaint(at(11)).is_none(), "it may still be answered");
        reach.lease_is_well();
        assert_eq!(reach.late_at(at(11)), Some(at(12)));
        assert!(matches!(reach.complaint(at(14)), Some(Complaint::Silent(for_long)) if for_long == at(4)));
        reach.unanswered(1, at(15));
        reach.lease_is_well();
        reach.asks(2, at(16));
        assert_eq!(reach.in_vain_since(at(16)), Some(at(10)), "the second try does not begin anew");
        assert_eq!(reach.lasts(at(16)), None, "who leaves is heard, perhaps");
        reach.answered(2, at(17));
        assert_eq!(reach.in_vain_since(at(40)), None);
        reach.asks(3, at(40));
        reach.unanswered(3, at(45));
        reach.lease_is_well();
        assert_eq!(reach.in_vain_since(at(50)), Some(at(40)));
        assert_eq!(reach.in_vain_since(at(60)), None, "nobody wants it any more");
    }

    #[test]
    fn a_lease_that_ends_as_it_may_not_be_refreshed_is_no_end_of_that() {
        let mut reach = Reach::default();
        reach.lease_is_refused(at(10), at(9), denied());
        reach.lease_is_lost();
        reach.refused(at(14), denied(), true);
        assert_eq!(reach.in_vain_since(at(15)), Some(at(9)));
        reach.served(true);
        assert_eq!(reach.in_vain_since(at(15)), None);
    }

    #[test]
    fn a_refusal_is_over_when_etcd_does_what_it_could_refuse() {
        let mut reach = Reach::default();
        reach.refused(at(10), denied(), true);
        reach.heard();
        reach.lease_is_well();
        reach.refused(at(14), denied(), true);
        assert_eq!(reach.lasts(at(15)), Some(at(5)));
        assert!(
            reach.say(at(15), "a:1").unwrap().contains("refuses this node: etcd: put: permission denied")
        );
        assert_eq!(reach.say(at(16), "a:1"), None);
        reach.served(false);
        assert_eq!(reach.lasts(at(16)), Some(at(6)), "one that is full answers reads");
        reach.served(true);
        assert_eq!(reach.lasts(at(16)), None);
        reach.refused(at(16), denied(), false);
        reach.served(false);
        assert_eq!(reach.lasts(at(16)), None);
        reach.lease_is_refused(at(17), at(15), denied());
        reach.served(true);
        assert!(matches!(reach.complaint(at(17)), Some(Complaint::Refuses(_))));
        reach.lease_is_well();
        assert_eq!(reach.lasts(at(17)), None);
    }

    #[test]
    fn a_refusal_is_said_for_as_long_as_there_are_more_and_more_seldom_after_a_while() {
        let mut reach = Reach::default();
        let mut said = Vec::new();
        for now in 1..200 {
            reach.refused(at(now), denied(), true);
            said.extend(reach.say(at(now), "a:1").map(|_| now));
        }
        assert_eq!(said, [1, 11, 21, 31, 41, 51, 61, 121, 181]);
        assert_eq!(reach.lasts(at(205)), Some(at(204)));
        assert!(reach.say(at(250), "a:1").is_some(), "there was one since");
        assert_eq!(reach.say(at(400), "a:1"), None);
        assert_eq!(reach.lasts(at(400)), None, "nobody wants it any more");
        assert!(reach.complaint(at(400)).is_none());
    }
}
