//! Where workers write: the folder of a run, laid out as torchrun does, and what goes where.
//!
//! `LOG_DIR/RUN-ID_xxxxxxxx/attempt_N/LOCAL_RANK/` holds `stdout.log`, `stderr.log` and `error.json`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tracing::warn;

use crate::streams::StreamChoice;
use crate::{disk, temporary};

/// Where the files of a run go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// A folder of this name, which is made, and removed when the run is over.
    Temporary(PathBuf),
    /// A folder of the user's; each run makes one of its own in it.
    Kept(PathBuf),
    /// No files at all, not even for errors.
    Nowhere,
}

impl LogDir {
    /// A name in the system's temporary folder that nobody else has.
    #[must_use]
    pub fn temporary() -> Self {
        LogDir::Temporary(temporary::name())
    }
}

/// What goes where.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogSettings {
    /// The files.
    pub dir: LogDir,
    /// Streams that go to files, and not to the console.
    pub redirects: StreamChoice,
    /// Streams that go to files and to the console.
    pub tee: StreamChoice,
    /// The local ranks whose output the console shows; all if none are named.
    pub shown: Option<BTreeSet<usize>>,
    /// Lines of tee'd standard output with one of these in them also go to a file of their own.
    pub filter_out: Vec<String>,
    /// The same for standard error.
    pub filter_err: Vec<String>,
}

impl LogSettings {
    /// Everything to the console, nothing to files but errors.
    #[must_use]
    pub fn console(dir: LogDir) -> Self {
        let (redirects, tee) = (StreamChoice::default(), StreamChoice::default());
        LogSettings { dir, redirects, tee, shown: None, filter_out: Vec::new(), filter_err: Vec::new() }
    }
}

/// A file or folder that cannot be written.
#[derive(Debug, Error)]
#[error("cannot write logs to {}: choose another --log-dir, or make this one writable", path.display())]
pub struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// The folder of one run on one node. Dropped, it is removed if it is temporary.
#[derive(Debug)]
pub struct Logs {
    settings: LogSettings,
    folder: Option<PathBuf>,
}

impl Logs {
    /// Makes the folder, so that one that cannot be written is known before anything else happens.
    pub fn open(settings: LogSettings, run_id: &str) -> Result<Self, LogError> {
        // A run's name may be anything, a folder's may not.
        let name: String =
            run_id.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).take(100).collect();
        let name = format!("{name}_{:08x}", fastrand::u32(..));
        let folder = match &settings.dir {
            LogDir::Nowhere => None,
            LogDir::Kept(base) | LogDir::Temporary(base) => Some(base.join(name)),
        };
        let made = folder.as_deref().map(make).transpose();
        Logs { settings, folder }.unless(made.map(drop))
    }

    /// Makes sure that there is room for the files of so many workers, before other nodes count on them.
    pub fn for_workers(self, workers: usize) -> Result<Self, LogError> {
        let made = self.attempt(0, workers, || true).map(drop);
        if let Some(folder) = &self.folder {
            // They are made again when workers are started, which may never be.
            let _ = fs::remove_dir_all(folder.join("attempt_0"));
        }
        self.unless(made)
    }

    /// Files that nobody asked for may be missing.
    fn unless(mut self, made: Result<(), LogError>) -> Result<Self, LogError> {
        match made {
            Err(error) if matches!(self.settings.dir, LogDir::Temporary(_)) => {
                warn!(error = %error.source, "no file for the workers' errors in {}", error.path.display());
                self.folder = None;
                Ok(self)
            }
            made => made.map(|()| self),
        }
    }

    /// The folder of this run, if it stays.
    #[must_use]
    pub fn kept(&self) -> Option<&Path> {
        matches!(self.settings.dir, LogDir::Kept(_)).then_some(self.folder.as_deref()).flatten()
    }

    /// Makes the folders of an attempt, as long as somebody `wants` them. An attempt that goes on in another round goes on
    /// in its files.
    pub(crate) fn attempt(
        &self,
        restarts: u32,
        workers: usize,
        wants: impl Fn() -> bool,
    ) -> Result<Attempt, LogError> {
        let folder = self.folder.as_ref().map(|folder| folder.join(format!("attempt_{restarts}")));
        let mut plans = Vec::new();
        for local_rank in (0..workers).take_while(|_| wants()) {
            let own = folder.as_ref().map(|folder| folder.join(local_rank.to_string()));
            if let Some(own) = &own {
                make(own)?;
                // What an earlier round wrote there must not be taken for this one's.
                let _ = fs::remove_file(own.join("error.json"));
            }
            plans.push(self.plan(local_rank, own.as_deref())?);
        }
        let filtered = |filters: &[String], name: &str| match &folder {
            Some(folder) if !filters.is_empty() => {
                let path = folder.join(name);
                append(&path).map(|file| Some((path, file)))
            }
            _ => Ok(None),
        };
        let filtered_out = filtered(&self.settings.filter_out, "filtered_stdout.log")?;
        let filtered_err = filtered(&self.settings.filter_err, "filtered_stderr.log")?;
        Ok(Attempt { plans, filtered_out, filtered_err })
    }

    pub(crate) fn settings(&self) -> &LogSettings {
        &self.settings
    }

    fn plan(&self, local_rank: usize, own: Option<&Path>) -> Result<WorkerPlan, LogError> {
        let (redirect, tee) = (self.settings.redirects.of(local_rank), self.settings.tee.of(local_rank));
        let shown = self.settings.shown.as_ref().is_none_or(|shown| shown.contains(&local_rank));
        let files = redirect.and(tee);
        let stream = |name: &str, redirected: bool, to_file: bool, teed: bool| {
            let path = own.filter(|_| to_file).map(|own| own.join(name));
            let file = path.as_deref().map(append).transpose()?;
            // What has no file is shown, as under torchrun.
            let console = shown && (teed || !redirected || path.is_none());
            Ok(StreamPlan { path, file, teed, console })
        };
        Ok(WorkerPlan {
            out: stream("stdout.log", redirect.out && !tee.out, files.out, tee.out)?,
            err: stream("stderr.log", redirect.err && !tee.err, files.err, tee.err)?,
            error_file: own.map_or_else(PathBuf::new, |own| own.join("error.json")),
        })
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let folder = match &self.settings.dir {
            LogDir::Temporary(path) => Some(path.clone()),
            LogDir::Kept(_) => self.folder.clone(),
            LogDir::Nowhere => None,
        };
        let Some(folder) = folder else { return };
        let name = folder.clone();
        let tidied = match self.kept() {
            Some(_) => disk::within(disk::PATIENCE, move || remove_empty(&folder)),
            None => disk::remove(folder),
        };
        if let Err(why) = tidied {
            warn!("{} is left as it is: {why}", name.display());
        }
    }
}

