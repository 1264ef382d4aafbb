//! What time it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::wire::Time;

/// The time of day at the start, and how long ago that was: TTLs must not feel it when the time is set.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Duration,
    since: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start, since: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        Time::since_epoch(self.start + self.since.elapsed())
    }
}
