//! A key with its value and history, and what can happen to it.

use etcd_client::{EventType, KeyValue};

/// A key as it is on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key, without the client's prefix.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it was made.
    pub create_revision: i64,
    /// When it was last written.
    pub mod_revision: i64,
    /// How often it was written since it was made.
    pub version: i64,
    /// The lease it hangs on; 0 for none.
    pub lease: i64,
}

impl From<KeyValue> for Entry {
    fn from(kv: KeyValue) -> Self {
        let (create_revision, mod_revision) = (kv.create_revision(), kv.mod_revision());
        let (version, lease) = (kv.version(), kv.lease());
        let (key, value) = kv.into_key_value();
        Entry { key, value, create_revision, mod_revision, version, lease }
    }
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was written.
    Put(Entry),
    /// It was deleted, or its lease ended.
    Delete {
        /// The key, without the client's prefix.
        key: Vec<u8>,
        /// When.
        revision: i64,
    },
}

/// What happened to a key, and what it was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub event: Event,
    /// The key before that. None if there was none, if nobody asked, and where etcd has compacted it away.
    pub before: Option<Entry>,
}

impl Change {
    /// The change as etcd sent it, its keys freed of the first `prefix` bytes.
    pub(super) fn from_api(event: &etcd_client::Event, prefix: usize) -> Option<Change> {
        let before = event.prev_kv().map(|kv| {
            let mut entry = Entry::from(kv.clone());
            entry.key.drain(..prefix.min(entry.key.len()));
            entry
        });
        Some(Change { event: Event::from_api(event, prefix)?, before })
    }
}

impl Event {
    /// The event as etcd sent it, its key freed of the first `prefix` bytes.
    fn from_api(event: &etcd_client::Event, prefix: usize) -> Option<Event> {
        let mut entry = Entry::from(event.kv()?.clone());
        entry.key.drain(..prefix.min(entry.key.len()));
        Some(match event.event_type() {
            EventType::Put => Event::Put(entry),
            EventType::Delete => Event::Delete { key: entry.key, revision: entry.mod_revision },
        })
    }

    /// The revision it happened at.
    #[must_use]
    pub fn revision(&self) -> i64 {
        match self {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { revision, .. } => *revision,
        }
    }
}
