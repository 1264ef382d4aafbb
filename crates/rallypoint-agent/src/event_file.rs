//! The events of a node as lines of JSON in a file.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use rallypoint_core::round::EventRecord;
use rallypoint_core::timeline::Event;
use serde::Serialize;

use crate::disk;
use crate::events::{Events, WorkerEvent};
use crate::log_file::LogFile;

/// A file that events are added to. A disk that hangs holds nobody up: what it does not take in time is lost.
#[derive(Debug)]
pub struct EventFile {
    run_id: String,
    file: LogFile,
}

#[derive(Serialize)]
struct Line<'a> {
    run_id: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

impl EventFile {
    /// Opens the file, or makes it and the folders it is in.
    pub fn open(path: &Path, run_id: &str) -> io::Result<Self> {
        if let Ok(about) = std::fs::metadata(path)
            && let Some(kind) = disk::no_file(&about)
        {
            return Err(io::Error::other(format!("it is {kind}")));
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = File::options().append(true).create(true).open(path)?;
        if is_torn(path) {
            file.write_all(b"\n")?;
        }
        Ok(EventFile { run_id: run_id.to_owned(), file: LogFile::start(path, file, "what happens")? })
    }
}

/// Whether the last line has no end: a disk that was full may have taken half of it.
fn is_torn(path: &Path) -> bool {
    let last = || -> io::Result<[u8; 1]> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last).map(|()| last)
    };
    last().is_ok_and(|last| last != *b"\n")
}

impl Events for EventFile {
    fn worker(&self, _: &WorkerEvent) {}

    fn event(&self, event: &EventRecord) {
        let event = Event { revision: 0, record: event.clone() };
        if let Ok(line) = serde_json::to_string(&Line { run_id: &self.run_id, event: &event }) {
            self.file.write_if_room(format!("{line}\n").as_bytes());
        }
    }

    fn flush(&self) {
        self.file.finish(disk::PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_core::round::What;

    use super::*;

    #[test]
    fn a_line_that_was_torn_takes_no_other_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/a.jsonl");
        let write = || {
            let file = EventFile::open(&path, "job").unwrap();
            file.event(&EventRecord::new(1, "a", 1, What::Working));
            file.flush();
        };
        write();
        let mut text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..10]).unwrap();
        write();
        text = format!("{}\n{text}", &text[..10]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        write();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }
}
