//! Being told to end: in good order first, at once if asked again.

use rustix::process::Signal;
use tokio::sync::watch;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nothing: go on.
    No,
    /// End in good order: the workers get this signal.
    InOrder(Signal),
    /// End at once.
    Now(Signal),
}

/// Tells an agent to end.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Stop>);

impl Default for Stopper {
    fn default() -> Self {
        Stopper(watch::Sender::new(Stop::No))
    }
}

impl Stopper {
    /// Asks for the end in good order. Whether it is news; if not, nothing changes.
    pub fn ask(&self, signal: Signal) -> bool {
        self.0.send_if_modified(|stop| {
            let news = *stop == Stop::No;
            if news {
                *stop = Stop::InOrder(signal);
            }
            news
        })
    }

    /// Asks for the end at once, where it was asked for before.
    pub fn hurry(&self) {
        self.0.send_if_modified(|stop| match *stop {
            Stop::InOrder(signal) => {
                *stop = Stop::Now(signal);
                true
            }
            Stop::No | Stop::Now(_) => false,
        });
    }

    /// The agent's side.
    #[must_use]
    pub fn listen(&self) -> StopListener {
        StopListener(self.0.subscribe())
    }
}

/// The agent's side of a [`Stopper`].
#[derive(Debug, Clone)]
pub struct StopListener(watch::Receiver<Stop>);

impl StopListener {
    /// Whether the end was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow() != Stop::No
    }

    /// Waits until the end is asked for; the signal that did.
    pub async fn asked(&mut self) -> Signal {
        match self.0.wait_for(|stop| *stop != Stop::No).await.as_deref() {
            Ok(Stop::InOrder(signal) | Stop::Now(signal)) => *signal,
            // Nobody is left to ask.
            Ok(Stop::No) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the end is asked for at once.
    pub async fn asked_again(&mut self) {
        if self.0.wait_for(|stop| matches!(stop, Stop::Now(_))).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
