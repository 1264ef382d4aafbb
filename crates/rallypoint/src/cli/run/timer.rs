//! Timers of workers, as PyTorch's `FileTimerClient` asks for them: a worker that is not done with something in time is
//! ended.
//!
//! Workers write lines of JSON to a pipe with a name: a process and a scope, until when, and by which signal it is to be
//! ended. A time before the epoch takes the timer back.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rallypoint_agent::{Signal, Workers};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tracing::{debug, warn};

/// Asks for timers, with `1`.
const ENABLE: &str = "TORCHELASTIC_ENABLE_FILE_TIMER";
/// The pipe's name; workers find it there.
pub(crate) const FILE: &str = "TORCHELASTIC_TIMER_FILE";
/// A clock may be set anew, so nobody sleeps for longer.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The pipe. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct TimerFile {
    pub(crate) path: PathBuf,
    pipe: Option<Receiver>,
}

impl TimerFile {
    /// Makes the pipe, if timers are asked for; in `folder` unless the variable names another place.
    pub(crate) fn make(folder: &Path) -> Result<Option<Self>, (PathBuf, io::Error)> {
        if !are_asked_for() {
            return Ok(None);
        }
        let named = std::env::var_os(FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = named.unwrap_or_else(|| folder.join("timer"));
        match make(&path, folder) {
            Ok(pipe) => Ok(Some(TimerFile { path, pipe: Some(pipe) })),
            Err(error) => Err((path, error)),
        }
    }

    /// Ends workers whose time is up, for as long as it runs.
    pub(crate) fn watch(&mut self, workers: Workers) -> impl Future<Output = ()> + Send + use<> {
        let pipe = self.pipe.take();
        async move {
            if let Some(pipe) = pipe {
                watch(pipe, &workers).await;
            }
        }
    }
}

/// Whether workers may have timers.
pub(crate) fn are_asked_for() -> bool {
    std::env::var_os(ENABLE).is_some_and(|value| value == "1")
}

impl Drop for TimerFile {
    fn drop(&mut self) {
        // The folder may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn make(path: &Path, folder: &Path) -> io::Result<Receiver> {
    std::fs::create_dir_all(folder)?;
    // One that an earlier launcher left behind. Anything else is somebody's.
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        std::fs::remove_file(path)?;
    }
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    // Also for writing: else it would end whenever no worker has it open.
    OpenOptions::new().read_write(true).open_receiver(path)
}

async fn watch(pipe: Receiver, workers: &Workers) {
    let mut lines = BufReader::new(pipe).lines();
    let mut timers = Timers::default();
    loop {
        let sleep = timers.next().map(|at| Duration::try_from_secs_f64(at - now()).unwrap_or_default());
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(request) => timers.take(request),
                    Err(error) => warn!(%error, "what a worker asked of the timers is not understood: {line:?}"),
                },
                Ok(None) => return,
                Err(error) => return warn!(%error, "the workers' timers cannot be read any more"),
            },
            () = tokio::time::sleep(sleep.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)) => {
                timers.expired(now()).into_iter().for_each(|expired| end(&expired, workers));
            }
        }
    }
}

fn end(Expired { pid, scopes, signal }: &Expired, workers: &Workers) {
    let scopes = scopes.join(", ");
    let Some(signal) = signal.and_then(Signal::from_named_raw) else {
        return warn!(pid, "the time of {scopes:?} is up; no signal was asked for");
    };
    if workers.end(*pid, signal) {
        warn!(pid, signal = signal.as_raw(), "the time of {scopes:?} is up: the process is ended");
    } else {
        debug!(pid, "the time of {scopes:?} is up, and the process is no worker's, or gone");
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// A line that a worker wrote.
#[derive(Debug, Deserialize)]
struct Request {
    pid: i32,
    scope_id: String,
    expiration_time: f64,
    #[serde(default)]
    signal: i32,
}

/// A process whose time is up.
#[derive(Debug, PartialEq)]
struct Expired {
    pid: i32,
    /// For what; the first to run out comes first.
    scopes: Vec<String>,
    /// Of the first that has one.
    signal: Option<i32>,
}

/// The timers that run.
#[derive(Debug, Default)]
struct Timers(BTreeMap<(i32, String), (f64, i32)>);

impl Timers {
    fn take(&mut self, request: Request) {
        let key = (request.pid, request.scope_id);
        if request.expiration_time < 0.0 {
            self.0.remove(&key);
        } else {
            self.0.insert(key, (request.expiration_time, request.signal));
        }
    }

    /// When the next one runs out.
    fn next(&self) -> Option<f64> {
        self.0.values().map(|(at, _)| *at).min_by(f64::total_cmp)
    }

    /// Takes out the processes with a timer that has run out, with all their timers.
    fn expired(&mut self, now: f64) -> Vec<Expired> {
        let mut over: BTreeMap<i32, Vec<(f64, String, i32)>> = BTreeMap::new();
        for ((pid, scope), (at, signal)) in self.0.iter().filter(|(_, (at, _))| *at <= now) {
            over.entry(*pid).or_default().push((*at, scope.clone(), *signal));
        }
        self.0.retain(|(pid, _), _| !over.contains_key(pid));
        let expired = over.into_iter().map(|(pid, mut timers)| {
            timers.sort_by(|a, b| a.0.total_cmp(&b.0));
            let signal = timers.iter().map(|(.., signal)| *signal).find(|signal| *signal > 0);
            Expired { pid, scopes: timers.into_iter().map(|(_, scope, _)| scope).collect(), signal }
        });
        expired.collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_timer_runs_out_unless_it_is_taken_back() {
        let mut timers = Timers::default();
        let mut ask = |pid: i32, scope: &str, at: f64, signal: i32| {
            // As PyTorch writes it.
            let line = format!(
                r#"{{"version": 1, "pid": {pid}, "scope_id": "{scope}", "expiration_time": {at:?}, "signal": {signal}}}"#
            );
            timers.take(serde_json::from_str(&line).unwrap());
        };
        ask(7, "step", 20.5, 9);
        ask(7, "load", 10.0, 0);
        ask(8, "step", 15.0, 15);
        ask(8, "step", -1.0, 0);
        ask(9, "step", 30.0, 15);
        ask(9, "step", 40.0, 15);
        assert_eq!(timers.next(), Some(10.0));
        assert_eq!(timers.expired(9.0), []);
        let scopes = vec!["load".to_owned(), "step".to_owned()];
        assert_eq!(timers.expired(21.0), [Expired { pid: 7, scopes, signal: Some(9) }]);
        assert_eq!(timers.next(), Some(40.0), "the later of two in one scope");
    }
}
