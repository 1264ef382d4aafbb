//! The parts of a trunk as bytes.
//!
//! ```text
//! header   kind(1)  length of what follows, big endian(3)  stream, big endian(4)
//! 0 open    from the proxy: a client has come. Streams are numbered upwards from 1, and no number comes twice.
//! 1 data    bytes of the stream, up to 16 KiB
//! 2 window  the other side may send so many bytes more on this stream, big endian(4)
//! 3 close   the stream is over, both ways, after what was sent before
//! ```
//!
//! Each side may send [`WINDOW`] bytes on a stream before the other has said that there is room for more. So who does not read
//! holds up its own stream and no other one. What comes for a stream that is over is left out: both may end it at one time.

/// The bytes of a header.
pub(crate) const HEADER: usize = 8;
/// The most bytes of a stream in one frame, so that a large value does not keep others from their turn.
pub(crate) const MOST_DATA: usize = 16 << 10;
/// How many bytes of a stream may be under way.
pub(crate) const WINDOW: usize = 256 << 10;

const OPEN: u8 = 0;
const DATA: u8 = 1;
const MORE: u8 = 2;
const CLOSE: u8 = 3;

/// What a trunk says of one of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Open,
    Data(&'a [u8]),
    /// There is room for so many bytes more.
    Window(u32),
    Close,
}

/// Why a trunk cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("it does not speak the protocol of a store's proxy")]
    Frame,
    #[error("it sends more than there is room for")]
    Window,
    #[error("it opens a stream that it may not open")]
    Stream,
    #[error("it has too many clients: more than {0}")]
    TooManyStreams(usize),
    #[error("it does not read what it is sent")]
    DoesNotRead,
}

impl<'a> Frame<'a> {
    /// The frame that these bytes begin with, whose it is, and how many bytes it has. None: it is not whole yet.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Option<(u32, Self, usize)>, Broken> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, a, b, c, stream @ ..] = *header;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let fits = match kind {
            OPEN | CLOSE => length == 0,
            DATA => length <= MOST_DATA,
            MORE => length == 4,
            _ => false,
        };
        if !fits {
            return Err(Broken::Frame);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = match kind {
            OPEN => Frame::Open,
            DATA => Frame::Data(body),
            MORE => Frame::Window(body.try_into().map(u32::from_be_bytes).map_err(|_| Broken::Frame)?),
            _ => Frame::Close,
        };
        Ok(Some((u32::from_be_bytes(stream), frame, HEADER + length)))
    }

    /// Appends it. Data must be no longer than [`MOST_DATA`].
    pub(crate) fn write(self, stream: u32, to: &mut Vec<u8>) {
        let more;
        let (kind, body): (u8, &[u8]) = match self {
            Frame::Open => (OPEN, &[]),
            Frame::Data(data) => (DATA, data),
            Frame::Window(room) => {
                more = room.to_be_bytes();
                (MORE, &more)
            }
            Frame::Close => (CLOSE, &[]),
        };
        debug_assert!(body.len() <= MOST_DATA);
        let [_, length @ ..] = (body.len() as u32).to_be_bytes();
        to.push(kind);
        to.extend_from_slice(&length);
        to.extend_from_slice(&stream.to_be_bytes());
        to.extend_from_slice(body);
    }
}

/// Bytes that have come, read frame by frame.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// What is no whole frame yet; never more than one.
    rest: Vec<u8>,
}

impl Frames {
    /// Hands over each frame that is whole now.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(u32, Frame<'_>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let mut bytes = bytes;
        while !self.rest.is_empty() && !bytes.is_empty() {
            // As far as the frame is known to go: its header first, then the whole of it.
            let wanted = match self.rest.first_chunk::<HEADER>() {
                Some([_, a, b, c, ..]) => HEADER + u32::from_be_bytes([0, *a, *b, *c]) as usize,
                None => HEADER,
            };
            let (more, left) = bytes.split_at(bytes.len().min(wanted.saturating_sub(self.rest.len())));
            self.rest.extend_from_slice(more);
            bytes = left;
            if let Some((stream, frame, _)) = Frame::read(&self.rest)? {
                take(stream, frame)?;
                self.rest = Vec::new();
            }
        }
        while let Some((stream, frame, length)) = Frame::read(bytes)? {
            take(stream, frame)?;
            bytes = &bytes[length..];
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_however_they_are_cut() {
        let long = vec![7; MOST_DATA];
        let frames = [
            Frame::Open,
            Frame::Data(b"abc"),
            Frame::Data(&long),
            Frame::Window(5),
            Frame::Data(b""),
            Frame::Close,
        ];
        let mut bytes = Vec::new();
        for (stream, frame) in (1..).zip(frames) {
            frame.write(stream, &mut bytes);
        }
        for piece in [1, 2, 3, 7, 8, 9, 100, 5000, bytes.len()] {
            let (mut reader, mut again, mut count) = (Frames::default(), Vec::new(), 0);
            for part in bytes.chunks(piece) {
                let taken = reader.read(part, |stream, frame| {
                    count += 1;
                    frame.write(stream, &mut again);
                    Ok(())
                });
                taken.unwrap();
                assert!(reader.rest.len() <= HEADER + MOST_DATA);
            }
            assert_eq!((count, &again), (frames.len(), &bytes), "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_by_its_header() {
        for header in [[4, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0x40, 1], [2, 0, 0, 3], [3, 0xFF, 0xFF, 0xFF]] {
            let bytes = [&header[..], &[0, 0, 0, 1]].concat();
            assert_eq!(Frame::read(&bytes), Err(Broken::Frame));
        }
    }
}
