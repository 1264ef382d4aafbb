//! Where a store keeps what in etcd. Under its prefix:
//!
//! | key | what |
//! | --- | --- |
//! | `k/<key>` | a value, or a counter (see [`value`](super::value)) |
//! | `q/<length of name>/<name>/<when>-<random>` | one item of a queue |
//! | `op/<store>/<n>` | the record of the last write through a place (see [`once`](super::once)) |

use rallypoint_etcd::v3::KeyRange;

#[derive(Debug)]
pub(super) struct Layout {
    prefix: Vec<u8>,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        let mut prefix = prefix.to_owned();
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        Layout { prefix: prefix.into_bytes() }
    }

    pub(super) fn value(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, &b"k/"[..], key].concat()
    }

    pub(super) fn values(&self) -> KeyRange {
        KeyRange::prefix(self.value(b""))
    }

    /// The key of a value, back from where it is kept.
    pub(super) fn key_of(&self, stored: &[u8]) -> Vec<u8> {
        stored[(self.prefix.len() + b"k/".len()).min(stored.len())..].to_vec()
    }

    /// The length keeps the items of `a` apart from those of a queue named `a/b`.
    pub(super) fn queue(&self, name: &[u8]) -> Vec<u8> {
        [&self.prefix, format!("q/{:08}/", name.len()).as_bytes(), name, b"/"].concat()
    }

    /// All items of the queue.
    pub(super) fn items(&self, name: &[u8]) -> KeyRange {
        KeyRange::prefix(self.queue(name))
    }

    /// An item's place: after all items that were there at `revision`. The random part keeps apart those
    /// pushed at the same moment.
    pub(super) fn item(&self, name: &[u8], revision: i64, random: u128) -> Vec<u8> {
        [self.queue(name), format!("{revision:020}-{random:032x}").into_bytes()].concat()
    }

    pub(super) fn operation(&self, store: &str, place: u64) -> Vec<u8> {
        [&self.prefix, format!("op/{store}/{place}").as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_as_they_went() {
        let layout = Layout::new("/run");
        for key in [&b""[..], b"a", b"k/", b"\0\xff/"] {
            assert_eq!(layout.key_of(&layout.value(key)), key);
        }
        assert_eq!(layout.value(b"a"), b"/run/k/a");
    }

    #[test]
    fn no_queue_is_within_another() {
        let layout = Layout::new("/run/");
        for (outer, inner) in [(&b"a"[..], &b"a/b"[..]), (b"", b"/"), (b"1", b"1/00000001/1")] {
            assert!(!layout.item(inner, 1, 1).starts_with(&layout.queue(outer)));
        }
        assert!(layout.item(b"a", 99, 7) < layout.item(b"a", 100, 3));
    }
}
