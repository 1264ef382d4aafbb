//! The tables on disk. Batches are one transaction of the engine, and on disk when that returns.

use std::io;

use redb::{
    Database, DatabaseError, Durability, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    StorageError, TableDefinition, TableError, WriteTransaction,
};
use thiserror::Error;
use uuid::Uuid;

use super::change::{Batch, Change, Ids, Loaded, LoadedV3, V2Batch, V3Batch};
use super::code::{self, Malformed};
use super::frame::LogError;
use crate::auth::Auth;
use crate::mvcc::RecordKey;
use crate::v2;

/// Raised when what is written changes its meaning.
const FORMAT: u64 = 1;
/// The format from the first user on: a version that knows of none would let everybody in.
const FORMAT_WITH_USERS: u64 = 2;
/// The format while a log has what is not here yet: a version that knows of none would lose that.
const FORMAT_WITH_LOG: u64 = 3;
/// All that is read comes from memory, so a cache is of use for what is written alone.
const CACHE_BYTES: usize = 16 << 20;

/// Versions of keys by their places.
const RECORDS: TableDefinition<'_, RecordKey, &[u8]> = TableDefinition::new("v3 records");
/// TTLs of leases by their ids. Which keys hang on them is in the records.
const LEASES: TableDefinition<'_, i64, i64> = TableDefinition::new("v3 leases");
/// Users and roles, by the names of their rows. There from the first on.
const AUTH: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("v3 auth");
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
/// The id of the log, while there is one.
const LOG: &str = "log";

/// What the engine, or what is on the disk, does not allow.
#[derive(Debug, Error)]
pub(crate) enum EngineError {
    #[error("another process has it open")]
    InUse,
    #[error("its format is {0}, and this version knows {FORMAT} to {FORMAT_WITH_LOG}")]
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
from_engine!(
    DatabaseError,
    StorageError,
    TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::SetDurabilityError
);

impl From<Malformed> for EngineError {
    fn from(malformed: Malformed) -> Self {
        EngineError::Damaged(malformed.to_string())
    }
}

impl From<LogError> for EngineError {
    fn from(error: LogError) -> Self {
        EngineError::Damaged(error.to_string())
    }
}

/// A database that is open.
#[derive(Debug)]
pub(super) struct Engine {
    database: Database,
    ids: Ids,
    batches: u64,
    kind: Kind,
}

/// What a version has to know to go on with a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    /// Whether there ever were any.
    users: bool,
    log: Option<Uuid>,
}

impl Kind {
    fn format(self) -> u64 {
        match self {
            Kind { log: Some(_), .. } => FORMAT_WITH_LOG,
            Kind { users: true, log: None } => FORMAT_WITH_USERS,
            Kind { users: false, log: None } => FORMAT,
        }
    }
}

impl Engine {
    pub(super) fn builder() -> redb::Builder {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        builder
    }

    /// Makes an empty database one of ours.
    pub(super) fn create(
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
        let kind = Kind { users: false, log: None };
        write_kind(&transaction, kind, ids)?;
        write_v3_numbers(&transaction, v3)?;
        write_v2_numbers(&transaction, v2)?;
        write_batches(&transaction, 0)?;
        transaction.commit()?;
        Ok(Engine { database, ids, batches: 0, kind })
    }

    /// Opens one of ours.
    pub(super) fn open(mut database: Database) -> Result<Self, EngineError> {
        // What was damaged since must not be taken for what was kept. All is read once more afterwards, and the system
        // has it at hand then.
        if !database.check_integrity()? {
            return Err(EngineError::Damaged("its checksums do not match".to_owned()));
        }
        let reading = database.begin_read()?;
        let numbers = Numbers::open(&reading)?;
        let identity = numbers.row(IDENTITY)?;
        let format = *identity.first_chunk().ok_or(Malformed)?;
        let format = u64::from_le_bytes(format);
        if !(FORMAT..=FORMAT_WITH_LOG).contains(&format) {
            return Err(EngineError::Format(format));
        }
        let [_, cluster, member] = code::read_numbers(&identity)?;
        let log = (format == FORMAT_WITH_LOG).then(|| numbers.row(LOG)).transpose()?;
        let log = log.map(|log| Uuid::from_slice(&log).map_err(|_| Malformed)).transpose()?;
        let [batches] = code::read_numbers(&numbers.row(BATCHES)?)?;
        let users = match reading.open_table(AUTH) {
            Ok(_) => true,
            Err(TableError::TableDoesNotExist(_)) if format != FORMAT_WITH_USERS => false,
            Err(error) => return Err(error.into()),
        };
        drop((numbers, reading));
        let ids = Ids { cluster, member };
        Ok(Engine { database, ids, batches, kind: Kind { users, log } })
    }

    /// Reads all of it.
    pub(super) fn load(&self) -> Result<Loaded, EngineError> {
        let reading = self.database.begin_read()?;
        let numbers = Numbers::open(&reading)?;
        let [revision, compacted] = code::read_numbers(&numbers.row(V3)?)?;
        let [index, raft_index] = code::read_numbers(&numbers.row(V2)?)?;

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
        let mut auth = Vec::new();
        if self.kind.users {
            for entry in reading.open_table(AUTH)?.iter()? {
                let (name, value) = entry?;
                auth.push((name.value().to_owned(), value.value().to_vec()));
            }
        }
        let auth = Auth::restored(auth).map_err(|error| EngineError::Damaged(error.to_string()))?;
        let mut nodes = Vec::new();
        for entry in reading.open_table(NODES)?.iter()? {
            let (path, node) = entry?;
            nodes.push((v2::Path::clean(path.value()), code::read_node(node.value())?));
        }
        let (revision, compacted) = (revision.cast_signed(), compacted.cast_signed());
        let v3 = LoadedV3 { revision, compacted, records, leases, auth };
        let v2 = v2::Kept { index, raft_index, nodes };
        Ok(Loaded { ids: self.ids, batches: self.batches, v3, v2 })
    }

