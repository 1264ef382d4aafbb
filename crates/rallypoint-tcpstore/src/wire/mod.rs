//! The messages, as bytes. `torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp` has their numbers.
//!
//! A message is its number in one byte, and then fields without names. Integers are little-endian, since PyTorch sends
//! them as they lie in memory; a key or value is its length in eight bytes, and its bytes. There are no request ids:
//! replies come in the order of the requests, but for that of a wait, which comes when the wait ends.

mod scan;

pub(crate) use scan::Scan;

/// What the first message carries, so that other protocols are told apart.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// An answer to a check: all keys are there.
pub const READY: u8 = 0;
/// An answer to a check: some key is not there.
pub const NOT_READY: u8 = 1;

/// The answer to a wait that is over.
pub const STOP_WAITING: u8 = 0;
/// The answer to the end that a client puts to its wait.
pub const WAIT_CANCELED: u8 = 1;

/// Names the messages in the order of their numbers, which stand nowhere else, each with PyTorch's name for it.
macro_rules! in_order {
    ($($kind:ident $name:literal,)*) => {
        /// The messages there are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $($kind,)* }

        impl Kind {
            const ALL: &[Kind] = &[$(Kind::$kind,)*];
        }

        /// What PyTorch calls the messages, in the order of their numbers.
        pub const MESSAGES: &[&str] = &[$($name,)*];
    };
}

in_order![
    Validate "VALIDATE", Set "SET", CompareSet "COMPARE_SET", Get "GET", Add "ADD", Check "CHECK", Wait "WAIT",
    CountKeys "GETNUMKEYS", Delete "DELETE_KEY", Append "APPEND", MultiGet "MULTI_GET", MultiSet "MULTI_SET",
    CancelWait "CANCEL_WAIT", Ping "PING", QueuePush "QUEUE_PUSH", QueuePop "QUEUE_POP", QueueLen "QUEUE_LEN",
    ListKeys "LIST_KEYS", Barrier "BARRIER",
];

impl Kind {
    pub(crate) fn of(number: u8) -> Option<Self> {
        Kind::ALL.get(usize::from(number)).copied()
    }
}

