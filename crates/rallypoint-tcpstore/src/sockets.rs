//! The machine and its sockets, on one thread.
//!
//! Nothing waits but for the system to tell which sockets can be read or written. What is for a connection is written by
//! whoever's turn made it come about, as far as its socket takes it; the rest when the socket takes more. So a connection costs
//! what is known of it, and no task, and a key that ten thousand wait for wakes nobody here.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::control::Orders;
use crate::peer::Peer;
use crate::{ConnectionId, Input, Machine, Output};

/// How much is read from a socket before others have a turn.
const READ: usize = 64 << 10;

/// How many sockets have a turn before the listener and orders have theirs.
const EVENTS: usize = 512;

/// How many connections are accepted before others have a turn.
const ACCEPTED: usize = 256;

/// How long it waits when no connection can be accepted, which is mostly for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What is not a connection's name.
const DOOR: u64 = u64::MAX;
const ORDERS: u64 = u64::MAX - 1;

/// The machine and its sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    epoll: OwnedFd,
    /// Where connections come in, while it is open.
    door: Option<TcpListener>,
    /// When it is looked at the door again, which is shut for lack of descriptors.
    shut_until: Option<Instant>,
    /// It is said once that no connection can be accepted, until one has come in again.
    said: bool,
    machine: Machine,
    peers: HashMap<ConnectionId, Peer>,
    next: u64,
    /// When it is looked for those who are late, and before whom those came who are.
    look: Instant,
    late: u64,
    /// What is read goes through here, so that no connection needs a buffer of its own.
    buffer: Box<[u8]>,
    outputs: Vec<Output>,
}