    /// How many batches are in it, of all that there ever were.
    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    /// The log that has what is not here yet.
    pub(super) fn log(&self) -> Option<Uuid> {
        self.kind.log
    }

    /// Writes batches, and which log has those that come next. On return they are on disk, and so is all that was
    /// [looked at](Engine::look_at). After an error nobody knows, and the database must be opened anew.
    pub(super) fn write(&mut self, batches: &[&Batch], log: Option<Uuid>) -> Result<(), EngineError> {
        self.commit(batches, log, Durability::Immediate)
    }

    /// Takes batches in from the log, which has them on disk. Nothing has to be written for that, so there may be no room.
    pub(super) fn look_at(&mut self, batches: &[&Batch]) -> Result<(), EngineError> {
        self.commit(batches, self.kind.log, Durability::None)
    }

    fn commit(
        &mut self,
        batches: &[&Batch],
        log: Option<Uuid>,
        durability: Durability,
    ) -> Result<(), EngineError> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(durability)?;
        let mut kind = Kind { log, ..self.kind };
        for Batch { v3, v2 } in batches {
            if let Some(v3) = v3 {
                write_v3(&transaction, v3)?;
                kind.users |= write_auth(&transaction, v3)?;
            }
            if let Some(v2) = v2 {
                write_v2(&transaction, v2)?;
            }
        }
        if kind != self.kind {
            write_kind(&transaction, kind, self.ids)?;
        }
        let count = self.batches + batches.len() as u64;
        write_batches(&transaction, count)?;
        if let Some(v3) = batches.iter().rev().find_map(|batch| batch.v3.as_ref()) {
            write_v3_numbers(&transaction, v3)?;
        }
        if let Some(v2) = batches.iter().rev().find_map(|batch| batch.v2.as_ref()) {
            write_v2_numbers(&transaction, v2)?;
        }
        transaction.commit()?;
        (self.batches, self.kind) = (count, kind);
        Ok(())
    }
}

/// The table of numbers, as it is read.
struct Numbers(redb::ReadOnlyTable<&'static str, &'static [u8]>);

impl Numbers {
    fn open(reading: &ReadTransaction) -> Result<Self, EngineError> {
        let numbers = reading.open_table(NUMBERS).map_err(|error| match error {
            TableError::Storage(error) => error.into(),
            _ => EngineError::Damaged("it was not written by this program".to_owned()),
        });
        numbers.map(Numbers)
    }

    fn row(&self, name: &str) -> Result<Vec<u8>, EngineError> {
        let row = self.0.get(name)?;
        let row = row.ok_or_else(|| EngineError::Damaged(format!("its row {name:?} is missing")))?;
        Ok(row.value().to_vec())
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
            Change::Records(many) => {
                for record in many {
                    code::write_record(record, &mut buffer);
                    records.insert(record.at(), &buffer[..])?;
                }
            }
            // It has a table of its own.
            Change::Auth { .. } => {}
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

/// Users and roles change seldom. Whether they do here.
fn write_auth(transaction: &WriteTransaction, batch: &V3Batch) -> Result<bool, EngineError> {
    let rows = batch.changes.iter().filter_map(|change| match change {
        Change::Auth { name, value } => Some((name.as_str(), value.as_deref())),
        _ => None,
    });
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(false);
    }
    let mut table = transaction.open_table(AUTH)?;
    for (name, value) in rows {
        match value {
            Some(value) => table.insert(name, value)?,
            None => table.remove(name)?,
        };
    }
    Ok(true)
}

fn write_kind(transaction: &WriteTransaction, kind: Kind, ids: Ids) -> Result<(), EngineError> {
    let row = code::write_numbers([kind.format(), ids.cluster, ids.member]);
    let mut numbers = transaction.open_table(NUMBERS)?;
    numbers.insert(IDENTITY, &row[..])?;
    match &kind.log {
        Some(log) => numbers.insert(LOG, &log.as_bytes()[..])?,
        None => numbers.remove(LOG)?,
    };
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

fn write_batches(transaction: &WriteTransaction, batches: u64) -> Result<(), EngineError> {
    transaction.open_table(NUMBERS)?.insert(BATCHES, &code::write_numbers([batches])[..])?;
    Ok(())
}

fn write_v3_numbers(transaction: &WriteTransaction, batch: &V3Batch) -> Result<(), EngineError> {
    let row = code::write_numbers([batch.revision.cast_unsigned(), batch.compacted.cast_unsigned()]);
    transaction.open_table(NUMBERS)?.insert(V3, &row[..])?;
    Ok(())
}

fn write_v2_numbers(transaction: &WriteTransaction, batch: &V2Batch) -> Result<(), EngineError> {
    let row = code::write_numbers([batch.index, batch.raft_index]);
    transaction.open_table(NUMBERS)?.insert(V2, &row[..])?;
    Ok(())
}
