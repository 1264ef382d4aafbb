//! A node's workers in one round: started together, watched, stopped together.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::affinity::spawn_on;
use crate::decision::Event;
use crate::descendants::{self, Pace};
use crate::disk;
use crate::drain::{self, DRAIN_TIMEOUT};
use crate::environment::WorkerRanks;
use crate::events::{WorkerEvent, WorkerState};
use crate::failure::{Exit, Failure, Sources, Written};
use crate::hang::{Hanging, Subject};
use crate::log_file::{LogFile, WORKERS_SAY};
use crate::logs::{Attempt, LogSettings, StreamPlan};
use crate::memory::{self, MemoryKills};
use crate::output::{Console, Filtered, Pump, Pumping, Stream, Tail, colour};
use crate::progress::{Source, length};
use crate::workers::Workers;

/// For processes that SIGKILL does not end: those in the kernel, at a device that does not answer, or traced.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where nobody can be told: when a group is dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the rest of a group is looked at after its first process has ended; nothing tells when it is gone.
const REST_INTERVAL: Duration = Duration::from_millis(20);

/// How long a thread is stopped for a look at its stack, or so.
const TRACED: Duration = Duration::from_millis(1);

/// A worker whose streams are this process's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interactive {
    /// Which one.
    pub local_rank: usize,
    /// The process group that may read from the terminal, where there is one; the worker is in it.
    pub group: Option<Pid>,
}

/// What a worker runs.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) program: &'a OsStr,
    pub(crate) args: Vec<OsString>,
    pub(crate) environment: BTreeMap<&'static str, OsString>,
    pub(crate) without: &'a [&'a str],
    pub(crate) place: WorkerRanks,
    pub(crate) prefix: String,
    /// The CPUs that it may run on; all that this process may, if there are none.
    pub(crate) cpus: BTreeSet<usize>,
    /// It has the terminal.
    pub(crate) interactive: Option<Interactive>,
    /// Whether it may read what the launcher can: not where another worker is the one to read it.
    pub(crate) reads: bool,
    /// Where what it writes is counted.
    pub(crate) metrics: rallypoint_metrics::Workers,
    /// The file that it beats in.
    pub(crate) heartbeat: Option<PathBuf>,
}

/// The workers of one round. Dropped, they are killed.
#[derive(Debug)]
pub(crate) struct Group {
    host: String,
    workers: Vec<Worker>,
    endings: mpsc::UnboundedReceiver<(usize, Exit, SystemTime)>,
    /// Those of workers that were told to end are not failures.
    stopping: bool,
    /// That all have ended is no success before this moment; none: that it is one.
    parked: Option<Instant>,
    /// Whether what left its worker's group becomes a child of this process.
    adopts: bool,
    running: Workers,
    /// Before they were started.
    memory_kills: Option<MemoryKills>,
}

#[derive(Debug)]
struct Worker {
    place: WorkerRanks,
    child: Child,
    /// Also its process group. It stays ours until the group is done, since only then the process is waited for.
    pid: Pid,
    ended: Option<(Exit, SystemTime)>,
    failed: bool,
    /// It was told to end before it had.
    told: bool,
    /// The process group of its number is its own. The one on the terminal is in another's, which is none of ours.
    has_group: bool,
    /// Its number is not ours any more, or it was given up.
    done: bool,
    tail: Tail,
    log: Option<PathBuf>,
    error_file: PathBuf,
    streams: Vec<Pumping>,
    /// It was found to hang.
    hung: Option<Hanging>,
    /// Where it shows that it makes progress.
    progress: Source,
}

/// A worker that could not be started.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) source: io::Error,
}

