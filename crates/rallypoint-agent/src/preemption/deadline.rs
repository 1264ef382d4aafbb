//! When a node that is taken away has to be gone, whatever it does by then and whoever does not answer.

use std::time::{Duration, SystemTime};

use rallypoint_core::time::bounded;
use rustix::process::Signal;
use tokio::time::Instant;

use super::plan::{Given, Times};
use crate::spec::WorkerSpec;
use crate::stop::{StopListener, Warning};

/// The moments of a node that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// The signal that said so.
    pub(crate) signal: Signal,
    /// Its workers are told to end.
    pub(crate) save: Instant,
    /// They are killed.
    pub(crate) kill: Instant,
    /// It has to be gone.
    pub(crate) gone: Instant,
}

impl Deadline {
    /// That of a warning; none if nobody knows when the node has to be gone.
    pub(crate) fn of(warning: Warning, spec: &WorkerSpec) -> Option<Self> {
        let until = |at: SystemTime| at.duration_since(SystemTime::now()).ok();
        let given = Given {
            since: warning.at.elapsed().unwrap_or_default(),
            ends: warning.ends,
            grace: spec.preemption.grace,
            shutdown: spec.grace,
            job_end: spec.preemption.job_end.and_then(until),
        };
        let now = Instant::now();
        let at = |time| now + bounded(time);
        let Times { save, kill, gone } = given.times()?;
        Some(Deadline { signal: warning.signal, save: at(save), kill: at(kill), gone: at(gone) })
    }

    /// The one that holds whether workers have been told or not: of a signal that asks for the end, where the user has said
    /// how long that may take.
    fn in_any_case(warning: Warning, spec: &WorkerSpec) -> Option<Self> {
        Deadline::of(warning, spec).filter(|_| warning.ends && spec.preemption.grace.is_some())
    }
}

/// What ends the end of a node: that it has to be gone. The signal that says so may come while workers are being stopped.
#[derive(Debug, Clone)]
pub(crate) struct Limit<'a> {
    spec: &'a WorkerSpec,
    /// Of a preemption that the workers were told of.
    own: Option<Deadline>,
    stop: StopListener,
}

impl<'a> Limit<'a> {
    pub(crate) fn new(spec: &'a WorkerSpec, own: Option<Deadline>, stop: &StopListener) -> Self {
        Limit { spec, own, stop: stop.clone() }
    }

    /// The deadline, if there is one by now.
    pub(crate) fn now(&self) -> Option<Deadline> {
        let warned = || Deadline::in_any_case(self.stop.warning()?, self.spec);
        self.own.or_else(warned)
    }

    async fn deadline(&self) -> Deadline {
        if let Some(own) = self.own {
            return own;
        }
        let warning = self.stop.clone().warned().await;
        match Deadline::in_any_case(warning, self.spec) {
            Some(deadline) => deadline,
            None => std::future::pending().await,
        }
    }

    /// Waits until the workers are to be killed: at the deadline, or because the end is asked for at once.
    pub(crate) async fn kills(&self) {
        let mut again = self.stop.clone();
        tokio::select! {
            () = again.asked_again() => {}
            () = async { tokio::time::sleep_until(self.deadline().await.kill).await } => {}
        }
    }

    /// Waits until this node has to be gone; by which signal.
    pub(crate) async fn gone(&self) -> Signal {
        let Deadline { gone, signal, .. } = self.deadline().await;
        tokio::time::sleep_until(gone).await;
        signal
    }

    /// How much of this time there is until the workers are killed.
    pub(crate) fn until_kill(&self, grace: Duration) -> Duration {
        self.until(|deadline| deadline.kill, grace)
    }

    /// So much of this time is left.
    pub(crate) fn of(&self, time: Duration) -> Duration {
        self.until(|deadline| deadline.gone, time)
    }

    /// How much of this time there is until that moment of the deadline, if there is one by now.
    fn until(&self, moment: impl FnOnce(Deadline) -> Instant, time: Duration) -> Duration {
        let left = self.now().map(|deadline| moment(deadline).saturating_duration_since(Instant::now()));
        left.map_or(time, |left| left.min(time))
    }
}
