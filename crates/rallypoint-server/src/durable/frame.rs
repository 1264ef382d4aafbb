//! The log as bytes. A page says whose it is, and then come the records, one after the other: each begins at a page and
//! has the log's id, the number of its batch, and a checksum. A record is written once the one before it is on disk.
//!
//! Once the engine has all of them, the log begins anew over those that are there. So what is read is the records whose
//! numbers follow each other and what the engine has. One that cannot be read, and has none after it, was cut off while
//! it was written, and nobody was told of it; nothing tells it from a last one that was damaged since.
//!
//! Nobody outside knows a log's id, so no value that somebody writes reads as a record.

use crc::{CRC_64_XZ, Crc, Table};
use thiserror::Error;
use uuid::Uuid;

/// What is written at once. No record shares one with another, so a write does not touch what is on disk already.
pub(super) const PAGE: usize = 4096;
const MAGIC: [u8; 16] = *b"rallypoint log 1";
/// The id, the number, the length of what follows, and the checksum.
const HEADER: usize = 16 + 8 + 8 + 8;
const CHECKED: usize = HEADER - 8;

static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_XZ);

/// Why a log cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum LogError {
    #[error("its log, rallypoint.log, is not there")]
    Missing,
    #[error("its log, rallypoint.log, is cut short or another's")]
    Foreign,
    #[error("its log, rallypoint.log, begins with batch {first}, and batch {missing} is nowhere")]
    Gap { first: u64, missing: u64 },
    #[error("batch {0} of its log, rallypoint.log, is damaged")]
    Damaged(u64),
    #[error(
        "it has {batches} batches, and its log, rallypoint.log, which it knows nothing of, has batch {later}"
    )]
    Unknown { batches: u64, later: u64 },
}

/// What a log begins with.
pub(super) fn first_page(log: Uuid) -> Vec<u8> {
    let mut page = [&MAGIC[..], log.as_bytes()].concat();
    page.extend_from_slice(&CRC.checksum(&page).to_le_bytes());
    page.resize(PAGE, 0);
    page
}

/// Where the record of a batch begins, and what it has to say goes behind.
pub(super) fn begin() -> Vec<u8> {
    vec![0; HEADER]
}

/// Makes a record of what has begun.
pub(super) fn end(log: Uuid, number: u64, record: &mut Vec<u8>) {
    let length = (record.len() - HEADER) as u64;
    record[..16].copy_from_slice(log.as_bytes());
    record[16..24].copy_from_slice(&number.to_le_bytes());
    record[24..32].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(&record[..CHECKED], &record[HEADER..]);
    record[CHECKED..HEADER].copy_from_slice(&sum.to_le_bytes());
    record.resize(record.len().next_multiple_of(PAGE), 0);
}

fn checksum(header: &[u8], said: &[u8]) -> u64 {
    let mut digest = CRC.digest();
    digest.update(header);
    digest.update(said);
    digest.finalize()
}

#[derive(Debug, Clone, Copy)]
struct Record<'a> {
    number: u64,
    said: &'a [u8],
    /// Where the next one begins.
    end: usize,
}

fn read(log: Uuid, bytes: &[u8], at: usize) -> Option<Record<'_>> {
    let (header, rest) = bytes.get(at..)?.split_first_chunk::<HEADER>()?;
    if header[..16] != log.as_bytes()[..] {
        return None;
    }
    let number =
        |from: usize| u64::from_le_bytes(header[from..from + 8].try_into().expect("it is eight bytes"));
    let said = rest.get(..usize::try_from(number(24)).ok()?)?;
    let sum = number(CHECKED);
    let end = at + (HEADER + said.len()).next_multiple_of(PAGE);
    (checksum(&header[..CHECKED], said) == sum).then(|| Record { number: number(16), said, end })
}

/// What a log has beyond what the engine has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tail<'a> {
    /// What the records say, in the order of their batches.
    pub(super) said: Vec<&'a [u8]>,
    /// Where the next record goes.
    pub(super) end: usize,
}

/// Looks through a log. The engine has so many batches.
pub(super) fn follow(log: Uuid, bytes: &[u8], batches: u64) -> Result<Tail<'_>, LogError> {
    if bytes.len() < 2 * PAGE || !bytes.len().is_multiple_of(PAGE) || bytes[..PAGE] != first_page(log) {
        return Err(LogError::Foreign);
    }
    let (mut at, mut last, mut said) = (PAGE, None, Vec::new());
    while let Some(record) = read(log, bytes, at) {
        let missing = last.unwrap_or(batches) + 1;
        match last {
            None if record.number > missing => {
                return Err(LogError::Gap { first: record.number, missing });
            }
            // It is of before the log began anew, or after one that is gone, which is looked for below.
            Some(_) if record.number != missing => break,
            _ => {}
        }
        if record.number > batches {
            said.push(record.said);
        }
        (at, last) = (record.end, Some(record.number));
    }
    let newest = last.unwrap_or(0).max(batches);
    // One that was cut off is the last.
    let mut later = (at..bytes.len()).step_by(PAGE).filter_map(|at| read(log, bytes, at));
    if later.any(|record| record.number > newest) {
        return Err(LogError::Damaged(newest + 1));
    }
    // If the engine has all of it, it begins anew.
    let end = if said.is_empty() { PAGE } else { at };
    Ok(Tail { said, end })
}

