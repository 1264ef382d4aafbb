//! Whether an etcd answers, and what is said while it does not: the same words for whoever waits, and for whatever.
//!
//! It has no timer of its own. Whoever waits tries again and again, and each try that fails is told here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::{Error, ErrorKind};

/// A shorter silence is not worth a word.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is said, at first...
const PACE: Duration = Duration::from_secs(10);
/// ...and how often after as long.
const SLOW_PACE: Duration = Duration::from_secs(60);

/// What is known of the servers of one cluster.
#[derive(Debug)]
pub struct Reach {
    endpoints: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last answer.
    answered: Option<Instant>,
    silence: Option<Silence>,
}

#[derive(Debug)]
struct Silence {
    since: Instant,
    /// Of the last try; or of the last that was answered by a server without a leader, which is why the others do not help.
    why: String,
    no_leader: Option<Instant>,
    /// When it was last said.
    said: Option<Instant>,
}

impl Reach {
    /// Of the servers at these endpoints, as they are to be named.
    #[must_use]
    pub fn new(endpoints: impl Into<String>) -> Self {
        Reach { endpoints: endpoints.into(), state: Mutex::default() }
    }

    /// A server has answered, if only to refuse.
    pub fn answered(&self) {
        if let Some(line) = self.state().answered(Instant::now(), &self.endpoints) {
            warn!("{line}");
        }
    }

    /// What was asked at `since` was not answered, for this reason. Says so, if that goes on.
    pub fn unanswered(&self, since: Instant, why: &Error) {
        self.unanswered_within(since, why, None);
    }

    /// The same, and for how long it is waited for at most.
    pub fn unanswered_within(&self, since: Instant, why: &Error, limit: Option<Duration>) {
        let line = self.state().unanswered(since, Instant::now(), why, &self.endpoints);
        match (line, limit) {
            (Some(line), Some(limit)) => warn!("{line}; waiting for up to {} s", limit.as_secs()),
            (Some(line), None) => warn!("{line}"),
            (None, _) => {}
        }
    }

    /// For how long nothing has been heard, if that is worth a word.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let silence = self.state().silence.as_ref().map(|silence| silence.since.elapsed());
        silence.filter(|lasts| *lasts >= PATIENCE)
    }

    /// Why the last try was not answered, if none was since.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.state().silence.as_ref().map(|silence| silence.why.clone())
    }

    /// Nothing that holds the lock can leave the state half done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What there is to say of an answer that came now.
    fn answered(&mut self, now: Instant, endpoints: &str) -> Option<String> {
        self.answered = Some(now);
        let Silence { since, said, .. } = self.silence.take()?;
        said.map(|_| format!("etcd at {endpoints} answers again, after {} s", (now - since).as_secs()))
    }

    /// What there is to say of an answer that was asked for at `since` and has not come by now.
    fn unanswered(&mut self, since: Instant, now: Instant, why: &Error, endpoints: &str) -> Option<String> {
        // Others may have been answered in the meantime.
        let since = self.answered.map_or(since, |answered| answered.max(since));
        let new = Silence { since, why: String::new(), no_leader: None, said: None };
        let silence = self.silence.get_or_insert(new);
        if why.kind() == ErrorKind::Busy {
            silence.no_leader = Some(now);
        }
        let recent = |at: Instant| why.kind() == ErrorKind::Unreachable && now - at < PACE;
        if !silence.no_leader.is_some_and(recent) {
            silence.why = why.why();
        }
        let lasts = now.saturating_duration_since(silence.since);
        let pace = if lasts > SLOW_PACE { SLOW_PACE } else { PACE };
        let due = match silence.said {
            Some(said) => now.saturating_duration_since(said) >= pace,
            None => lasts >= PATIENCE,
        };
        due.then(|| {
            silence.said = Some(now);
            format!("etcd at {endpoints} has not answered for {} s: {}", lasts.as_secs(), silence.why)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn failed(kind: ErrorKind) -> Error {
        Error::new(kind, "get").because("a cause")
    }

    #[test]
    fn a_silence_is_told_after_a_while_and_then_now_and_then_and_so_is_its_end() {
        let (mut state, begin) = (State::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let refused = failed(ErrorKind::Unreachable);
        let said: Vec<String> =
            (1..200).filter_map(|now| state.unanswered(at(now - 1), at(now), &refused, "a:1")).collect();
        let line = |seconds| format!("etcd at a:1 has not answered for {seconds} s: no connection: a cause");
        assert_eq!(said, [5, 15, 25, 35, 45, 55, 115, 175].map(line));
        let again = Some("etcd at a:1 answers again, after 200 s".to_owned());
        assert_eq!(state.answered(at(200), "a:1"), again);
        assert_eq!(state.answered(at(201), "a:1"), None);
    }

    #[test]
    fn a_request_that_hangs_while_others_are_answered_is_no_silence() {
        let (mut state, begin) = (State::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let late = failed(ErrorKind::Timeout);
        assert_eq!(state.answered(at(8), "a:1"), None);
        assert_eq!(state.unanswered(at(0), at(10), &late, "a:1"), None);
        let line = state.unanswered(at(9), at(13), &late, "a:1").unwrap();
        assert_eq!(line, "etcd at a:1 has not answered for 5 s: no answer in time: a cause");
    }

    /// The dead members of a cluster refuse connections; the one that lives says what is wrong.
    #[tokio::test(start_paused = true)]
    async fn a_server_without_a_leader_tells_more_than_those_that_are_gone() {
        let reach = Reach::new("a,b");
        let begin = Instant::now();
        let gone = Error::new(ErrorKind::Unreachable, "get");
        reach.unanswered(begin, &Error::new(ErrorKind::Busy, "get"));
        reach.unanswered(begin, &gone);
        assert_eq!(reach.why().as_deref(), Some("the server is busy or has no leader"));
        tokio::time::advance(PACE).await;
        reach.unanswered(begin, &gone);
        assert_eq!(reach.why().as_deref(), Some("no connection"));
    }
}
