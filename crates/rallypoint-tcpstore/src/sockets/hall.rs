//! What the threads have in common: the machine, and what one of them leaves for another.
//!
//! Who asks the machine holds its lock, and what comes of it is put into the box of the thread whose connection it is for, under
//! the same lock. So what is for a connection is in its box in the order in which it came about, whoever caused it.

use std::fmt::Display;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::complaints::Complaints;
use crate::{ConnectionId, Input, Machine, Output};

/// A name ends with the thread whose connection it is.
const THREAD_BITS: u32 = 4;
/// So there are no more threads than this.
pub(super) const MOST_THREADS: usize = 1 << THREAD_BITS;

fn thread_of(id: ConnectionId) -> usize {
    id.0 as usize % MOST_THREADS
}

/// What is left for a thread.
#[derive(Debug)]
pub(super) enum Mail {
    /// The machine wants this done.
    Do(Output),
    /// A client has connected, and the machine knows of it.
    Client(ConnectionId, TcpStream, SocketAddr),
    /// An agent has, or somebody who takes itself for one.
    Agent(ConnectionId, TcpStream, SocketAddr),
    /// There is no room for another connection. An agent that was not let in yet makes some.
    Crowded,
}

/// Wakes a thread.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn new() -> std::io::Result<Self> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn ring(&self) {
        // It fails only if it has been rung very often, and is heard then too.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// What is under the lock.
#[derive(Debug)]
struct Inner {
    machine: Machine,
    outputs: Vec<Output>,
    /// For each thread.
    boxes: Vec<Vec<Mail>>,
    /// The number of the next connection.
    next: u64,
    /// The first that came after it was last looked for who is late.
    late: ConnectionId,
}

/// What the threads have in common.
#[derive(Debug)]
pub(super) struct Hall {
    inner: Mutex<Inner>,
    bells: Vec<Bell>,
    porter: Bell,
    complaints: Mutex<Complaints>,
    /// How many threads have connections, or may be given some.
    present: AtomicUsize,
    /// Nobody comes any more.
    is_shut: AtomicBool,
    /// All is to end.
    stops: AtomicBool,
    /// The porter waits for a descriptor.
    is_crowded: AtomicBool,
}

impl Hall {
    pub(super) fn new(machine: Machine, threads: usize) -> std::io::Result<Self> {
        debug_assert!((1..=MOST_THREADS).contains(&threads));
        let inner = Inner {
            machine,
            outputs: Vec::new(),
            boxes: (0..threads).map(|_| Vec::new()).collect(),
            next: 0,
            late: ConnectionId(0),
        };
        Ok(Hall {
            inner: Mutex::new(inner),
            bells: (0..threads).map(|_| Bell::new()).collect::<Result<_, _>>()?,
            porter: Bell::new()?,
            complaints: Mutex::default(),
            present: AtomicUsize::new(threads),
            is_shut: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
        })
    }

    pub(super) fn threads(&self) -> usize {
        self.bells.len()
    }

    /// Has the machine, until it is dropped.
    pub(super) fn visit(&self) -> Visit<'_> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Visit { hall: self, inner: Some(inner), ring: 0, brought: 0 }
    }

    /// Says something of a connection from there.
    pub(super) fn complain(&self, of: SocketAddr, what: impl Display) {
        // One that came by IPv4 may be told as either.
        let of = of.ip().to_canonical();
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).say(of, what);
    }

    /// What is readable when something is left for this thread.
    pub(super) fn bell(&self, thread: usize) -> BorrowedFd<'_> {
        self.bells[thread].0.as_fd()
    }

    /// What is readable when the porter is to look.
    pub(super) fn porters_bell(&self) -> BorrowedFd<'_> {
        self.porter.0.as_fd()
    }

    /// A bell was heard.
    pub(super) fn heard(bell: BorrowedFd<'_>) {
        let _ = rustix::io::read(bell, &mut [0_u8; 8]);
    }

    /// The porter waits until there is a descriptor again.
    pub(super) fn wait_for_room(&self) {
        self.is_crowded.store(true, Ordering::Release);
    }

    /// A connection is closed.
    pub(super) fn has_room(&self) {
        if self.is_crowded.load(Ordering::Acquire) && self.is_crowded.swap(false, Ordering::AcqRel) {
            self.porter.ring();
        }
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded.load(Ordering::Acquire)
    }

    /// Nobody comes any more.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Release);
        self.bells.iter().for_each(Bell::ring);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    /// All threads are to end.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.bells.iter().chain([&self.porter]).for_each(Bell::ring);
    }

    pub(super) fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Whether some thread has connections, or may be given some.
    pub(super) fn has_somebody(&self) -> bool {
        self.present.load(Ordering::Acquire) > 0
    }
}