/// Looks through a log that the engine knows nothing of. One that is left over has no batch that the engine has not.
pub(super) fn is_of_the_past(bytes: &[u8], batches: u64) -> Result<(), LogError> {
    let id = bytes.get(MAGIC.len()..).and_then(<[u8]>::first_chunk).copied().map(Uuid::from_bytes);
    let Some(id) = id.filter(|id| bytes.starts_with(&first_page(*id))) else { return Ok(()) };
    let records = (PAGE..bytes.len()).step_by(PAGE).filter_map(|at| read(id, bytes, at));
    match records.map(|record| record.number).filter(|number| *number > batches).min() {
        Some(later) => Err(LogError::Unknown { batches, later }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: Uuid = Uuid::from_u128(7);
    const PAGES: usize = 16;

    fn record(number: u64, said: &[u8]) -> Vec<u8> {
        let mut record = begin();
        record.extend_from_slice(said);
        end(LOG, number, &mut record);
        record
    }

    /// A log in which records were written, each at a page.
    fn log(records: &[(usize, u64, &[u8])]) -> Vec<u8> {
        let mut bytes = first_page(LOG);
        bytes.resize(PAGES * PAGE, 0);
        for (page, number, said) in records {
            let record = record(*number, said);
            bytes[page * PAGE..page * PAGE + record.len()].copy_from_slice(&record);
        }
        bytes
    }

    fn found(bytes: &[u8], batches: u64) -> Result<(Vec<&[u8]>, usize), LogError> {
        follow(LOG, bytes, batches).map(|tail| (tail.said, tail.end / PAGE))
    }

    #[test]
    fn records_that_follow_what_the_engine_has_are_read() {
        assert_eq!(found(&log(&[]), 4), Ok((vec![], 1)));
        let long = [b'x'; PAGE];
        let bytes = log(&[(1, 5, b"five"), (2, 6, &long), (4, 7, b"")]);
        assert_eq!(found(&bytes, 4), Ok((vec![&b"five"[..], &long, b""], 5)));
        assert_eq!(found(&bytes, 5), Ok((vec![&long[..], b""], 5)));
        // All of it is in the engine, and maybe more.
        assert_eq!(found(&bytes, 7), Ok((vec![], 1)));
        assert_eq!(found(&bytes, 9), Ok((vec![], 1)));
    }

    #[test]
    fn records_of_before_the_log_began_anew_are_passed_over() {
        let bytes = log(&[(1, 9, b"nine"), (2, 6, b"old"), (3, 7, b"old"), (4, 8, b"old")]);
        assert_eq!(found(&bytes, 8), Ok((vec![&b"nine"[..]], 2)));
        // In the middle of an old one.
        let mut bytes = log(&[(1, 5, &[b'x'; 3 * PAGE]), (5, 6, b"old")]);
        bytes[PAGE..2 * PAGE].copy_from_slice(&record(7, b"seven"));
        assert_eq!(found(&bytes, 6), Ok((vec![&b"seven"[..]], 2)));
    }

    #[test]
    fn a_record_that_was_cut_off_is_dropped_and_written_over() {
        let long = [b'x'; 2 * PAGE];
        let whole = log(&[(1, 5, b"five"), (2, 6, &long)]);
        // Any of its pages may not have come.
        for lost in 2..5 {
            let mut bytes = whole.clone();
            bytes[lost * PAGE..(lost + 1) * PAGE].fill(0);
            assert_eq!(found(&bytes, 4), Ok((vec![&b"five"[..]], 2)), "page {lost}");
        }
        // The first of all.
        let mut bytes = log(&[(1, 9, &long), (4, 6, b"old"), (5, 7, b"old")]);
        bytes[2 * PAGE] ^= 1;
        assert_eq!(found(&bytes, 8), Ok((vec![], 1)));
    }

    #[test]
    fn a_damaged_record_before_others_is_refused() {
        let long = [b'x'; PAGE];
        let whole = log(&[(1, 5, b"five"), (2, 6, &long), (4, 7, b"seven")]);
        for (at, number) in [(PAGE, 5), (PAGE + 20, 5), (PAGE + 30, 5), (2 * PAGE + 41, 6), (3 * PAGE, 6)] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert_eq!(found(&bytes, 4), Err(LogError::Damaged(number)), "byte {at}");
            // What the engine has is not asked for.
            assert_eq!(found(&bytes, 7), Ok((vec![], 1)), "byte {at}");
        }
        // One that is missing is no better.
        let bytes = log(&[(1, 5, b"five"), (2, 7, b"seven")]);
        assert_eq!(found(&bytes, 4), Err(LogError::Damaged(6)));
    }

    #[test]
    fn a_gap_after_what_the_engine_has_is_refused() {
        let bytes = log(&[(1, 5, b"five"), (2, 6, b"six")]);
        assert_eq!(found(&bytes, 3), Err(LogError::Gap { first: 5, missing: 4 }));
    }

    #[test]
    fn anothers_log_is_refused() {
        let bytes = log(&[(1, 5, b"five")]);
        assert_eq!(follow(Uuid::from_u128(8), &bytes, 4), Err(LogError::Foreign));
        for damaged in [0, 16, 39, PAGE - 1] {
            let mut bytes = bytes.clone();
            bytes[damaged] ^= 1;
            assert_eq!(found(&bytes, 4), Err(LogError::Foreign), "byte {damaged}");
        }
        assert_eq!(found(&bytes[..PAGE], 4), Err(LogError::Foreign));
        assert_eq!(found(&[], 4), Err(LogError::Foreign));
    }

    #[test]
    fn a_value_that_looks_like_a_record_is_none() {
        let mut forged = begin();
        forged.extend_from_slice(b"forged");
        end(Uuid::from_u128(8), 10, &mut forged);
        // It lies at a page when its own record is written over.
        let said = [&[0; PAGE - HEADER][..], &forged].concat();
        let mut bytes = log(&[(1, 5, &said)]);
        bytes[PAGE..2 * PAGE].copy_from_slice(&record(9, b"nine"));
        assert_eq!(found(&bytes, 8), Ok((vec![&b"nine"[..]], 2)));
    }
}
