//! A node's workers in one round: started together, watched, stopped together.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{error, warn};

use crate::decision::Event;
use crate::descendants;
use crate::environment::Place;
use crate::failure::{Exit, ErrorRecord, Failure};
use crate::logs::{Attempt, LogSettings, StreamPlan};
use crate::output::{Console, Filtered, Pump, Stream, Tail, colour};

/// For output that is still on its way when all workers have ended. Only a process that left its group can hold
/// the stream open for longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// For processes that SIGKILL does not end: those in the kernel, at a device that does not answer.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the rest of a group is looked at after its first process has ended; nothing tells when it is gone.
const REST_INTERVAL: Duration = Duration::from_millis(20);

/// What a worker runs.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) program: &'a OsStr,
    pub(crate) args: Vec<OsString>,
    pub(crate) environment: BTreeMap<&'static str, OsString>,
    pub(crate) without: &'a [&'a str],
    pub(crate) place: Place,
    pub(crate) prefix: String,
}

/// The workers of one round. Dropped, they are killed.
#[derive(Debug)]
pub(crate) struct Group {
    host: String,
    workers: Vec<Worker>,
    endings: mpsc::UnboundedReceiver<(usize, Exit, SystemTime)>,
    /// Those of workers that were told to end are not failures.
    stopping: bool,
}

#[derive(Debug)]
struct Worker {
    place: Place,
    child: Child,
    /// Also its process group. It stays ours until the group is done, since only then the process is waited for.
    pid: Pid,
    ended: Option<(Exit, SystemTime)>,
    failed: bool,
    reaped: bool,
    tail: Tail,
    log: Option<PathBuf>,
    error_file: PathBuf,
    streams: Vec<oneshot::Receiver<()>>,
}

/// A worker that could not be started.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) source: io::Error,
}

impl Group {
    /// Starts all workers; if one cannot be started, none stays.
    pub(crate) fn start(
        starts: Vec<Start<'_>>,
        attempt: Attempt,
        settings: &LogSettings,
        console: &Arc<dyn Console>,
        host: &str,
    ) -> Result<Self, StartError> {
        let (report, endings) = mpsc::unbounded_channel();
        let filtered = |file: Option<std::fs::File>, words: &[String]| {
            file.map(|file| Filtered { file: Arc::new(Mutex::new(file)), words: words.into() })
        };
        let filtered = [
            filtered(attempt.filtered_out, &settings.filter_out),
            filtered(attempt.filtered_err, &settings.filter_err),
        ];
        let mut group = Group { host: host.to_owned(), workers: Vec::new(), endings, stopping: false };
        for (start, plan) in starts.into_iter().zip(attempt.plans) {
            let worker = Worker::start(start, plan.out, plan.err, plan.error_file, &filtered, console);
            let worker = worker.map_err(|source| StartError { source })?;
            let (pid, at, report) = (worker.pid, group.workers.len(), report.clone());
            group.workers.push(worker);
            watch(pid, move |ending| {
                // The group may be gone.
                let _ = report.send((at, ending, SystemTime::now()));
            })
            .map_err(|source| StartError { source })?;
        }
        Ok(group)
    }

