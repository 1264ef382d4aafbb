//! The machine and its sockets, on a few threads.
//!
//! Each thread waits for the system to tell which of its sockets can be read or written, and for nothing else. It reads what
//! some of them have, then has the machine for as long as it takes to carry all of that out, and then writes. What is for a
//! connection is written by its thread, as far as its socket takes it; the rest when the socket takes more. So a connection
//! costs what is known of it, and no task.
//!
//! `hall` is what the threads have in common, `porter` takes connections in and gives them to the threads. A client has a socket of
//! its own, or is on the one of its node's agent: see `trunks`.

mod complaints;
mod hall;
mod porter;
mod trunks;

use std::io::{self, ErrorKind, Read as _};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use self::hall::{Hall, MOST_THREADS, Mail, Presence};
pub(crate) use self::porter::Doors;
use self::porter::Porter;
pub(crate) use self::trunks::Admission;
use self::trunks::Trunks;
use crate::control::Orders;
use crate::ids::IdMap;
use crate::peer::Peer;
use crate::{ConnectionId, Input, Machine, Output};

/// How much is read from a socket before others have a turn.
const READ: usize = 64 << 10;

/// How much is read from sockets before it is carried out: some of what they may have, or much of what is usual.
const BUFFER: usize = 2 * READ;

/// How many sockets are read before what they say is carried out: more would have the first of them wait for the last.
const TOGETHER: usize = 32;

/// How many bytes of replies one visit to the machine may bring, and what one message brings on top, before they are written and
/// others may visit it. A list of all keys is as long as they are.
const BROUGHT: usize = 1 << 20;

/// How many sockets have a turn before it is looked for others.
const EVENTS: usize = 512;

/// Cores of a machine for each thread: those of the workers are more than the store's.
const CORES_PER_THREAD: usize = 4;
/// Threads beyond which the machine's lock and the system are what takes the time.
const USEFUL_THREADS: usize = 4;

/// What is no connection's name.
const BELL: u64 = u64::MAX;

/// For how long each thread is to wait if this is to be done next.
fn timespec(next: Instant) -> Timespec {
    let left = next.saturating_duration_since(Instant::now());
    Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
}

/// How many threads suit this machine.
pub(crate) fn usual_threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (cores / CORES_PER_THREAD).clamp(1, USEFUL_THREADS)
}

/// Serves on so many threads and one that takes connections in, which all drop `end` when they end: when they are told to, or
/// nobody can come any more and all have gone.
pub(crate) fn start<T: Send + Sync + 'static>(
    machine: Machine,
    threads: usize,
    doors: Doors,
    orders: Orders,
    end: T,
) -> io::Result<()> {
    let threads = threads.clamp(1, MOST_THREADS);
    let (patience, unread) = (machine.limits().silence, machine.limits().unread);
    let hall = Arc::new(Hall::new(machine, threads)?);
    let (agents, admission) = doors.agents.unzip();
    let porter = Porter::new(Arc::clone(&hall), [Some(doors.clients), agents], &orders, patience)?;
    let end = Arc::new(end);
    for number in 0..threads {
        let sockets = Sockets::new(Arc::clone(&hall), number, unread, admission.clone())?;
        let (hall, end) = (Arc::clone(&hall), Arc::clone(&end));
        spawn(move || {
            // Dropped last, also if it panics.
            let _end = end;
            let _present = Presence(hall);
            sockets.serve();
        })?;
    }
    spawn(move || {
        let _end = end;
        porter.serve(orders);
    })
}

fn spawn(what: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("worker-store".to_owned()).spawn(what).map(drop)
}

/// The sockets of one thread.
#[derive(Debug)]
struct Sockets {
    hall: Arc<Hall>,
    /// Which thread it is.
    number: usize,
    epoll: OwnedFd,
    peers: IdMap<Box<Peer>>,
    trunks: Trunks,
    /// From how much on that a client has not read nothing more is taken from it.
    unread: usize,
    /// What is read goes through here, so that no connection needs a buffer of its own.
    buffer: Box<[u8]>,
    /// What the machine is to be told: what was written, what has been read and who is gone.
    sent: Vec<(ConnectionId, usize)>,
    received: Vec<(ConnectionId, Range<usize>)>,
    gone: Vec<ConnectionId>,
    /// What is left for this thread.
    mail: Vec<Mail>,
    /// Those for whom something has come about.
    addressed: Vec<ConnectionId>,
}