impl Group {
    /// Starts all workers, or those that come before `asked` says that the end was asked for; if one cannot be started,
    /// none stays.
    pub(crate) fn start(
        starts: Vec<Start<'_>>,
        attempt: Attempt,
        settings: &LogSettings,
        console: &Arc<dyn Console>,
        host: &str,
        running: &Workers,
        asked: impl Fn() -> bool,
    ) -> Result<Self, StartError> {
        let (report, endings) = mpsc::unbounded_channel();
        let filtered = |file: Option<(PathBuf, File)>, words: &[String]| {
            let file = file.map(|(path, file)| LogFile::start(&path, file, WORKERS_SAY)).transpose();
            let file = file.map_err(|source| StartError { source })?;
            Ok(file.map(|file| Filtered { file, words: words.into() }))
        };
        let filtered = [
            filtered(attempt.filtered_out, &settings.filter_out)?,
            filtered(attempt.filtered_err, &settings.filter_err)?,
        ];
        let (host, running) = (host.to_owned(), running.clone());
        let memory_kills = MemoryKills::now();
        let mut group = Group {
            host,
            workers: Vec::new(),
            endings,
            stopping: false,
            parked: None,
            adopts: false,
            running,
            memory_kills,
        };
        for (start, plan) in starts.into_iter().zip(attempt.plans).take_while(|_| !asked()) {
            let worker = Worker::start(start, plan.out, plan.err, plan.error_file, &filtered, console);
            let worker = worker.map_err(|source| StartError { source })?;
            let (pid, at, report) = (worker.pid, group.workers.len(), report.clone());
            group.running.add(worker.place.rank, pid, !worker.has_group);
            group.workers.push(worker);
            watch(pid, move |ending| {
                // The group may be gone.
                let _ = report.send((at, ending, SystemTime::now()));
            })
            .map_err(|source| StartError { source })?;
        }
        Ok(group)
    }

    /// Also ends what left its worker's group, where this process takes orphans in.
    pub(crate) fn adopting(mut self, adopts: bool) -> Self {
        self.adopts = adopts;
        self
    }

