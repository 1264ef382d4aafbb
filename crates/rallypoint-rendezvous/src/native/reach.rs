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
//! Of the requests and of the lease this is known apart: etcd refreshes a lease without keys for anybody.

use std::time::Duration;

use rallypoint_etcd::Error;

/// A shorter silence is not worth a word.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is said.
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

    /// When there is something to say.
    pub(super) fn says_at(&self) -> Option<Duration> {
        let trouble = self.trouble()?;
        let first = trouble.since + if trouble.refusal.is_some() { Duration::ZERO } else { PATIENCE };
        Some(self.said.map_or(first, |said| first.max(said + PACE)))
    }

    /// What there is to say now of the etcd at `endpoints`.
    pub(super) fn say(&mut self, now: Duration, endpoints: &str) -> Option<String> {
        if self.says_at().is_none_or(|at| now < at) {
            return None;
        }
        self.said = Some(now);
        let trouble = self.trouble()?;
        Some(match &trouble.refusal {
            Some(error) => format!("etcd at {endpoints} refuses this node: {error}"),
            None => {
                let silent = now.saturating_sub(trouble.since).as_secs();
                format!("etcd at {endpoints} has not answered for {silent} s")
            }
        })
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
    fn a_silence_is_told_after_a_while_and_then_now_and_then() {
        let mut reach = Reach::default();
        assert_eq!(reach.says_at(), None);
        reach.lease_is_unsure(at(10), None);
        reach.unanswered(at(12));
        let said: Vec<String> = (10..40).filter_map(|now| reach.say(at(now), "a:1")).collect();
        let line = |seconds| format!("etcd at a:1 has not answered for {seconds} s");
        assert_eq!(said, [line(5), line(15), line(25)]);
        assert!(matches!(reach.complaint(at(40)), Some(Complaint::Silent(for_long)) if for_long == at(30)));
        reach.heard();
        assert_eq!((reach.says_at(), reach.lasts(at(41))), (None, None));
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
