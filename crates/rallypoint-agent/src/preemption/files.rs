//! The files by which a node and its workers tell each other of a preemption.
//!
//! Each worker has one of its own for each round, which its environment names. It is not there until a node is preempted,
//! and then is there as a whole. Beside it the worker makes `.listening`, to get the time in which it can save, and `.saved`,
//! when it has. Any program can do that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{debug, warn};

use crate::disk;

const LISTENING: &str = ".listening";
const SAVED: &str = ".saved";

/// The files of this node's workers in one round.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    folder: PathBuf,
    workers: usize,
}

impl Files {
    /// A place for the files of so many workers. None if there is none to be had: then they are not told.
    pub(crate) fn make(parent: Option<&Path>, round: u64, workers: usize) -> Option<Self> {
        let folder = parent?.join(format!("preemption-{round}"));
        let files = Files { folder: folder.clone(), workers };
        match disk::within(disk::PATIENCE, move || fs::create_dir_all(folder)) {
            Ok(Ok(())) => Some(files),
            failed => {
                debug!(?failed, "workers cannot be told of preemptions");
                None
            }
        }
    }

    /// The file of the worker with this local rank.
    pub(crate) fn of(&self, local_rank: usize) -> PathBuf {
        self.folder.join(format!("{local_rank}.json"))
    }

    /// Tells all workers.
    pub(crate) fn write(&self, notice: Vec<u8>) {
        let files = self.clone();
        let written = disk::within(disk::PATIENCE, move || {
            (0..files.workers).try_for_each(|local_rank| replace(&files.of(local_rank), &notice))
        });
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the workers cannot be told of the preemption"),
            Err(unknown) => warn!(error = %unknown, "the workers cannot be told of the preemption"),
        }
    }

    /// Whether a worker listens.
    pub(crate) fn is_listened_to(&self) -> bool {
        let files = self.clone();
        let any = disk::within(disk::PATIENCE, move || files.marks(LISTENING).any(|there| there));
        any.unwrap_or(false)
    }

    /// Who has saved, by local rank. To be asked where a disk may be waited for.
    pub(crate) fn saved(&self) -> Vec<bool> {
        self.marks(SAVED).collect()
    }

    /// The same, for as long as the disk may take.
    pub(crate) fn saved_by_now(&self) -> Vec<bool> {
        let files = self.clone();
        disk::within(disk::PATIENCE, move || files.saved()).unwrap_or_default()
    }

    fn marks(&self, mark: &'static str) -> impl Iterator<Item = bool> {
        (0..self.workers).map(move |local_rank| {
            let mut name = self.of(local_rank).into_os_string();
            name.push(mark);
            Path::new(&name).exists()
        })
    }

    /// The round is over.
    pub(crate) fn remove(self) {
        // What stays goes with the launcher's folder.
        let _ = disk::remove(self.folder);
    }
}

/// Writes a file that is never seen half written.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// Whether all of so many are true; none at all are not.
pub(crate) fn all(marks: &[bool]) -> bool {
    !marks.is_empty() && marks.iter().all(|mark| *mark)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn workers_listen_and_say_that_they_have_saved_by_making_a_file() {
        let parent = tempfile::tempdir().unwrap();
        let files = Files::make(Some(parent.path()), 3, 2).unwrap();
        let mark = |local_rank, mark: &str| {
            fs::write(format!("{}{mark}", files.of(local_rank).display()), "").unwrap();
        };
        assert!(!files.is_listened_to() && !files.of(0).exists());
        mark(1, ".listening");
        assert!(files.is_listened_to(), "one is enough");
        files.write(b"{}".to_vec());
        assert_eq!(fs::read(files.of(1)).unwrap(), b"{}");
        mark(0, ".saved");
        assert!(!all(&files.saved()) && files.saved() == [true, false]);
        mark(1, ".saved");
        assert!(all(&files.saved_by_now()));
        files.remove();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        assert!(Files::make(None, 1, 1).is_none() && !all(&[]));
    }
}
