//! Work on a disk that may hang, so that nobody hangs with it.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

/// The file in a folder that is locked by its owner. It is removed last.
pub(crate) const LOCK: &str = "owner.lock";
/// How long a disk may take for what the end waits for.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a disk that answers, and has much to do.
const LONGEST: Duration = Duration::from_secs(30);
/// How often a folder is looked at again that is not empty after all.
const TRIES: usize = 4;
/// Where no thread can be started, how soon it is tried again: others end all the time.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Why it is not known whether something was done.
#[derive(Debug, Error)]
pub enum Unknown {
    /// The disk has not answered in time.
    #[error("the disk does not answer")]
    Silent,
    /// The disk answers, and is not done in time.
    #[error("the disk was not done after {} s", LONGEST.as_secs())]
    Late,
    /// The disk was not asked: there may be no more threads.
    #[error("no thread can be started for it: too many processes and threads ({0})")]
    NoThread(io::Error),
}

/// What stands where a file should be, if it is none.
#[must_use]
pub fn no_file(about: &fs::Metadata) -> Option<&'static str> {
    let kind = about.file_type();
    match kind {
        _ if kind.is_file() => None,
        _ if kind.is_dir() => Some("a folder"),
        _ if kind.is_fifo() => Some("a named pipe"),
        _ if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// Does something on a thread of its own. If it is not done by then, it may be some time, and nobody is told.
pub fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unknown> {
    in_steps(patience, move |_| work())
}

/// Removes a folder and all that is in it, for as long as its disk answers.
pub fn remove(folder: PathBuf) -> Result<(), Unknown> {
    in_steps(PATIENCE, move |steps| remove_all(&folder, steps))
}

/// The same where nobody waits for it.
pub(crate) fn remove_here(folder: &Path) {
    remove_all(folder, &Steps::default());
}

/// What has been done of a work so far.
#[derive(Debug, Default)]
struct Steps(AtomicU64);

/// Does something on a thread of its own, and waits for as long as it goes on.
fn in_steps<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce(&Steps) -> T + Send + 'static,
) -> Result<T, Unknown> {
    let began = Instant::now();
    let (done, result) = mpsc::channel();
    let steps = Arc::new(Steps::default());
    let seen = Arc::clone(&steps);
    start(patience, move || {
        // Whoever waited may have given up.
        let _ = done.send(work(&seen));
    })?;
    let mut before = 0;
    loop {
        match result.recv_timeout(patience) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Unknown::Silent),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = steps.0.load(Ordering::Relaxed);
        if now == before {
            return Err(Unknown::Silent);
        }
        if began.elapsed() >= LONGEST {
            return Err(Unknown::Late);
        }
        before = now;
    }
}

/// Starts a thread, and tries that for so long.
fn start(patience: Duration, work: impl FnOnce() + Send + 'static) -> Result<(), Unknown> {
    let began = Instant::now();
    // A thread that cannot be started takes what it was to do with it.
    let work = Arc::new(Mutex::new(Some(work)));
    loop {
        let mine = Arc::clone(&work);
        let run = move || {
            let work = mine.lock().unwrap_or_else(PoisonError::into_inner).take();
            work.into_iter().for_each(|work| work());
        };
        match thread::Builder::new().name("disk".to_owned()).spawn(run) {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() >= patience => return Err(Unknown::NoThread(error)),
            Err(_) => thread::sleep(TRY_AGAIN),
        }
    }
}

/// What cannot be removed stays, and with it the lock: whoever finds it without its owner tries again. A process that is about to
/// end may make something meanwhile.
fn remove_all(folder: &Path, steps: &Steps) {
    for _ in 0..TRIES {
        let (lock, others): (Vec<PathBuf>, Vec<PathBuf>) =
            in_order(folder).into_iter().partition(|entry| is_lock(entry));
        let empty = others.is_empty();
        for entry in if empty { lock } else { others } {
            if fs::symlink_metadata(&entry).is_ok_and(|data| data.is_dir()) {
                remove_all(&entry, steps);
            } else {
                let _ = fs::remove_file(entry);
            }
            steps.0.fetch_add(1, Ordering::Relaxed);
        }
        if fs::remove_dir(folder).is_ok() {
            return;
        }
    }
}

/// What is in a folder, the lock of its owner last: whoever is killed while he removes it leaves one that the next launcher
/// knows for what it is.
fn in_order(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut entries: Vec<PathBuf> = entries.collect();
    entries.sort_by_key(|entry| is_lock(entry));
    entries
}

fn is_lock(entry: &Path) -> bool {
    entry.file_name().is_some_and(|name| name == LOCK)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_disk_that_answers_is_waited_for_and_one_that_does_not_is_given_up() {
        // All steps take longer than one may, and one takes far less.
        let step = Duration::from_millis(100);
        let done = in_steps(15 * step, move |steps| {
            for _ in 0..20 {
                thread::sleep(step);
                steps.0.fetch_add(1, Ordering::Relaxed);
            }
            "done"
        });
        assert_eq!(done.unwrap(), "done");
        let (_hold, never) = mpsc::channel::<()>();
        assert!(matches!(within(step, move || never.recv()), Err(Unknown::Silent)));
    }

    #[test]
    fn a_folder_is_removed_and_what_it_links_to_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, others] = ["ours", "others"].map(|name| folder.path().join(name));
        fs::create_dir_all(ours.join("0/1")).unwrap();
        fs::create_dir(&others).unwrap();
        for file in [ours.join("0/1/file"), others.join("file")] {
            fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink(&others, ours.join("link")).unwrap();
        for name in [LOCK, "z"] {
            fs::write(ours.join(name), "").unwrap();
        }
        let order = in_order(&ours);
        assert_eq!(
            (order.len(), order.last()),
            (4, Some(&ours.join(LOCK))),
            "who it is of is known to the end"
        );
        remove(ours.clone()).unwrap();
        assert!(!ours.exists() && others.join("file").exists());
    }

    #[test]
    fn a_folder_in_which_somebody_makes_more_goes_or_keeps_its_lock() {
        let parent = tempfile::tempdir().unwrap();
        for round in 0..100 {
            let folder = parent.path().join(round.to_string());
            fs::create_dir_all(folder.join("job")).unwrap();
            fs::write(folder.join(LOCK), "").unwrap();
            let job = folder.join("job");
            let maker = thread::spawn(move || {
                (0..50).all(|number| fs::create_dir(job.join(number.to_string())).is_ok())
            });
            remove_here(&folder);
            maker.join().unwrap();
            assert!(!folder.exists() || folder.join(LOCK).exists(), "nobody would know whose it was");
        }
    }
}
