//! Which endpoint is asked, and what is asked again: the same for both clients.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use rallypoint_core::time::bounded;
use rallypoint_core::{Backoff, Endpoints};
use tokio::time::Instant;
use tracing::debug;

use crate::error::CONNECT;
use crate::{Error, ErrorKind, Reach, Result};

/// How long one endpoint is waited for before the next is asked as well, when looking for one that answers.
const STAGGER: Duration = Duration::from_millis(250);

/// Whether a request may be sent again when its answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Carried out twice it does no more than once: reads, and transactions whose comparisons see to it.
    Safe,
    /// Sent again only if it is certain that it was not carried out.
    Unsafe,
}

/// The endpoints by their numbers, and the one in use.
#[derive(Debug)]
pub(crate) struct Failover {
    endpoints: usize,
    current: AtomicUsize,
    /// Of all of them together.
    pub(crate) reach: Reach,
}

impl Failover {
    pub(crate) fn new(endpoints: &Endpoints) -> Self {
        let count = endpoints.as_slice().len();
        // A random start spreads many clients over the servers of a cluster.
        let current = AtomicUsize::new(fastrand::usize(..count));
        Failover { endpoints: count, current, reach: Reach::new(endpoints.to_string()) }
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Moves on from an endpoint that failed, unless somebody has.
    pub(crate) fn failed(&self, at: usize) {
        let next = (at + 1) % self.endpoints;
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stays with an endpoint that answered.
    pub(crate) fn settle(&self, at: usize) {
        self.current.store(at, Ordering::Relaxed);
    }

    /// Finds an endpoint that answers before `deadline`, and stays with it.
    ///
    /// They are asked one after the other, each a moment after the one before, so that one that is dead or
    /// silent costs that moment and not a whole timeout.
    pub(crate) async fn connect<F>(&self, deadline: Instant, ask: impl Fn(usize) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let begin = Instant::now();
        let first = self.current();
        let mut asked: FuturesUnordered<_> = (0..self.endpoints)
            .map(|turn| (STAGGER * count(turn), (first + turn) % self.endpoints))
            .map(|(wait, at)| {
                let ask = &ask;
                async move {
                    tokio::time::sleep_until(begin + wait).await;
                    (at, ask(at).await)
                }
            })
            .collect();
        let mut worst: Option<Error> = None;
        loop {
            match tokio::time::timeout_at(deadline, asked.next()).await {
                Ok(Some((at, Ok(())))) => {
                    self.settle(at);
                    return Ok(());
                }
                Ok(Some((_, Err(error)))) => {
                    debug!(%error, "an endpoint does not answer");
                    // What somebody has to mend tells more than what may pass.
                    if worst.as_ref().is_none_or(Error::is_transient) {
                        worst = Some(error);
                    }
                }
                Ok(None) | Err(_) => {
                    let silent = || Error::new(ErrorKind::Timeout, CONNECT);
                    return Err(worst.unwrap_or_else(silent).tries(count(self.endpoints)));
                }
            }
        }
    }

    /// Tries a request until it is answered, fails for good, or `time` is over. `send` is given the endpoint
    /// and the deadline.
    pub(crate) async fn call<T, F>(
        &self,
        repeat: Repeat,
        time: Duration,
        send: impl Fn(usize, Instant) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let deadline = after(time);
        let mut backoff = Backoff::default();
        let mut tries = 0;
        let mut untrusted = 0;
        let mut maybe_applied = false;
        loop {
            tries += 1;
            let (at, asked) = (self.current(), Instant::now());
            let error = match send(at, deadline).await {
                Ok(answer) => {
                    self.reach.answered();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if error.is_transient() {
                self.reach.unanswered(asked, &error);
            } else {
                self.reach.answered();
            }
            maybe_applied |= error.may_have_applied();
            // A certificate is one endpoint's affair, until all of them have failed with it.
            untrusted = if error.kind() == ErrorKind::Tls { untrusted + 1 } else { 0 };
            let elsewhere = (1..self.endpoints).contains(&untrusted);
            if error.is_transient() || untrusted > 0 {
                self.failed(at);
            }
            let again = error.is_transient() && (repeat == Repeat::Safe || !error.may_have_applied());
            // A round through all endpoints, then a pause.
            let pause =
                if tries % self.endpoints == 0 { backoff.next(fastrand::f64()) } else { Duration::ZERO };
            if !(again || elsewhere) || Instant::now() + pause >= deadline {
                return Err(error.tries(count(tries)).maybe_applied(maybe_applied));
            }
            debug!(%error, "trying again");
            tokio::time::sleep(pause).await;
        }
    }
}

/// The moment when `time` is over; of a time beyond all clocks, one beyond all jobs.
pub(crate) fn after(time: Duration) -> Instant {
    Instant::now() + bounded(time)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn over(endpoints: usize) -> Failover {
        let names: Vec<String> = (0..endpoints).map(|at| format!("etcd{at}")).collect();
        Failover::new(&names.join(",").parse().unwrap())
    }

    /// Calls with these results, one for each try; the endpoints that were asked, and the outcome.
    async fn tried(
        endpoints: usize,
        repeat: Repeat,
        kinds: &[Option<ErrorKind>],
    ) -> (Vec<usize>, Result<()>) {
        let failover = over(endpoints);
        let first = failover.current();
        let asked = Mutex::new(Vec::new());
        let result = failover
            .call(repeat, Duration::from_secs(60), |at, _| {
                let mut asked = asked.lock().unwrap();
                asked.push((at + endpoints - first) % endpoints);
                let result = kinds[asked.len() - 1].map_or(Ok(()), |kind| Err(Error::new(kind, "test")));
                async { result }
            })
            .await;
        (asked.into_inner().unwrap(), result)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_moves_on_to_the_next_endpoint() {
        let down = Some(ErrorKind::Unreachable);
        let (asked, result) = tried(3, Repeat::Unsafe, &[down, down, down, down, None]).await;
        assert_eq!(asked, [0, 1, 2, 0, 1]);
        result.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_have_been_carried_out_is_repeated_only_where_that_is_safe() {
        for lost in [ErrorKind::Timeout, ErrorKind::Interrupted] {
            let (asked, result) = tried(2, Repeat::Unsafe, &[Some(lost), None]).await;
            assert_eq!(asked, [0]);
            assert!(result.unwrap_err().may_have_applied());
            let (asked, result) = tried(2, Repeat::Safe, &[Some(lost), None]).await;
            assert_eq!(asked, [0, 1]);
            result.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_failure_does_not_hide_that_an_earlier_try_may_have_been_carried_out() {
        let kinds = [Some(ErrorKind::Timeout), Some(ErrorKind::Unreachable), Some(ErrorKind::Rejected)];
        let (_, result) = tried(1, Repeat::Safe, &kinds).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.may_have_applied());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_certificate_fails_when_all_endpoints_have_it() {
        let wrong = Some(ErrorKind::Tls);
        let (asked, result) = tried(3, Repeat::Safe, &[wrong, wrong, wrong]).await;
        assert_eq!((asked.len(), result.unwrap_err().kind()), (3, ErrorKind::Tls));
        let (asked, result) = tried(3, Repeat::Unsafe, &[wrong, None]).await;
        assert_eq!(asked, [0, 1]);
        result.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_waiting_does_not_mend_fails_at_once() {
        for kind in [ErrorKind::Auth, ErrorKind::PermissionDenied, ErrorKind::TooLarge, ErrorKind::Rejected] {
            let (asked, result) = tried(3, Repeat::Safe, &[Some(kind)]).await;
            assert_eq!((asked.len(), result.unwrap_err().kind()), (1, kind));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_request_ends() {
        let failover = over(2);
        let began = Instant::now();
        let call = failover.call(Repeat::Safe, Duration::from_secs(7), |_, _| async {
            Err::<(), _>(Error::new(ErrorKind::Busy, "test"))
        });
        assert!(call.await.unwrap_err().to_string().contains("tries"));
        assert!(began.elapsed() <= Duration::from_secs(7) && began.elapsed() > Duration::from_secs(4));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_endpoint_that_answers_is_kept_and_a_silent_one_costs_a_moment() {
        let failover = over(3);
        let first = failover.current();
        let began = Instant::now();
        let connect = failover.connect(began + Duration::from_secs(5), |at| async move {
            match (at + 3 - first) % 3 {
                0 => std::future::pending().await,
                1 => Err(Error::new(ErrorKind::Unreachable, CONNECT)),
                _ => Ok(()),
            }
        });
        connect.await.unwrap();
        assert_eq!(failover.current(), (first + 2) % 3);
        assert_eq!(began.elapsed(), STAGGER * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_failures_to_connect_the_one_to_mend_is_told() {
        let failover = over(2);
        let deadline = Instant::now() + Duration::from_secs(5);
        let connect = failover.connect(deadline, |at| async move {
            Err(Error::new(if at == 0 { ErrorKind::Auth } else { ErrorKind::Unreachable }, CONNECT))
        });
        assert_eq!(connect.await.unwrap_err().kind(), ErrorKind::Auth);
        let silent = over(1);
        let connect = silent.connect(deadline, |_| std::future::pending());
        assert_eq!(connect.await.unwrap_err().kind(), ErrorKind::Timeout);
    }
}
