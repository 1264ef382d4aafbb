//! The streams of one trunk, as the server has them, without a socket.

use std::collections::{HashMap, VecDeque};

use super::frame::{Broken, Frame, MOST_DATA, WINDOW};
use crate::{Bytes, ConnectionId};

/// Clients of one node. A worker has a few connections; this is for who has lost count.
const MOST_STREAMS: usize = 16 << 10;
/// What may wait to be said of streams. It is a few bytes for each, so one that has so much does not read at all.
const MOST_CONTROL: usize = 1 << 20;

#[derive(Debug)]
struct Stream {
    id: ConnectionId,
    outgoing: VecDeque<Bytes>,
    /// How much of the first of them has been sent.
    written: usize,
    /// How much the proxy takes of it.
    room: usize,
    /// How much the proxy may send on it.
    may_send: usize,
    /// It is among those that have a turn.
    in_turn: bool,
}

/// The streams of one trunk.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: HashMap<u32, Stream>,
    /// The last that was opened.
    last: u32,
    /// Frames that need no room.
    control: Vec<u8>,
    /// Those that have something to send and room for it, in the order of their turns.
    turns: VecDeque<u32>,
}

impl Streams {
    /// A client has come, whom the server calls `id`.
    pub(crate) fn open(&mut self, stream: u32, id: ConnectionId) -> Result<(), Broken> {
        if stream <= self.last {
            return Err(Broken::Stream);
        }
        if self.streams.len() >= MOST_STREAMS {
            return Err(Broken::TooManyStreams(MOST_STREAMS));
        }
        self.last = stream;
        let (outgoing, written) = (VecDeque::new(), 0);
        let opened = Stream { id, outgoing, written, room: WINDOW, may_send: WINDOW, in_turn: false };
        self.streams.insert(stream, opened);
        Ok(())
    }

    /// Whose bytes these are; none if that stream is over.
    pub(crate) fn received(&mut self, stream: u32, count: usize) -> Result<Option<ConnectionId>, Broken> {
        let Some(known) = self.known(stream)? else { return Ok(None) };
        known.may_send = known.may_send.checked_sub(count).ok_or(Broken::Window)?;
        Ok(Some(known.id))
    }

