//! Being told to end: with time to save, in good order, or at once.

use std::fmt;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nothing: go on.
    No,
    /// This node is going to be taken away: its workers may save first.
    Preempted(Warning),
    /// End in good order: the workers get this signal.
    InOrder(Signal),
    /// End, as this worker cannot go on: all workers are killed.
    Stuck(Stuck),
    /// End at once.
    Now(Signal),
}

/// That this node is going to be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warning {
    /// The signal that said so.
    pub signal: Signal,
    /// When it came.
    pub at: SystemTime,
    /// Where nobody listens, it asks for the end. If not, it is only passed on there.
    pub ends: bool,
}

/// A worker that is stuck in the kernel, at a device that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// Its rank among all workers.
    pub rank: usize,
    /// The process.
    pub pid: u32,
    /// For how long.
    pub seconds: u64,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck { rank, pid, seconds } = self;
        write!(f, "rank {rank} (process {pid}) is stuck in the kernel for {seconds} s")
    }
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
            let news = matches!(stop, Stop::No | Stop::Preempted(_));
            if news {
                *stop = Stop::InOrder(signal);
            }
            news
        })
    }

    /// Asks for the end because of a worker, which the other nodes are told. If it was asked for before, nothing changes.
    pub fn give_up(&self, stuck: Stuck) {
        self.0.send_if_modified(|stop| {
            let news = matches!(stop, Stop::No | Stop::Preempted(_));
            if news {
                *stop = Stop::Stuck(stuck);
            }
            news
        });
    }

    /// Says that this node is going to be taken away. Whether it is news: a signal that asks for the end is, after one
    /// that does not.
    pub fn preempt(&self, signal: Signal, ends: bool) -> bool {
        self.0.send_if_modified(|stop| {
            let news = match stop {
                Stop::No => true,
                Stop::Preempted(before) => ends && !before.ends,
                Stop::InOrder(_) | Stop::Stuck(_) | Stop::Now(_) => false,
            };
            if news {
                *stop = Stop::Preempted(Warning { signal, at: SystemTime::now(), ends });
            }
            news
        })
    }

    /// Asks for the end at once, where it was asked for before.
    pub fn hurry(&self) {
        self.0.send_if_modified(|stop| match stop.end() {
            Some(signal) if !matches!(stop, Stop::Now(_)) => {
                *stop = Stop::Now(signal);
                true
            }
            _ => false,
        });
    }

    /// The agent's side.
    #[must_use]
    pub fn listen(&self) -> StopListener {
        StopListener(self.0.subscribe())
    }
}

impl Stop {
    /// The signal that asks for the end, if one does.
    fn end(self) -> Option<Signal> {
        match self {
            Stop::No | Stop::Preempted(Warning { ends: false, .. }) => None,
            Stop::Stuck(_) => Some(Signal::KILL),
            Stop::Preempted(Warning { signal, .. }) | Stop::InOrder(signal) | Stop::Now(signal) => {
                Some(signal)
            }
        }
    }
}

/// The agent's side of a [`Stopper`].
#[derive(Debug, Clone)]
pub struct StopListener(watch::Receiver<Stop>);

impl StopListener {
    /// Whether the end was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.borrow().end().is_some()
    }

    /// Waits until the end is asked for; the signal that did. Where no workers run, a preemption asks for it too.
    pub async fn asked(&mut self) -> Signal {
        let asked = self.0.wait_for(|stop| stop.end().is_some()).await;
        match asked.ok().and_then(|stop| stop.end()) {
            Some(signal) => signal,
            // Nobody is left to ask.
            None => std::future::pending().await,
        }
    }

    /// The warning that this node is taken away and has to end, if there was one, and nothing else was asked for since.
    pub(crate) fn warning(&self) -> Option<Warning> {
        match *self.0.borrow() {
            Stop::Preempted(warning) => Some(warning).filter(|warning| warning.ends),
            _ => None,
        }
    }

    /// The worker that cannot go on, if the end was asked for because of one.
    pub(crate) fn stuck(&self) -> Option<Stuck> {
        if let Stop::Stuck(stuck) = *self.0.borrow() { Some(stuck) } else { None }
    }

    /// How long ago that warning came.
    #[must_use]
    pub fn preempted_for(&self) -> Option<Duration> {
        self.warning().map(|warning| warning.at.elapsed().unwrap_or_default())
    }

    /// Waits for it.
    pub(crate) async fn warned(&mut self) -> Warning {
        let ends = |stop: &Stop| matches!(stop, Stop::Preempted(warning) if warning.ends);
        match self.0.wait_for(ends).await.as_deref() {
            Ok(Stop::Preempted(warning)) => *warning,
            _ => std::future::pending().await,
        }
    }

    /// Waits until something else is asked for.
    pub(crate) async fn other_than(&mut self, seen: Stop) -> Stop {
        let other = self.0.wait_for(|stop| *stop != seen).await.map(|stop| *stop);
        match other {
            Ok(stop) => stop,
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the end is asked for at once.
    pub async fn asked_again(&mut self) {
        if self.0.wait_for(|stop| matches!(stop, Stop::Now(_))).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_only_grows() {
        let stopper = Stopper::default();
        let stop = stopper.listen();
        assert!(stopper.preempt(Signal::USR1, false));
        assert!(!stop.is_asked(), "it only warns");
        stopper.hurry();
        assert!(!stop.is_asked(), "there is no end to hurry to");
        assert!(stopper.preempt(Signal::TERM, true));
        assert!(stop.is_asked());
        assert!(!stopper.preempt(Signal::USR1, false) && !stopper.preempt(Signal::TERM, true));
        assert!(stopper.ask(Signal::INT), "Ctrl-C does not wait for anybody");
        assert!(!stopper.ask(Signal::TERM) && !stopper.preempt(Signal::TERM, true));
        stopper.give_up(Stuck { rank: 1, pid: 7, seconds: 60 });
        assert_eq!(stop.stuck(), None, "it ends anyhow");
        stopper.hurry();
        assert_eq!(*stop.0.borrow(), Stop::Now(Signal::INT));
    }

    #[tokio::test]
    async fn a_worker_that_is_stuck_asks_for_the_end_by_sigkill() {
        let stopper = Stopper::default();
        let mut stop = stopper.listen();
        let stuck = Stuck { rank: 1, pid: 7, seconds: 60 };
        stopper.give_up(stuck);
        assert_eq!((stop.asked().await, stop.stuck()), (Signal::KILL, Some(stuck)));
        assert!(!stopper.ask(Signal::TERM) && stop.stuck().is_some(), "that stays the reason");
    }
}
