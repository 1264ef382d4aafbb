//! The folders of a run: for the workers' files, and the one that goes with the launcher.

use std::path::Path;
use std::sync::Arc;

use rallypoint_agent::temporary::{self, Held};
use rallypoint_agent::{EventFile, Events, Guarded, LogDir, LogSettings, Logs, disk};

use tracing::warn;

use super::options::Run;
use super::timer;
use super::values::words;
use crate::cli::exit::{NODE, Problem, chain};

/// Makes the folder that goes with the launcher, and removes those of launchers that could not.
fn hold_folder(folder: &Path) -> Option<Held> {
    let beside = folder.to_owned();
    // Nobody waits for it. Without a thread for it the next one does it.
    let _ = std::thread::Builder::new()
        .name("temporary".to_owned())
        .spawn(move || temporary::sweep_beside(&beside));
    temporary::hold(folder).ok()
}

fn log_dir(options: &Run, guarded: &Guarded) -> LogDir {
    match &options.log_dir {
        // As torchrun does: what was asked for stays.
        None if options.redirects.any() || options.tee.any() => {
            let name = format!("rallypoint_logs_{:08x}", fastrand::u32(..));
            LogDir::Kept(temporary::base().join(name))
        }
        None => LogDir::Temporary(guarded.folder().to_owned()),
        Some(path) if path.as_os_str() == "/dev/null" => LogDir::Nowhere,
        Some(path) => LogDir::Kept(path.clone()),
    }
}

/// Opens the folders of a run with so many workers here. The second is there until it is dropped, with the launcher.
pub(crate) fn open(
    options: &Run,
    guarded: &Guarded,
    run_id: &str,
    workers: usize,
) -> Result<(Logs, Option<Held>), Problem> {
    let dir = log_dir(options, guarded);
    let named = matches!(dir, LogDir::Temporary(_)) || timer::are_asked_for();
    let temporary = named || (options.log_dir.is_none() && matches!(dir, LogDir::Kept(_)));
    if let Some((variable, folder)) = temporary.then(temporary::passed_over).flatten() {
        let base = temporary::base();
        warn!(
            "{variable} is {}, which is no folder that can be written: {} is used",
            folder.display(),
            base.display()
        );
    }
    // Workers are told of preemptions there. Where it cannot be made, that is told by whoever needs it.
    let held = hold_folder(guarded.folder());
    Ok((logs(options, dir, run_id, workers)?, held))
}

/// Opens the file that this node's events are added to.
pub(crate) fn event_log(path: &Path, run_id: &str) -> Result<Arc<dyn Events>, Problem> {
    let (file, run_id) = (path.to_owned(), run_id.to_owned());
    let opened = disk::within(disk::PATIENCE, move || EventFile::open(&file, &run_id));
    let problem = match opened {
        Ok(Ok(file)) => return Ok(Arc::new(file)),
        Ok(Err(error)) => error.to_string(),
        Err(unknown) => unknown.to_string(),
    };
    Err(Problem::new(NODE, format!("--event-log: cannot write {}: {problem}", path.display())))
}

/// Whether a folder is there, as far as its disk answers.
pub(crate) fn is_there(folder: &Path) -> bool {
    let folder = folder.to_owned();
    disk::within(disk::PATIENCE, move || folder.exists()).unwrap_or(true)
}

fn logs(options: &Run, dir: LogDir, run_id: &str, workers: usize) -> Result<Logs, Problem> {
    let shown = &options.local_ranks_filter;
    let mut settings = LogSettings::console(dir);
    settings.redirects = options.redirects.clone();
    settings.tee = options.tee.clone();
    settings.shown = (!shown.is_empty()).then(|| shown.iter().copied().collect());
    settings.filter_out = words(&options.duplicate_stdout_filters);
    settings.filter_err = words(&options.duplicate_stderr_filters);
    let logs = Logs::open(settings, run_id).and_then(|logs| logs.for_workers(workers));
    logs.map_err(|error| Problem::new(NODE, chain(&error)))
}