    /// Lets the client send again as much as ever, if that is worth a frame.
    pub(crate) fn let_send(&mut self, stream: u32) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        if known.may_send <= WINDOW / 2 {
            Frame::Window((WINDOW - known.may_send) as u32).write(stream, &mut self.control);
            known.may_send = WINDOW;
        }
    }

    /// The proxy takes so much more.
    pub(crate) fn has_room(&mut self, stream: u32, more: u32) -> Result<(), Broken> {
        let Some(known) = self.known(stream)? else { return Ok(()) };
        known.room += more as usize;
        if known.room > WINDOW {
            return Err(Broken::Window);
        }
        self.give_turn(stream);
        Ok(())
    }

    /// The client has gone; who that was.
    pub(crate) fn closed(&mut self, stream: u32) -> Result<Option<ConnectionId>, Broken> {
        self.known(stream)?;
        Ok(self.streams.remove(&stream).map(|gone| gone.id))
    }

    /// A stream that is open, or none for one that is over. What was never open is a mistake.
    fn known(&mut self, stream: u32) -> Result<Option<&mut Stream>, Broken> {
        if stream == 0 || stream > self.last {
            Err(Broken::Stream)
        } else {
            Ok(self.streams.get_mut(&stream))
        }
    }

    /// Ends a stream from this side.
    pub(crate) fn end(&mut self, stream: u32) {
        if self.streams.remove(&stream).is_some() {
            Frame::Close.write(stream, &mut self.control);
        }
    }

    /// Sends this on a stream when its turn comes.
    pub(crate) fn push(&mut self, stream: u32, bytes: Bytes) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        let left = match known.outgoing.back_mut() {
            Some(last) => last.merge(bytes).err(),
            None => Some(bytes),
        };
        known.outgoing.extend(left);
        self.give_turn(stream);
    }

    fn give_turn(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream)
            && !known.in_turn
            && known.room > 0
            && !known.outgoing.is_empty()
        {
            known.in_turn = true;
            self.turns.push_back(stream);
        }
    }

    /// Whether there is something that can be sent now.
    pub(crate) fn has_output(&self) -> bool {
        !self.control.is_empty() || !self.turns.is_empty()
    }

    /// Whether the other side leaves too much unread.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        if self.control.len() > MOST_CONTROL { Err(Broken::DoesNotRead) } else { Ok(()) }
    }

    /// Appends frames, one for each stream in turn, until there are about so many bytes. Tells whose bytes, and how many.
    pub(crate) fn fill(&mut self, to: &mut Vec<u8>, most: usize, mut sent: impl FnMut(ConnectionId, usize)) {
        to.append(&mut self.control);
        self.control = Vec::new();
        while to.len() < most
            && let Some(stream) = self.turns.pop_front()
        {
            // It may be over since.
            let Some(known) = self.streams.get_mut(&stream) else { continue };
            known.in_turn = false;
            if let Some(first) = known.outgoing.front() {
                let left = &first.as_ref()[known.written..];
                let count = left.len().min(known.room).min(MOST_DATA);
                Frame::Data(&left[..count]).write(stream, to);
                known.room -= count;
                known.written += count;
                if count == left.len() {
                    known.written = 0;
                    known.outgoing.pop_front();
                }
                sent(known.id, count);
            }
            if known.outgoing.is_empty() {
                // An idle stream holds no memory for what it was sent.
                known.outgoing = VecDeque::new();
            }
            self.give_turn(stream);
        }
    }

    /// The clients on it.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.streams.values().map(|stream| stream.id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;
    use crate::trunk::frame::Frames;

    fn bytes(of: &[u8]) -> Bytes {
        Bytes::from(of.to_vec())
    }

    /// What is sent up to about so many bytes: whose, and how much of it is data.
    fn filled(streams: &mut Streams, most: usize) -> Vec<(u32, usize)> {
        let (mut out, mut told) = (Vec::new(), 0);
        streams.fill(&mut out, most, |_, count| told += count);
        let (mut all, mut data) = (Vec::new(), 0);
        Frames::default()
            .read(&out, |stream, frame| {
                let count = if let Frame::Data(data) = frame { data.len() } else { 0 };
                data += count;
                all.push((stream, count));
                Ok(())
            })
            .unwrap();
        assert_eq!(data, told);
        all
    }

    #[test]
    fn who_does_not_read_holds_up_nobody_else_and_gets_the_rest_when_there_is_room() {
        let mut streams = Streams::default();
        streams.open(1, ConnectionId(10)).unwrap();
        streams.open(5, ConnectionId(11)).unwrap();
        streams.push(1, bytes(&vec![1; 2 * WINDOW]));
        streams.push(5, bytes(b"short"));
        // The short one comes second, and not behind all of the other.
        let sent = filled(&mut streams, usize::MAX);
        assert_eq!(sent[..2], [(1, MOST_DATA), (5, 5)]);
        assert_eq!(sent.iter().map(|(_, count)| count).sum::<usize>(), WINDOW + 5);
        assert!(!streams.has_output());
        streams.push(5, bytes(b"more"));
        assert_eq!(filled(&mut streams, usize::MAX), [(5, 4)]);
        streams.has_room(1, 100).unwrap();
        assert_eq!(filled(&mut streams, usize::MAX), [(1, 100)]);
        assert_eq!(streams.has_room(1, WINDOW as u32 + 1), Err(Broken::Window));
    }

    #[test]
    fn a_client_is_let_send_again_only_when_it_is_asked_for_and_never_more_than_a_window() {
        let mut streams = Streams::default();
        streams.open(1, ConnectionId(0)).unwrap();
        assert_eq!(streams.received(1, WINDOW), Ok(Some(ConnectionId(0))));
        assert_eq!(streams.received(1, 1), Err(Broken::Window));
        assert!(!streams.has_output());
        streams.let_send(1);
        streams.let_send(1);
        assert_eq!(filled(&mut streams, usize::MAX), [(1, 0)], "one frame");
        assert!(streams.received(1, WINDOW).is_ok());
    }

    #[test]
    fn what_comes_for_a_stream_that_is_over_is_left_out_and_what_never_was_is_a_mistake() {
        let mut streams = Streams::default();
        streams.open(2, ConnectionId(7)).unwrap();
        streams.push(2, bytes(b"never sent"));
        streams.end(2);
        assert_eq!(filled(&mut streams, usize::MAX), [(2, 0)]);
        assert_eq!(streams.received(2, 10 * WINDOW), Ok(None));
        assert_eq!((streams.has_room(2, u32::MAX), streams.closed(2)), (Ok(()), Ok(None)));
        assert_eq!(streams.open(2, ConnectionId(8)), Err(Broken::Stream), "no number comes twice");
        assert_eq!(streams.received(3, 1), Err(Broken::Stream));
        streams.open(3, ConnectionId(9)).unwrap();
        assert_eq!(streams.closed(3), Ok(Some(ConnectionId(9))));
    }

    #[test]
    fn who_has_streams_ended_over_and_over_and_reads_nothing_is_noticed() {
        let mut streams = Streams::default();
        let ended = (1..).find(|stream| {
            streams.open(*stream, ConnectionId(0)).unwrap();
            streams.end(*stream);
            streams.check().is_err()
        });
        assert!(ended.unwrap() < 1 << 20);
    }
}