/// A message of a client. `key` stands for a key, and `value` for a value, of any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first message of a connection, with [`MAGIC`]. No reply.
    Validate(u32),
    /// Sets a key to a value. No reply.
    Set(&'a [u8], &'a [u8]),
    /// Sets a key if its value is the expected one. The reply is its value after that.
    CompareSet {
        /// The key.
        key: &'a [u8],
        /// What it has to be.
        expected: &'a [u8],
        /// What it is to be.
        desired: &'a [u8],
    },
    /// The reply is the value, empty for a key that is not there.
    Get(&'a [u8]),
    /// Adds to a number. The reply is the sum, as an i64.
    Add(&'a [u8], i64),
    /// The reply is [`READY`] or [`NOT_READY`].
    Check(Vec<&'a [u8]>),
    /// The reply is [`STOP_WAITING`], once all are there.
    Wait(Vec<&'a [u8]>),
    /// The reply is a u64.
    CountKeys,
    /// The reply is an i64: 1 if the key was there, else 0.
    Delete(&'a [u8]),
    /// Puts a value behind the one that is there. No reply.
    Append(&'a [u8], &'a [u8]),
    /// The reply is the values, one after the other.
    MultiGet(Vec<&'a [u8]>),
    /// Sets many. No reply.
    MultiSet(Vec<(&'a [u8], &'a [u8])>),
    /// Ends a wait. The reply is [`WAIT_CANCELED`], and comes after that of a wait which has ended just now.
    CancelWait,
    /// The reply is the same number. Known from torch 2.5 on.
    Ping(u32),
    /// Puts a value at the end of a queue. No reply. Known from torch 2.8 on, as are all of queues, to the libuv server.
    QueuePush(&'a [u8], &'a [u8]),
    /// The reply is the length of the queue as an i64 and, if that is not 0, the first value, which is taken.
    QueuePop(&'a [u8]),
    /// The reply is an i64.
    QueueLen(&'a [u8]),
    /// The reply is their number and the keys, one after the other. Known from torch 2.10 on.
    ListKeys,
    /// The reply is [`STOP_WAITING`], once so many have come. Known from torch 2.12 on.
    Barrier {
        /// Where they are counted.
        key: &'a [u8],
        /// How many are to come.
        world_size: i64,
    },
}

impl<'a> Request<'a> {
    /// What it is called where messages are counted.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Request::Validate(..) | Request::Ping(..) => "other",
            Request::Set(..) => "set",
            Request::CompareSet { .. } => "compare_set",
            Request::Get(..) => "get",
            Request::Add(..) => "add",
            Request::Check(..) => "check",
            Request::Wait(..) => "wait",
            Request::CountKeys => "count_keys",
            Request::Delete(..) => "delete",
            Request::Append(..) => "append",
            Request::MultiGet(..) => "multi_get",
            Request::MultiSet(..) => "multi_set",
            Request::CancelWait => "cancel_wait",
            Request::QueuePush(..) => "queue_push",
            Request::QueuePop(..) => "queue_pop",
            Request::QueueLen(..) => "queue_len",
            Request::ListKeys => "list_keys",
            Request::Barrier { .. } => "barrier",
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Request::Validate(..) => Kind::Validate,
            Request::Set(..) => Kind::Set,
            Request::CompareSet { .. } => Kind::CompareSet,
            Request::Get(..) => Kind::Get,
            Request::Add(..) => Kind::Add,
            Request::Check(..) => Kind::Check,
            Request::Wait(..) => Kind::Wait,
            Request::CountKeys => Kind::CountKeys,
            Request::Delete(..) => Kind::Delete,
            Request::Append(..) => Kind::Append,
            Request::MultiGet(..) => Kind::MultiGet,
            Request::MultiSet(..) => Kind::MultiSet,
            Request::CancelWait => Kind::CancelWait,
            Request::Ping(..) => Kind::Ping,
            Request::QueuePush(..) => Kind::QueuePush,
            Request::QueuePop(..) => Kind::QueuePop,
            Request::QueueLen(..) => Kind::QueueLen,
            Request::ListKeys => Kind::ListKeys,
            Request::Barrier { .. } => Kind::Barrier,
        }
    }

    /// Appends the message to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.kind() as u8);
        match self {
            Request::Validate(number) | Request::Ping(number) => bytes.extend(number.to_le_bytes()),
            Request::Set(key, value) | Request::Append(key, value) | Request::QueuePush(key, value) => {
                write_string(key, bytes);
                write_string(value, bytes);
            }
            Request::CompareSet { key, expected, desired } => {
                [key, expected, desired].into_iter().for_each(|field| write_string(field, bytes));
            }
            Request::Get(key) | Request::Delete(key) | Request::QueuePop(key) | Request::QueueLen(key) => {
                write_string(key, bytes);
            }
            Request::Add(key, number) | Request::Barrier { key, world_size: number } => {
                write_string(key, bytes);
                bytes.extend(number.to_le_bytes());
            }
            Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
                write_length(keys.len(), bytes);
                keys.iter().for_each(|key| write_string(key, bytes));
            }
            Request::MultiSet(pairs) => {
                write_length(pairs.len(), bytes);
                for (key, value) in pairs {
                    write_string(key, bytes);
                    write_string(value, bytes);
                }
            }
            Request::CountKeys | Request::CancelWait | Request::ListKeys => {}
        }
    }

    /// Reads a message that is whole and has been looked through by [`Scan`]. None if it is not.
    pub(crate) fn read(message: &'a [u8], name: Name) -> Option<Self> {
        let (&number, rest) = message.split_first()?;
        let mut fields = Fields { rest, name };
        Some(match Kind::of(number)? {
            Kind::Validate => Request::Validate(fields.u32()?),
            Kind::Set => Request::Set(fields.key()?, fields.bytes()?),
            Kind::CompareSet => Request::CompareSet {
                key: fields.key()?,
                expected: fields.bytes()?,
                desired: fields.bytes()?,
            },
            Kind::Get => Request::Get(fields.key()?),
            Kind::Add => Request::Add(fields.key()?, fields.i64()?),
            Kind::Check => Request::Check(fields.list(Fields::key)?),
            Kind::Wait => Request::Wait(fields.list(Fields::key)?),
            Kind::CountKeys => Request::CountKeys,
            Kind::Delete => Request::Delete(fields.key()?),
            Kind::Append => Request::Append(fields.key()?, fields.bytes()?),
            Kind::MultiGet => Request::MultiGet(fields.list(Fields::key)?),
            Kind::MultiSet => {
                Request::MultiSet(fields.list(|fields| Some((fields.key()?, fields.bytes()?)))?)
            }
            Kind::CancelWait => Request::CancelWait,
            Kind::Ping => Request::Ping(fields.u32()?),
            Kind::QueuePush => Request::QueuePush(fields.key()?, fields.bytes()?),
            Kind::QueuePop => Request::QueuePop(fields.key()?),
            Kind::QueueLen => Request::QueueLen(fields.key()?),
            Kind::ListKeys => Request::ListKeys,
            Kind::Barrier => Request::Barrier { key: fields.key()?, world_size: fields.i64()? },
        })
    }
}

fn write_length(length: usize, bytes: &mut Vec<u8>) {
    bytes.extend((length as u64).to_le_bytes());
}

/// Bytes with their length before them.
fn write_string(string: &[u8], bytes: &mut Vec<u8>) {
    write_length(string.len(), bytes);
    bytes.extend_from_slice(string);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    #[test]
    fn what_is_written_is_what_is_read_and_every_message_has_the_number_it_is_known_by() {
        let requests = [
            Request::Validate(MAGIC),
            Request::Set(b"k", b"v"),
            Request::CompareSet { key: b"k", expected: b"", desired: b"new" },
            Request::Get(b""),
            Request::Add(b"k", -1),
            Request::Check(vec![]),
            Request::Wait(vec![b"a", b""]),
            Request::CountKeys,
            Request::Delete(b"k"),
            Request::Append(b"k", b""),
            Request::MultiGet(vec![b"a"]),
            Request::MultiSet(vec![(b"a", b"1"), (b"b", b"")]),
            Request::CancelWait,
            Request::Ping(7),
            Request::QueuePush(b"q", b"v"),
            Request::QueuePop(b"q"),
            Request::QueueLen(b"q"),
            Request::ListKeys,
            Request::Barrier { key: b"k", world_size: i64::MAX },
        ];
        for (number, request) in requests.iter().enumerate() {
            let mut bytes = Vec::new();
            request.write(&mut bytes);
            assert_eq!(usize::from(bytes[0]), number);
            let length = bytes.len();
            bytes.push(0);
            assert_eq!(Scan::default().advance(&bytes, &Limits::default()), Ok(Some(length)), "{request:?}");
            assert_eq!(Scan::default().advance(&bytes[..length - 1], &Limits::default()), Ok(None));
            assert_eq!(Request::read(&bytes[..length], whole).as_ref(), Some(request));
        }
        assert_eq!(Kind::ALL.len(), requests.len());
    }
}
