//! What a key's value looks like in etcd: one byte that tells the kind, then
//!
//! - `=`: the value as it is.
//! - `#base,step,first`: a counter. Its number is `base + step * (version - first)`, with etcd's own count of
//!   the key's writes. So an add of the same step writes the same bytes again: adds do not disturb each other,
//!   and none has to be tried twice. Another step starts from a new base.

use crate::error::{Result, StoreError};
use crate::store::parse_number;

const PLAIN: u8 = b'=';
const COUNTER: u8 = b'#';

pub(super) fn plain(value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(value.len() + 1);
    stored.push(PLAIN);
    stored.extend_from_slice(value);
    stored
}

/// A counter as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counter {
    base: i64,
    pub(super) step: i64,
    first: i64,
}

impl Counter {
    /// A counter whose write as `version` brings it to `sum`, and each further one `step` on.
    pub(super) fn starting(sum: i64, step: i64, version: i64) -> Self {
        Counter { base: sum, step, first: version }
    }

    /// The counter that the first add of `step` to a missing key leaves.
    pub(super) fn fresh(step: i64) -> Self {
        Counter::starting(step, step, 1)
    }

    pub(super) fn number(self, version: i64) -> i64 {
        self.base.wrapping_add(self.step.wrapping_mul(version.wrapping_sub(self.first)))
    }

    pub(super) fn stored(self) -> Vec<u8> {
        format!("{}{},{},{}", char::from(COUNTER), self.base, self.step, self.first).into_bytes()
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(text).ok()?.split(',').map(|part| part.parse().ok());
        let counter = Counter { base: parts.next()??, step: parts.next()??, first: parts.next()?? };
        parts.next().is_none().then_some(counter)
    }
}

/// What was found under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stored {
    Plain(Vec<u8>),
    Counter { counter: Counter, version: i64 },
}

impl Stored {
    pub(super) fn parse(key: &[u8], stored: &[u8], version: i64) -> Result<Self> {
        let corrupt = |problem: &str| StoreError::Corrupt { key: key.to_vec(), problem: problem.to_owned() };
        match stored.split_first() {
            Some((&PLAIN, value)) => Ok(Stored::Plain(value.to_vec())),
            Some((&COUNTER, text)) => {
                let counter = Counter::parse(text).ok_or_else(|| corrupt("it is no counter"))?;
                Ok(Stored::Counter { counter, version })
            }
            _ => Err(corrupt("no store wrote it")),
        }
    }

    /// The value as users of the store see it.
    pub(super) fn into_value(self) -> Vec<u8> {
        match self {
            Stored::Plain(value) => value,
            Stored::Counter { counter, version } => counter.number(version).to_string().into_bytes(),
        }
    }

    pub(super) fn number(&self, key: &[u8]) -> Result<i64> {
        match self {
            Stored::Plain(value) => parse_number(key, value),
            Stored::Counter { counter, version } => Ok(counter.number(*version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_counts_its_own_writes() {
        let counter = Counter::fresh(3);
        assert_eq!(counter.stored(), b"#3,3,1");
        assert_eq!((counter.number(1), counter.number(2), counter.number(100)), (3, 6, 300));
        // The seventh write adds 10 to what six writes made 18.
        let rebased = Counter::starting(28, 10, 7);
        assert_eq!((rebased.number(7), rebased.number(8)), (28, 38));
        assert_eq!(Counter::starting(i64::MAX, 1, 5).number(6), i64::MIN);
    }

    #[test]
    fn what_is_stored_is_read_back() {
        for value in [&b""[..], b"#1,1,1", b"=", b"\0\xff"] {
            let stored = Stored::parse(b"k", &plain(value), 9).unwrap();
            assert_eq!(stored.into_value(), value);
        }
        let stored = Stored::parse(b"k", &Counter::starting(-5, -1, 2).stored(), 4).unwrap();
        assert_eq!(stored.number(b"k").unwrap(), -7);
        assert_eq!(stored.into_value(), b"-7");
    }

    #[test]
    fn what_no_store_wrote_is_an_error() {
        for stored in [&b""[..], b"hello", b"#", b"#1,2", b"#1,2,3,4", b"#1,x,3", b"#1,2,\xff"] {
            assert!(matches!(Stored::parse(b"k", stored, 1), Err(StoreError::Corrupt { .. })), "{stored:?}");
        }
    }
}
