//! A message written as JSON while it comes in: of one that is large, only a piece is held.
//!
//! Names are those of the protocol, and what is zero is left out, as etcd has it. The elements of a list follow each
//! other, as everything of ours writes them.

use std::fmt::Write as _;
use std::mem;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use tonic::Status;

/// gRPC's types of what follows a field's number.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;
/// A number has no more bytes.
const LONGEST_VARINT: usize = 10;

/// A message that is being written.
#[derive(Debug)]
pub(super) struct Text {
    /// The messages that are open, the innermost last.
    open: Vec<Open>,
    /// A field that is written, or skipped, as it comes.
    field: Option<LongField>,
    /// What came of a field that is written when it is whole.
    rest: Vec<u8>,
    to_come: usize,
}

#[derive(Debug)]
struct Open {
    message: MessageDescriptor,
    /// Its bytes that were not read.
    left: usize,
    has_fields: bool,
    /// The field whose list is open.
    list: Option<u32>,
}

#[derive(Debug)]
struct LongField {
    left: usize,
    is_skipped: bool,
}

impl Text {
    /// Begins to write a message of so many bytes.
    pub(super) fn begin(message: MessageDescriptor, length: usize, text: &mut String) -> Self {
        text.push('{');
        let open = vec![Open { message, left: length, has_fields: false, list: None }];
        Text { open, field: None, rest: Vec::new(), to_come: length }
    }

    /// The bytes of the message that are still to come.
    pub(super) fn to_come(&self) -> usize {
        self.to_come
    }

    /// Whether all is written.
    pub(super) fn is_over(&self) -> bool {
        self.open.is_empty()
    }

    /// Writes what can be written now that more has come.
    pub(super) fn add(&mut self, piece: &[u8], text: &mut String) -> Result<(), Status> {
        self.to_come -= piece.len();
        let mut came = mem::take(&mut self.rest);
        came.extend_from_slice(piece);
        let mut left = &came[..];
        while self.step(&mut left, text)? {}
        self.rest = left.to_vec();
        if self.to_come == 0 && !self.is_over() { Err(wrong()) } else { Ok(()) }
    }

    /// Writes a part, unless more has to come before.
    fn step(&mut self, left: &mut &[u8], text: &mut String) -> Result<bool, Status> {
        if let Some(field) = &mut self.field {
            if !field.go_on(left, text) {
                return Ok(false);
            }
            self.field = None;
            return Ok(true);
        }
        let Some(message) = self.open.last_mut() else { return Ok(false) };
        if message.left == 0 {
            text.push_str(if message.list.is_some() { "]}" } else { "}" });
            self.open.pop();
            return Ok(true);
        }
        let mut ahead = *left;
        let Some(tag) = varint(&mut ahead)? else { return Ok(false) };
        let number = u32::try_from(tag >> 3).map_err(|_| wrong())?;
        let field = message.message.get_field(number);
        let Some(length) = length_of(tag & 7, &mut ahead)? else { return Ok(false) };
        let whole = left.len() - ahead.len() + length;
        let mut long = |is_skipped| self.field = Some(LongField { left: length, is_skipped });
        match field.as_ref().map(|field| (field, field.kind())) {
            None => {
                message.take(whole)?;
                long(true);
            }
            Some((field, Kind::Message(inner))) => {
                message.take(whole)?;
                message.name(field, text);
                text.push('{');
                self.open.push(Open { message: inner, left: length, has_fields: false, list: None });
            }
            Some((field, Kind::Bytes)) => {
                message.take(whole)?;
                message.name(field, text);
                text.push('"');
                long(false);
            }
            Some((field, kind)) => {
                let Some((mut value, after)) = ahead.split_at_checked(length) else { return Ok(false) };
                message.take(whole)?;
                ahead = after;
                if matches!(kind, Kind::String) {
                    message.name(field, text);
                    let value = serde_json::to_string(&String::from_utf8_lossy(value));
                    text.push_str(&value.map_err(|_| wrong())?);
                }
                // One number, or many that were put together.
                while !value.is_empty() && !matches!(kind, Kind::String) {
                    let number = varint(&mut value)?.ok_or_else(wrong)?;
                    message.name(field, text);
                    write_number(&kind, number, text)?;
                }
            }
        }
        *left = ahead;
        Ok(true)
    }
}

