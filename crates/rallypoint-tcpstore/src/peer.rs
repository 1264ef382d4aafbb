//! A socket, and what it has not taken yet.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Write as _};
use std::net::{SocketAddr, TcpStream};

use rustix::event::epoll::EventFlags;

use crate::Bytes;

/// How much is written to one socket before others have a turn.
const TURN: usize = 1 << 20;

/// How many pieces are written at a time.
const PIECES: usize = 16;

/// A socket, and what it has not taken yet.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) socket: TcpStream,
    pub(crate) address: SocketAddr,
    /// What the system is to tell of the socket.
    pub(crate) waited_for: EventFlags,
    outgoing: VecDeque<Bytes>,
    /// How much of the first of them has been written.
    written: usize,
    /// What was written and the machine was not told of yet.
    pub(crate) untold: usize,
}

impl Peer {
    pub(crate) fn new(socket: TcpStream, address: SocketAddr, waited_for: EventFlags) -> Self {
        Peer { socket, address, waited_for, outgoing: VecDeque::new(), written: 0, untold: 0 }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        let left = match self.outgoing.back_mut() {
            Some(last) => last.merge(bytes).err(),
            None => Some(bytes),
        };
        self.outgoing.extend(left);
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Writes what the socket takes without waiting; false if the connection has broken.
    pub(crate) fn flush(&mut self) -> bool {
        let mut turn = 0;
        while turn < TURN && self.has_outgoing() {
            match self.write() {
                Ok(count) => {
                    turn += count;
                    self.untold += count;
                    self.drop_written(count);
                }
                Err(ErrorKind::WouldBlock) => break,
                Err(ErrorKind::Interrupted) => {}
                Err(_) => return false,
            }
        }
        if self.outgoing.is_empty() {
            // An idle connection holds no memory for what it was sent.
            self.outgoing = VecDeque::new();
        }
        true
    }

    fn write(&self) -> Result<usize, ErrorKind> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (slice, bytes) in slices.iter_mut().zip(&self.outgoing) {
            let skipped = if count == 0 { self.written } else { 0 };
            *slice = IoSlice::new(&bytes.as_ref()[skipped..]);
            count += 1;
        }
        (&self.socket).write_vectored(&slices[..count]).map_err(|error| error.kind())
    }

    fn drop_written(&mut self, count: usize) {
        self.written += count;
        while let Some(first) = self.outgoing.front()
            && self.written >= first.as_ref().len()
        {
            self.written -= first.as_ref().len();
            self.outgoing.pop_front();
        }
    }
}
