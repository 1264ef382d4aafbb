//! A socket, and what it has not taken yet.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Write as _};
use std::mem;
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
    /// What it has not taken: the first of it, and what comes after. Mostly there is one at a time.
    first: Option<Bytes>,
    rest: VecDeque<Bytes>,
    /// How much of the first has been written.
    written: usize,
    /// How much the machine takes for unread: what came and was not written, or was and the machine was not told.
    unread: usize,
    untold: usize,
}

impl Peer {
    pub(crate) fn new(socket: TcpStream, address: SocketAddr, waited_for: EventFlags) -> Self {
        let (first, rest) = (None, VecDeque::new());
        Peer { socket, address, waited_for, first, rest, written: 0, unread: 0, untold: 0 }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.unread += bytes.as_ref().len();
        let last = self.rest.back_mut().or(self.first.as_mut());
        let left = match last {
            Some(last) => last.merge(bytes).err(),
            None => {
                self.first = Some(bytes);
                None
            }
        };
        self.rest.extend(left);
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        self.first.is_some()
    }

    /// How much the machine takes for unread.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// Whether something was written that the machine was not told of.
    pub(crate) fn has_untold(&self) -> bool {
        self.untold > 0
    }

    /// What the machine is to be told: so much was written.
    pub(crate) fn tell(&mut self) -> usize {
        self.unread -= self.untold;
        mem::take(&mut self.untold)
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
        if self.rest.is_empty() {
            // An idle connection holds no memory for what it was sent.
            self.rest = VecDeque::new();
        }
        true
    }

    fn write(&self) -> Result<usize, ErrorKind> {
        let Some(first) = &self.first else { return Ok(0) };
        let left = &first.as_ref()[self.written..];
        let mut socket = &self.socket;
        let written = if self.rest.is_empty() {
            socket.write(left)
        } else {
            let mut slices = [IoSlice::new(left); PIECES];
            let mut count = 1;
            for (slice, bytes) in slices[1..].iter_mut().zip(&self.rest) {
                *slice = IoSlice::new(bytes.as_ref());
                count += 1;
            }
            socket.write_vectored(&slices[..count])
        };
        written.map_err(|error| error.kind())
    }

    fn drop_written(&mut self, count: usize) {
        self.written += count;
        while let Some(first) = &self.first
            && self.written >= first.as_ref().len()
        {
            self.written -= first.as_ref().len();
            self.first = self.rest.pop_front();
        }
    }
}
