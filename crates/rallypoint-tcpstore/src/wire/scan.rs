//! Where a message ends, before it is whole.

use super::Kind;
use crate::{Limits, Refusal};

#[derive(Clone, Copy, Debug)]
enum Field {
    Key,
    Value,
    U32,
    I64,
}

/// What a message is made of.
#[derive(Clone, Copy, Debug)]
struct Shape {
    fields: &'static [Field],
    /// Whether a count comes first, and the fields that many times.
    repeated: bool,
}

impl Shape {
    fn of(kind: Kind) -> Self {
        use Field::{I64, Key, U32, Value};
        let (fields, repeated): (&[Field], bool) = match kind {
            Kind::Validate | Kind::Ping => (&[U32], false),
            Kind::Set | Kind::Append | Kind::QueuePush => (&[Key, Value], false),
            Kind::CompareSet => (&[Key, Value, Value], false),
            Kind::Get | Kind::Delete | Kind::QueuePop | Kind::QueueLen => (&[Key], false),
            Kind::Add | Kind::Barrier => (&[Key, I64], false),
            Kind::Check | Kind::Wait | Kind::MultiGet => (&[Key], true),
            Kind::MultiSet => (&[Key, Value], true),
            Kind::CountKeys | Kind::CancelWait | Kind::ListKeys => (&[], false),
        };
        Shape { fields, repeated }
    }
}

/// How far a message that is coming in has been looked through. It goes on where it was, so a message that comes byte
/// by byte costs no more than one that comes at once, and a length that is too long is seen before its bytes come.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    shape: Option<Shape>,
    /// The end of what has been looked through; beyond what is there when a field's bytes are still to come.
    at: usize,
    /// How often the fields are still to come; none while the count is.
    left: Option<u64>,
    /// Which field is next.
    field: usize,
}

impl Scan {
    /// The length of the message that `data` begins with, once it is whole.
    pub(crate) fn advance(&mut self, data: &[u8], limits: &Limits) -> Result<Option<usize>, Refusal> {
        let Some(&number) = data.first() else { return Ok(None) };
        let shape = match self.shape {
            Some(shape) => shape,
            None => {
                let shape = Shape::of(Kind::of(number).ok_or(Refusal::UnknownMessage(number))?);
                self.at = 1;
                self.left = (!shape.repeated).then_some(u64::from(!shape.fields.is_empty()));
                *self.shape.insert(shape)
            }
        };
        loop {
            let Some(rest) = data.get(self.at..) else { return Ok(None) };
            let next = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            let Some(left) = self.left else {
                let Some(count) = next else { return Ok(None) };
                if count > limits.keys as u64 {
                    return Err(Refusal::TooManyKeys { count, limit: limits.keys });
                }
                self.at += 8;
                self.left = Some(count);
                continue;
            };
            if left == 0 {
                return Ok(Some(self.at));
            }
            self.at += match shape.fields[self.field] {
                Field::U32 => 4,
                Field::I64 => 8,
                Field::Key => {
                    let Some(size) = next else { return Ok(None) };
                    8 + fits(size, limits.key).ok_or(Refusal::KeyTooLong { size, limit: limits.key })?
                }
                Field::Value => {
                    let Some(size) = next else { return Ok(None) };
                    8 + fits(size, limits.value).ok_or(Refusal::ValueTooLong { size, limit: limits.value })?
                }
            };
            if self.at > limits.message {
                return Err(Refusal::MessageTooLong { limit: limits.message });
            }
            self.field += 1;
            if self.field == shape.fields.len() {
                self.field = 0;
                self.left = Some(left - 1);
            }
        }
    }
}

fn fits(size: u64, limit: usize) -> Option<usize> {
    usize::try_from(size).ok().filter(|size| *size <= limit)
}