impl Sockets {
    pub(crate) fn new(machine: Machine, door: TcpListener, orders: &Orders) -> io::Result<Self> {
        door.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &door, EventData::new_u64(DOOR), EventFlags::IN)?;
        epoll::add(&epoll, orders, EventData::new_u64(ORDERS), EventFlags::IN)?;
        Ok(Sockets {
            epoll,
            door: Some(door),
            shut_until: None,
            said: false,
            look: Instant::now() + machine.patience(),
            machine,
            peers: HashMap::new(),
            next: 0,
            late: 0,
            buffer: vec![0; READ].into_boxed_slice(),
            outputs: Vec::new(),
        })
    }

    /// Serves until it is told to stop, or nobody can come any more and all have gone.
    pub(crate) fn serve(mut self, mut orders: Orders) {
        let mut events = Vec::with_capacity(EVENTS);
        while !orders.is_to_stop() && (self.door.is_some() || !self.peers.is_empty()) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&self.patience())) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return tracing::error!(
                        "the worker store ends, its sockets cannot be waited for: {error}"
                    );
                }
            }
            for &Event { flags, data, .. } in &events {
                match data.u64() {
                    DOOR => self.accept(),
                    ORDERS => orders.take(),
                    id => self.turn(ConnectionId(id), flags),
                }
            }
            if orders.is_to_close() {
                if let Some(door) = self.door.take() {
                    let _ = epoll::delete(&self.epoll, &door);
                }
                orders.closed();
            }
            self.look_at_the_clock();
        }
    }

    /// How long it can be waited until something is to be done without an event.
    fn patience(&self) -> Timespec {
        let next = self.shut_until.map_or(self.look, |again| again.min(self.look));
        let left = next.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if now >= self.look {
            self.look = now + self.machine.patience();
            let before = mem::replace(&mut self.late, self.next);
            self.machine.handle(Input::Late(ConnectionId(before)), &mut self.outputs);
            self.carry_out();
        }
        if self.shut_until.is_some_and(|until| now >= until) {
            self.shut_until = None;
            if let Some(door) = &self.door {
                let _ = epoll::modify(&self.epoll, door, EventData::new_u64(DOOR), EventFlags::IN);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            let Some(door) = &self.door else { return };
            match door.accept() {
                Ok((socket, address)) => {
                    self.said = false;
                    if let Err(error) = self.open(socket, address) {
                        tracing::warn!("the worker store cannot serve {address}: {error}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    if !mem::replace(&mut self.said, true) {
                        tracing::warn!("the worker store cannot accept a connection: {error}");
                    }
                    if !self.make_room() {
                        return self.shut_for_a_while();
                    }
                }
            }
        }
    }

    /// Whether there was one who has not said that it is a client, and has made room.
    fn make_room(&mut self) -> bool {
        let before = self.peers.len();
        self.machine.handle(Input::Crowded, &mut self.outputs);
        self.carry_out();
        self.peers.len() < before
    }

    fn shut_for_a_while(&mut self) {
        self.shut_until = Some(Instant::now() + PAUSE);
        if let Some(door) = &self.door {
            let _ = epoll::modify(&self.epoll, door, EventData::new_u64(DOOR), EventFlags::empty());
        }
    }

    fn open(&mut self, socket: TcpStream, address: SocketAddr) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        // Requests and replies are small, and somebody waits for each.
        let _ = socket.set_nodelay(true);
        let id = ConnectionId(self.next);
        self.next += 1;
        epoll::add(&self.epoll, &socket, EventData::new_u64(id.0), EventFlags::IN)?;
        self.peers.insert(id, Peer::new(socket, address, EventFlags::IN));
        self.machine.handle(Input::Opened(id), &mut self.outputs);
        self.carry_out();
        Ok(())
    }

    /// Does for a connection what can be done without waiting.
    fn turn(&mut self, id: ConnectionId, flags: EventFlags) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.has_outgoing() && !peer.flush() {
            return self.end(id);
        }
        if peer.untold > 0 {
            self.machine.handle(Input::Sent(id, mem::take(&mut peer.untold)), &mut self.outputs);
        }
        // Who does not read is not read from.
        let readable = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
        if readable && !self.machine.is_held_back(id) {
            self.read(id);
        }
        self.carry_out();
        self.wait_for(id);
    }

    fn read(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match peer.socket.read(&mut self.buffer) {
            Ok(0) => self.end(id),
            Ok(count) => self.machine.handle(Input::Received(id, &self.buffer[..count]), &mut self.outputs),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.end(id),
        }
    }

    fn carry_out(&mut self) {
        let mut outputs = mem::take(&mut self.outputs);
        let mut addressed = Vec::new();
        for output in outputs.drain(..) {
            match output {
                Output::Send(id, bytes) => {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.push(bytes);
                        if addressed.last() != Some(&id) {
                            addressed.push(id);
                        }
                    }
                }
                Output::Close(id, refusal) => {
                    if let Some(peer) = self.take(id) {
                        tracing::warn!(
                            "the worker store ended the connection of {}: {refusal}",
                            peer.address
                        );
                    }
                }
            }
        }
        self.outputs = outputs;
        for id in addressed {
            self.flush(id);
        }
    }

    /// Writes what a socket takes without waiting.
    fn flush(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.flush() {
            self.end(id);
        } else if self.machine.is_held_back(id) || peer.has_outgoing() {
            // The rest is for its own turn, so that a client that reads fast does not keep others from theirs.
            self.wait_for(id);
        } else {
            // It is not held back, so nothing comes of this.
            self.machine.handle(Input::Sent(id, mem::take(&mut peer.untold)), &mut self.outputs);
        }
    }

    /// Sees that a connection has its turn when there is something to do for it.
    fn wait_for(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let wanted = match (self.machine.is_held_back(id), peer.has_outgoing()) {
            (true, _) => EventFlags::OUT,
            (false, true) => EventFlags::IN | EventFlags::OUT,
            (false, false) => EventFlags::IN,
        };
        if peer.waited_for != wanted {
            peer.waited_for = wanted;
            if epoll::modify(&self.epoll, &peer.socket, EventData::new_u64(id.0), wanted).is_err() {
                self.end(id);
            }
        }
    }

    /// Takes a connection out. The system would go on telling of it as long as a process that was forked off has the socket.
    fn take(&mut self, id: ConnectionId) -> Option<Peer> {
        let peer = self.peers.remove(&id)?;
        let _ = epoll::delete(&self.epoll, &peer.socket);
        Some(peer)
    }

    fn end(&mut self, id: ConnectionId) {
        drop(self.take(id));
        self.machine.handle(Input::Closed(id), &mut self.outputs);
    }
}
