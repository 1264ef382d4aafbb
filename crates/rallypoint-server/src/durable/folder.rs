//! The folder: its files, its lock, and what is said when it cannot be used.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use redb::StorageBackend;
use redb::backends::FileBackend;
use rustix::fs::{FallocateFlags, FlockOperation};

use super::change::{Ids, Loaded, V2Batch, V3Batch};
use super::engine::{Engine, EngineError};
use super::ledger::Ledger;
use super::log::{LOG_BYTES, Log};
use crate::ServerError;

const DATABASE: &str = "rallypoint.redb";
/// A database that is being made. Only a whole one gets the name above.
const UNFINISHED: &str = "rallypoint.redb.new";
/// What is on disk and not in the database yet. There while it serves, and after it was killed.
const LOG: &str = "rallypoint.log";
const LOCK: &str = "rallypoint.lock";
/// Room that is given up when somebody else has filled the disk, so that there can be deletes; and what is in the log goes
/// to the database with them.
const RESERVE: &str = "rallypoint.reserve";
const RESERVE_BYTES: u64 = (4 << 20) + 2 * LOG_BYTES as u64;
/// Every file system may have it at its top.
const OF_THE_SYSTEM: &str = "lost+found";

/// A folder that no other server has.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Let go of when it is dropped, or the process ends.
    lock: File,
    reserve: File,
}

/// What is in it.
#[derive(Debug)]
pub(crate) enum Opened {
    Nothing,
    Something(Box<(Ledger, Loaded)>),
}

impl Folder {
    /// Takes the folder, which is made if it is not there, and reads what is in it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Opened), ServerError> {
        let unusable = |error: io::Error| unusable(path, error);
        match fs::metadata(path) {
            Ok(found) if !found.is_dir() => {
                return Err(refused(path, "is not a folder: name a folder, or one that is to be made"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
            }
            Err(error) => return Err(unusable(error)),
        }
        check_names(path)?;
        let own = |name: &str| {
            let mut options = OpenOptions::new();
            let file = path.join(name);
            let opened = options.create(true).truncate(false).write(true).mode(0o600).open(&file);
            opened.map_err(|source| ServerError::DataDirIo { path: file, source })
        };
        let lock = own(LOCK)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(path)),
            Err(error) => return Err(unusable(error.into())),
        }
        let reserve = own(RESERVE)?;
        let folder = Folder { path: path.to_owned(), lock, reserve };
        let is_there = |name| folder.path.join(name).try_exists().map_err(unusable);
        let opened = if is_there(DATABASE)? {
            Opened::Something(Box::new(folder.load().map_err(|error| folder.said(error))?))
        } else if folder.reserve.metadata().map_err(unusable)?.len() > 0 || is_there(LOG)? {
            return Err(refused(
                path,
                &format!(
                    "has served before, and its data ({DATABASE}) is not there: put a copy in its place, or remove the folder to begin anew"
                ),
            ));
        } else {
            Opened::Nothing
        };
        Ok((folder, opened))
    }

    /// Makes the database of a folder that has none.
    pub(crate) fn create(&self, ids: Ids, v3: &V3Batch, v2: &V2Batch) -> Result<Ledger, ServerError> {
        let made = || {
            let unfinished = self.path.join(UNFINISHED);
            match fs::remove_file(&unfinished) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            let mut options = OpenOptions::new();
            let file = options.create_new(true).read(true).write(true).mode(0o600).open(&unfinished)?;
            let ledger = Ledger::create(Engine::builder().create_file(file)?, ids, v3, v2)?;
            fs::rename(&unfinished, self.path.join(DATABASE))?;
            File::open(&self.path)?.sync_all()?;
            Ok(ledger)
        };
        made().map_err(|error: EngineError| self.said(error))
    }

    /// Reads all that is kept.
    pub(crate) fn load(&self) -> Result<(Ledger, Loaded), EngineError> {
        let log = || backend(OpenOptions::new().read(true).write(true).open(self.path.join(LOG))?);
        contained(|| Ledger::open(Engine::builder().open(self.path.join(DATABASE))?, log))
    }

    /// Makes a log for a database that has none. What is left of one is of no use to anybody.
    pub(crate) fn make_log(&self) -> Result<Log, EngineError> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(true).read(true).write(true).mode(0o600);
        let log = Log::create(backend(options.open(self.path.join(LOG))?)?, LOG_BYTES)?;
        File::open(&self.path)?.sync_all()?;
        Ok(log)
    }

    /// Removes the log of a database that has all of it.
    pub(crate) fn remove_log(&self) {
        // One that is left is made anew.
        let _ = fs::remove_file(self.path.join(LOG));
    }

    /// Takes the room that is given up when the disk is full.
    pub(crate) fn take_reserve(&self) {
        // Not every file system has it, and then there is no reserve.
        let _ = rustix::fs::fallocate(&self.reserve, FallocateFlags::empty(), 0, RESERVE_BYTES);
    }

    /// An error if it was removed: what is written then is gone with the process.
    pub(crate) fn check_there(&self) -> io::Result<()> {
        let is_removed = self.lock.metadata()?.nlink() == 0 && !self.path.join(DATABASE).try_exists()?;
        let gone = || io::Error::new(io::ErrorKind::NotFound, "it was removed while it was in use");
        if is_removed { Err(gone()) } else { Ok(()) }
    }

    /// Bytes that are free on the disk.
    pub(crate) fn free(&self) -> u64 {
        // Where nobody can tell, a write will.
        let disk = rustix::fs::fstatvfs(&self.reserve);
        disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    pub(crate) fn give_up_reserve(&self) {
        // It is of no use where it cannot be given up.
        let _ = self.reserve.set_len(0);
    }

    /// What is said of an error of the engine.
    pub(crate) fn said(&self, error: EngineError) -> ServerError {
        let path = &self.path;
        match error {
            EngineError::Io(error) => unusable(path, error),
            EngineError::InUse => in_use(path),
            EngineError::Format(_) => refused(
                path,
                &format!(
                    "was written by another version of this program ({error}): use that version, or name another folder"
                ),
            ),
            EngineError::Damaged(_) => refused(
                path,
                &format!(
                    "has data that cannot be read ({error}): put a copy of the folder in its place, or remove it to begin anew"
                ),
            ),
        }
    }
}