/// Removes what has no file in it.
fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // It fails where there is something in it, which is the point.
    let _ = fs::remove_dir(folder);
}

/// The files of one attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) plans: Vec<WorkerPlan>,
    pub(crate) filtered_out: Option<(PathBuf, File)>,
    pub(crate) filtered_err: Option<(PathBuf, File)>,
}

/// Where one worker writes.
#[derive(Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) out: StreamPlan,
    pub(crate) err: StreamPlan,
    /// Empty where there is no place for it.
    pub(crate) error_file: PathBuf,
}

#[derive(Debug)]
pub(crate) struct StreamPlan {
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: Option<File>,
    pub(crate) teed: bool,
    pub(crate) console: bool,
}

fn make(folder: &Path) -> Result<(), LogError> {
    fs::create_dir_all(folder).map_err(|source| LogError { path: folder.to_owned(), source })
}

fn append(path: &Path) -> Result<File, LogError> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|source| LogError { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn logs(dir: LogDir, redirects: &str, tee: &str) -> Logs {
        let (redirects, tee) = (redirects.parse().unwrap(), tee.parse().unwrap());
        Logs::open(LogSettings { redirects, tee, ..LogSettings::console(dir) }, "job/42").unwrap()
    }

    #[test]
    fn files_lie_where_torchrun_puts_them() {
        let folder = tempfile::tempdir().unwrap();
        let logs = logs(LogDir::Kept(folder.path().to_owned()), "0:3", "1:1");
        let attempt = logs.attempt(2, 3, || true).unwrap();
        let run = logs.kept().unwrap();
        assert!(run.file_name().unwrap().to_str().unwrap().starts_with("job_42_"));
        let [zero, one, two] = &attempt.plans[..] else { panic!("three plans") };
        assert_eq!(zero.out.path, Some(run.join("attempt_2/0/stdout.log")));
        assert_eq!(zero.err.path, Some(run.join("attempt_2/0/stderr.log")));
        assert!(!zero.out.console && !zero.err.console);
        assert_eq!(one.out.path, Some(run.join("attempt_2/1/stdout.log")));
        assert!(one.out.console && one.err.console && one.err.path.is_none());
        assert!(two.out.path.is_none() && two.out.console);
        assert_eq!(two.error_file, run.join("attempt_2/2/error.json"));
        let run = run.to_owned();
        drop(logs);
        assert!(
            run.join("attempt_2/1").is_dir() && !run.join("attempt_2/2").exists(),
            "no empty folder is kept"
        );
    }

    #[test]
    fn a_folder_that_nobody_asked_for_may_be_missing() {
        let logs = logs(LogDir::Temporary("/proc/no/such".into()), "0", "0");
        assert_eq!(logs.attempt(0, 1, || true).unwrap().plans[0].error_file, PathBuf::new());
    }

    #[test]
    fn no_more_folders_are_made_than_somebody_wants() {
        let folder = tempfile::tempdir().unwrap();
        let logs = logs(LogDir::Kept(folder.path().to_owned()), "3", "0");
        let asked = std::cell::Cell::new(0);
        let wants = || asked.replace(asked.get() + 1) < 2;
        assert_eq!(logs.attempt(0, 1000, wants).unwrap().plans.len(), 2);
        let made = logs.kept().unwrap().join("attempt_0");
        assert_eq!(fs::read_dir(made).unwrap().count(), 2);
    }

    #[test]
    fn a_temporary_folder_goes_and_nowhere_means_no_file() {
        let dir = LogDir::temporary();
        let LogDir::Temporary(path) = dir.clone() else { panic!("it is temporary") };
        let open = logs(dir, "0", "0");
        assert!(path.is_dir() && open.kept().is_none());
        drop(open);
        assert!(!path.exists());
        let nowhere = logs(LogDir::Nowhere, "3", "0");
        let attempt = nowhere.attempt(0, 1, || true).unwrap();
        assert_eq!(attempt.plans[0].error_file, PathBuf::new());
        assert!(attempt.plans[0].out.path.is_none() && attempt.plans[0].out.console, "it is shown instead");
    }
}
