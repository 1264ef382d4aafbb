//! The keys a request is about.

use std::ops::Bound;

use bytes::Bytes;

/// One key, or all keys from one to another, or all keys from one on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Span<T = Bytes> {
    /// This key alone.
    One(T),
    /// From the first, included, to the second, excluded. The second may come first: then there is nothing.
    Until(T, T),
    /// From this key on.
    From(T),
}

impl<T: AsRef<[u8]>> Span<T> {
    /// From the two fields of a request: no end means one key, an end of one zero byte means no end at all.
    pub(crate) fn new(key: T, end: T) -> Self {
        match end.as_ref() {
            [] => Span::One(key),
            [0] => Span::From(key),
            _ => Span::Until(key, end),
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Span::One(one) => key == one.as_ref(),
            Span::Until(start, end) => start.as_ref() <= key && key < end.as_ref(),
            Span::From(start) => start.as_ref() <= key,
        }
    }

    /// Holds no key, whatever is stored.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Span::Until(start, end) if start.as_ref() >= end.as_ref())
    }

    /// For a `BTreeMap`, which must not be asked for an empty span.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match self {
            Span::One(key) => (Bound::Included(key.as_ref()), Bound::Included(key.as_ref())),
            Span::Until(start, end) => (Bound::Included(start.as_ref()), Bound::Excluded(end.as_ref())),
            Span::From(start) => (Bound::Included(start.as_ref()), Bound::Unbounded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_of_one_zero_byte_is_no_end() {
        let span = Span::new(&b"k"[..], &b"\0"[..]);
        assert_eq!(span, Span::From(&b"k"[..]));
        assert!(span.contains(b"zzz") && span.contains(b"k") && !span.contains(b"j"));
    }

    #[test]
    fn an_end_that_is_not_after_the_start_holds_nothing() {
        assert!(Span::new(&b"b"[..], &b"a"[..]).is_empty());
        assert!(Span::new(&b"b"[..], &b"b"[..]).is_empty());
        assert!(!Span::new(&b"b"[..], &b"c"[..]).is_empty());
        assert!(!Span::new(&b"b"[..], &b""[..]).is_empty());
    }
}
