//! The folder that a launcher has while it runs, and those that earlier ones have left behind.
//!
//! A launcher holds a lock in its folder for as long as it lives. When all of its processes were killed at once, nobody
//! could remove the folder, and the next launcher of the same user finds it without a holder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FlockOperation, OFlags, access, flock};
use rustix::process::geteuid;

use crate::disk::{self, LOCK};

const PREFIX: &str = "rallypoint_";
/// The variables that name the temporary folder.
const NAMED: [&str; 3] = ["TMPDIR", "TEMP", "TMP"];

/// Where a folder can be that is in memory, and not on a disk.
const MEMORY: &str = "/dev/shm";
/// How often it is tried to make a folder that others take away.
const TRIES: usize = 8;

/// A folder that has an owner for as long as this is there.
#[derive(Debug)]
pub struct Held {
    _lock: File,
}

/// Where temporary folders go, as Python's `tempfile` and so torchrun choose it: the first of `TMPDIR`, `TEMP`, `TMP`,
/// `/tmp` and so on that can be written. None of them is made.
#[must_use]
pub fn base() -> PathBuf {
    let named = NAMED.iter().filter_map(|name| asked_for(name));
    let system = ["/tmp", "/var/tmp", "/usr/tmp"].map(PathBuf::from);
    let candidates: Vec<PathBuf> = named.chain(system).chain(std::env::current_dir()).collect();
    let first = candidates.first().cloned().unwrap_or_default();
    let usable =
        |folder: &Path| folder.is_dir() && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let found = disk::within(disk::PATIENCE, move || candidates.into_iter().find(|folder| usable(folder)));
    // Whoever needs it finds out.
    found.ok().flatten().unwrap_or(first)
}

/// What the environment names, if that is not where temporary folders go: the variable, and the folder.
#[must_use]
pub fn passed_over() -> Option<(&'static str, PathBuf)> {
    let (name, asked) = NAMED.iter().find_map(|name| Some((*name, asked_for(name)?)))?;
    (base() != asked).then_some((name, asked))
}

fn asked_for(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// A name in the system's temporary folder that nobody else has.
pub(crate) fn name() -> PathBuf {
    base().join(unique())
}

fn unique() -> String {
    format!("{PREFIX}{}_{:08x}", std::process::id(), fastrand::u32(..))
}

/// The place in memory for what is to be as quick as that, by the name of a launcher's folder. None where there is none, or
/// where the folder is there itself.
#[must_use]
pub fn in_memory(folder: &Path) -> Option<PathBuf> {
    let place = Path::new(MEMORY).join(folder.file_name()?);
    (place != folder && Path::new(MEMORY).is_dir()).then_some(place)
}

/// Makes the folder, and holds it.
pub fn hold(folder: &Path) -> io::Result<Held> {
    // Another launcher may look for folders without an owner just before this one is locked, and take it for one.
    let again = |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound);
    let mut held = hold_once(folder);
    for _ in 0..TRIES {
        if !held.as_ref().is_err_and(again) {
            break;
        }
        held = hold_once(folder);
    }
    held
}

fn hold_once(folder: &Path) -> io::Result<Held> {
    // It gets its name when it is locked, so that it is never seen without its owner. Until then it has one that no other
    // try has: who takes that one away is not done yet, perhaps.
    let new = folder.with_file_name(format!(".{}", unique()));
    fs::create_dir(&new)?;
    let held = lock_in(&new).and_then(|lock| {
        fs::rename(&new, folder)?;
        Ok(Held { _lock: lock })
    });
    if held.is_err() {
        // Not by a look into it: there may be no more files that can be opened.
        let _ = fs::remove_file(new.join(LOCK));
        let _ = fs::remove_dir(&new);
    }
    held
}

fn lock_in(folder: &Path) -> io::Result<File> {
    let lock = OpenOptions::new().create_new(true).write(true).open(folder.join(LOCK))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Removes the folders beside this one whose owners are gone. Those of other users, and what is no launcher's, stay.
pub fn sweep_beside(folder: &Path) {
    if let Some(parent) = folder.parent() {
        sweep(parent, geteuid().as_raw());
    }
}

fn sweep(parent: &Path, user: u32) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = |data: fs::Metadata| data.is_dir() && data.uid() == user;
        // One that was killed before its folder had its name has left the other.
        let name = entry.file_name().to_str().map(|name| name.strip_prefix('.').unwrap_or(name).to_owned());
        if name.is_some_and(|name| is_name(&name))
            && fs::symlink_metadata(&path).is_ok_and(ours)
            && let Some(_lock) = orphaned(&path)
        {
            // What cannot be removed stays; the next one tries again.
            disk::remove_here(&path);
        }
    }
}

/// The lock of a folder, if its owner is gone. One without a lock may be anybody's.
fn orphaned(folder: &Path) -> Option<File> {
    // Whatever it is, it is not waited for, nor followed.
    let careful = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = i32::try_from(careful.bits()).ok()?;
    let lock = OpenOptions::new().read(true).custom_flags(flags).open(folder.join(LOCK)).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok().map(|()| lock)
}

/// Whether a launcher could have called its folder so.
fn is_name(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
    parts.is_some_and(|(pid, number)| {
        !pid.is_empty()
            && pid.bytes().all(|byte| byte.is_ascii_digit())
            && number.len() == 8
            && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn names_are_known_from_others() {
        assert!(is_name(name().file_name().unwrap().to_str().unwrap()));
        for other in ["rallypoint_12", "rallypoint_logs_0123abcd", "rallypoint__0123abcd", "x_12_0123abcd"] {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn launchers_that_start_and_look_at_once_all_have_their_folders() {
        let parent = tempfile::tempdir().unwrap();
        let user = geteuid().as_raw();
        std::thread::scope(|scope| {
            for launcher in 0..4 {
                let parent = parent.path();
                scope.spawn(move || {
                    for run in 0..200 {
                        let folder = parent.join(format!("{PREFIX}{launcher}_{run:08x}"));
                        let held = hold(&folder).unwrap();
                        sweep(parent, user);
                        assert!(folder.join(LOCK).exists());
                        disk::remove_here(&folder);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn only_what_is_ours_and_has_no_owner_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let [held, left, unlocked, linked, other] =
            ["1_0000000a", "2_0000000b", "3_0000000c", "4_0000000d", "5_x"]
                .map(|name| parent.path().join(format!("{PREFIX}{name}")));
        let _held = hold(&held).unwrap();
        for folder in [&left, &other] {
            drop(hold(folder).unwrap());
        }
        let unnamed = parent.path().join(format!(".{PREFIX}6_0000000e"));
        drop(hold(&unnamed).unwrap());
        fs::create_dir(&unlocked).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        drop(hold(&target).unwrap());
        std::os::unix::fs::symlink(&target, &linked).unwrap();
        fs::write(left.join("error.json"), "{}").unwrap();
        let user = geteuid().as_raw();
        sweep(parent.path(), user + 1);
        assert!(left.exists(), "of another user");
        sweep(parent.path(), user);
        assert!(!left.exists() && !unnamed.exists());
        for stays in [&held, &unlocked, &linked, &other, &target] {
            assert!(stays.exists(), "{}", stays.display());
        }
        let inside = fs::read_dir(parent.path()).unwrap().count();
        assert_eq!(inside, 4, "nothing is left beside them");
    }
}
