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
//! Of the requests and of the lease this is known apart: etcd refreshes a lease without keys for anybody. What is said of
//! a silence is the client's affair ([`rallypoint_etcd::Reach`]), whoever waits.

use std::time::Duration;

use rallypoint_etcd::Error;

/// How often a refusal is said.
const PACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Reach {
    requests: Option<Trouble>,
    lease: Option<Trouble>,
    /// When it was last said.
    said: Option<Duration>,
}

/// Times are those since the node's beginning.
#[derive(Debug)]
struct Trouble {
    since: Duration,
    /// In etcd's words; none if it is silent.
    refusal: Option<Error>,
}

/// Why a node got nothing from etcd.
#[derive(Debug)]
pub(super) enum Complaint {
    Silent(Duration),
    Refuses(Error),
}

impl Reach {
    /// etcd has said something.
    pub(super) fn heard(&mut self) {
        self.requests.take_if(|trouble| trouble.refusal.is_none());
        self.lease.take_if(|trouble| trouble.refusal.is_none());
    }

    /// etcd has done what only who may write here can ask for.
    pub(super) fn served(&mut self) {
        self.heard();
        self.requests = None;
    }

    /// The lease was refreshed, or is another by now.
    pub(super) fn lease_is_well(&mut self) {
        self.heard();
        self.lease = None;
    }

    /// A request was not answered.
    pub(super) fn unanswered(&mut self, now: Duration) {
        self.requests.get_or_insert(Trouble { since: now, refusal: None });
    }

    /// A request was refused.
    pub(super) fn refused(&mut self, now: Duration, error: Error) {
        let since = refused_since(self.requests.as_ref(), now);
        self.requests = Some(Trouble { since, refusal: Some(error) });
    }

    /// Refreshes of the lease go unanswered since then, or are refused.
    pub(super) fn lease_is_unsure(&mut self, since: Duration, refusal: Option<Error>) {
        let since = if refusal.is_some() { refused_since(self.lease.as_ref(), since) } else { since };
        self.lease = Some(Trouble { since, refusal });
    }

    fn trouble(&self) -> Option<&Trouble> {
        let refuses = |trouble: &&Trouble| trouble.refusal.is_some();
        let all = || self.requests.iter().chain(&self.lease);
        all().find(refuses).or_else(|| all().min_by_key(|trouble| trouble.since))
    }

    /// For how long etcd has not done what it was asked.
    pub(super) fn lasts(&self, now: Duration) -> Option<Duration> {
        self.trouble().map(|trouble| now.saturating_sub(trouble.since))
    }

    /// When a refusal is to be said.
    pub(super) fn says_at(&self) -> Option<Duration> {
        let first = self.trouble().filter(|trouble| trouble.refusal.is_some())?.since;
        Some(self.said.map_or(first, |said| first.max(said + PACE)))
    }

    /// What there is to say now of the etcd at `endpoints`.
    pub(super) fn say(&mut self, now: Duration, endpoints: &str) -> Option<String> {
        if self.says_at().is_none_or(|at| now < at) {
            return None;
        }
        self.said = Some(now);
        let refusal = self.trouble()?.refusal.as_ref()?;
        Some(format!("etcd at {endpoints} refuses this node: {refusal}"))
    }

    /// Why nothing came of what was asked, if that is etcd's fault.
    pub(super) fn complaint(&mut self, now: Duration) -> Option<Complaint> {
        let silent = self.lasts(now)?;
        let mut refusals = [&mut self.requests, &mut self.lease].into_iter().flatten();
        let refusal = refusals.find_map(|trouble| trouble.refusal.take());
        Some(refusal.map_or(Complaint::Silent(silent), Complaint::Refuses))
    }
}

/// A refusal goes on since the first of them.
fn refused_since(before: Option<&Trouble>, now: Duration) -> Duration {
    before.filter(|trouble| trouble.refusal.is_some()).map_or(now, |trouble| trouble.since)
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
        reach.lease_is_unsure(at(10), None);
        reach.unanswered(at(12));
        assert_eq!(reach.says_at(), None, "it is the client's to say");
        assert!(matches!(reach.complaint(at(40)), Some(Complaint::Silent(for_long)) if for_long == at(30)));
        reach.heard();
        assert_eq!(reach.lasts(at(41)), None);
    }

    #[test]
    fn a_refusal_is_over_when_etcd_does_what_it_could_refuse() {
        let mut reach = Reach::default();
        reach.refused(at(10), denied());
        reach.heard();
        reach.lease_is_well();
        reach.refused(at(14), denied());
        assert_eq!(reach.lasts(at(15)), Some(at(5)));
        assert!(
            reach.say(at(15), "a:1").unwrap().contains("refuses this node: etcd: put: permission denied")
        );
        assert_eq!(reach.say(at(16), "a:1"), None);
        reach.served();
        assert_eq!(reach.lasts(at(16)), None);
        reach.lease_is_unsure(at(15), Some(denied()));
        reach.served();
        assert!(matches!(reach.complaint(at(17)), Some(Complaint::Refuses(_))));
        reach.lease_is_well();
        assert_eq!(reach.lasts(at(17)), None);
    }
}
