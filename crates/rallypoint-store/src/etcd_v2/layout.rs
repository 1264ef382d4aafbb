//! Where keys and queues are on the v2 wire, and how values are written.
//!
//! A key is at `<prefix>/<standard base64 of the key>`, and holds the standard base64 of its value: so PyTorch
//! has it. Three kinds of keys PyTorch cannot keep apart or cannot keep at all, so they have names that it
//! never makes:
//!
//! - a key whose base64 has a slash, which the server takes for a directory, and the empty key, which has no
//!   name: `-` and URL-safe base64 without padding;
//! - a key too long for a request: `~` and the URL-safe base64 of its SHA-256; its value begins with the
//!   base64 of the key and a dot.
//!
//! Queues are in `<prefix>/_q/`, which the server hides from listings and watches of the prefix. Their names
//! are made as those of odd keys.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::error::{Result, StoreError};

/// What an item of a queue adds to the path of the queue: a slash and a number of 20 digits.
const ITEM: &str = "/00000000000000000000";

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) path: String,
    /// The name does not tell the key, so the value does.
    hashed: bool,
}

#[derive(Debug)]
pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Layout { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// The directory of the keys.
    pub(super) fn keys(&self) -> &str {
        &self.prefix
    }

    /// Where `key` is. `fits` says whether the server can be asked for a path.
    pub(super) fn slot(&self, key: &[u8], fits: impl Fn(&str) -> bool) -> Slot {
        let base64 = STANDARD.encode(key);
        let name = if base64.is_empty() || base64.contains('/') { odd(key) } else { base64 };
        let path = format!("{}/{name}", self.prefix);
        if fits(&path) {
            return Slot { path, hashed: false };
        }
        Slot { path: format!("{}/{}", self.prefix, hashed(key)), hashed: true }
    }

    /// The directory of the queue `key`.
    pub(super) fn queue(&self, key: &[u8], fits: impl Fn(&str) -> bool) -> String {
        let path = format!("{}/_q/{}", self.prefix, odd(key));
        if fits(&format!("{path}{ITEM}")) { path } else { format!("{}/_q/{}", self.prefix, hashed(key)) }
    }

    /// The key that is called `name` and holds `value`; none if no store put it there.
    pub(super) fn key_of(&self, name: &str, value: &str) -> Option<Vec<u8>> {
        let (key, made) = if name.starts_with('~') {
            let key = STANDARD.decode(value.split_once('.')?.0).ok()?;
            let made = hashed(&key);
            (key, made)
        } else if let Some(base64) = name.strip_prefix('-') {
            let key = URL_SAFE_NO_PAD.decode(base64).ok()?;
            let made = odd(&key);
            (key, made)
        } else {
            let key = STANDARD.decode(name).ok()?;
            (key, name.to_owned())
        };
        (made == name).then_some(key)
    }
}

impl Slot {
    /// How `value` is written there.
    pub(super) fn encode(&self, key: &[u8], value: &[u8]) -> String {
        let value = STANDARD.encode(value);
        if self.hashed { format!("{}.{value}", STANDARD.encode(key)) } else { value }
    }

    /// The value that is written there as `text`.
    pub(super) fn decode(&self, key: &[u8], text: &str) -> Result<Vec<u8>> {
        let value = if self.hashed { text.split_once('.').map_or(text, |(_, value)| value) } else { text };
        decode(key, value)
    }
}

/// The bytes that `text` is the base64 of.
pub(super) fn decode(key: &[u8], text: &str) -> Result<Vec<u8>> {
    STANDARD
        .decode(text)
        .map_err(|cause| StoreError::Corrupt { key: key.to_vec(), problem: cause.to_string() })
}

fn odd(key: &[u8]) -> String {
    format!("-{}", URL_SAFE_NO_PAD.encode(key))
}

fn hashed(key: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, key);
    format!("~{}", URL_SAFE_NO_PAD.encode(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::new("/p/")
    }

    #[test]
    fn plain_keys_are_where_pytorch_has_them() {
        for (key, path) in [(&b"rank0"[..], "/p/cmFuazA="), (b"\xfb\xef", "/p/++8="), (b"a", "/p/YQ==")] {
            assert_eq!(layout().slot(key, |_| true), Slot { path: path.to_owned(), hashed: false });
        }
        let slot = layout().slot(b"a", |_| true);
        assert_eq!(slot.encode(b"a", b"\xff?"), "/z8=");
        assert_eq!(slot.decode(b"a", "/z8=").unwrap(), b"\xff?");
        assert!(matches!(slot.decode(b"a", "no base64"), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn odd_keys_have_names_of_their_own() {
        let path = |key: &[u8]| layout().slot(key, |_| true).path;
        assert_eq!(path(b""), "/p/-");
        assert_eq!(path(b"ab?"), "/p/-YWI_");
        assert_eq!(path(b"\xff"), "/p/-_w");
        assert_eq!(layout().queue(b"", |_| true), "/p/_q/-");
        assert_eq!(layout().queue(b"a", |_| true), "/p/_q/-YQ");
    }

    #[test]
    fn long_keys_are_told_by_their_value() {
        let key = vec![b'k'; 4096];
        let slot = layout().slot(&key, |path| path.len() < 100);
        assert!(slot.path.starts_with("/p/~") && slot.path.len() < 100, "{}", slot.path);
        let text = slot.encode(&key, b"value");
        assert_eq!(slot.decode(&key, &text).unwrap(), b"value");
        let name = slot.path.strip_prefix("/p/").unwrap();
        assert_eq!(layout().key_of(name, &text), Some(key.clone()));
        assert_eq!(layout().key_of(name, "YQ==.YQ=="), None);
        assert!(layout().queue(&key, |path| path.len() < 100).len() < 70);
    }

    #[test]
    fn names_tell_their_keys_and_foreign_names_tell_none() {
        let all: Vec<u8> = (0..=255).collect();
        for key in [&b""[..], b"a", b"ab?", b"\xff\xff\xff", b"\0", b"-", b"~", &all] {
            let slot = layout().slot(key, |_| true);
            let name = slot.path.strip_prefix("/p/").unwrap();
            assert!(!name.contains('/') && !name.starts_with('_'), "{name}");
            assert_eq!(layout().key_of(name, ""), Some(key.to_vec()), "{name}");
        }
        for foreign in ["YWI", "a b", "-YWI=", "lost+found", "~", "YR=="] {
            assert_eq!(layout().key_of(foreign, ""), None, "{foreign}");
        }
    }
}