impl Sockets {
    fn new(hall: Arc<Hall>, number: usize, unread: usize, admission: Option<Admission>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, hall.bell(number), EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Sockets {
            number,
            epoll,
            peers: IdMap::default(),
            trunks: Trunks::new(admission, hall.threads()),
            unread,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            sent: Vec::new(),
            received: Vec::new(),
            gone: Vec::new(),
            mail: Vec::new(),
            addressed: Vec::new(),
            hall,
        })
    }

    fn serve(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !(self.hall.stops() || self.hall.is_shut() && self.is_empty()) {
            events.clear();
            let next = self.trunks.look().map(timespec);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), next.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("the workers' store ends, its sockets cannot be waited for: {error}");
                    return self.hall.stop();
                }
            }
            self.turns(&events);
            self.turn_away_late(Instant::now());
            self.tell();
        }
    }

    fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.trunks.is_empty()
    }

    /// Does for each of these what can be done without waiting.
    fn turns(&mut self, events: &[Event]) {
        for some in events.chunks(TOGETHER) {
            let mut filled = 0;
            for &Event { flags, data, .. } in some {
                match data.u64() {
                    BELL => Hall::heard(self.hall.bell(self.number)),
                    id => filled += self.look_after(ConnectionId(id), flags, filled),
                }
                if BUFFER - filled < READ {
                    self.exchange();
                    filled = 0;
                }
            }
            self.exchange();
        }
    }

    /// Writes to a socket what it takes, and reads what it has to what is free of the buffer; how much that was.
    fn look_after(&mut self, id: ConnectionId, flags: EventFlags, filled: usize) -> usize {
        let Some(peer) = self.peers.get_mut(&id) else {
            self.trunk_turn(id, flags, filled);
            return 0;
        };
        let held_back = peer.unread() >= self.unread;
        if peer.has_outgoing() && !peer.flush() {
            self.end(id);
            return 0;
        }
        if peer.has_untold() {
            self.sent.push((id, peer.tell()));
        }
        if peer.waited_for != EventFlags::IN {
            self.addressed.push(id);
        }
        // Who does not read is not read from.
        if held_back || !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return 0;
        }
        match peer.socket.read(&mut self.buffer[filled..filled + READ]) {
            Ok(count @ 1..) => {
                self.received.push((id, filled..filled + count));
                return count;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(0) | Err(_) => self.end(id),
        }
        0
    }

    /// Has the machine carry out what was read, and does what comes of it and of what others have left here.
    fn exchange(&mut self) {
        let mut received = mem::take(&mut self.received);
        let mut messages = received.drain(..);
        loop {
            let mut mail = mem::take(&mut self.mail);
            let mut visit = self.hall.visit();
            self.sent.drain(..).for_each(|(id, count)| visit.handle(Input::Sent(id, count)));
            self.gone.drain(..).for_each(|id| visit.handle(Input::Closed(id)));
            // What comes of them is held until the visit is over.
            while visit.brought() < BROUGHT
                && let Some((id, range)) = messages.next()
            {
                visit.handle(Input::Received(id, &self.buffer[range]));
            }
            visit.take(self.number, &mut mail);
            drop(visit);
            mail.drain(..).for_each(|one| self.open_mail(one));
            if mail.capacity() <= EVENTS {
                self.mail = mail;
            }
            let mut addressed = mem::take(&mut self.addressed);
            addressed.drain(..).for_each(|id| self.flush(id));
            self.addressed = addressed;
            if messages.as_slice().is_empty() {
                break;
            }
        }
        drop(messages);
        self.received = received;
    }

    /// Tells the machine what is left to tell, of which nothing comes for this thread.
    fn tell(&mut self) {
        if self.sent.is_empty() && self.gone.is_empty() {
            return;
        }
        let mut visit = self.hall.visit();
        for (id, count) in self.sent.drain(..) {
            visit.handle(Input::Sent(id, count));
        }
        for id in self.gone.drain(..) {
            visit.handle(Input::Closed(id));
        }
    }

    fn open_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Do(Output::Send(id, bytes)) => {
                let socket = match self.peers.get_mut(&id) {
                    Some(peer) => {
                        peer.push(bytes);
                        Some(id)
                    }
                    None => self.trunks.push(id, bytes),
                };
                if self.addressed.last() != socket.as_ref() {
                    self.addressed.extend(socket);
                }
            }
            Mail::Do(Output::Close(id, refusal)) => {
                if let Some(peer) = self.take(id) {
                    let address = peer.address;
                    drop(peer);
                    self.hall.has_room();
                    self.hall.complain(
                        address,
                        format_args!("the workers' store ended the connection of {address}: {refusal}"),
                    );
                } else {
                    self.addressed.extend(self.trunks.close(id, refusal, &self.hall));
                }
            }
            Mail::Client(id, socket, address) => self.open(id, socket, address),
            Mail::Agent(id, socket, address) => {
                if let Err(error) = self.open_trunk(id, socket, address) {
                    tracing::warn!("the workers' store cannot serve {address}: {error}");
                }
            }
            Mail::Crowded => drop(self.turn_away_oldest()),
        }
    }

    fn open(&mut self, id: ConnectionId, socket: TcpStream, address: SocketAddr) {
        let watched = socket.set_nonblocking(true).and_then(|()| {
            // Requests and replies are small, and somebody waits for each.
            let _ = socket.set_nodelay(true);
            Ok(epoll::add(&self.epoll, &socket, EventData::new_u64(id.0), EventFlags::IN)?)
        });
        match watched {
            Ok(()) => drop(self.peers.insert(id, Box::new(Peer::new(socket, address, EventFlags::IN)))),
            Err(error) => {
                tracing::warn!("the workers' store cannot serve {address}: {error}");
                self.gone.push(id);
            }
        }
    }

    /// Writes what a socket takes without waiting, and sees that it has its turn when there is more to do for it.
    fn flush(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&id) else { return self.flush_trunk(id) };
        if peer.has_outgoing() && !peer.flush() {
            return self.end(id);
        }
        let held_back = peer.unread() >= self.unread;
        if !held_back && !peer.has_outgoing() && peer.has_untold() {
            // It is not held back, so nothing comes of this. Else it is for its own turn, so that a client that reads fast does not
            // keep others from theirs.
            self.sent.push((id, peer.tell()));
        }
        let wanted = match (held_back, peer.has_outgoing()) {
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
    fn take(&mut self, id: ConnectionId) -> Option<Box<Peer>> {
        let peer = self.peers.remove(&id)?;
        let _ = epoll::delete(&self.epoll, &peer.socket);
        Some(peer)
    }

    fn end(&mut self, id: ConnectionId) {
        drop(self.take(id));
        self.hall.has_room();
        self.gone.push(id);
    }
}
