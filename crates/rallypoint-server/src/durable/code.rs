//! How records and nodes are written: fixed numbers in little endian first, then a key with its length, then the rest.

use bytes::Bytes;

use crate::mvcc::{Record, RecordKey};
use crate::v2::{Content, Node, Time};

/// What was read is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry is cut short or has an unknown kind")]
pub(crate) struct Malformed;

/// What stands for no time.
const NEVER: u64 = u64::MAX;
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;

/// A record without its place, into an empty buffer.
pub(crate) fn write_record(record: &Record, out: &mut Vec<u8>) {
    let Record { key, value, create_revision, version, lease, .. } = record;
    out.clear();
    for number in [create_revision, version, lease] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let length = u32::try_from(key.len()).expect("a key is shorter than a request");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

pub(crate) fn read_record((mod_revision, place): RecordKey, mut bytes: &[u8]) -> Result<Record, Malformed> {
    let mut number = || Ok(i64::from_le_bytes(take(&mut bytes)?));
    let (create_revision, version, lease) = (number()?, number()?, number()?);
    let length = u32::from_le_bytes(take(&mut bytes)?) as usize;
    let (key, value) = bytes.split_at_checked(length).ok_or(Malformed)?;
    let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    Ok(Record { key, value, create_revision, mod_revision, version, lease, place })
}

/// A node without what is in it, into an empty buffer.
pub(crate) fn write_node(node: &Node, out: &mut Vec<u8>) {
    out.clear();
    for number in [node.created, node.modified, node.expires.map_or(NEVER, Time::nanos)] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    match &node.content {
        Content::File(value) => {
            out.push(FILE);
            out.extend_from_slice(value);
        }
        Content::Dir(_) => out.push(DIRECTORY),
    }
}

pub(crate) fn read_node(mut bytes: &[u8]) -> Result<Node, Malformed> {
    let mut number = || Ok(u64::from_le_bytes(take(&mut bytes)?));
    let (created, modified, expires) = (number()?, number()?, number()?);
    let content = match bytes.split_first() {
        Some((&FILE, value)) => Content::File(Bytes::copy_from_slice(value)),
        Some((&DIRECTORY, [])) => Content::empty_dir(),
        _ => return Err(Malformed),
    };
    let expires = (expires != NEVER).then(|| Time::from_nanos(expires));
    Ok(Node { created, modified, expires, content })
}

/// Numbers one after the other.
pub(crate) fn write_numbers<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(crate) fn read_numbers<const N: usize>(mut bytes: &[u8]) -> Result<[u64; N], Malformed> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = u64::from_le_bytes(take(&mut bytes)?);
    }
    if bytes.is_empty() { Ok(numbers) } else { Err(Malformed) }
}

pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(Malformed)?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_cut_is_not() {
        let record = Record {
            key: Bytes::from("k"),
            value: Bytes::from("value"),
            create_revision: 2,
            mod_revision: 3,
            version: i64::MAX,
            lease: -5,
            place: 7,
        };
        let mut out = Vec::new();
        write_record(&record, &mut out);
        assert_eq!(read_record((3, 7), &out), Ok(record));
        assert!((0..29).all(|end| read_record((3, 7), &out[..end]) == Err(Malformed)));

        let end = Time::since_epoch(Duration::from_secs(9));
        for (expires, content) in [(None, Content::empty_dir()), (Some(end), Content::File("v".into()))] {
            write_node(&Node { created: 1, modified: 2, expires, content }, &mut out);
            let read = read_node(&out).unwrap();
            assert_eq!((read.created, read.modified, read.expires), (1, 2, expires));
            assert_eq!(read.value(), expires.map(|_| Bytes::from("v")).as_ref());
            assert!((0..25).all(|end| read_node(&out[..end]).is_err()));
        }
        assert_eq!(read_numbers(&write_numbers([1, u64::MAX])), Ok([1, u64::MAX]));
        assert_eq!(read_numbers::<1>(&write_numbers([1, 2])), Err(Malformed));
    }
}
