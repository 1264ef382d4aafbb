//! Versions of keys as etcd keeps them in its file. Its hashes and its snapshots are made of these bytes.

use bytes::Bytes;
use prost::Message as _;

use super::Record;

/// `mvccpb.KeyValue`, which shares its bytes with the store.
#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
    #[prost(int64, tag = "6")]
    lease: i64,
}

impl Record {
    /// The key of the version: its place among all, and a mark if it is a deletion.
    pub(crate) fn stored_key(&self) -> Vec<u8> {
        let mut key = stored_revision(self.mod_revision, self.place);
        if self.is_deletion() {
            key.push(b't');
        }
        key
    }

    /// The bytes of that key.
    pub(crate) fn stored_key_length(&self) -> usize {
        if self.is_deletion() { REVISION_BYTES + 1 } else { REVISION_BYTES }
    }

    /// Adds the value of the version.
    pub(crate) fn write_stored(&self, out: &mut Vec<u8>) {
        self.key_value().encode(out).expect("a vector grows");
    }

    /// The bytes of that value.
    pub(crate) fn stored_length(&self) -> usize {
        self.key_value().encoded_len()
    }

    fn key_value(&self) -> KeyValue {
        let (key, value) = (self.key.clone(), self.value.clone());
        if self.is_deletion() {
            return KeyValue { key, ..KeyValue::default() };
        }
        let Record { create_revision, mod_revision, version, lease, .. } = *self;
        KeyValue { key, create_revision, mod_revision, version, value, lease }
    }
}

const REVISION_BYTES: usize = 17;

/// A revision, and a place in it.
pub(crate) fn stored_revision(revision: i64, place: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(REVISION_BYTES + 1);
    key.extend_from_slice(&revision.to_be_bytes());
    key.push(b'_');
    key.extend_from_slice(&i64::from(place).to_be_bytes());
    key
}