fn backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    let backend = FileBackend::new(file).map_err(io::Error::other)?;
    Ok(Box::new(backend))
}

/// Reads what may be damaged. The engine panics on some damage before it has looked at its checksums; that is nothing to
/// show to anybody, so what is said of panics is silent meanwhile.
fn contained<T>(read: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let done = panic::catch_unwind(AssertUnwindSafe(read));
    panic::set_hook(hook);
    done.unwrap_or_else(|_| Err(EngineError::Damaged("its parts do not fit together".to_owned())))
}

/// Whether nothing is there but files of ours. To open anything else may take forever, and to write beside somebody else's data would end badly.
fn check_names(path: &Path) -> Result<(), ServerError> {
    for entry in fs::read_dir(path).map_err(|error| unusable(path, error))? {
        let entry = entry.map_err(|error| unusable(path, error))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if ![DATABASE, UNFINISHED, LOG, LOCK, RESERVE, OF_THE_SYSTEM].contains(&&*name) {
            let whose = if name == "member" { "the data of an etcd" } else { "files of something else" };
            return Err(refused(
                path,
                &format!("has {whose} ({name}): name an empty folder, or one that is to be made"),
            ));
        }
        // A link is followed; one that leads nowhere is made a file.
        let is_other = fs::metadata(entry.path()).is_ok_and(|found| !found.is_file());
        if is_other && name != OF_THE_SYSTEM {
            return Err(refused(
                path,
                &format!(
                    "has something in it that is no plain file ({name}): remove it, or name another folder"
                ),
            ));
        }
    }
    Ok(())
}

fn in_use(path: &Path) -> ServerError {
    refused(path, "is used by another server: stop that one, or name another folder")
}

fn refused(path: &Path, problem: &str) -> ServerError {
    ServerError::DataDir { path: path.to_owned(), problem: problem.to_owned() }
}

