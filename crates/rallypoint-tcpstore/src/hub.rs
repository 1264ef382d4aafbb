//! The machine and the sockets, behind one lock.
//!
//! Nothing waits while it has the lock: sockets are read and written only as far as they go without waiting. What is for
//! a connection is written by whoever made it come about, so a key that ten thousand wait for wakes no ten thousand
//! tasks; a connection's own task writes what its socket did not take.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::peer::Peer;
use crate::{ConnectionId, Input, Machine, Output};

/// How much is read from a socket before others have a turn.
const READ: usize = 64 << 10;

/// The machine and the sockets.
#[derive(Debug)]
pub(crate) struct Hub(Mutex<State>);

#[derive(Debug)]
struct State {
    machine: Machine,
    peers: HashMap<ConnectionId, Peer>,
    next: u64,
    /// Who came before this one had come when it was last asked who is late.
    late: u64,
    /// What is read goes through here, so that no connection needs a buffer of its own.
    buffer: Box<[u8]>,
    outputs: Vec<Output>,
}

impl Hub {
    pub(crate) fn new(machine: Machine) -> Self {
        Hub(Mutex::new(State {
            machine,
            peers: HashMap::new(),
            next: 0,
            late: 0,
            buffer: vec![0; READ].into_boxed_slice(),
            outputs: Vec::new(),
        }))
    }

    /// Serves a connection to its end.
    pub(crate) async fn serve(&self, socket: TcpStream, address: SocketAddr) {
        let socket = Arc::new(socket);
        let changed = Arc::new(Notify::new());
        let id = self.lock().open(Peer::new(Arc::clone(&socket), address, Arc::clone(&changed)));
        // Also when the task is dropped.
        let _end = End { hub: self, id };
        loop {
            let Some(interest) = self.lock().interest(id) else { return };
            tokio::select! {
                ready = socket.ready(interest) => match ready {
                    Ok(ready) => self.lock().turn(id, ready.is_readable() && interest.is_readable()),
                    Err(_) => return,
                },
                () = changed.notified() => self.lock().turn(id, false),
            }
        }
    }

    /// Ends those who had come when this was last called, and have still not said that they are clients.
    pub(crate) fn end_late(&self) {
        self.lock().end_late();
    }

    /// Ends one of those who have not said that they are clients, so that another can come. Whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        self.lock().make_room()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct End<'a> {
    hub: &'a Hub,
    id: ConnectionId,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.hub.lock().end(self.id);
    }
}

impl State {
    fn open(&mut self, peer: Peer) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        self.peers.insert(id, peer);
        self.machine.handle(Input::Opened(id), &mut self.outputs);
        self.carry_out();
        id
    }

    fn end_late(&mut self) {
        let before = mem::replace(&mut self.late, self.next);
        self.machine.handle(Input::Late(ConnectionId(before)), &mut self.outputs);
        self.carry_out();
    }

    fn make_room(&mut self) -> bool {
        let before = self.peers.len();
        self.machine.handle(Input::Crowded, &mut self.outputs);
        self.carry_out();
        self.peers.len() < before
    }

    /// What the task of a connection should wait for. None once it has ended.
    fn interest(&self, id: ConnectionId) -> Option<Interest> {
        let peer = self.peers.get(&id)?;
        Some(match (self.machine.is_held_back(id), peer.has_outgoing()) {
            // Who does not read is not read from.
            (true, _) => Interest::WRITABLE,
            (false, true) => Interest::READABLE | Interest::WRITABLE,
            (false, false) => Interest::READABLE,
        })
    }

    /// Does for a connection what can be done without waiting.
    fn turn(&mut self, id: ConnectionId, readable: bool) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.flush() {
            return self.break_off(id);
        }
        self.machine.handle(Input::Sent(id, mem::take(&mut peer.untold)), &mut self.outputs);
        if readable && !self.machine.is_held_back(id) {
            self.read(id);
        }
        self.carry_out();
    }

    fn read(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.get(&id) else { return };
        match peer.socket.try_read(&mut self.buffer) {
            Ok(0) => self.break_off(id),
            Ok(count) => self.machine.handle(Input::Received(id, &self.buffer[..count]), &mut self.outputs),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.break_off(id),
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
                    if let Some(peer) = self.peers.remove(&id) {
                        tracing::warn!(
                            "the worker store ended the connection of {}: {refusal}",
                            peer.address
                        );
                        peer.changed.notify_one();
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
            self.break_off(id);
        } else if self.machine.is_held_back(id) || peer.has_outgoing() {
            // The rest is for its own task, so that a client that reads fast does not keep others from their turn.
            peer.changed.notify_one();
        } else {
            // It is not held back, so nothing comes of this.
            self.machine.handle(Input::Sent(id, mem::take(&mut peer.untold)), &mut self.outputs);
        }
    }

    /// Ends a connection, whoever's turn it is; its own task is told.
    fn break_off(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get(&id) {
            peer.changed.notify_one();
        }
        self.end(id);
    }

    fn end(&mut self, id: ConnectionId) {
        self.peers.remove(&id);
        self.machine.handle(Input::Closed(id), &mut self.outputs);
    }
}
