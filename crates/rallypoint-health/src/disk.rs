//! Whether folders take files.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

/// As many files, at least, that there must be room for.
const LEAST_FILES: u64 = 1_000;

pub(crate) fn look(folders: &[PathBuf], least: u64) -> Result<(), String> {
    folders.iter().try_for_each(|folder| one(folder, least))
}

fn one(folder: &Path, least: u64) -> Result<(), String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
    let about = statvfs(folder).map_err(|error| named(&error))?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    if free < least {
        return Err(named(&format!("{} are free, and {} are wanted", human(free), human(least))));
    }
    // A file system that has no such limit says that it has none at all.
    if about.f_files > 0 && about.f_favail < LEAST_FILES {
        return Err(named(&format!("there is room for {} files more", about.f_favail)));
    }
    // One that has become read-only for an error still says how much room it has.
    let probe =
        folder.join(format!(".rallypoint-health-{}-{:?}", std::process::id(), std::thread::current().id()));
    let written = File::create_new(&probe).and_then(|mut file| {
        file.write_all(&[0; 4096])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    written.and(removed).map_err(|error| format!("a file cannot be written to {}: {error}", folder.display()))
}

fn human(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            format!("{:.1} {unit}", bytes as f64 / f64::from(1_u32 << (shift - 10)) / 1024.0)
        }
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_folder_must_be_there_take_files_and_have_room() {
        let folder = tempfile::tempdir().unwrap();
        look(&[folder.path().to_owned()], 1).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        let full = look(&[folder.path().to_owned()], u64::MAX).unwrap_err();
        assert!(full.contains("are free, and 16777216.0 TiB are wanted"), "{full}");
        let none = look(&[folder.path().join("none")], 1).unwrap_err();
        assert!(none.contains("none: No such file"), "{none}");
        // No file system takes files there, whoever asks.
        let refused = look(&["/proc".into()], 0).unwrap_err();
        assert!(refused.contains("a file cannot be written to /proc"), "{refused}");
    }

    #[test]
    fn sizes_are_written_as_people_read_them() {
        assert_eq!([512, 1536, 3 << 30].map(human), ["512 bytes", "1.5 KiB", "3.0 GiB"]);
    }
}
