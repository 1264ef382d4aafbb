//! The server without sockets: what has come from connections goes in, what is for connections comes out.
//!
//! [`Machine`] routes each request to the part that owns what it is about: `keys`, `queues`, `waits`. `connection` is
//! what has come from a client and is no whole message yet, and what it has not read. `size` is how much is held.

mod connection;
#[cfg(test)]
pub(crate) mod fuzz;
mod keys;
mod queues;
mod size;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::BTreeSet;
use std::mem;

use connection::Connection;
use keys::Keys;
use queues::Queues;
use size::Size;
use waits::Waits;

use rallypoint_metrics::WorkerStore as Metrics;

use crate::ids::IdMap;
use crate::value::{Alive, Reply};
use crate::wire::{
    MAGIC, NOT_READY, Name, READY, Request, STOP_WAITING, WAIT_CANCELED, whole, without_attempt,
};
use crate::{Bytes, Limits, Refusal};

/// The most that a number takes as text.
const DIGITS: usize = 20;

/// A connection's name. Whoever drives the machine gives them, and none twice; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What has happened.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// There is a new connection.
    Opened(ConnectionId),
    /// These bytes have come.
    Received(ConnectionId, &'a [u8]),
    /// So many bytes of what was to be sent have left.
    Sent(ConnectionId, usize),
    /// The connection is gone.
    Closed(ConnectionId),
    /// Those who came before this one have had the time to say that they are clients.
    Late(ConnectionId),
    /// There is no room for another connection. The oldest that has not said that it is a client makes room.
    Crowded,
}

/// What is to be done.
#[derive(Debug)]
pub enum Output {
    /// Send these bytes, after those that were to be sent before.
    Send(ConnectionId, Bytes),
    /// End the connection. Nothing more comes for it, and [`Input::Closed`] is not needed.
    Close(ConnectionId, Refusal),
}

/// The server without sockets and without a clock. Timeouts are the clients': they cancel their waits.
#[derive(Debug)]
pub struct Machine {
    limits: Limits,
    name: Name,
    connections: IdMap<Box<Connection>>,
    /// Those that have not said that they are clients, the oldest first.
    newcomers: BTreeSet<ConnectionId>,
    keys: Keys,
    queues: Queues,
    waits: Waits,
    alive: Alive,
    /// What all connections together have pending, and what they have not read.
    pending: usize,
    unread: usize,
    metrics: Metrics,
}

/// Whoever is still connected is so no more.
impl Drop for Machine {
    fn drop(&mut self) {
        self.metrics.closed(self.connections.len());
    }
}

