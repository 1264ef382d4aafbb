//! What a user sees while something is measured: a large group takes a minute.

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is said that the same is still going on.
const PACE: Duration = Duration::from_secs(10);

/// What is being done, told on stderr; nothing where nobody wants to know.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Option<Arc<Mutex<(String, Instant)>>>);

impl Progress {
    /// Tells it, and from time to time that it goes on, for as long as the runtime lives.
    pub(super) fn told() -> Self {
        let doing = Arc::new(Mutex::new((String::new(), Instant::now())));
        let watched = Arc::downgrade(&doing);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PACE).await;
                let Some(doing) = watched.upgrade() else { return };
                let (what, since) = doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if since.elapsed() >= PACE {
                    say(&format!("{what}: {} s so far", since.elapsed().as_secs()));
                }
            }
        });
        Progress(Some(doing))
    }

    /// What else there is to know, where it is told at all.
    pub(super) fn say(&self, what: &str) {
        if self.0.is_some() {
            say(what);
        }
    }

    /// What is done from now on.
    pub(super) fn now(&self, what: impl Into<String>) {
        let Some(doing) = &self.0 else { return };
        let what = what.into();
        say(&what);
        *doing.lock().unwrap_or_else(PoisonError::into_inner) = (what, Instant::now());
    }
}

/// Where nobody reads any more, the figures are still made.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}
