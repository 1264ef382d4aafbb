//! The events of a node as lines of JSON in a file.

use std::fs::File;
use std::io;
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
        let file = File::options().append(true).create(true).open(path)?;
        Ok(EventFile { run_id: run_id.to_owned(), file: LogFile::start(path, file, "what happens")? })
    }
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
