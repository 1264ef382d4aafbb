//! Ranges of keys.

use etcd_client::GetOptions;

/// The keys from `start` up to `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub(super) start: Vec<u8>,
    /// Empty for the key `start` alone.
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// One key.
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        KeyRange { start: key.into(), end: Vec::new() }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                break;
            }
        }
        // Nothing is left of 0xff 0xff...: every key from there on.
        if end.is_empty() {
            end.push(0);
        }
        KeyRange { start, end }
    }

    /// The range under `prefix`, as it is on the server.
    pub(super) fn under(&self, prefix: &[u8]) -> KeyRange {
        let mut start = [prefix, &self.start].concat();
        // There is no empty key: the first that can be is the one before all others.
        if start.is_empty() {
            start.push(0);
        }
        if prefix.is_empty() {
            return KeyRange { start, end: self.end.clone() };
        }
        let end = match self.end.as_slice() {
            [] => Vec::new(),
            [0] => KeyRange::prefix(prefix).end,
            end => [prefix, end].concat(),
        };
        KeyRange { start, end }
    }

    /// Options to read it with.
    #[must_use]
    pub fn get_options(&self) -> GetOptions {
        if self.end.is_empty() { GetOptions::new() } else { GetOptions::new().with_range(self.end.clone()) }
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> &[u8] {
        &self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_ends_right_after_it() {
        for (prefix, end) in
            [(&b"a"[..], &b"b"[..]), (b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
        {
            assert_eq!(KeyRange::prefix(prefix).end, end, "{prefix:?}");
        }
    }

    #[test]
    fn ranges_stay_within_the_clients_prefix() {
        assert_eq!(KeyRange::key("k").under(b"p/"), KeyRange::key("p/k"));
        assert_eq!(KeyRange::prefix("k").under(b"p/"), KeyRange { start: b"p/k".into(), end: b"p/l".into() });
        assert_eq!(KeyRange::prefix("").under(b"p/"), KeyRange::prefix("p/"));
        assert_eq!(KeyRange::prefix("").under(b""), KeyRange { start: b"\0".into(), end: b"\0".into() });
    }
}
