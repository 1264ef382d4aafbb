//! The keys and their values.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Refusal;
use crate::value::{Alive, Value};

use super::size::Size;

/// The keys and their values.
#[derive(Debug, Default)]
pub(super) struct Keys {
    values: HashMap<Box<[u8]>, Arc<Value>>,
    size: Size,
}

impl Keys {
    pub(super) fn get(&self, key: &[u8]) -> Option<&Arc<Value>> {
        self.values.get(key)
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.values.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.values.keys().map(AsRef::as_ref)
    }

    pub(super) fn set(&mut self, key: &[u8], value: Vec<u8>, alive: &Alive) {
        let value = Arc::new(Value::new(value, alive));
        self.size.values += value.data().len();
        match self.values.get_mut(key) {
            Some(place) => {
                self.size.values -= place.data().len();
                *place = value;
            }
            None => {
                self.size.add_entry(key);
                self.values.insert(key.into(), value);
            }
        }
    }

    pub(super) fn append(&mut self, key: &[u8], more: &[u8], alive: &Alive) {
        let Some(value) = self.values.get_mut(key) else { return self.set(key, more.to_vec(), alive) };
        match Arc::get_mut(value) {
            Some(value) => value.append(more),
            // A reply shares it, and tells what it was.
            None => *value = Arc::new(Value::new([value.data(), more].concat(), alive)),
        }
        self.size.values += more.len();
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.size.values -= value.data().len();
        self.size.remove_entry(key);
        true
    }

    /// Adds to the number that the value is in decimal; a key that is not there is 0.
    pub(super) fn add(&mut self, key: &[u8], amount: i64, alive: &Alive) -> Result<i64, Refusal> {
        let before =
            self.values.get(key).map_or(Ok(0), |value| number(value.data()).ok_or(Refusal::NotANumber))?;
        let number = before.wrapping_add(amount);
        self.set(key, number.to_string().into_bytes(), alive);
        Ok(number)
    }
}

/// The number that a value begins with, as C++'s `stoll` reads it: after white space, and whatever comes after it.
fn number(value: &[u8]) -> Option<i64> {
    let start = value.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r'))?;
    let (sign, digits) = match &value[start..] {
        [b'-', digits @ ..] => ("-", digits),
        [b'+', digits @ ..] | digits => ("", digits),
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let digits = std::str::from_utf8(&digits[..end]).ok()?;
    format!("{sign}{digits}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_number_is_read_as_stoll_reads_it() {
        for (value, expected) in [
            ("12", Some(12)),
            ("-3", Some(-3)),
            ("+4", Some(4)),
            (" \t\n\u{b}\u{c}\r5 ", Some(5)),
            ("6abc", Some(6)),
            ("0x10", Some(0)),
            ("7\u{0}8", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("  ", None),
            ("-", None),
            ("+-1", None),
            ("abc", None),
        ] {
            assert_eq!(number(value.as_bytes()), expected, "{value:?}");
        }
    }
}
