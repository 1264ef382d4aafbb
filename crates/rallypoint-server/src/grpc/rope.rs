//! A message that is encoded as it is sent, piece by piece: it shares its records with the store until then.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::mvcc::Record;

/// Before each message of gRPC: a flag, and the length in four bytes.
pub(super) const PREFIX: usize = 5;
/// About the size of a piece: what is handed to the connection is out of our hands until the client reads it.
const PIECE: usize = 32 << 10;

/// A message in parts.
#[derive(Debug, Default)]
pub(super) struct Rope {
    parts: VecDeque<Part>,
    length: usize,
}

#[derive(Debug)]
enum Part {
    /// Small fields, encoded; what comes next is added to them.
    Fields(Vec<u8>),
    Bytes(Bytes),
    /// A field that is a key with its value.
    Record(Field, Arc<Record>, Form),
}

/// The number of a field that is a message: below 16, so that it takes one byte.
pub(super) type Field = u8;

/// How much of a record is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    WithoutValue,
    /// What a watcher is told of a key that is gone.
    Deletion,
}

/// `mvccpb.KeyValue`, which shares its bytes. Its value, field 5, is apart.
#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(int64, tag = "6")]
    lease: i64,
}

const VALUE: Field = 5;

impl Head {
    fn new(record: &Record, form: Form) -> Self {
        let Record { create_revision, mod_revision, version, lease, .. } = *record;
        let key = record.key.clone();
        match form {
            Form::Deletion => Head { key, mod_revision, ..Head::default() },
            _ => Head { key, create_revision, mod_revision, version, lease },
        }
    }
}

/// The value that is told, if there is one.
fn value(record: &Record, form: Form) -> Option<&Bytes> {
    Some(&record.value).filter(|value| form == Form::Whole && !value.is_empty())
}

/// The bytes of a record's message.
fn record_length(record: &Record, form: Form) -> usize {
    let value = value(record, form).map_or(0, |value| field_length(value.len()));
    Head::new(record, form).encoded_len() + value
}

/// The bytes of a field of so many.
fn field_length(length: usize) -> usize {
    1 + prost::length_delimiter_len(length) + length
}

/// Writes what stands before the bytes of a field.
fn put_field(buffer: &mut impl BufMut, field: Field, length: usize) {
    const DELIMITED: u8 = 2;
    buffer.put_u8(field << 3 | DELIMITED);
    prost::encode_length_delimiter(length, buffer).expect("the buffer grows");
}

impl Rope {
    /// With the fields of a message that has no records.
    pub(super) fn of(message: &impl Message) -> Self {
        let fields = message.encode_to_vec();
        Rope { length: fields.len(), parts: VecDeque::from([Part::Fields(fields)]) }
    }

    /// The bytes of the message.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Adds a field that is a key with its value.
    pub(super) fn push_record(&mut self, field: Field, record: Arc<Record>, form: Form) {
        self.length += field_length(record_length(&record, form));
        self.parts.push_back(Part::Record(field, record, form));
    }

    /// Adds a field that is a message.
    pub(super) fn push_message(&mut self, field: Field, message: Rope) {
        let length = message.length;
        put_field(self.fields(), field, length);
        self.length += field_length(length) - length;
        self.append(message);
    }

    /// Adds the fields of another.
    pub(super) fn append(&mut self, other: Rope) {
        self.length += other.length;
        for part in other.parts {
            match part {
                Part::Fields(fields) => self.fields().extend_from_slice(&fields),
                part => self.parts.push_back(part),
            }
        }
    }

    /// Where fields are added.
    fn fields(&mut self) -> &mut Vec<u8> {
        if !matches!(self.parts.back(), Some(Part::Fields(_))) {
            self.parts.push_back(Part::Fields(Vec::new()));
        }
        match self.parts.back_mut() {
            Some(Part::Fields(fields)) => fields,
            _ => unreachable!("it was added"),
        }
    }

    /// With gRPC's prefix before it, unless it is too long for that.
    pub(super) fn framed(mut self) -> Option<Self> {
        let [a, b, c, d] = u32::try_from(self.length).ok()?.to_be_bytes();
        self.length += PREFIX;
        let prefix = [0, a, b, c, d];
        match self.parts.front_mut() {
            Some(Part::Fields(fields)) if fields.len() < PIECE => drop(fields.splice(0..0, prefix)),
            _ => self.parts.push_front(Part::Fields(prefix.to_vec())),
        }
        Some(self)
    }