impl Open {
    fn take(&mut self, bytes: usize) -> Result<(), Status> {
        self.left = self.left.checked_sub(bytes).ok_or_else(wrong)?;
        Ok(())
    }

    /// Writes what stands before a value.
    fn name(&mut self, field: &FieldDescriptor, text: &mut String) {
        if self.list == Some(field.number()) {
            return text.push(',');
        }
        if self.list.take().is_some() {
            text.push(']');
        }
        if mem::replace(&mut self.has_fields, true) {
            text.push(',');
        }
        text.extend(["\"", field.name(), "\":"]);
        if field.is_list() {
            text.push('[');
            self.list = Some(field.number());
        }
    }
}

impl LongField {
    /// Writes what came of it; whether that was the rest.
    fn go_on(&mut self, came: &mut &[u8], text: &mut String) -> bool {
        let mut now = self.left.min(came.len());
        if now < self.left && !self.is_skipped {
            // Three bytes are four letters.
            now -= now % 3;
        }
        let (bytes, rest) = came.split_at(now);
        (*came, self.left) = (rest, self.left - now);
        if !self.is_skipped {
            BASE64_STANDARD.encode_string(bytes, text);
            if self.left == 0 {
                text.push('"');
            }
        }
        self.left == 0
    }
}

/// Reads how many bytes a field has beside its number, and its length if that is told. A number is left where it is.
fn length_of(kind: u64, ahead: &mut &[u8]) -> Result<Option<usize>, Status> {
    match kind {
        VARINT => {
            let mut after = *ahead;
            Ok(varint(&mut after)?.map(|_| ahead.len() - after.len()))
        }
        FIXED_64 => Ok(Some(8)),
        FIXED_32 => Ok(Some(4)),
        DELIMITED => varint(ahead)?.map(|length| usize::try_from(length).map_err(|_| wrong())).transpose(),
        _ => Err(wrong()),
    }
}

/// Takes a number off the front, if it is there whole.
fn varint(bytes: &mut &[u8]) -> Result<Option<u64>, Status> {
    let known = &bytes[..bytes.len().min(LONGEST_VARINT)];
    if known.iter().all(|byte| *byte >= 0x80) {
        return if known.len() < LONGEST_VARINT { Ok(None) } else { Err(wrong()) };
    }
    prost::encoding::decode_varint(bytes).map(Some).map_err(|_| wrong())
}

/// Those of 64 bits are text in JSON, where a number has less.
fn write_number(kind: &Kind, number: u64, text: &mut String) -> Result<(), Status> {
    let low = u32::try_from(number & u64::from(u32::MAX)).map_err(|_| wrong())?;
    let written = match kind {
        Kind::Bool => write!(text, "{}", number != 0),
        Kind::Int32 => write!(text, "{}", low.cast_signed()),
        Kind::Uint32 => write!(text, "{low}"),
        Kind::Int64 => write!(text, "\"{}\"", number.cast_signed()),
        Kind::Uint64 => write!(text, "\"{number}\""),
        Kind::Enum(names) => match names.get_value(low.cast_signed()) {
            Some(value) => write!(text, "\"{}\"", value.name()),
            None => write!(text, "{}", low.cast_signed()),
        },
        // No answer has any.
        _ => return Err(wrong()),
    };
    written.map_err(|_| wrong())
}

