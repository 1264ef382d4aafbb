//! Calls that may never come back: of a disk that hangs, of a driver that does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// Such a call, of which there is one at a time: one that hangs costs one thread, however often it is tried again.
#[derive(Debug, Default)]
pub(crate) struct Blocking(Arc<AtomicBool>);

impl Blocking {
    /// Makes the call on a thread of its own, and waits for it so long.
    pub(crate) async fn within(
        &self,
        limit: Duration,
        who: &str,
        work: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        if self.0.swap(true, Ordering::AcqRel) {
            return Err(format!("{who} has not answered since it was last asked"));
        }
        let (busy, (done, outcome)) = (Arc::clone(&self.0), oneshot::channel());
        let started = thread::Builder::new().name("health-check".to_owned()).spawn(move || {
            let outcome = work();
            busy.store(false, Ordering::Release);
            // Whoever waited may have given up.
            let _ = done.send(outcome);
        });
        if let Err(error) = started {
            self.0.store(false, Ordering::Release);
            return Err(format!("no thread can be started for it: {error}"));
        }
        match tokio::time::timeout(limit, outcome).await {
            Ok(Ok(outcome)) => outcome,
            // The thread has panicked.
            Ok(Err(_)) => Err(format!("asking {who} has failed")),
            Err(_) => Err(format!("{who} has not answered for {} s", limit.as_secs_f64())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_hangs_is_told_and_not_asked_again() {
        let blocking = Blocking::default();
        let (go, wait) = mpsc::channel::<()>();
        let hangs = move || wait.recv().map_err(|error| error.to_string());
        let short = Duration::from_millis(20);
        assert_eq!(blocking.within(short, "it", hangs).await.unwrap_err(), "it has not answered for 0.02 s");
        assert!(
            blocking.within(short, "it", || Ok(())).await.unwrap_err().contains("since it was last asked")
        );
        go.send(()).unwrap();
        while blocking.within(Duration::from_secs(5), "it", || Ok(())).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
