//! The log's file: as long as it will ever be, and all of it written once, so that a sync writes what is new and nothing
//! about the file.

use std::io;

use redb::StorageBackend;
use uuid::Uuid;

use super::batch::{TooLong, read_batch, write_batch};
use super::change::Batch;
use super::engine::EngineError;
use super::frame::{self, PAGE};

/// What a log is made with, a multiple of a page. Of more, a start and the engine's turn would take longer, and the engine
/// must find room for all of it on a disk that somebody else has filled.
pub(super) const LOG_BYTES: usize = 2 << 20;

/// Batches that are on disk, and not yet in the engine.
#[derive(Debug)]
pub(crate) struct Log {
    file: Box<dyn StorageBackend>,
    id: Uuid,
    length: usize,
    /// Where the next record goes.
    at: usize,
}

/// Whether a batch is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Appended {
    OnDisk,
    NoRoom,
}

impl Log {
    /// Makes a new one. Nothing is in it, and it takes nothing before it [begins anew](Log::begin_anew), which is once the
    /// engine knows of it.
    pub(super) fn create(file: Box<dyn StorageBackend>, length: usize) -> io::Result<Self> {
        let id = Uuid::new_v4();
        let mut bytes = frame::first_page(id);
        bytes.resize(length, 0);
        file.set_len(length as u64)?;
        file.write(0, &bytes)?;
        file.sync_data()?;
        Ok(Log { file, id, length, at: length })
    }

    /// Opens the one that the engine knows of, which has so many batches; and reads those that come after.
    pub(super) fn open(
        file: Box<dyn StorageBackend>,
        id: Uuid,
        batches: u64,
    ) -> Result<(Self, Vec<Batch>), EngineError> {
        let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        file.read(0, &mut bytes)?;
        let tail = frame::follow(id, &bytes, batches)?;
        let found = tail.said.iter().map(|said| read_batch(said)).collect::<Result<_, _>>()?;
        // It may have been written by a process that was killed before it synced.
        file.sync_data()?;
        Ok((Log { file, id, length, at: tail.end }, found))
    }

    /// Looks at one that the engine knows nothing of, and which has so many batches: one that is left over has no later ones. If it
    /// has, the engine has lost what it knew.
    pub(super) fn is_of_the_past(file: &dyn StorageBackend, batches: u64) -> Result<(), EngineError> {
        let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        file.read(0, &mut bytes)?;
        Ok(frame::is_of_the_past(&bytes, batches)?)
    }

    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Writes a batch, if there is room for it. After an error nobody knows.
    pub(super) fn append(&mut self, number: u64, batch: &Batch) -> io::Result<Appended> {
        let room = self.length - self.at;
        let mut record = frame::begin();
        if let Err(TooLong) = write_batch(batch, &mut record, room) {
            return Ok(Appended::NoRoom);
        }
        frame::end(self.id, number, &mut record);
        self.file.write(self.at as u64, &record)?;
        self.file.sync_data()?;
        self.at += record.len();
        Ok(Appended::OnDisk)
    }

    /// Makes a record that was not written as a whole unreadable, if that can be done.
    pub(super) fn blot(&mut self) {
        let _ = self.file.write(self.at as u64, &[0; PAGE]);
    }

    /// The engine has all of it.
    pub(super) fn begin_anew(&mut self) {
        self.at = PAGE;
    }
}