    /// The next piece, if there is one.
    pub(super) fn next_piece(&mut self) -> Option<Bytes> {
        if let Some(Part::Fields(fields)) = self.parts.front_mut()
            && fields.len() == self.length
            && fields.len() <= PIECE
        {
            // All of it, as it is.
            self.length = 0;
            let all = std::mem::take(fields);
            self.parts.clear();
            return Some(all.into()).filter(|all: &Bytes| !all.is_empty());
        }
        let mut piece = BytesMut::with_capacity(self.length.min(PIECE));
        while piece.len() < PIECE {
            match self.parts.pop_front() {
                None => break,
                Some(Part::Fields(fields)) => self.parts.push_front(Part::Bytes(fields.into())),
                Some(Part::Record(field, record, form)) => {
                    put_field(&mut piece, field, record_length(&record, form));
                    Head::new(&record, form).encode(&mut piece).expect("the buffer grows");
                    if let Some(value) = value(&record, form) {
                        put_field(&mut piece, VALUE, value.len());
                        self.parts.push_front(Part::Bytes(value.clone()));
                    }
                }
                Some(Part::Bytes(mut bytes)) => {
                    let taken = bytes.split_to(bytes.len().min(PIECE - piece.len()));
                    if !bytes.is_empty() {
                        self.parts.push_front(Part::Bytes(bytes));
                    }
                    if piece.is_empty() && taken.len() == PIECE {
                        // As it is, without a copy.
                        self.length -= PIECE;
                        return Some(taken);
                    }
                    piece.extend_from_slice(&taken);
                }
            }
        }
        self.length -= piece.len();
        Some(piece.freeze()).filter(|piece| !piece.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use etcd_client::proto::{PbKeyValue, PbRangeResponse, PbResponseHeader, PbResponseOp, PbTxnOpResponse};

    use super::*;

    fn record(value: usize) -> Arc<Record> {
        let (key, value) = (Bytes::from("k".repeat(200)), Bytes::from(vec![b'v'; value]));
        Arc::new(Record {
            key,
            value,
            create_revision: 2,
            mod_revision: 300,
            version: 4,
            lease: -5,
            place: 0,
        })
    }

    fn as_proto(record: &Record) -> PbKeyValue {
        PbKeyValue {
            key: record.key.to_vec(),
            value: record.value.to_vec(),
            create_revision: 2,
            mod_revision: 300,
            version: 4,
            lease: -5,
        }
    }

    fn bytes(mut rope: Rope) -> Vec<u8> {
        let length = rope.length();
        let mut all = Vec::new();
        while let Some(piece) = rope.next_piece() {
            assert!(piece.len() <= PIECE + 300, "{}", piece.len());
            all.extend_from_slice(&piece);
        }
        assert_eq!((all.len(), rope.length()), (length, 0));
        all
    }

    #[test]
    fn it_is_read_as_the_message_it_stands_for() {
        let header = Some(PbResponseHeader { revision: 7, ..Default::default() });
        let fields = PbRangeResponse { header, kvs: Vec::new(), more: true, count: 9 };
        for sizes in [&[][..], &[0], &[10, 0, 1_000_000], &[PIECE, PIECE - 1, PIECE + 1], &[1000; 200]] {
            let records: Vec<_> = sizes.iter().map(|size| record(*size)).collect();
            let mut rope = Rope::of(&fields);
            records.iter().for_each(|record| rope.push_record(2, Arc::clone(record), Form::Whole));
            let expected = PbRangeResponse {
                kvs: records.iter().map(|record| as_proto(record)).collect(),
                ..fields.clone()
            };
            let mut nested = Rope::default();
            nested.push_message(1, rope);
            let op = PbResponseOp::decode(&bytes(nested)[..]).unwrap();
            let Some(PbTxnOpResponse::ResponseRange(found)) = op.response else { panic!("{op:?}") };
            assert!(found == expected, "{sizes:?}");
        }
    }

    #[test]
    fn a_record_can_be_told_in_part() {
        let mut rope = Rope::default();
        rope.push_record(2, record(100), Form::WithoutValue);
        rope.push_record(2, record(100), Form::Deletion);
        let found = PbRangeResponse::decode(&bytes(rope)[..]).unwrap();
        assert_eq!(found.kvs[0], PbKeyValue { value: Vec::new(), ..as_proto(&record(0)) });
        let gone = PbKeyValue { key: found.kvs[0].key.clone(), mod_revision: 300, ..Default::default() };
        assert_eq!(found.kvs[1], gone);
    }
}
