//! Until when workers can save, and when their node has to be gone.

use std::time::Duration;

/// Of the time that a node has, so much is for stopping its workers, if that is less than they have otherwise.
const TO_STOP: u32 = 5;
/// And of that so much is for the node itself when they are gone, but no more than this: to tell the others, and to end.
const TO_LEAVE: u32 = 5;
const LONGEST_LEAVE: Duration = Duration::from_secs(1);

/// The times of a node that goes, from when they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// Its workers are told to end then.
    pub(crate) save: Duration,
    /// And killed then.
    pub(crate) kill: Duration,
    /// The node has to be gone then.
    pub(crate) gone: Duration,
}

/// What a node knows of the time that it has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// Since the signal.
    pub(crate) since: Duration,
    /// Where no worker listens, the signal asks for the end.
    pub(crate) ends: bool,
    /// What the user said.
    pub(crate) grace: Option<Duration>,
    /// What workers have from SIGTERM to SIGKILL.
    pub(crate) shutdown: Duration,
    /// Until the scheduler takes this node away.
    pub(crate) job_end: Option<Duration>,
}

impl Given {
    /// The times that follow; none if nobody knows when this node has to be gone.
    pub(crate) fn times(self) -> Option<Times> {
        let whole = match (self.grace, self.ends) {
            (Some(grace), _) => grace,
            // What the platform gives is known to be no less.
            (None, true) => self.shutdown,
            // From now on, whenever the signal came.
            (None, false) => self.job_end?.saturating_add(self.since),
        };
        let stop = self.shutdown.min(whole / TO_STOP);
        let leave = (stop / TO_LEAVE).min(LONGEST_LEAVE);
        let left = |time: Duration| whole.saturating_sub(time).saturating_sub(self.since);
        Some(Times { save: left(stop), kill: left(leave), gone: left(Duration::ZERO) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: Given = Given {
        since: Duration::ZERO,
        ends: true,
        grace: None,
        shutdown: Duration::from_secs(25),
        job_end: Some(Duration::from_secs(120)),
    };

    fn seconds(given: Given) -> Option<(u64, u64)> {
        given.times().map(|times| (times.save.as_secs(), times.gone.as_secs()))
    }

    #[test]
    fn a_node_that_listens_is_gone_when_one_that_does_not_would_be() {
        assert_eq!(seconds(GIVEN), Some((20, 25)));
        assert_eq!(seconds(Given { since: Duration::from_secs(22), ..GIVEN }), Some((0, 3)));
    }

    #[test]
    fn the_last_of_it_is_for_the_node_itself() {
        let kill = |grace| {
            let times = Given { grace: Some(Duration::from_secs(grace)), ..GIVEN }.times();
            times.map(|times| times.kill.as_secs_f64())
        };
        assert_eq!((kill(10), kill(25), kill(300)), (Some(9.6), Some(24.0), Some(299.0)));
    }

    #[test]
    fn what_the_user_says_is_the_whole_and_stopping_takes_no_more_than_ever() {
        let said = |grace| seconds(Given { grace: Some(Duration::from_secs(grace)), ..GIVEN });
        assert_eq!((said(10), said(300)), (Some((8, 10)), Some((275, 300))));
    }

    #[test]
    fn a_signal_that_ends_nothing_gives_time_until_the_jobs_end() {
        let warned = Given { ends: false, ..GIVEN };
        assert_eq!(seconds(warned), Some((96, 120)));
        assert_eq!(seconds(Given { job_end: None, ..warned }), None, "nobody knows");
        // In the next round, 60 s later, the end is as near as it is.
        let later =
            Given { since: Duration::from_secs(60), job_end: Some(Duration::from_secs(60)), ..warned };
        assert_eq!(seconds(later), Some((36, 60)));
    }
}
