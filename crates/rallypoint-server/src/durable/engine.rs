//! The tables on disk. A batch is one transaction of the engine, and on disk when that returns.

use std::io;

use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, StorageError, TableDefinition,
    TableError, WriteTransaction,
};
use thiserror::Error;

use super::change::{Batch, Change, Ids, Loaded, LoadedV3, V2Batch, V3Batch};
use super::code::{self, Malformed};
use crate::mvcc::RecordKey;
use crate::v2;

/// Raised when what is written changes its meaning.
const FORMAT: u64 = 1;
/// All that is read comes from memory, so a cache is of use for what is written alone.
const CACHE_BYTES: usize = 16 << 20;

/// Versions of keys by their places.
const RECORDS: TableDefinition<'_, RecordKey, &[u8]> = TableDefinition::new("v3 records");
/// TTLs of leases by their ids. Which keys hang on them is in the records.
const LEASES: TableDefinition<'_, i64, i64> = TableDefinition::new("v3 leases");
/// Nodes by their paths.
const NODES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("v2 nodes");
const NUMBERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("numbers");
/// The format, the id of the cluster and that of the member.
const IDENTITY: &str = "identity";
/// The revision and the compaction.
const V3: &str = "v3";
/// The index and the one of raft.
const V2: &str = "v2";
const BATCHES: &str = "batches";

/// What the engine, or what is on the disk, does not allow.
#[derive(Debug, Error)]
pub(crate) enum EngineError {
    #[error("another process has it open")]
    InUse,
    #[error("its format is {0}, and this version knows {FORMAT}")]
    Format(u64),
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl EngineError {
    /// Whether there is no room on the disk, or not for this user.
    pub(crate) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, EngineError::Io(error) if matches!(error.kind(), StorageFull | QuotaExceeded))
    }
}

impl From<redb::Error> for EngineError {
    fn from(error: redb::Error) -> Self {
        match error {
            // What it says of a file that is none of its own, or empty.
            redb::Error::Io(error) if error.raw_os_error().is_none() => {
                EngineError::Damaged(error.to_string())
            }
            redb::Error::Io(error) => EngineError::Io(error),
            redb::Error::DatabaseAlreadyOpen => EngineError::InUse,
            other => EngineError::Damaged(other.to_string()),
        }
    }
}