impl Machine {
    /// A server with no keys.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Machine {
            limits,
            name: whole,
            connections: IdMap::default(),
            newcomers: BTreeSet::new(),
            keys: Keys::default(),
            queues: Queues::default(),
            waits: Waits::default(),
            alive: Alive::default(),
            pending: 0,
            unread: 0,
            metrics: Metrics::default(),
        }
    }

    /// Counts messages and connections there.
    #[must_use]
    pub fn counting(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// For workers of one attempt: clients of PyTorch before 2.6 put the number of their node's attempt before their keys,
    /// which nodes need not have in common. It is left out.
    #[must_use]
    pub fn of_one_attempt(mut self) -> Self {
        self.name = without_attempt;
        self
    }

    /// Takes in what has happened, and appends what is to be done. An input for a connection that is not there does
    /// nothing: the machine may have ended it just now.
    pub fn handle(&mut self, input: Input<'_>, outputs: &mut Vec<Output>) {
        match input {
            Input::Opened(id) => {
                self.connections.insert(id, Box::default());
                self.metrics.opened();
                self.newcomers.insert(id);
                if self.newcomers.len() > self.limits.newcomers {
                    self.close_oldest_newcomer(outputs);
                }
            }
            Input::Received(id, bytes) => self.received(id, bytes, outputs),
            Input::Sent(id, bytes) => {
                let Some(connection) = self.connections.get_mut(&id) else { return };
                let held_back = connection.unread >= self.limits.unread;
                let bytes = bytes.min(connection.unread);
                connection.unread -= bytes;
                self.unread -= bytes;
                if held_back {
                    self.received(id, &[], outputs);
                }
            }
            Input::Closed(id) => self.remove(id),
            Input::Late(id) => {
                let on_time = self.newcomers.split_off(&id);
                for late in mem::replace(&mut self.newcomers, on_time) {
                    self.close(late, Refusal::Silent, outputs);
                }
            }
            Input::Crowded => self.close_oldest_newcomer(outputs),
        }
    }

    /// Whether requests of this connection wait until it has read replies. Then nothing more should be taken from it.
    #[must_use]
    pub fn is_held_back(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.unread >= self.limits.unread)
    }

    fn received(&mut self, id: ConnectionId, bytes: &[u8], outputs: &mut Vec<Output>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut input = connection.take_input();
        let done = if input.is_empty() {
            // Mostly whole messages come, and need not be kept at all.
            let done = self.carry_out(id, bytes, outputs);
            input = done.as_ref().map(|done| bytes[*done..].to_vec()).unwrap_or_default();
            done.map(|_| ())
        } else {
            input.extend_from_slice(bytes);
            self.carry_out(id, &input, outputs).map(|done| drop(input.drain(..done)))
        };
        match done {
            Ok(()) => self.keep(id, input, outputs),
            Err(refusal) => self.close(id, refusal, outputs),
        }
    }

    /// Carries out the messages that are whole; how many bytes those were.
    fn carry_out(
        &mut self,
        id: ConnectionId,
        data: &[u8],
        outputs: &mut Vec<Output>,
    ) -> Result<usize, Refusal> {
        let mut done = 0;
        while let Some(connection) = self.connections.get_mut(&id)
            && connection.unread < self.limits.unread
            && let Some(length) = connection.next_message(&data[done..], &self.limits)?
        {
            let message = &data[done..done + length];
            // The scan lets no other message through.
            let request = Request::read(message, self.name).ok_or(Refusal::UnknownMessage(message[0]))?;
            self.metrics.operation(request.name());
            let mut reply = Reply::default();
            self.answer(id, request, &mut reply, outputs)?;
            self.send(id, reply, outputs);
            done += length;
        }
        Ok(done)
    }

    fn answer(
        &mut self,
        id: ConnectionId,
        request: Request<'_>,
        reply: &mut Reply,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Refusal> {
        match request {
            Request::Validate(magic) => {
                if magic != MAGIC {
                    return Err(Refusal::NotTcpStore);
                }
                self.newcomers.remove(&id);
            }
            Request::Ping(nonce) => reply.bytes(&nonce.to_le_bytes()),
            Request::Set(key, value) => self.set(key, value, outputs)?,
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value, outputs)?;
                }
            }
            Request::CompareSet { key, expected, desired } => {
                self.compare_set(key, expected, desired, reply, outputs)?;
            }
            Request::Append(key, more) => {
                self.make_room(Size::of_entry(key) + more.len())?;
                self.keys.append(key, more, &self.alive);
                self.has_come(key, outputs);
            }
            Request::Add(key, amount) => {
                self.make_room(Size::of_entry(key) + DIGITS)?;
                reply.i64(self.keys.add(key, amount, &self.alive)?);
                self.has_come(key, outputs);
            }
            Request::Get(key) => self.get(key, reply),
            Request::MultiGet(keys) => keys.iter().for_each(|key| self.get(key, reply)),
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| self.is_there(key));
                reply.bytes(&[if ready { READY } else { NOT_READY }]);
            }
            Request::Wait(keys) => self.wait(id, &keys, reply),
            Request::CancelWait => {
                self.cancel_wait(id);
                reply.bytes(&[WAIT_CANCELED]);
            }
            Request::CountKeys => reply.length(self.keys.len()),
            Request::ListKeys => {
                reply.length(self.keys.len());
                self.keys.names().for_each(|name| reply.string(name));
            }
            Request::Delete(key) => reply.i64(i64::from(self.keys.remove(key))),
            Request::QueuePush(name, value) => {
                self.make_room(Size::of_entry(name) + value.len())?;
                self.queues.push(name, value.to_vec(), &self.alive);
                if let Some(first) = self.waits.come_for_one(name) {
                    self.stop_waiting(first, outputs);
                }
            }
            Request::QueuePop(name) => {
                reply.length(self.queues.len(name));
                if let Some(value) = self.queues.pop(name) {
                    reply.value(&value);
                }
            }
            Request::QueueLen(name) => reply.length(self.queues.len(name)),
            Request::Barrier { key, world_size } => self.barrier(id, key, world_size, reply, outputs)?,
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8], outputs: &mut Vec<Output>) -> Result<(), Refusal> {
        self.make_room(Size::of_entry(key) + value.len())?;
        self.keys.set(key, value.to_vec(), &self.alive);
        self.has_come(key, outputs);
        Ok(())
    }

    /// A key that is not there is set if nothing is expected. If something is, PyTorch answers with that, though the
    /// key is not there.
    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        reply: &mut Reply,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Refusal> {
        let matches = self.keys.get(key).map_or(expected.is_empty(), |value| value.data() == expected);
        if matches {
            self.set(key, desired, outputs)?;
        }
        match self.keys.get(key) {
            Some(value) => reply.value(value),
            None => reply.string(expected),
        }
        Ok(())
    }

    /// A key that is not there is empty: who asks has waited for it, and somebody deleted it since.
    fn get(&self, key: &[u8], reply: &mut Reply) {
        match self.keys.get(key) {
            Some(value) => reply.value(value),
            None => reply.string(&[]),
        }
    }

    fn is_there(&self, key: &[u8]) -> bool {
        self.keys.contains(key) || self.queues.len(key) > 0
    }

    fn wait(&mut self, id: ConnectionId, keys: &[&[u8]], reply: &mut Reply) {
        let missing: Vec<_> = keys.iter().copied().filter(|key| !self.is_there(key)).collect();
        if missing.is_empty() {
            reply.bytes(&[STOP_WAITING]);
        } else {
            self.begin_wait(id, missing.into_iter());
        }
    }

    /// Counts who comes in the key's value, which nobody takes back: not who gives up waiting, and not the end of the
    /// barrier, so that who comes later passes at once.
    fn barrier(
        &mut self,
        id: ConnectionId,
        key: &[u8],
        world_size: i64,
        reply: &mut Reply,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Refusal> {
        self.make_room(Size::of_entry(key) + DIGITS)?;
        if self.keys.add(key, 1, &self.alive)? >= world_size {
            reply.bytes(&[STOP_WAITING]);
            self.has_come(key, outputs);
        } else {
            self.begin_wait(id, std::iter::once(key));
        }
        Ok(())
    }

    fn begin_wait<'a>(&mut self, id: ConnectionId, keys: impl Iterator<Item = &'a [u8]>) {
        self.waits.begin(id, keys);
        let waiting = self.waits.size(id);
        self.note_pending(id, |connection| connection.waiting = waiting);
    }

    fn cancel_wait(&mut self, id: ConnectionId) {
        self.waits.cancel(id);
        self.note_pending(id, |connection| connection.waiting = 0);
    }

    /// Tells those whose waits are over because this key is there.
    fn has_come(&mut self, key: &[u8], outputs: &mut Vec<Output>) {
        for id in self.waits.come(key) {
            self.stop_waiting(id, outputs);
        }
    }

    fn stop_waiting(&mut self, id: ConnectionId, outputs: &mut Vec<Output>) {
        self.note_pending(id, |connection| connection.waiting = 0);
        let mut reply = Reply::default();
        reply.bytes(&[STOP_WAITING]);
        self.send(id, reply, outputs);
    }

    fn send(&mut self, id: ConnectionId, reply: Reply, outputs: &mut Vec<Output>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        for part in reply.into_parts(&self.alive) {
            connection.unread += part.as_ref().len();
            self.unread += part.as_ref().len();
            outputs.push(Output::Send(id, part));
        }
    }

    /// Refuses what would make the store hold more than it may.
    fn make_room(&self, more: usize) -> Result<(), Refusal> {
        let limit = self.limits.stored;
        let stored = self.keys.size().all() + self.queues.size().all();
        if stored + more > limit { Err(Refusal::StoreFull { limit }) } else { Ok(()) }
    }

    /// Keeps what is no whole message yet, and sees that not too much is held for connections in all.
    fn keep(&mut self, id: ConnectionId, input: Vec<u8>, outputs: &mut Vec<Output>) {
        self.note_pending(id, |connection| connection.put_back(input));
        let limit = self.limits.pending;
        while self.pending > limit
            && let Some(most) = self.connection_with_most(Connection::pending)
        {
            self.close(most, Refusal::TooMuchPending { limit }, outputs);
        }
        let limit = self.limits.outdated;
        // Values that only a reply holds are gone when whoever drives the machine has dropped the reply. So one
        // connection at a time is ended, and the next input looks again. What is left of those that are ended already, until it is
        // dropped, is no reason to end those who hold little.
        let stored = self.keys.size().values + self.queues.size().values;
        if self.alive.bytes().saturating_sub(stored) > limit
            && self.unread > limit
            && let Some(most) = self.connection_with_most(|connection| connection.unread)
        {
            self.close(most, Refusal::TooMuchUnread { limit }, outputs);
        }
    }

    fn connection_with_most(&self, amount: impl Fn(&Connection) -> usize) -> Option<ConnectionId> {
        let amounts = self.connections.iter().map(|(id, connection)| (amount(connection), *id));
        amounts.max().filter(|(amount, _)| *amount > 0).map(|(_, id)| id)
    }

    /// Changes what a connection has pending, and the sum of all with it.
    fn note_pending(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.pending -= connection.pending();
        change(connection);
        self.pending += connection.pending();
    }

    fn close(&mut self, id: ConnectionId, refusal: Refusal, outputs: &mut Vec<Output>) {
        self.remove(id);
        outputs.push(Output::Close(id, refusal));
    }

    fn close_oldest_newcomer(&mut self, outputs: &mut Vec<Output>) {
        if let Some(oldest) = self.newcomers.pop_first() {
            self.close(oldest, Refusal::TooManyNewcomers, outputs);
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        self.newcomers.remove(&id);
        self.waits.cancel(id);
        if let Some(connection) = self.connections.remove(&id) {
            self.pending -= connection.pending();
            self.unread -= connection.unread;
            self.metrics.closed(1);
        }
    }
}