    /// The processes, for those who look for others.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.workers.iter().map(|worker| worker.pid).collect()
    }

    /// The workers, for those who look at what they do.
    pub(crate) fn subjects(&self, kept: bool) -> Vec<Subject> {
        let subject = |worker: &Worker| Subject {
            rank: worker.place.rank,
            pid: worker.pid,
            judged: worker.has_group,
            tail: worker.tail.clone(),
            file: Some(worker.error_file.with_file_name("stacks.txt"))
                .filter(|_| kept && worker.error_file.parent().is_some()),
            progress: worker.progress.clone(),
        };
        self.workers.iter().map(subject).collect()
    }

    /// A worker was found to hang: it has failed, unless it has ended.
    pub(crate) fn hang(&mut self, hanging: Hanging) {
        self.note_endings();
        let worker = self.workers.iter_mut().find(|worker| worker.place.rank == hanging.rank);
        if let Some(worker) = worker.filter(|worker| worker.ended.is_none()) {
            worker.failed = true;
            worker.hung = Some(hanging);
        }
    }

    /// Waits until one has failed or all have succeeded. May be dropped and called again.
    pub(crate) async fn finished(&mut self) -> Event {
        loop {
            if self.has_failed() {
                return Event::Failed;
            }
            if self.has_ended() {
                if let Some(until) = self.parked {
                    tokio::time::sleep_until(until).await;
                }
                return Event::Succeeded;
            }
            self.next_ending().await;
        }
    }

    /// Whether one has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.workers.iter().any(|worker| worker.failed)
    }

    /// Whether all have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.workers.iter().all(|worker| worker.ended.is_some())
    }

    /// Those for which this is true, by local rank, may end with any code.
    pub(crate) fn forgive(&mut self, may: &[bool]) {
        for worker in &mut self.workers {
            worker.failed &= !may.get(worker.place.local_rank).copied().unwrap_or(false);
        }
    }

    /// That all have ended is no success for now: they have saved, and are to be started again.
    pub(crate) fn park(&mut self, time: Duration) {
        self.parked = Some(Instant::now() + time);
    }

    async fn next_ending(&mut self) {
        let Some((at, ending, time)) = self.endings.recv().await else {
            // Every thread has reported; there is nothing to wait for.
            return std::future::pending().await;
        };
        self.note(at, ending, time);
    }

    /// Takes note of all that have ended by now.
    fn note_endings(&mut self) {
        while let Ok((at, ending, time)) = self.endings.try_recv() {
            self.note(at, ending, time);
        }
    }

    fn note(&mut self, at: usize, ending: Exit, time: SystemTime) {
        let worker = &mut self.workers[at];
        worker.ended = Some((ending, time));
        worker.failed = worker.hung.is_some() || (!ending.is_success() && !self.stopping);
    }

    /// Ends all workers and what they started: by `signal`, and by SIGKILL after `grace` or when `now` is there.
    /// Whatever does not end even so is named and left behind. When `over` is there nothing is waited for any more.
    pub(crate) async fn stop(
        &mut self,
        signal: Signal,
        grace: Duration,
        now: impl Future<Output = ()>,
        over: impl Future<Output = Signal>,
    ) {
        tokio::pin!(now, over);
        let mut is_over = false;
        // What has ended so far ended by itself.
        self.note_endings();
        let finished = self.workers.iter().all(|worker| worker.ended.is_some());
        self.stopping = true;
        self.workers.iter_mut().for_each(|worker| worker.told = worker.ended.is_none());
        self.tell(signal);
        // What SIGKILL does not end has no use for more time.
        let kills = signal == Signal::KILL;
        let grace = if kills { Duration::ZERO } else { grace };
        let gone = tokio::select! {
            () = self.gone(signal), if !kills => true,
            () = tokio::time::sleep(grace) => false,
            () = &mut now, if !kills => false,
        };
        if !gone {
            if !kills {
                warn!(pids = ?self.left(), "killing what is left of the workers");
            }
            self.signal(Signal::KILL);
            let killed = tokio::select! {
                biased;
                () = self.gone(Signal::KILL) => true,
                () = tokio::time::sleep(KILL_TIMEOUT) => false,
                _ = &mut over => {
                    is_over = true;
                    false
                }
            };
            if !killed && !self.left().is_empty() {
                error!(pids = ?self.left(), "workers do not end even by SIGKILL; they are left behind");
                // They hold their streams for as long as they are there.
                let held = self.workers.iter_mut().filter(|worker| worker.ended.is_none());
                held.for_each(|worker| worker.streams.clear());
            }
        }
        for worker in &mut self.workers {
            self.running.remove(worker.pid);
            // It does not wait for what has ended, nor for what does not end.
            let _ = worker.child.try_wait();
            worker.done = true;
        }
        tokio::select! {
            biased;
            () = async {
                self.sweep().await;
                tokio::select! {
                    () = self.drain(finished, grace.max(DRAIN_TIMEOUT)) => {}
                    // Only where there was no end to wait for before.
                    () = &mut now, if gone => {}
                }
            } => {}
            _ = &mut over, if !is_over => {}
        }
    }

    /// Ends what left its worker's group, so that it does not live on beside the next attempt.
    async fn sweep(&self) {
        if !self.adopts {
            return;
        }
        let known = self.pids();
        let swept = tokio::task::spawn_blocking(move || descendants::sweep(&known)).await;
        if let Some(left) = swept.ok().filter(|left| !left.is_empty()) {
            let pids: Vec<i32> = left.into_iter().map(Pid::as_raw_pid).collect();
            error!(?pids, "processes of the workers do not end even by SIGKILL; they are left behind");
        }
    }

    /// Waits for what the workers have said to be where it goes.
    async fn drain(&mut self, finished: bool, grace: Duration) {
        let streams = self.workers.iter_mut().flat_map(|worker| std::mem::take(&mut worker.streams));
        drain::drain(streams.collect(), finished, grace).await;
    }

    /// Waits until all workers have ended and nothing of their groups runs. What is left of a group is told to end
    /// when its worker has: until then that is the worker's own affair.
    async fn gone(&mut self, signal: Signal) {
        let mut told = HashSet::new();
        let mut gone = HashSet::new();
        let mut pace = Pace::of(REST_INTERVAL, self.workers.len());
        loop {
            let ended = |worker: &&Worker| worker.ended.is_some();
            if self.workers.iter().filter(ended).all(|worker| gone.contains(&worker.pid)) {
                if self.workers.iter().all(|worker| ended(&worker)) {
                    return;
                }
                self.next_ending().await;
                // Where many end at once, the processes are looked at once for all of them.
                self.note_endings();
                continue;
            }
            // Where they end one after the other, too; when all have, nobody waits for more than what is left of a group.
            let (mut all, next) = (self.has_ended(), pace.next());
            while !all {
                tokio::select! {
                    biased;
                    () = self.next_ending() => all = self.has_ended(),
                    () = tokio::time::sleep_until(next) => break,
                }
            }
            pace.pass();
            let running = descendants::groups_that_run();
            for worker in self.workers.iter().filter(ended) {
                if !running.contains(&worker.pid.as_raw_pid()) {
                    gone.insert(worker.pid);
                } else if told.insert(worker.pid) {
                    let _ = kill_process_group(worker.pid, signal);
                }
            }
            if self.has_ended() {
                tokio::time::sleep_until(pace.next()).await;
            }
            self.note_endings();
        }
    }

    /// Tells the workers themselves, whose children are theirs to end. SIGKILL leaves them no time for that.
    fn tell(&self, signal: Signal) {
        if signal == Signal::KILL {
            return self.signal(signal);
        }
        for worker in &self.workers {
            // Each fails only for what is gone. One that is stopped could not act on it.
            let _ = kill_process(worker.pid, signal);
            worker.signal(Signal::CONT);
        }
    }

    fn signal(&self, signal: Signal) {
        self.workers.iter().for_each(|worker| worker.signal(signal));
    }

    /// The workers that have not ended, and what else runs in their groups.
    fn left(&self) -> Vec<i32> {
        let workers = self.workers.iter().filter(|worker| worker.ended.is_none()).map(|worker| worker.pid);
        let left: BTreeSet<i32> =
            workers.chain(descendants::running_in(&self.pids())).map(Pid::as_raw_pid).collect();
        left.into_iter().collect()
    }

    /// That all of them run.
    pub(crate) fn started(&self, restarts: u32) -> Vec<WorkerEvent> {
        self.workers.iter().map(|worker| worker.event(WorkerState::Started, restarts, None)).collect()
    }

    /// What became of them; to be called when they were stopped.
    pub(crate) fn ended(&self, restarts: u32, failures: &[Failure]) -> Vec<WorkerEvent> {
        let ended = self.workers.iter().map(|worker| {
            let state = match worker {
                Worker { failed: true, .. } => WorkerState::Failed,
                Worker { told: true, .. } => WorkerState::Terminated,
                _ => WorkerState::Succeeded,
            };
            let failure = failures.iter().find(|failure| worker.failed && failure.rank == worker.place.rank);
            worker.event(state, restarts, failure.cloned())
        });
        ended.collect()
    }

    /// Those that failed by themselves.
    pub(crate) fn failures(&self, kept: bool) -> Vec<Failure> {
        let failed: Vec<&Worker> = self.workers.iter().filter(|worker| worker.failed).collect();
        if failed.is_empty() {
            return Vec::new();
        }
        let sources: Vec<_> = failed.iter().map(|worker| worker.sources()).collect();
        let read = disk::within(disk::PATIENCE, move || {
            sources.iter().map(|sources| sources.read(kept)).collect::<Vec<Written>>()
        });
        let read = read.unwrap_or_else(|why| {
            warn!("what the workers wrote of their errors is not told: {why}");
            failed.iter().map(|_| Written::default()).collect()
        });
        let told = failed
            .into_iter()
            .zip(read)
            .filter_map(|(worker, written)| worker.failure(&self.host, kept, self.hint(worker), written));
        told.collect()
    }

    /// What may have ended a worker, where its exit alone does not tell.
    fn hint(&self, worker: &Worker) -> Option<String> {
        if self.running.has_timed_out(worker.pid) {
            return Some(
                "a timer of its own was up, and asked for that signal (TORCHELASTIC_ENABLE_FILE_TIMER)"
                    .to_owned(),
            );
        }
        let (exit, _) = worker.ended.filter(|_| worker.hung.is_none())?;
        // It was not stopped, so it was not us.
        let killed = exit == Exit::Signal(Signal::KILL.as_raw());
        killed.then(|| memory::hint(self.memory_kills.clone()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // After `stop` nothing is left, and the numbers may be somebody else's.
        let mut left: Vec<_> = self.workers.iter_mut().filter(|worker| !worker.done).collect();
        for worker in &left {
            worker.signal(Signal::KILL);
            self.running.remove(worker.pid);
        }
        let deadline = Instant::now() + DROP_TIMEOUT;
        while !left.is_empty() && Instant::now() < deadline {
            left.retain_mut(|worker| matches!(worker.child.try_wait(), Ok(None)));
            thread::sleep(REST_INTERVAL / 4);
        }
    }
}

impl Worker {
    fn start(
        start: Start<'_>,
        out: StreamPlan,
        err: StreamPlan,
        error_file: PathBuf,
        filtered: &[Option<Filtered>; 2],
        console: &Arc<dyn Console>,
    ) -> io::Result<Worker> {
        let Start { program, args, environment, without, place, prefix, cpus, .. } = start;
        let Start { interactive, reads, metrics, heartbeat, .. } = start;
        let mut command = Command::new(program);
        let group = interactive.and_then(|interactive| interactive.group);
        command.args(args).process_group(group.map_or(0, Pid::as_raw_pid));
        without.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.envs(environment);
        // A group in the background that reads from the terminal would be stopped by it.
        if interactive.is_none() && (!reads || io::IsTerminal::is_terminal(&io::stdin())) {
            command.stdin(Stdio::null());
        }
        let tail = Tail::default();
        let log = err.path.clone().or_else(|| out.path.clone());
        let own = |plan: &StreamPlan| plan.file.as_ref().filter(|_| !plan.console).map(File::try_clone);
        if interactive.is_none() {
            command.stdout(own(&out).transpose()?.map_or_else(Stdio::piped, Stdio::from));
            command.stderr(own(&err).transpose()?.map_or_else(Stdio::piped, Stdio::from));
        }
        let by_itself = |plan: &StreamPlan| {
            let path = plan.path.clone().filter(|_| !plan.console)?;
            let before = length(&path);
            Some((path, before))
        };
        let files = [&out, &err].into_iter().filter_map(by_itself).collect();
        let mut child = spawn_on(&mut command, &cpus)?;
        let pump = |stream, plan: StreamPlan, filtered: &Option<Filtered>| {
            let file = plan.path.zip(plan.file).map(|(path, file)| LogFile::start(&path, file, WORKERS_SAY));
            io::Result::Ok(Pump {
                stream,
                prefix: prefix.clone(),
                colour: console.colours(stream).then(|| colour(place.rank)),
                console: plan.console.then(|| Arc::clone(console)),
                filtered: filtered.clone().filter(|_| plan.teed),
                file: file.transpose()?,
                tail: (stream == Stream::Err).then(|| tail.clone()),
                rank: place.rank,
                counted: metrics.output(stream.name()),
            })
        };
        let mut streams = Vec::new();
        let read = || {
            if let Some(from) = child.stdout.take() {
                streams.push(pump(Stream::Out, out, &filtered[0])?.start(from)?);
            }
            if let Some(from) = child.stderr.take() {
                streams.push(pump(Stream::Err, err, &filtered[1])?.start(from)?);
            }
            io::Result::Ok(())
        };
        let read = read();
        let pid = Pid::from_child(&child);
        let progress = Source { heartbeat, streams: streams.iter().map(Pumping::watch).collect(), files };
        let mut worker = Worker {
            place,
            child,
            pid,
            ended: None,
            failed: false,
            told: false,
            has_group: group.is_none(),
            done: false,
            tail,
            log,
            error_file,
            streams,
            hung: None,
            progress,
        };
        if let Err(error) = read {
            // Nobody else knows of it.
            worker.signal(Signal::KILL);
            let _ = worker.child.wait();
            return Err(error);
        }
        Ok(worker)
    }

    /// To all of it.
    fn signal(&self, signal: Signal) {
        // Each fails only for what is gone.
        let _ = if self.has_group {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        };
    }

    fn event(&self, state: WorkerState, restarts: u32, failure: Option<Failure>) -> WorkerEvent {
        WorkerEvent { state, place: self.place.clone(), pid: self.child.id(), restarts, failure }
    }

    fn sources(&self) -> Sources {
        let unseen = self.tail.lines().is_empty();
        Sources { error: self.error_file.clone(), log: self.log.clone().filter(|_| unseen) }
    }

    fn failure(&self, host: &str, kept: bool, hint: Option<String>, written: Written) -> Option<Failure> {
        let hung = self.hung.as_ref();
        let (exit, time) = hung.map(|hung| (hung.exit(), hung.since)).or(self.ended)?;
        let error = hung.map(Hanging::error).or(written.error);
        let seen = self.tail.lines();
        let stderr = if seen.is_empty() { written.log } else { seen };
        Some(Failure {
            rank: self.place.rank,
            local_rank: self.place.local_rank,
            host: host.to_owned(),
            pid: self.child.id(),
            exit,
            time: Some(time),
            error,
            stderr,
            log: self.log.clone().filter(|_| kept),
            hint,
        })
    }
}

fn ended(status: &WaitIdStatus) -> bool {
    status.exited() || status.killed() || status.dumped()
}

/// Reports the end of a process from a thread of its own, and leaves the process to be waited for, so that its
/// number stays taken.
fn watch(pid: Pid, report: impl FnOnce(Exit) + Send + 'static) -> io::Result<()> {
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = loop {
            match waitid(WaitId::Pid(pid), options) {
                // One that is traced for a look at its stack is told of as well. That is left to who traces it.
                Ok(Some(status)) if !ended(&status) => thread::sleep(TRACED),
                Ok(status) => break status,
                Err(rustix::io::Errno::INTR) => {}
                // Somebody else has waited for it, which nobody does.
                Err(_) => break None,
            }
        };
        let code = status.as_ref().and_then(WaitIdStatus::exit_status).map(Exit::ExitCode);
        let signal = status.as_ref().and_then(WaitIdStatus::terminating_signal).map(Exit::Signal);
        report(code.or(signal).unwrap_or(Exit::ExitCode(-1)));
    };
    thread::Builder::new().name("worker".to_owned()).spawn(wait).map(drop)
}

#[cfg(test)]
mod tests;