    /// The processes, for those who look for others.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.workers.iter().map(|worker| worker.pid).collect()
    }

    /// Waits until one has failed or all have succeeded. May be dropped and called again.
    pub(crate) async fn finished(&mut self) -> Event {
        loop {
            if self.workers.iter().any(|worker| worker.failed) {
                return Event::Failed;
            }
            if self.workers.iter().all(|worker| worker.ended.is_some()) {
                return Event::Succeeded;
            }
            self.next_ending().await;
        }
    }

    async fn next_ending(&mut self) {
        let Some((at, ending, time)) = self.endings.recv().await else {
            // Every thread has reported; there is nothing to wait for.
            return std::future::pending().await;
        };
        let worker = &mut self.workers[at];
        worker.ended = Some((ending, time));
        worker.failed = !ending.is_success() && !self.stopping;
    }

    /// Ends all workers and what they started: by `signal`, and by SIGKILL after `grace` or when `now` is there.
    pub(crate) async fn stop(&mut self, signal: Signal, grace: Duration, now: impl Future<Output = ()>) {
        // What has ended so far ended by itself.
        while let Ok((at, ending, time)) = self.endings.try_recv() {
            let worker = &mut self.workers[at];
            worker.ended = Some((ending, time));
            worker.failed = !ending.is_success();
        }
        self.stopping = true;
        self.signal(signal);
        let gone = tokio::select! {
            () = self.gone() => true,
            () = tokio::time::sleep(grace) => false,
            () = now => false,
        };
        if !gone {
            warn!(pids = ?self.pids_running(), "killing what is left of the workers");
            self.signal(Signal::KILL);
            if tokio::time::timeout(KILL_TIMEOUT, self.gone()).await.is_err() {
                let pids = self.pids_running();
                error!(?pids, "workers do not end even by SIGKILL; they are left behind");
            }
        }
        for worker in &mut self.workers {
            if worker.ended.is_some() {
                // It has ended, so this does not wait.
                let _ = worker.child.wait();
                worker.reaped = true;
            }
        }
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        for stream in self.workers.iter_mut().flat_map(|worker| worker.streams.drain(..)) {
            if tokio::time::timeout_at(deadline, stream).await.is_err() {
                warn!("a process that left its worker's group still holds the worker's output");
                break;
            }
        }
    }

    /// Waits until all workers have ended and nothing of their groups runs.
    async fn gone(&mut self) {
        while self.workers.iter().any(|worker| worker.ended.is_none()) {
            self.next_ending().await;
        }
        while self.workers.iter().any(|worker| descendants::group_runs(worker.pid)) {
            tokio::time::sleep(REST_INTERVAL).await;
        }
    }

    fn signal(&self, signal: Signal) {
        for worker in &self.workers {
            // It fails only for a group that is gone.
            let _ = kill_process_group(worker.pid, signal);
        }
    }

    fn pids_running(&self) -> Vec<i32> {
        let running = self.workers.iter().filter(|worker| worker.ended.is_none());
        running.map(|worker| worker.pid.as_raw_pid()).collect()
    }

    /// Those that failed by themselves.
    pub(crate) fn failures(&self, kept: bool) -> Vec<Failure> {
        let failed = self.workers.iter().filter(|worker| worker.failed);
        failed.filter_map(|worker| worker.failure(&self.host, kept)).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // After `stop` nothing is left, and the numbers may be somebody else's.
        for worker in self.workers.iter_mut().filter(|worker| !worker.reaped) {
            let _ = kill_process_group(worker.pid, Signal::KILL);
            let _ = worker.child.wait();
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
        let Start { program, args, environment, without, place, prefix } = start;
        let mut command = Command::new(program);
        command.args(args).process_group(0);
        without.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.envs(environment);
        // A group in the background that reads from the terminal would be stopped by it.
        if io::IsTerminal::is_terminal(&io::stdin()) {
            command.stdin(Stdio::null());
        }
        let tail = Tail::default();
        let log = err.path.clone().or_else(|| out.path.clone());
        let own =
            |plan: &StreamPlan| plan.file.as_ref().filter(|_| !plan.console).map(std::fs::File::try_clone);
        command.stdout(own(&out).transpose()?.map_or_else(Stdio::piped, Stdio::from));
        command.stderr(own(&err).transpose()?.map_or_else(Stdio::piped, Stdio::from));
        let mut child = command.spawn()?;
        let pump = |stream, plan: StreamPlan, filtered: &Option<Filtered>| Pump {
            stream,
            prefix: prefix.clone(),
            colour: console.colours(stream).then(|| colour(place.rank)),
            console: plan.console.then(|| Arc::clone(console)),
            filtered: filtered.clone().filter(|_| plan.teed),
            file: plan.file,
            tail: (stream == Stream::Err).then(|| tail.clone()),
        };
        let mut streams = Vec::new();
        if let Some(from) = child.stdout.take() {
            streams.push(pump(Stream::Out, out, &filtered[0]).start(from)?);
        }
        if let Some(from) = child.stderr.take() {
            streams.push(pump(Stream::Err, err, &filtered[1]).start(from)?);
        }
        let pid = Pid::from_child(&child);
        Ok(Worker {
            place,
            child,
            pid,
            ended: None,
            failed: false,
            reaped: false,
            tail,
            log,
            error_file,
            streams,
        })
    }

    fn failure(&self, host: &str, kept: bool) -> Option<Failure> {
        let (exit, time) = self.ended?;
        let mut stderr = self.tail.lines();
        if stderr.is_empty()
            && let Some(log) = &self.log
        {
            stderr = Tail::of_file(log).unwrap_or_default();
        }
        Some(Failure {
            rank: self.place.rank,
            local_rank: self.place.local_rank,
            host: host.to_owned(),
            pid: self.child.id(),
            exit,
            time: Some(time),
            error: ErrorRecord::read(&self.error_file, kept),
            stderr,
            log: self.log.clone().filter(|_| kept),
        })
    }
}

/// Reports the end of a process from a thread of its own, and leaves the process to be waited for, so that its
/// number stays taken.
fn watch(pid: Pid, report: impl FnOnce(Exit) + Send + 'static) -> io::Result<()> {
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = loop {
            match waitid(WaitId::Pid(pid), options) {
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
