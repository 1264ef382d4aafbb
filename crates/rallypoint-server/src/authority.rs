//! Makes up for clients that send a whole URL as the name of the server.
//!
//! etcd's 3.4 client does so when it is told to ask one endpoint, as for `etcdctl endpoint status`: its
//! `:authority` is `http://host:port`. Go's servers do not look at it; h2 resets the request. Nothing here is
//! served by name, so the value is blanked on its way in.
//!
//! A client gives all requests of a connection the same name, so the first one tells. If that does not begin as a URL does,
//! nothing stands before the rest of the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose requests have no name of the server that anybody could object to.
#[derive(Debug)]
pub(crate) struct WithoutAuthority<S> {
    inner: S,
    blank: Blank,
}

impl<S> WithoutAuthority<S> {
    pub(crate) fn new(inner: S) -> Self {
        WithoutAuthority { inner, blank: Blank::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithoutAuthority<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        self.blank.pass(&mut buf.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithoutAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The place of `:authority` in HPACK's table of names.
const AUTHORITY: usize = 1;
/// Allowed in a name.
const FILLING: u8 = b'x';

/// Follows the frames of a connection and blanks the values of `:authority` in place.
///
/// A value becomes as many bytes that stand for themselves. The table of values seen, which the client counts on,
/// stays in step: each has its entry, and none is larger than the client takes it for.
#[derive(Debug)]
enum Blank {
    /// So much of the preface came.
    Preface(usize),
    /// So much of a frame's head came.
    Head(usize, [u8; FRAME_HEAD]),
    /// So much is left of a frame of no interest, or of the rest of one.
    Skip(usize),
    /// In a frame of headers: so much is left of it, what is before the fields, and the place in the fields.
    Fields { left: usize, ahead: usize, place: HpackState },
    /// Another protocol, or a client that needs no help.
    Off,
}

/// Where in the fields of HPACK the next byte is.
#[derive(Debug, Clone, Copy)]
enum HpackState {
    /// The first of a field.
    Start,
    /// In a number that goes on: its value so far, how far the next byte is shifted, and what it is.
    Number {
        value: usize,
        shift: u32,
        of: Number,
    },
    /// The length of a name, then of a value.
    NameLength,
    ValueLength {
        blank: bool,
    },
    /// In a text that is so long.
    Name(usize),
    Value {
        left: usize,
        blank: bool,
    },
}

#[derive(Debug, Clone, Copy)]
enum Number {
    /// Says all that a field has to say.
    Whole,
    /// The place of a name in the table.
    NameIndex,
    NameLength,
    ValueLength {
        blank: bool,
    },
}

impl Default for Blank {
    fn default() -> Self {
        Blank::Preface(0)
    }
}

impl Blank {
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let used = match self {
                Blank::Off => return,
                Blank::Preface(came) => {
                    let used = bytes.len().min(PREFACE.len() - *came);
                    let is_http2 = bytes[..used] == PREFACE[*came..*came + used];
                    *came += used;
                    if !is_http2 {
                        *self = Blank::Off;
                    } else if *came == PREFACE.len() {
                        *self = Blank::Head(0, [0; FRAME_HEAD]);
                    }
                    used
                }
                Blank::Head(came, head) => {
                    let used = bytes.len().min(FRAME_HEAD - *came);
                    head[*came..*came + used].copy_from_slice(&bytes[..used]);
                    *came += used;
                    if *came == FRAME_HEAD {
                        *self = Blank::body(*head);
                    }
                    used
                }
                Blank::Skip(left) => {
                    let used = bytes.len().min(*left);
                    *left -= used;
                    used
                }
                Blank::Fields { left, ahead, place } => {
                    let used = bytes.len().min(*left);
                    let skipped = used.min(*ahead);
                    *ahead -= skipped;
                    *left -= used;
                    for at in skipped..used {
                        if place.is_before_name() && is_plain_name(&bytes[at..used]) {
                            *self = Blank::Off;
                            return;
                        }
                        place.pass(&mut bytes[at]);
                    }
                    used
                }
            };
            if let Blank::Skip(0) | Blank::Fields { left: 0, .. } = self {
                *self = Blank::Head(0, [0; FRAME_HEAD]);
            }
            bytes = &mut bytes[used..];
        }
    }

    /// What follows the head of a frame.
    fn body([a, b, c, kind, flags, ..]: [u8; FRAME_HEAD]) -> Self {
        let left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if kind != HEADERS {
            return Blank::Skip(left);
        }
        let ahead = if flags & PADDED == 0 { 0 } else { 1 } + if flags & PRIORITY == 0 { 0 } else { 5 };
        Blank::Fields { left, ahead, place: HpackState::Start }
    }
}

/// Whether a length and what follows it are certainly no URL. That begins with an `h`, plain or in Huffman's code, where
/// the byte has two bits of the next letter too. A name that is cut here is taken for one: to blank it does no harm.
fn is_plain_name(bytes: &[u8]) -> bool {
    /// The six bits of an `h`, and the first two of a `t`.
    const HUFFMAN_HT: u8 = 0b1001_1101;
    match bytes {
        [length, first, ..] => matches!(length & 0x7f, 1..0x7f) && !matches!(*first, b'h' | HUFFMAN_HT),
        _ => false,
    }
}

impl HpackState {
    /// Whether the length of the server's name comes next.
    fn is_before_name(self) -> bool {
        matches!(self, HpackState::ValueLength { blank: true })
    }

    /// Goes on by a byte, which it may change.
    fn pass(&mut self, byte: &mut u8) {
        *self = match *self {
            HpackState::Start => match *byte {
                // By the forms of a field, from the one known by its place in the table to the one kept out of it.
                0x80.. => HpackState::number(*byte, 7, Number::Whole),
                0x40.. => HpackState::number(*byte, 6, Number::NameIndex),
                0x20.. => HpackState::number(*byte, 5, Number::Whole),
                _ => HpackState::number(*byte, 4, Number::NameIndex),
            },
            HpackState::Number { value, shift, of } => {
                let part = usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or(0);
                let value = value.saturating_add(part);
                if *byte & 0x80 == 0 {
                    of.ended(value)
                } else {
                    HpackState::Number { value, shift: shift.saturating_add(7), of }
                }
            }
            HpackState::NameLength => HpackState::number(*byte, 7, Number::NameLength),
            HpackState::ValueLength { blank } => {
                if blank {
                    // No longer in Huffman's code.
                    *byte &= 0x7f;
                }
                HpackState::number(*byte, 7, Number::ValueLength { blank })
            }
            HpackState::Name(left) => Number::NameLength.ended(left - 1),
            HpackState::Value { left, blank } => {
                if blank {
                    *byte = FILLING;
                }
                Number::ValueLength { blank }.ended(left - 1)
            }
        };
    }

    /// A number that begins in the last bits of a byte.
    fn number(byte: u8, bits: u32, of: Number) -> HpackState {
        let all = (1 << bits) - 1;
        let value = usize::from(byte) & all;
        if value == all { HpackState::Number { value, shift: 0, of } } else { of.ended(value) }
    }
}

impl Number {
    /// What comes after it.
    fn ended(self, value: usize) -> HpackState {
        match (self, value) {
            (Number::Whole, _) | (Number::ValueLength { .. }, 0) => HpackState::Start,
            (Number::NameIndex, 0) => HpackState::NameLength,
            (Number::NameIndex, name) => HpackState::ValueLength { blank: name == AUTHORITY },
            (Number::NameLength, 0) => HpackState::ValueLength { blank: false },
            (Number::NameLength, left) => HpackState::Name(left),
            (Number::ValueLength { blank }, left) => HpackState::Value { left, blank },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with its head.
    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The bytes of a connection, whichever way they are cut.
    #[track_caller]
    fn becomes(sent: &[u8], expected: &[u8]) {
        for size in 1..=sent.len() {
            let (mut blank, mut bytes) = (Blank::default(), sent.to_vec());
            bytes.chunks_mut(size).for_each(|piece| blank.pass(piece));
            assert_eq!(bytes, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn the_name_of_the_server_is_blanked_and_nothing_else() {
        let fields = |value: &[u8]| {
            // :method POST, a name by its place, a table size over two bytes, a name spelled out, an empty value.
            [&b"\x83\x44\x03/ab\x3f\x01\x41"[..], value, b"\x40\x03te:\x08trailers\x0f\x01\x00\x86"].concat()
        };
        let long = 200;
        let over_two_bytes = [0x7f, u8::try_from(long - 127).unwrap()];
        for (value, blanked) in [
            (b"\x08http://a".to_vec(), b"\x08xxxxxxxx".to_vec()),
            // In Huffman's code.
            (b"\x83\x9d\xbb\xcc".to_vec(), b"\x03xxx".to_vec()),
            (b"\x00".to_vec(), b"\x00".to_vec()),
            (
                [&[over_two_bytes[0] | 0x80, over_two_bytes[1]][..], &vec![0xaa; long]].concat(),
                [&over_two_bytes[..], &vec![b'x'; long]].concat(),
            ),
        ] {
            let sent = |value: &[u8]| {
                let fields = fields(value);
                let ahead = [&[4][..], &[9; 5], &fields, &[0; 4]].concat();
                [
                    PREFACE,
                    &frame(4, 0, &[0x41; 6]),
                    &frame(HEADERS, 4, &fields),
                    &frame(0, 1, b"\x41\x03abc"),
                    &frame(HEADERS, PADDED | PRIORITY, &ahead),
                    &frame(8, 0, b""),
                    &frame(HEADERS, 4, &fields),
                ]
                .concat()
            };
            becomes(&sent(&value), &sent(&blanked));
        }
    }

    /// Whole or in pieces that the name is not cut from its length in, a name that is none of a URL stays, and so does all
    /// that comes after it.
    #[test]
    fn after_a_name_that_is_no_url_nothing_is_looked_at() {
        for name in [&b"\x0b10.0.0.1:80"[..], b"\x83\xaa\xbb\xcc", b"\x01e"] {
            let sent = [
                PREFACE,
                &frame(HEADERS, 4, &[&b"\x83\x41"[..], name].concat()),
                &frame(HEADERS, 4, b"\x41\x08http://a"),
            ]
            .concat();
            let (mut blank, mut bytes) = (Blank::default(), sent.clone());
            blank.pass(&mut bytes);
            assert_eq!(bytes, sent);
            assert!(matches!(blank, Blank::Off));
        }
    }

    #[test]
    fn other_protocols_pass() {
        for sent in [&b"GET / HTTP/1.1\r\n\r\n\x41\x01a"[..], b"PRI * HTTP/1.1", &[PREFACE, &[0; 9]].concat()]
        {
            becomes(sent, sent);
        }
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let noise: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
            let mut sent = [PREFACE, &frame(HEADERS, random.u8(..), &noise)].concat();
            let length = sent.len();
            let last = frame(HEADERS, 0, b"\x41\x01h");
            sent.extend_from_slice(&last);
            let mut blank = Blank::default();
            blank.pass(&mut sent);
            let expected = if matches!(blank, Blank::Off) { last } else { frame(HEADERS, 0, b"\x41\x01x") };
            assert_eq!(sent.split_off(length), expected, "{noise:?}");
        }
    }
}
