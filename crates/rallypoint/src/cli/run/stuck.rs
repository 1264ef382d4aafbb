//! Workers that are stuck in the kernel, at a device that does not answer. torchrun's variable for how long that may be.

use std::collections::HashMap;
use std::time::Duration;

use rallypoint_agent::{Stuck, Workers};
use tokio::time::Instant;

use super::values::Seconds;
use crate::cli::exit::{NODE, Problem};

pub(crate) const VARIABLE: &str = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";

/// How long a worker may be stuck; none for as long as it likes.
pub(crate) fn limit() -> Result<Option<Duration>, Problem> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
    match text.trim() {
        "" => Ok(None),
        text if text.starts_with('-') => Ok(None),
        text => match text.parse::<Seconds>() {
            Ok(Seconds(limit)) => Ok(Some(limit).filter(|limit| !limit.is_zero())),
            Err(error) => Err(Problem::usage(format!("{VARIABLE} is {text:?}: {error}"))),
        },
    }
}

/// What is said of it here. Others are told its first half.
pub(crate) fn problem(stuck: Stuck) -> Problem {
    let more = format!(
        "longer than {VARIABLE} allows: this node leaves the run; look at its devices before it comes back"
    );
    Problem::new(NODE, format!("{stuck}, {more}"))
}

/// Waits until a worker has been stuck for so long. Nothing tells of it, so it is looked at again and
/// again.
pub(crate) async fn watch(workers: Workers, limit: Option<Duration>, interval: Duration) -> Stuck {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut since: HashMap<u32, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(interval).await;
        let stuck = workers.uninterruptible();
        since.retain(|pid, _| stuck.iter().any(|(_, other)| other == pid));
        for (rank, pid) in stuck {
            let stuck_for = since.entry(pid).or_insert_with(Instant::now).elapsed();
            if stuck_for >= limit {
                return Stuck { rank, pid, seconds: stuck_for.as_secs() };
            }
        }
    }
}
