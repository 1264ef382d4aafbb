//! The engine and the log before it.
//!
//! A batch is on disk once it is in either: in the log as one write and one sync, in the engine as many pages. The engine
//! takes in what the log has all at once, when the log has no room for more, or is asked for it. Every batch has a number,
//! and the engine counts those that it has; so a start knows which of the log's come after.

use std::io;
use std::sync::Arc;

use redb::{Database, StorageBackend};

use super::change::{Batch, Ids, Loaded, V2Batch, V3Batch};
use super::engine::{Engine, EngineError};
use super::frame::LogError;
use super::log::{Appended, Log};

/// Where a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the log, if there is one with room for it.
    Log,
    /// To the engine, with all that the log has.
    Engine,
}

/// What is on disk, for whoever adds to it.
#[derive(Debug)]
pub(crate) struct Ledger {
    engine: Engine,
    log: Option<Log>,
    /// What is in the log, and the engine has not seen.
    logged: Vec<Arc<Batch>>,
}

impl Ledger {
    /// Makes an empty database one of ours, without a log.
    pub(crate) fn create(
        database: Database,
        ids: Ids,
        v3: &V3Batch,
        v2: &V2Batch,
    ) -> Result<Self, EngineError> {
        let engine = Engine::create(database, ids, v3, v2)?;
        Ok(Ledger { engine, log: None, logged: Vec::new() })
    }

    /// Opens one of ours, and its log if it has one. Reads all of it.
    pub(crate) fn open(
        database: Database,
        log: impl FnOnce() -> io::Result<Box<dyn StorageBackend>>,
    ) -> Result<(Self, Loaded), EngineError> {
        let mut engine = Engine::open(database)?;
        let log = match engine.log() {
            None => {
                match log() {
                    Ok(file) => Log::is_of_the_past(&*file, engine.batches())?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
                None
            }
            Some(id) => {
                let file = log().map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => LogError::Missing.into(),
                    _ => EngineError::Io(error),
                })?;
                let (log, found) = Log::open(file, id, engine.batches())?;
                if !found.is_empty() {
                    engine.look_at(&found.iter().collect::<Vec<_>>())?;
                }
                Some(log)
            }
        };
        let loaded = engine.load()?;
        Ok((Ledger { engine, log, logged: Vec::new() }, loaded))
    }

    /// How many batches were written, ever.
    pub(crate) fn batches(&self) -> u64 {
        self.engine.batches() + self.logged.len() as u64
    }

    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Has a new log. It is used from the next batch on, with which the engine hears of it.
    pub(crate) fn begin_log(&mut self, log: Log) {
        self.log = Some(log);
    }

    /// Writes a batch. On return it is on disk. After an error nobody knows, and all must be opened anew.
    pub(crate) fn write(&mut self, batch: &Arc<Batch>, way: Way) -> Result<(), EngineError> {
        let number = self.batches() + 1;
        if let (Way::Log, Some(log)) = (way, &mut self.log) {
            match log.append(number, batch).map_err(EngineError::Io) {
                Ok(Appended::OnDisk) => {
                    self.logged.push(Arc::clone(batch));
                    return Ok(());
                }
                Ok(Appended::NoRoom) => {}
                // Some file systems need room to write what is there already. It goes on without.
                Err(error) if error.is_full() => {
                    log.blot();
                    self.log = None;
                }
                Err(error) => return Err(error),
            }
        }
        self.settle(Some(batch))
    }

    /// Brings all to the engine, which needs no log then.
    pub(crate) fn end_log(&mut self) -> Result<(), EngineError> {
        self.log = None;
        if self.engine.log().is_some() { self.settle(None) } else { Ok(()) }
    }

    /// Brings what is logged to the engine, and one more batch.
    fn settle(&mut self, batch: Option<&Arc<Batch>>) -> Result<(), EngineError> {
        let batches: Vec<&Batch> = self.logged.iter().chain(batch).map(|batch| &**batch).collect();
        let (before, now) = (self.engine.log(), self.log.as_ref().map(Log::id));
        self.engine.write(&batches, now)?;
        if before.is_none() && now.is_some() {
            // Where its last commit is damaged, the engine goes back to the one before. That must know of the log too.
            self.engine.write(&[], now)?;
        }
        self.logged.clear();
        if let Some(log) = &mut self.log {
            log.begin_anew();
        }
        Ok(())
    }
}