fn wrong() -> Status {
    Status::internal("a message cannot be told in JSON")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use etcd_client::proto::{PbEvent, PbKeyValue, PbRangeResponse, PbResponseHeader, PbWatchResponse};
    use prost_reflect::{DynamicMessage, SerializeOptions};
    use serde_json::Value;

    use super::*;
    use crate::descriptors;

    fn descriptor(name: &str) -> MessageDescriptor {
        descriptors::pool().get_message_by_name(name).unwrap()
    }

    fn written(name: &str, message: &[u8], size: usize) -> Value {
        let mut text = String::new();
        let mut writing = Text::begin(descriptor(name), message.len(), &mut text);
        writing.add(b"", &mut text).ok();
        for piece in message.chunks(size) {
            writing.add(piece, &mut text).ok();
        }
        assert!(writing.is_over() && writing.to_come() == 0, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn expected(name: &str, message: &[u8]) -> Value {
        let message = DynamicMessage::decode(descriptor(name), message).unwrap();
        let options = SerializeOptions::new().use_proto_field_name(true);
        message.serialize_with_options(serde_json::value::Serializer, &options).unwrap()
    }

    fn check(name: &str, message: &impl prost::Message) {
        let message = message.encode_to_vec();
        for size in 1..=message.len().max(1) {
            assert_eq!(written(name, &message, size), expected(name, &message), "{name} in pieces of {size}");
        }
    }

    fn key(value: usize) -> PbKeyValue {
        let key = "k\u{e9}\0".into();
        PbKeyValue { key, value: vec![7; value], mod_revision: -1, lease: i64::MAX, ..Default::default() }
    }

    #[test]
    fn it_is_what_the_descriptors_say_however_the_message_is_cut() {
        let header = Some(PbResponseHeader { cluster_id: u64::MAX, revision: 300, ..Default::default() });
        check("etcdserverpb.RangeResponse", &PbRangeResponse::default());
        let kvs = vec![key(0), key(1), key(2), key(300), PbKeyValue::default()];
        check("etcdserverpb.RangeResponse", &PbRangeResponse { header, kvs, more: true, count: 4 });
        let told = PbEvent { r#type: 1, kv: Some(key(4)), prev_kv: Some(key(5)) };
        let events = vec![told.clone(), PbEvent::default(), PbEvent { r#type: 77, ..told }];
        let cancel_reason = "\"why\"\n\u{e9}".to_owned();
        let header = Some(PbResponseHeader::default());
        check(
            "etcdserverpb.WatchResponse",
            &PbWatchResponse { header, created: true, cancel_reason, events, ..Default::default() },
        );
    }

    #[test]
    fn fields_that_nobody_knows_are_left_out_and_what_is_no_message_is_an_error() {
        let unknown = [&b"\xa2\x06\x03abc\xa8\x06\x80\x01\xad\x06abcd\xa9\x06abcdefgh\x20\x05"[..]].concat();
        for size in 1..=unknown.len() {
            assert_eq!(written("etcdserverpb.RangeResponse", &unknown, size).to_string(), r#"{"count":"5"}"#);
        }
        for wrong in [&b"\x12\x05\x0a"[..], b"\x20", b"\x23", &[0xff; 12]] {
            let mut text = String::new();
            let mut writing = Text::begin(descriptor("etcdserverpb.RangeResponse"), wrong.len(), &mut text);
            writing.add(wrong, &mut text).unwrap_err();
        }
    }

    /// What an answer may have in it.
    #[test]
    fn no_answer_has_anything_else() {
        let mut seen = HashSet::new();
        let methods =
            descriptors::pool().services().flat_map(|service| service.methods().collect::<Vec<_>>());
        let mut open: Vec<_> = methods
            .filter(|method| !super::super::route::paths(descriptors::pool(), method).is_empty())
            .map(|method| method.output())
            .collect();
        assert!(open.len() > 40, "{}", open.len());
        while let Some(message) = open.pop() {
            if !seen.insert(message.full_name().to_owned()) {
                continue;
            }
            for field in message.fields() {
                assert!(!field.is_map(), "{}", field.full_name());
                match field.kind() {
                    Kind::Message(inner) => open.push(inner),
                    Kind::Bytes | Kind::String => {}
                    kind => write_number(&kind, 1, &mut String::new()).unwrap(),
                }
            }
        }
    }
}
