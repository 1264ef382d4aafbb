//! A batch as bytes, for the log: each half that has changed with its numbers and its changes, in their order.

use std::sync::Arc;

use super::change::{Batch, Change, V2Batch, V3Batch};
use super::code::{self, Malformed};
use crate::mvcc::{Record, RecordKey};
use crate::v2;

const RECORD: u8 = 0;
const GRANTED: u8 = 1;
const REVOKED: u8 = 2;
const AUTH_SET: u8 = 3;
const AUTH_GONE: u8 = 4;
const FORGOTTEN: u8 = 5;
/// Ends the changes of a half.
const END: u8 = u8::MAX;

const PUT: u8 = 0;
const REMOVED: u8 = 1;
const COUNTED: u8 = 2;

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

/// It does not fit in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

/// Appends a batch to what is there already. Given up as soon as all of it is longer than the limit.
pub(super) fn write_batch(batch: &Batch, out: &mut Vec<u8>, limit: usize) -> Result<(), TooLong> {
    let mut writing = Writing { out, entry: Vec::new(), limit };
    match &batch.v3 {
        None => writing.tag(ABSENT),
        Some(v3) => writing.v3(v3)?,
    }
    match &batch.v2 {
        None => writing.tag(ABSENT),
        Some(v2) => writing.v2(v2)?,
    }
    writing.check()
}

struct Writing<'a> {
    out: &'a mut Vec<u8>,
    /// An entry whose length comes first.
    entry: Vec<u8>,
    limit: usize,
}

impl Writing<'_> {
    fn v3(&mut self, batch: &V3Batch) -> Result<(), TooLong> {
        self.tag(PRESENT);
        self.number(batch.revision.cast_unsigned());
        self.number(batch.compacted.cast_unsigned());
        for change in &batch.changes {
            match change {
                Change::Record(record) => self.record(record),
                Change::Records(many) => {
                    for record in many {
                        self.record(record);
                        self.check()?;
                    }
                }
                Change::Granted { id, ttl } => {
                    self.tag(GRANTED);
                    self.number(id.cast_unsigned());
                    self.number(ttl.cast_unsigned());
                }
                Change::Revoked { id } => {
                    self.tag(REVOKED);
                    self.number(id.cast_unsigned());
                }
                Change::Auth { name, value } => {
                    self.tag(if value.is_some() { AUTH_SET } else { AUTH_GONE });
                    self.bytes(name.as_bytes());
                    if let Some(value) = value {
                        self.bytes(value);
                    }
                }
                Change::Forgotten(places) => {
                    for place in places {
                        self.tag(FORGOTTEN);
                        self.place(*place);
                        self.check()?;
                    }
                }
            }
            self.check()?;
        }
        self.tag(END);
        Ok(())
    }

    fn v2(&mut self, batch: &V2Batch) -> Result<(), TooLong> {
        self.tag(PRESENT);
        self.number(batch.index);
        self.number(batch.raft_index);
        for change in &batch.changes {
            match change {
                v2::Change::Put(path, node) => {
                    self.tag(PUT);
                    self.bytes(path.as_bytes());
                    code::write_node(node, &mut self.entry);
                    self.take_entry();
                }
                v2::Change::Removed(path) => {
                    self.tag(REMOVED);
                    self.bytes(path.as_bytes());
                }
                v2::Change::Counted => self.tag(COUNTED),
            }
            self.check()?;
        }
        self.tag(END);
        Ok(())
    }

    fn record(&mut self, record: &Record) {
        self.tag(RECORD);
        self.place(record.at());
        code::write_record(record, &mut self.entry);
        self.take_entry();
    }

    fn place(&mut self, (revision, place): RecordKey) {
        self.number(revision.cast_unsigned());
        self.out.extend_from_slice(&place.to_le_bytes());
    }

    fn take_entry(&mut self) {
        let entry = std::mem::take(&mut self.entry);
        self.bytes(&entry);
        self.entry = entry;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        // What is longer than the limit is never read.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&length.to_le_bytes());
        self.out.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn tag(&mut self, tag: u8) {
        self.out.push(tag);
    }

    fn check(&self) -> Result<(), TooLong> {
        if self.out.len() > self.limit { Err(TooLong) } else { Ok(()) }
    }
}

pub(super) fn read_batch(bytes: &[u8]) -> Result<Batch, Malformed> {
    let mut reading = Reading(bytes);
    let v3 = reading.is_present()?.then(|| reading.v3()).transpose()?;
    let v2 = reading.is_present()?.then(|| reading.v2()).transpose()?;
    if reading.0.is_empty() { Ok(Batch { v3, v2 }) } else { Err(Malformed) }
}

struct Reading<'a>(&'a [u8]);

