//! Which watchers a key concerns.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::mvcc::Span;

/// Where a watcher is kept in the hub.
pub(crate) type WatcherKey = usize;

/// Watchers by what they watch, so that a change finds its own without asking them all.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_key: HashMap<Bytes, Vec<WatcherKey>>,
    by_prefix: HashMap<Bytes, Vec<WatcherKey>>,
    /// How many prefixes of each length there are: a key is looked up by these alone.
    prefix_lengths: BTreeMap<usize, usize>,
    /// Ranges that are no prefixes. Few use them.
    others: Vec<(Span, WatcherKey)>,
}

impl Index {
    /// Adds a watcher; its slot, by which it is removed.
    pub(super) fn insert(&mut self, span: &Span, watcher: WatcherKey) -> usize {
        let members = match span {
            Span::One(key) => self.by_key.entry(key.clone()).or_default(),
            span if is_prefix(span) => {
                let prefix = prefix(span);
                if !self.by_prefix.contains_key(prefix) {
                    *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
                }
                self.by_prefix.entry(prefix.clone()).or_default()
            }
            _ => {
                self.others.push((span.clone(), watcher));
                return self.others.len() - 1;
            }
        };
        members.push(watcher);
        members.len() - 1
    }

    /// Removes the watcher at a slot; the watcher that has the slot from now on, if there is one.
    pub(super) fn remove(&mut self, span: &Span, slot: usize) -> Option<WatcherKey> {
        let (key, groups, is_prefix) = match span {
            Span::One(key) => (key, &mut self.by_key, false),
            span if is_prefix(span) => (prefix(span), &mut self.by_prefix, true),
            _ => {
                self.others.swap_remove(slot);
                return self.others.get(slot).map(|(_, watcher)| *watcher);
            }
        };
        let members = groups.get_mut(key).expect("a watcher is where it was put");
        members.swap_remove(slot);
        if members.is_empty() {
            groups.remove(key);
            if is_prefix {
                let count = self.prefix_lengths.get_mut(&key.len()).expect("every prefix is counted");
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&key.len());
                }
            }
            return None;
        }
        members.get(slot).copied()
    }

    /// Calls for every watcher of a key.
    pub(super) fn for_each(&self, key: &[u8], mut tell: impl FnMut(WatcherKey)) {
        if let Some(members) = self.by_key.get(key) {
            members.iter().copied().for_each(&mut tell);
        }
        for length in self.prefix_lengths.keys().take_while(|length| **length <= key.len()) {
            if let Some(members) = self.by_prefix.get(&key[..*length]) {
                members.iter().copied().for_each(&mut tell);
            }
        }
        self.others.iter().filter(|(span, _)| span.contains(key)).for_each(|(_, watcher)| tell(*watcher));
    }
}

/// Whether the span holds exactly the keys that begin with its start.
fn is_prefix(span: &Span) -> bool {
    let Span::Until(start, end) = span else { return false };
    // The end of a prefix is the prefix with its last byte raised by one, bytes that cannot be raised cut off.
    let Some((last, rest)) = end.split_last() else { return false };
    start.len() >= end.len()
        && start.starts_with(rest)
        && last.checked_sub(1) == Some(start[rest.len()])
        && start[end.len()..].iter().all(|byte| *byte == u8::MAX)
}

fn prefix(span: &Span) -> &Bytes {
    match span {
        Span::One(key) | Span::Until(key, _) | Span::From(key) => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: &'static [u8], end: &'static [u8]) -> Span {
        Span::new(Bytes::from_static(start), Bytes::from_static(end))
    }

    fn found(index: &Index, key: &[u8]) -> Vec<WatcherKey> {
        let mut found = Vec::new();
        index.for_each(key, |watcher| found.push(watcher));
        found.sort_unstable();
        found
    }

    #[test]
    fn prefixes_are_known_from_other_ranges() {
        for (start, end, expected) in [
            (&b"ab"[..], &b"ac"[..], true),
            (b"ab", b"ad", false),
            (b"ab", b"b", false),
            (b"a\xff", b"b", true),
            (b"a\xff\xff", b"b", true),
            (b"a\xff\xfe", b"b", false),
            (b"\0", b"\x01", true),
            (b"a", b"ab", false),
        ] {
            assert_eq!(is_prefix(&span(start, end)), expected, "{start:?} {end:?}");
        }
    }

    #[test]
    fn a_key_finds_exactly_its_watchers() {
        let spans = [
            span(b"a", b""),
            span(b"a", b"b"),
            span(b"a", b"\0"),
            span(b"ab", b"ac"),
            span(b"a", b"abc"),
            span(b"b", b""),
            span(b"a\xff", b"b"),
            span(b"a", b"b"),
        ];
        let mut index = Index::default();
        let mut slots: Vec<_> = spans.iter().enumerate().map(|(at, span)| index.insert(span, at)).collect();
        let mut left: Vec<_> = (0..spans.len()).collect();
        loop {
            for key in [&b"a"[..], b"ab", b"abc", b"b", b"c", b"a\xff\xff", b"", b"\0"] {
                let expected: Vec<_> = left.iter().copied().filter(|at| spans[*at].contains(key)).collect();
                assert_eq!(found(&index, key), expected, "{key:?}");
            }
            if left.is_empty() {
                break;
            }
            let gone = left.remove(left.len() / 2);
            if let Some(moved) = index.remove(&spans[gone], slots[gone]) {
                slots[moved] = slots[gone];
            }
        }
        assert!(index.by_key.is_empty() && index.by_prefix.is_empty() && index.prefix_lengths.is_empty());
    }
}