macro_rules! from_engine {
    ($($error:ty),*) => {$(
        impl From<$error> for EngineError {
            fn from(error: $error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}
from_engine!(DatabaseError, StorageError, TableError, redb::TransactionError, redb::CommitError);

impl From<Malformed> for EngineError {
    fn from(malformed: Malformed) -> Self {
        EngineError::Damaged(malformed.to_string())
    }
}

/// A database that is open.
#[derive(Debug)]
pub(crate) struct Engine {
    database: Database,
    batches: u64,
}

impl Engine {
    pub(crate) fn builder() -> redb::Builder {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        builder
    }

    /// Makes an empty database one of ours.
    pub(crate) fn create(
        database: Database,
        ids: Ids,
        v3: &V3Batch,
        v2: &V2Batch,
    ) -> Result<Self, EngineError> {
        let transaction = database.begin_write()?;
        // All tables are there from the start.
        transaction.open_table(RECORDS)?;
        transaction.open_table(LEASES)?;
        transaction.open_table(NODES)?;
        transaction
            .open_table(NUMBERS)?
            .insert(IDENTITY, &code::write_numbers([FORMAT, ids.cluster, ids.member])[..])?;
        write_numbers(&transaction, 0, Some(v3), Some(v2))?;
        transaction.commit()?;
        Ok(Engine { database, batches: 0 })
    }

    /// Reads one of ours, all of it.
    pub(crate) fn load(mut database: Database) -> Result<(Self, Loaded), EngineError> {
        // What was damaged since must not be taken for what was kept. All is read once more below, and the system has
        // it at hand then.
        if !database.check_integrity()? {
            return Err(EngineError::Damaged("its checksums do not match".to_owned()));
        }
        let reading = database.begin_read()?;
        let numbers = reading.open_table(NUMBERS).map_err(|error| match error {
            TableError::Storage(error) => error.into(),
            _ => EngineError::Damaged("it was not written by this program".to_owned()),
        })?;
        let row = |name: &str| {
            let row = numbers.get(name)?;
            row.ok_or_else(|| EngineError::Damaged(format!("its row {name:?} is missing")))
        };
        let identity = row(IDENTITY)?;
        let format = *identity.value().first_chunk().ok_or(Malformed)?;
        if u64::from_le_bytes(format) != FORMAT {
            return Err(EngineError::Format(u64::from_le_bytes(format)));
        }
        let [_, cluster, member] = code::read_numbers(identity.value())?;
        let [batches] = code::read_numbers(row(BATCHES)?.value())?;
        let [revision, compacted] = code::read_numbers(row(V3)?.value())?;
        let [index, raft_index] = code::read_numbers(row(V2)?.value())?;

        let mut records = Vec::new();
        for entry in reading.open_table(RECORDS)?.iter()? {
            let (place, record) = entry?;
            records.push(code::read_record(place.value(), record.value())?);
        }
        let mut leases = Vec::new();
        for entry in reading.open_table(LEASES)?.iter()? {
            let (id, ttl) = entry?;
            leases.push((id.value(), ttl.value()));
        }
        let mut nodes = Vec::new();
        for entry in reading.open_table(NODES)?.iter()? {
            let (path, node) = entry?;
            nodes.push((v2::Path::clean(path.value()), code::read_node(node.value())?));
        }
        drop((numbers, reading));
        let (revision, compacted) = (revision.cast_signed(), compacted.cast_signed());
        let v3 = LoadedV3 { revision, compacted, records, leases };
        let v2 = v2::Kept { index, raft_index, nodes };
        let loaded = Loaded { ids: Ids { cluster, member }, batches, v3, v2 };
        Ok((Engine { database, batches }, loaded))
    }

    /// How many batches were written, ever.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    /// Writes a batch. On return it is on disk. After an error nobody knows, and the database must be loaded anew.
    pub(crate) fn write(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let transaction = self.database.begin_write()?;
        let Batch { v3, v2 } = batch;
        if let Some(v3) = v3 {
            write_v3(&transaction, v3)?;
        }
        if let Some(v2) = v2 {
            write_v2(&transaction, v2)?;
        }
        write_numbers(&transaction, self.batches + 1, v3.as_ref(), v2.as_ref())?;
        transaction.commit()?;
        self.batches += 1;
        Ok(())
    }
}

fn write_v3(transaction: &WriteTransaction, batch: &V3Batch) -> Result<(), EngineError> {
    let mut records = transaction.open_table(RECORDS)?;
    let mut leases = None;
    let mut buffer = Vec::new();
    for change in &batch.changes {
        match change {
            Change::Record(record) => {
                code::write_record(record, &mut buffer);
                records.insert(record.at(), &buffer[..])?;
            }
            Change::Forgotten(places) => {
                for place in places {
                    records.remove(place)?;
                }
            }
            Change::Granted { .. } | Change::Revoked { .. } => {
                let leases = match &mut leases {
                    Some(leases) => leases,
                    None => leases.insert(transaction.open_table(LEASES)?),
                };
                match change {
                    Change::Granted { id, ttl } => leases.insert(id, ttl)?,
                    Change::Revoked { id } => leases.remove(id)?,
                    _ => None,
                };
            }
        }
    }
    Ok(())
}

fn write_v2(transaction: &WriteTransaction, batch: &V2Batch) -> Result<(), EngineError> {
    let mut nodes = transaction.open_table(NODES)?;
    let mut buffer = Vec::new();
    for change in &batch.changes {
        match change {
            v2::Change::Put(path, node) => {
                code::write_node(node, &mut buffer);
                nodes.insert(path.as_bytes(), &buffer[..])?;
            }
            v2::Change::Removed(path) => {
                nodes.remove(path.as_bytes())?;
                // All below it, up to the character after the slash.
                let (below, end) = ([path.as_bytes(), b"/"].concat(), [path.as_bytes(), b"0"].concat());
                nodes.retain_in(&below[..]..&end[..], |_, _| false)?;
            }
            v2::Change::Counted => {}
        }
    }
    Ok(())
}

fn write_numbers(
    transaction: &WriteTransaction,
    batches: u64,
    v3: Option<&V3Batch>,
    v2: Option<&V2Batch>,
) -> Result<(), EngineError> {
    let mut numbers = transaction.open_table(NUMBERS)?;
    numbers.insert(BATCHES, &code::write_numbers([batches])[..])?;
    if let Some(V3Batch { revision, compacted, .. }) = v3 {
        let row = code::write_numbers([revision.cast_unsigned(), compacted.cast_unsigned()]);
        numbers.insert(V3, &row[..])?;
    }
    if let Some(V2Batch { index, raft_index, .. }) = v2 {
        numbers.insert(V2, &code::write_numbers([*index, *raft_index])[..])?;
    }
    Ok(())
}