impl<'a> Reading<'a> {
    fn is_present(&mut self) -> Result<bool, Malformed> {
        match self.tag()? {
            ABSENT => Ok(false),
            PRESENT => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn v3(&mut self) -> Result<V3Batch, Malformed> {
        let (revision, compacted) = (self.signed()?, self.signed()?);
        let mut changes = Vec::new();
        loop {
            changes.push(match self.tag()? {
                RECORD => {
                    let place = self.place()?;
                    Change::Record(Arc::new(code::read_record(place, self.bytes()?)?))
                }
                GRANTED => Change::Granted { id: self.signed()?, ttl: self.signed()? },
                REVOKED => Change::Revoked { id: self.signed()? },
                tag @ (AUTH_SET | AUTH_GONE) => {
                    let name = String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)?;
                    let value = (tag == AUTH_SET).then(|| self.bytes().map(<[u8]>::to_vec)).transpose()?;
                    Change::Auth { name, value }
                }
                FORGOTTEN => Change::Forgotten(vec![self.place()?]),
                END => return Ok(V3Batch { changes, revision, compacted }),
                _ => return Err(Malformed),
            });
        }
    }

    fn v2(&mut self) -> Result<V2Batch, Malformed> {
        let (index, raft_index) = (self.number()?, self.number()?);
        let mut changes = Vec::new();
        loop {
            changes.push(match self.tag()? {
                PUT => {
                    let path = v2::Path::clean(self.bytes()?);
                    v2::Change::Put(path, code::read_node(self.bytes()?)?)
                }
                REMOVED => v2::Change::Removed(v2::Path::clean(self.bytes()?)),
                COUNTED => v2::Change::Counted,
                END => return Ok(V2Batch { changes, index, raft_index }),
                _ => return Err(Malformed),
            });
        }
    }

    fn place(&mut self) -> Result<RecordKey, Malformed> {
        Ok((self.signed()?, u32::from_le_bytes(code::take(&mut self.0)?)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = u32::from_le_bytes(code::take(&mut self.0)?) as usize;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn signed(&mut self) -> Result<i64, Malformed> {
        Ok(self.number()?.cast_signed())
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(code::take(&mut self.0)?))
    }

    fn tag(&mut self) -> Result<u8, Malformed> {
        let [tag] = code::take(&mut self.0)?;
        Ok(tag)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::v2::{Content, Node, Time};

    fn record(revision: i64, value: &str) -> Arc<Record> {
        Arc::new(Record {
            key: Bytes::from("k"),
            value: Bytes::copy_from_slice(value.as_bytes()),
            create_revision: 2,
            mod_revision: revision,
            version: 7,
            lease: -5,
            place: 3,
        })
    }

    fn every_change() -> Batch {
        let end = Time::since_epoch(Duration::from_secs(9));
        let file = Node { created: 1, modified: 2, expires: Some(end), content: Content::File("v".into()) };
        let directory = Node { created: 1, modified: 2, expires: None, content: Content::empty_dir() };
        let v3 = V3Batch {
            changes: vec![
                Change::Record(record(5, "value")),
                Change::Records(vec![record(6, ""), record(7, "v")]),
                Change::Granted { id: -1, ttl: 60 },
                Change::Revoked { id: i64::MAX },
                Change::Auth { name: "user".to_owned(), value: Some(b"hash".to_vec()) },
                Change::Auth { name: "role".to_owned(), value: None },
                Change::Forgotten(vec![(4, 0), (5, u32::MAX)]),
            ],
            revision: 7,
            compacted: -1,
        };
        let path = |path: &str| v2::Path::clean(path.as_bytes());
        let v2 = V2Batch {
            changes: vec![
                v2::Change::Put(path("/d"), directory),
                v2::Change::Put(path("/d/f"), file),
                v2::Change::Removed(path("/e")),
                v2::Change::Counted,
            ],
            index: 9,
            raft_index: u64::MAX,
        };
        Batch { v3: Some(v3), v2: Some(v2) }
    }

    fn written(batch: &Batch) -> Vec<u8> {
        let mut out = Vec::new();
        write_batch(batch, &mut out, usize::MAX).unwrap();
        out
    }

    #[test]
    fn what_was_written_is_read_and_what_is_cut_is_not() {
        let batch = every_change();
        let out = written(&batch);
        let read = read_batch(&out).unwrap();
        // Many in one become many.
        assert_eq!(read.v3.as_ref().unwrap().changes.len(), 9);
        let told = format!("{read:?}");
        for part in [
            "Granted { id: -1, ttl: 60 }",
            "Revoked",
            "\"role\", value: None",
            "Forgotten([(5, 4294967295)])",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(format!("{:?}", read.v2), format!("{:?}", batch.v2));
        assert_eq!(written(&read), out);
        assert!((0..out.len()).all(|end| read_batch(&out[..end]).is_err()));
        assert!(read_batch(&[&out[..], &[0]].concat()).is_err());
        for half in [Batch { v2: None, ..every_change() }, Batch { v3: None, ..every_change() }] {
            let out = written(&half);
            assert_eq!(written(&read_batch(&out).unwrap()), out);
        }
    }

    #[test]
    fn what_is_longer_than_the_limit_is_given_up() {
        let batch = every_change();
        let length = written(&batch).len();
        for limit in 0..length {
            assert_eq!(write_batch(&batch, &mut Vec::new(), limit), Err(TooLong));
        }
        assert_eq!(write_batch(&batch, &mut Vec::new(), length), Ok(()));
    }
}
