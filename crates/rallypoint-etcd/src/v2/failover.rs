//! Requests, tried at one endpoint after the other until they are answered or their time is over.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use rallypoint_core::{Backoff, EtcdSettings};
use tokio::time::Instant;
use tracing::debug;

use super::transport::{Reply, Request, Transport};
use crate::{Error, ErrorKind, Result};

/// How long one endpoint is waited for before the next is asked as well, when looking for one that answers.
const STAGGER: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Failover {
    transport: Transport,
    urls: Vec<String>,
    /// The endpoint in use: the one that answered last.
    current: AtomicUsize,
}

impl Failover {
    pub(super) fn new(settings: EtcdSettings) -> Result<Self> {
        let urls = settings.urls();
        // A random start spreads many clients over the servers of a cluster.
        let current = AtomicUsize::new(fastrand::usize(..urls.len()));
        Ok(Failover { transport: Transport::new(settings)?, urls, current })
    }

    pub(super) fn settings(&self) -> &EtcdSettings {
        self.transport.settings()
    }

    /// Finds an endpoint that answers `request`, and stays with it. One that is silent costs a moment and not
    /// a whole timeout.
    pub(super) async fn connect(&self, request: &Request<'_>) -> Result<()> {
        let begin = Instant::now();
        let deadline = begin + self.settings().connect_timeout;
        let first = self.current.load(Ordering::Relaxed);
        let mut asked: FuturesUnordered<_> = (0..self.urls.len())
            .map(|turn| (turn, (first + turn) % self.urls.len()))
            .map(|(turn, at)| async move {
                tokio::time::sleep_until(begin + STAGGER * count(turn)).await;
                (at, self.transport.send(&self.urls[at], request, deadline).await)
            })
            .collect();
        let mut last = request.error(ErrorKind::Timeout);
        while let Some((at, answer)) = asked.next().await {
            match answer {
                Ok(_) => {
                    self.current.store(at, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last.tries(count(self.urls.len())))
    }

    /// Tries `request` until it is answered, fails for good, or `time` is over.
    pub(super) async fn call(&self, request: &Request<'_>, time: Duration) -> Result<Reply> {
        let deadline = Instant::now() + time;
        let mut backoff = Backoff::default();
        let mut tried = 0;
        let mut untrusted = 0;
        loop {
            tried += 1;
            let at = self.current.load(Ordering::Relaxed);
            let error = match self.transport.send(&self.urls[at], request, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let again = self.can_go_on(request, &error, &mut untrusted);
            if error.is_transient() || error.kind() == ErrorKind::Tls {
                // Unless somebody else has moved on already.
                let next = (at + 1) % self.urls.len();
                let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            // A round through all endpoints, then a pause.
            let pause =
                if tried % self.urls.len() == 0 { backoff.next(fastrand::f64()) } else { Duration::ZERO };
            if !again || Instant::now() + pause >= deadline {
                return Err(error.tries(count(tried)));
            }
            debug!(%error, "trying again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Whether `request` may be sent again after `error`. `untrusted` counts the endpoints in a row that TLS
    /// failed with: when it failed with all of them, waiting does not help.
    fn can_go_on(&self, request: &Request<'_>, error: &Error, untrusted: &mut usize) -> bool {
        if error.kind() == ErrorKind::Tls {
            *untrusted += 1;
            return *untrusted < self.urls.len();
        }
        *untrusted = 0;
        error.is_transient() && (request.is_read() || !error.may_have_applied())
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