/// A thread with connections is there as long as this. If it ends for a mistake of ours, all end: no client is left waiting.
#[derive(Debug)]
pub(super) struct Presence(pub(super) Arc<Hall>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.present.fetch_sub(1, Ordering::AcqRel);
        if std::thread::panicking() {
            self.0.stop();
        } else {
            self.0.porter.ring();
        }
    }
}

/// Has the machine. When it is dropped, those wake for whom something is there.
#[derive(Debug)]
pub(super) struct Visit<'a> {
    hall: &'a Hall,
    inner: Option<MutexGuard<'a, Inner>>,
    /// A bit for each thread whose box was empty and is not.
    ring: u32,
    /// How many bytes are to be sent that were not.
    brought: usize,
}

impl Visit<'_> {
    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("it is taken out by drop alone")
    }

    pub(super) fn handle(&mut self, input: Input<'_>) {
        let inner = self.inner();
        let mut outputs = mem::take(&mut inner.outputs);
        inner.machine.handle(input, &mut outputs);
        for output in outputs.drain(..) {
            let id = match &output {
                Output::Send(id, bytes) => {
                    self.brought += bytes.as_ref().len();
                    *id
                }
                Output::Close(id, _) => *id,
            };
            self.leave(thread_of(id), Mail::Do(output));
        }
        self.inner().outputs = outputs;
    }

    /// How many bytes are to be sent for what was handled.
    pub(super) fn brought(&self) -> usize {
        self.brought
    }

    pub(super) fn is_held_back(&mut self, id: ConnectionId) -> bool {
        self.inner().machine.is_held_back(id)
    }

    /// A client has come, for this thread.
    pub(super) fn client_comes(&mut self, thread: usize, socket: TcpStream, address: SocketAddr) {
        let id = self.name(thread);
        self.leave(thread, Mail::Client(id, socket, address));
        self.handle(Input::Opened(id));
    }

    /// An agent has come, for this thread.
    pub(super) fn agent_comes(&mut self, thread: usize, socket: TcpStream, address: SocketAddr) {
        let id = self.name(thread);
        self.leave(thread, Mail::Agent(id, socket, address));
    }

    /// A name for a connection of this thread.
    pub(super) fn name(&mut self, thread: usize) -> ConnectionId {
        let inner = self.inner();
        let id = ConnectionId(inner.next << THREAD_BITS | thread as u64);
        inner.next += 1;
        id
    }

    /// Leaves this for a thread.
    pub(super) fn leave(&mut self, thread: usize, mail: Mail) {
        let mailbox = &mut self.inner().boxes[thread];
        let was_empty = mailbox.is_empty();
        mailbox.push(mail);
        if was_empty {
            self.ring |= 1 << thread;
        }
    }

    /// Takes what is left for this thread, in exchange for what is empty.
    pub(super) fn take(&mut self, thread: usize, mail: &mut Vec<Mail>) {
        debug_assert!(mail.is_empty());
        mem::swap(&mut self.inner().boxes[thread], mail);
        self.ring &= !(1 << thread);
    }

    /// Ends those who have not said what they are, and were there the last time.
    pub(super) fn look_for_late(&mut self) {
        let inner = self.inner();
        let now = ConnectionId(inner.next << THREAD_BITS);
        let late = mem::replace(&mut inner.late, now);
        self.handle(Input::Late(late));
    }

    /// Has the oldest go that has not said that it is a client; false if there is none.
    pub(super) fn make_room(&mut self) -> bool {
        let inner = self.inner();
        let before = inner.machine.connections();
        self.handle(Input::Crowded);
        self.inner().machine.connections() < before
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Nobody is to wake up and find the door locked.
        self.inner = None;
        for (thread, bell) in self.hall.bells.iter().enumerate() {
            if self.ring & 1 << thread != 0 {
                bell.ring();
            }
        }
    }
}
