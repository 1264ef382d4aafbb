//! How a run ended, if it has, and the word for what it does.

use rallypoint_rendezvous::is_finish;

use crate::text::line;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has not, or nobody has closed it.
    GoesOn,
    /// Its work is done.
    Finished,
    /// A worker failed once too often.
    Failed,
    /// For another reason: somebody closed it.
    Closed,
}

impl Outcome {
    pub(crate) fn of(state: &str, closed: Option<&str>) -> Self {
        match closed {
            _ if state != "closed" => Outcome::GoesOn,
            Some(reason) if is_finish(reason) => Outcome::Finished,
            Some(reason) if is_failure(reason) => Outcome::Failed,
            _ => Outcome::Closed,
        }
    }
}

/// The word for what a run does, or how it ended, and the class of its badge.
pub(crate) fn badge(state: &str, closed: Option<&str>) -> (String, &'static str) {
    match (Outcome::of(state, closed), state) {
        (Outcome::Finished, _) => ("finished".to_owned(), "finished"),
        (Outcome::Failed, _) => ("failed".to_owned(), "failed"),
        (Outcome::Closed, _) => ("closed".to_owned(), "closed"),
        (_, "meeting") => (state.to_owned(), "meeting"),
        (_, "running") => (state.to_owned(), "running"),
        (_, "meeting again") => (state.to_owned(), "meeting-again"),
        (_, "abandoned") => (state.to_owned(), "abandoned"),
        (_, "unreadable") => (state.to_owned(), "unreadable"),
        _ => (line(state, 60), "other"),
    }
}

/// `rank 3 on gpu-1 failed with exit code 1`, as the agent says it.
fn is_failure(reason: &str) -> bool {
    let rest = reason.strip_prefix("rank ").and_then(|rest| rest.split_once(" on "));
    rest.is_some_and(|(rank, rest)| rank.parse::<u64>().is_ok() && rest.contains(" failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ended_well_badly_or_because_somebody_said_so() {
        let look = |reason| badge("closed", Some(reason)).1;
        assert_eq!(look("all workers have finished"), "finished");
        assert_eq!(look("a node has finished"), "finished");
        assert_eq!(look("rank 3 on gpu-1 failed with exit code 1: a message"), "failed");
        for reason in ["", "maintenance", "rank and file", "rank x on h failed", "rank 3 on gpu-1 is slow"] {
            assert_eq!(look(reason), "closed", "{reason}");
        }
        assert_eq!(badge("closed", None).1, "closed");
        assert_eq!(badge("running", None), ("running".to_owned(), "running"));
        assert_eq!(badge("<b>", None), ("<b>".to_owned(), "other"));
    }
}
