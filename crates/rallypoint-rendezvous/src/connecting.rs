//! Waiting for an etcd that is not there yet.

use std::time::Duration;

use rallypoint_core::Backoff;
use rallypoint_core::time::bounded;
use rallypoint_etcd::{Error, ErrorKind, Reach};
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info};

use crate::error::{RendezvousError, Result};

/// Who takes connections and hangs up for longer than this speaks something else there, TLS for instance. An etcd that
/// is being started or ended does so for a moment.
const HANGS_UP: Duration = Duration::from_secs(10);

/// What `connect` gives; while no etcd answers at `endpoint` it is called again, for `patience`, and it is said what is
/// waited for. What somebody has to mend, a wrong password for instance, is not waited out. Without any patience it is
/// called once, and has its own time.
pub async fn connect_within<T, F>(endpoint: &str, patience: Duration, connect: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (begin, reach) = (Instant::now(), Reach::new(endpoint));
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut told = false;
    // Since when whoever listens there has done nothing else.
    let mut hanging_up = None;
    let mut last: Option<RendezvousError> = None;
    loop {
        let most = if patience.is_zero() { Duration::MAX } else { patience };
        let error = match timeout_at(begin + bounded(most), connect()).await {
            Ok(Ok(made)) => {
                reach.answered();
                return Ok(made);
            }
            Ok(Err(error)) => error,
            // What takes the connection and says nothing.
            Err(_) => return Err(last.unwrap_or_else(|| silent(endpoint))),
        };
        let Some(why) = transient(&error) else { return Err(error) };
        let pause = backoff.next(fastrand::f64());
        let hangs_up = why.hangs_up();
        let now = Instant::now();
        hanging_up = hanging_up.filter(|_| hangs_up).or(hangs_up.then_some(now));
        let end = begin + bounded(patience);
        let end = hanging_up.map_or(end, |since| end.min(since + HANGS_UP));
        let left = end.saturating_duration_since(now);
        if left.is_zero() {
            return Err(error);
        }
        reach.unanswered_within(begin, why, (!hangs_up).then_some(patience));
        if !std::mem::replace(&mut told, true) {
            let most = left.as_secs_f64();
            match hangs_up {
                true => info!(
                    "what listens at {endpoint} hangs up: it is no etcd yet, or one that wants TLS; trying for {most:.0} s"
                ),
                false => {
                    let why = reach.why().unwrap_or_default();
                    info!(
                        "no server answers at {endpoint} yet: {why}; waiting for one for up to {most:.0} s"
                    );
                }
            }
        }
        debug!(%error, "trying again");
        tokio::time::sleep(pause.min(left)).await;
        last = Some(error);
    }
}

fn silent(endpoint: &str) -> RendezvousError {
    let source = Error::new(ErrorKind::Timeout, "connect").into();
    RendezvousError::Connection { endpoint: endpoint.to_owned(), source }
}

/// Why no etcd answers, if that may pass by itself.
fn transient(error: &RendezvousError) -> Option<&Error> {
    let RendezvousError::Connection { source, .. } = error else { return None };
    source.downcast_ref::<Error>().filter(|error| error.is_transient())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    /// An etcd that is being started takes connections and closes them, long after somebody began to wait for it.
    #[tokio::test(start_paused = true)]
    async fn who_hangs_up_for_a_moment_is_waited_for() {
        let begin = Instant::now();
        let at = |kind| {
            let source = Error::new(kind, "connect").into();
            Err(RendezvousError::Connection { endpoint: "a:1".to_owned(), source })
        };
        let connect = async || match begin.elapsed().as_secs() {
            0..60 => at(ErrorKind::Unreachable),
            60..65 => at(ErrorKind::Interrupted),
            _ => Ok(()),
        };
        connect_within("a:1", Duration::from_secs(600), connect).await.unwrap();
        let begin = Instant::now();
        let error =
            connect_within("a:1", Duration::from_secs(600), async || at(ErrorKind::Interrupted)).await;
        assert!(error.is_err() && begin.elapsed() == HANGS_UP, "{:?}", begin.elapsed());
    }

    /// Each try had its own five seconds, also when less than that was left.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_waited_for_as_long_as_was_said() {
        for seconds in [1, 6, 11] {
            let (begin, patience) = (Instant::now(), Duration::from_secs(seconds));
            let connect = async || {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Err::<(), _>(silent("a:1"))
            };
            let error = connect_within("a:1", patience, connect).await.unwrap_err();
            assert_eq!(begin.elapsed(), patience);
            assert_eq!(
                error.to_string(),
                "the connection to etcd at a:1 has failed: etcd: connect: no answer in time"
            );
        }
        let begin = Instant::now();
        let once = connect_within("a:1", Duration::ZERO, async || {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Err::<(), _>(silent("a:1"))
        });
        assert!(once.await.is_err());
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
    }
}
