//! The messages, as bytes. `torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp` has their numbers.
//!
//! A message is its number in one byte, and then fields without names. Integers are little-endian, since PyTorch sends
//! them as they lie in memory; a key or value is its length in eight bytes, and its bytes. There are no request ids:
//! replies come in the order of the requests.

use crate::{Limits, Refusal};

/// What the first message carries, so that other protocols are told apart.
pub(crate) const MAGIC: u32 = 0x3C85_F7CE;

/// The number of the first message.
pub(crate) const VALIDATE: u8 = 0;

/// The answer to a check.
pub(crate) const READY: u8 = 0;
pub(crate) const NOT_READY: u8 = 1;

/// The answers to a wait.
pub(crate) const STOP_WAITING: u8 = 0;
pub(crate) const WAIT_CANCELED: u8 = 1;

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
    fn of(number: u8) -> Option<Self> {
        use Field::{I64, Key, U32, Value};
        let once = |fields| Some(Shape { fields, repeated: false });
        let repeated = |fields| Some(Shape { fields, repeated: true });
        match number {
            VALIDATE | 13 => once(&[U32]),
            1 | 9 | 14 => once(&[Key, Value]),
            2 => once(&[Key, Value, Value]),
            3 | 8 | 15 | 16 => once(&[Key]),
            4 | 18 => once(&[Key, I64]),
            5 | 6 | 10 => repeated(&[Key]),
            11 => repeated(&[Key, Value]),
            7 | 12 | 17 => once(&[]),
            _ => None,
        }
    }
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Validate(u32),
    Set(&'a [u8], &'a [u8]),
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: &'a [u8] },
    Get(&'a [u8]),
    Add(&'a [u8], i64),
    Check(Vec<&'a [u8]>),
    Wait(Vec<&'a [u8]>),
    CountKeys,
    Delete(&'a [u8]),
    Append(&'a [u8], &'a [u8]),
    MultiGet(Vec<&'a [u8]>),
    MultiSet(Vec<(&'a [u8], &'a [u8])>),
    CancelWait,
    Ping(u32),
    QueuePush(&'a [u8], &'a [u8]),
    QueuePop(&'a [u8]),
    QueueLen(&'a [u8]),
    ListKeys,
    Barrier { key: &'a [u8], world_size: i64 },
}

impl<'a> Request<'a> {
    /// Reads a message that is whole and has been looked through by [`Scan`]. None if it is not.
    pub(crate) fn read(message: &'a [u8], name: Name) -> Option<Self> {
        let (&number, rest) = message.split_first()?;
        let mut fields = Fields { rest, name };
        Some(match number {
            VALIDATE => Request::Validate(fields.u32()?),
            1 => Request::Set(fields.key()?, fields.bytes()?),
            2 => Request::CompareSet {
                key: fields.key()?,
                expected: fields.bytes()?,
                desired: fields.bytes()?,
            },
            3 => Request::Get(fields.key()?),
            4 => Request::Add(fields.key()?, fields.i64()?),
            5 => Request::Check(fields.list(Fields::key)?),
            6 => Request::Wait(fields.list(Fields::key)?),
            7 => Request::CountKeys,
            8 => Request::Delete(fields.key()?),
            9 => Request::Append(fields.key()?, fields.bytes()?),
            10 => Request::MultiGet(fields.list(Fields::key)?),
            11 => Request::MultiSet(fields.list(|fields| Some((fields.key()?, fields.bytes()?)))?),
            12 => Request::CancelWait,
            13 => Request::Ping(fields.u32()?),
            14 => Request::QueuePush(fields.key()?, fields.bytes()?),
            15 => Request::QueuePop(fields.key()?),
            16 => Request::QueueLen(fields.key()?),
            17 => Request::ListKeys,
            18 => Request::Barrier { key: fields.key()?, world_size: fields.i64()? },
            _ => return None,
        })
    }
}

/// What a key is called in the store, of what it is called in a message.
pub(crate) type Name = fn(&[u8]) -> &[u8];

/// A key as it stands.
pub(crate) fn whole(key: &[u8]) -> &[u8] {
    key
}

/// A key without the attempt that PyTorch before 2.6, and its XLA, put before it: the restarts of the worker's node. The
/// first slash is the client's own.
pub(crate) fn without_attempt(key: &[u8]) -> &[u8] {
    let Some(rest) = key.strip_prefix(b"//worker/attempt_") else { return key };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match &rest[digits..] {
        name @ [b'/', ..] if digits > 0 => name,
        _ => key,
    }
}

/// The fields that are left of a message.
struct Fields<'a> {
    rest: &'a [u8],
    name: Name,
}

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        self.array().map(u64::from_le_bytes)?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.bytes().map(self.name)
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.length()?;
        (0..count).map(|_| item(self)).collect()
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
                let shape = Shape::of(number).ok_or(Refusal::UnknownMessage(number))?;
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
