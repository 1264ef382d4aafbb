//! The workers that run now, for those who pass signals on to them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

use crate::descendants::Stat;
use crate::signals::is_handled;

/// The workers of an agent that run now, whichever round they are of.
#[derive(Debug, Clone, Default)]
pub struct Workers(Arc<Mutex<Running>>);

/// How long after a key of the terminal this process may hear of it.
const HEARD_LATE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Running {
    /// The rank and the process of each. Only those that nobody has waited for: the numbers are theirs.
    workers: Vec<(usize, Pid)>,
    /// The one that has the terminal.
    on_terminal: Option<Pid>,
    /// When it ended, if it has.
    left_terminal: Option<Instant>,
    /// Whose time was up.
    timed_out: HashSet<Pid>,
    paused: bool,
    /// A node is preempted, and they have time to save.
    saving: bool,
}

impl Workers {
    /// Sends a signal to the workers that have a handler for it; the ranks of the others, which it would end.
    pub fn pass_on(&self, signal: Signal) -> Vec<usize> {
        let running = self.lock();
        let (told, spared): (Vec<_>, Vec<_>) =
            running.workers.iter().copied().partition(|(_, pid)| is_handled(*pid, signal));
        for (_, pid) in told {
            // It fails only for one that has ended.
            let _ = kill_process(pid, signal);
        }
        spared.into_iter().map(|(rank, _)| rank).collect()
    }

    /// Whether a worker has a handler for the signal.
    pub(crate) fn handle(&self, signal: Signal) -> bool {
        self.lock().workers.iter().any(|(_, pid)| is_handled(*pid, signal))
    }

    /// Stops the workers where they are, or lets them go on. Whether that is news.
    pub fn pause(&self, pause: bool) -> bool {
        let mut running = self.lock();
        if running.paused == pause {
            return false;
        }
        running.paused = pause;
        let signal = if pause { Signal::STOP } else { Signal::CONT };
        for (_, pid) in &running.workers {
            let _ = kill_process_group(*pid, signal);
        }
        true
    }

    /// Whether they are stopped where they are.
    #[must_use]
    pub fn are_paused(&self) -> bool {
        self.lock().paused
    }

    /// They have time to save, or have no more.
    pub(crate) fn save(&self, saving: bool) {
        self.lock().saving = saving;
    }

    /// Whether they have.
    pub(crate) fn are_saving(&self) -> bool {
        self.lock().saving
    }

    /// Whether a worker has the terminal, whose keys are then its own, or had it when the key was pressed: that may have
    /// ended it before anybody else has heard of the key.
    #[must_use]
    pub fn on_terminal(&self) -> bool {
        let running = self.lock();
        running.on_terminal.is_some() || running.left_terminal.is_some_and(|at| at.elapsed() < HEARD_LATE)
    }

    /// Rank and process of the workers that wait in the kernel for something that no signal ends but SIGKILL, if that.
    #[must_use]
    pub fn uninterruptible(&self) -> Vec<(usize, u32)> {
        let running = self.lock();
        let stuck = running
            .workers
            .iter()
            .filter(|(_, pid)| Stat::of(*pid).is_some_and(|stat| stat.uninterruptible()));
        stuck.map(|(rank, pid)| (*rank, pid.as_raw_pid().unsigned_abs())).collect()
    }

    /// Sends a signal to this process, if it is a worker or in the process group of one. Whether it is.
    pub fn end(&self, pid: i32, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(pid) else { return false };
        let mut running = self.lock();
        let group = getpgid(Some(pid)).ok();
        let mut workers = running.workers.iter().map(|(_, worker)| *worker);
        let Some(worker) = workers.find(|worker| *worker == pid || Some(*worker) == group) else {
            return false;
        };
        running.timed_out.insert(worker);
        kill_process(pid, signal).is_ok()
    }

    /// Whether a timer of this worker's, or of a process of its own, has ended that one.
    pub(crate) fn has_timed_out(&self, pid: Pid) -> bool {
        self.lock().timed_out.contains(&pid)
    }

    pub(crate) fn add(&self, rank: usize, pid: Pid, on_terminal: bool) {
        let mut running = self.lock();
        running.workers.push((rank, pid));
        running.timed_out.remove(&pid);
        if on_terminal {
            running.on_terminal = Some(pid);
        }
        if running.paused {
            let _ = kill_process_group(pid, Signal::STOP);
        }
    }

    /// To be called before the process is waited for.
    pub(crate) fn remove(&self, pid: Pid) {
        let mut running = self.lock();
        running.workers.retain(|(_, known)| *known != pid);
        if running.on_terminal.take_if(|known| *known == pid).is_some() {
            running.left_terminal = Some(Instant::now());
        }
    }

    /// Nothing that holds the lock can leave the list half done.
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