fn unusable(path: &Path, source: io::Error) -> ServerError {
    ServerError::DataDirIo { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::sync::Arc;

    use super::super::change::Batch;
    use super::super::frame::PAGE;
    use super::super::ledger::Way;
    use super::*;

    /// A folder with a database in which nothing is.
    fn made(path: &Path) {
        let (folder, _) = Folder::open(path).unwrap();
        folder.create(IDS, &v3(7), &v2()).unwrap();
        folder.take_reserve();
    }

    const IDS: Ids = Ids { cluster: 1, member: 2 };

    fn v3(revision: i64) -> V3Batch {
        V3Batch { changes: Vec::new(), revision, compacted: 3 }
    }

    fn v2() -> V2Batch {
        V2Batch { changes: Vec::new(), index: 9, raft_index: 11 }
    }

    /// A folder whose server was killed when it had written so many batches, all but the first to the log.
    fn killed(path: &Path, batches: i64) {
        let (folder, _) = Folder::open(path).unwrap();
        let mut ledger = folder.create(IDS, &v3(7), &v2()).unwrap();
        ledger.begin_log(folder.make_log().unwrap());
        for number in 1..=batches {
            write(&mut ledger, 7 + number);
        }
        folder.take_reserve();
    }

    fn write(ledger: &mut Ledger, revision: i64) {
        let batch = Batch { v3: Some(v3(revision)), v2: None };
        ledger.write(&Arc::new(batch), Way::Log).unwrap();
    }

    fn opened(path: &Path) -> (Folder, Ledger, i64) {
        let (folder, opened) = Folder::open(path).unwrap();
        let Opened::Something(opened) = opened else { panic!("nothing is there") };
        let (ledger, loaded) = *opened;
        (folder, ledger, loaded.v3.revision)
    }

    fn refusal(path: &Path) -> String {
        Folder::open(path).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_plain_file_is_refused_and_not_opened() {
        for name in [LOCK, RESERVE, DATABASE, LOG, UNFINISHED] {
            let temporary = tempfile::tempdir().unwrap();
            let pipe = temporary.path().join(name);
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let said = refusal(temporary.path());
            assert!(said.contains("no plain file") && said.contains(name), "{said}");
        }
    }

    #[test]
    fn a_folder_that_is_removed_is_noticed_and_one_that_is_moved_goes_on() {
        let temporary = tempfile::tempdir().unwrap();
        let (path, moved) = (temporary.path().join("one"), temporary.path().join("two"));
        killed(&path, 1);
        let (folder, _ledger, _) = opened(&path);
        folder.check_there().unwrap();
        fs::rename(&path, &moved).unwrap();
        folder.check_there().unwrap();
        fs::remove_dir_all(&moved).unwrap();
        assert!(folder.check_there().unwrap_err().to_string().contains("removed"));
    }

    #[test]
    fn what_is_in_the_log_is_read_and_one_file_is_left_in_the_end() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        killed(path, 5);
        for revision in [12, 13] {
            let (_folder, mut ledger, found) = opened(path);
            assert_eq!(found, revision);
            write(&mut ledger, revision + 1);
        }
        let (folder, mut ledger, _) = opened(path);
        ledger.end_log().unwrap();
        drop(ledger);
        folder.remove_log();
        drop(folder);
        // As it was before there were logs.
        let copied = tempfile::tempdir().unwrap();
        fs::copy(path.join(DATABASE), copied.path().join(DATABASE)).unwrap();
        assert_eq!(opened(copied.path()).2, 14);
        assert!(!path.join(LOG).exists());
    }

    #[test]
    fn a_log_that_does_not_fit_is_refused() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [path, other] = folders.each_ref().map(tempfile::TempDir::path);
        killed(path, 5);
        killed(other, 5);
        let whole = fs::read(path.join(LOG)).unwrap();
        fs::copy(other.join(LOG), path.join(LOG)).unwrap();
        assert!(refusal(path).contains("rallypoint.log, is cut short or another's"), "{}", refusal(path));
        fs::remove_file(path.join(LOG)).unwrap();
        let refused = refusal(path);
        assert!(
            refused.contains("rallypoint.log, is not there") && refused.contains("put a copy"),
            "{refused}"
        );
        // The second of four records, each of a page.
        let mut damaged = whole.clone();
        damaged[2 * PAGE + 50] ^= 1;
        fs::write(path.join(LOG), damaged).unwrap();
        assert!(
            refusal(path).contains("batch 3 of its log, rallypoint.log, is damaged"),
            "{}",
            refusal(path)
        );
        // The engine's copy is older than the log.
        let mut gap = whole.clone();
        gap.copy_within(2 * PAGE.., PAGE);
        fs::write(path.join(LOG), gap).unwrap();
        assert!(refusal(path).contains("begins with batch 3, and batch 2 is nowhere"), "{}", refusal(path));
        fs::write(path.join(LOG), whole).unwrap();
        assert_eq!(opened(path).2, 12);
        // The database is gone, and the log is not the whole.
        fs::remove_file(path.join(DATABASE)).unwrap();
        assert!(refusal(path).contains("has served before"), "{}", refusal(path));
    }

    #[test]
    fn a_log_that_is_left_over_is_of_no_interest() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        made(path);
        fs::write(path.join(LOG), "cut short").unwrap();
        let (folder, mut ledger, _) = opened(path);
        assert!(!ledger.has_log());
        ledger.begin_log(folder.make_log().unwrap());
        write(&mut ledger, 8);
        drop((folder, ledger));
        assert_eq!(opened(path).2, 8);
    }

    #[test]
    fn whatever_is_damaged_is_refused_or_reads_as_it_was() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        made(path);
        let whole = fs::read(path.join(DATABASE)).unwrap();
        let (mut refused, mut read) = (0, 0);
        for at in (0..whole.len()).step_by(3001) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            fs::write(path.join(DATABASE), damaged).unwrap();
            match Folder::open(path) {
                Ok((_, Opened::Something(opened))) => {
                    assert_eq!((opened.1.v3.revision, opened.1.v2.index), (7, 9), "byte {at}");
                    read += 1;
                }
                Err(ServerError::DataDir { problem, .. }) => {
                    assert!(
                        problem.contains("remove it") || problem.contains("another version"),
                        "{problem}"
                    );
                    refused += 1;
                }
                other => panic!("byte {at}: {other:?}"),
            }
        }
        assert!(refused > 2 && read > 2, "{refused} refused, {read} read");
    }

    /// With what is damaged the engine goes back to an earlier commit, which may know nothing of the log.
    #[test]
    fn whatever_is_damaged_after_a_kill_is_refused_or_reads_as_it_was() {
        for (batches, is_first) in [(1, true), (5, true), (1, false), (5, false)] {
            let temporary = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let [path, copied] = temporary.each_ref().map(tempfile::TempDir::path);
            if !is_first {
                made(path);
            }
            let (folder, mut ledger) = if is_first {
                let (folder, _) = Folder::open(path).unwrap();
                let ledger = folder.create(IDS, &v3(7), &v2()).unwrap();
                (folder, ledger)
            } else {
                let (folder, ledger, _) = opened(path);
                (folder, ledger)
            };
            let before = fs::read(path.join(DATABASE)).unwrap();
            ledger.begin_log(folder.make_log().unwrap());
            for number in 1..=batches {
                write(&mut ledger, 7 + number);
            }
            // As a kill leaves it.
            let whole = fs::read(path.join(DATABASE)).unwrap();
            let log = fs::read(path.join(LOG)).unwrap();
            let is_new = |at: &usize| whole[*at] != 0 && before.get(*at) != Some(&whole[*at]);
            let used: Vec<usize> = (0..whole.len()).filter(is_new).collect();
            let (mut refused, mut read) = (0, 0);
            for at in used.iter().copied().step_by((used.len() / 50).max(1)) {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                fs::write(copied.join(DATABASE), damaged).unwrap();
                fs::write(copied.join(LOG), &log).unwrap();
                match Folder::open(copied) {
                    Ok((_, Opened::Something(opened))) => {
                        assert_eq!(opened.1.v3.revision, 7 + batches, "byte {at}");
                        read += 1;
                    }
                    Err(ServerError::DataDir { .. }) => refused += 1,
                    other => panic!("byte {at}: {other:?}"),
                }
            }
            assert!(refused + read > 20, "{refused} refused, {read} read");
        }
    }

    #[test]
    fn a_folder_whose_data_is_gone_does_not_begin_anew() {
        let temporary = tempfile::tempdir().unwrap();
        made(temporary.path());
        fs::remove_file(temporary.path().join(DATABASE)).unwrap();
        let refused = Folder::open(temporary.path()).unwrap_err().to_string();
        assert!(refused.contains("has served before") && refused.contains(DATABASE), "{refused}");
    }
}
