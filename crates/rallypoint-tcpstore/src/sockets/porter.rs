//! Takes in who comes, on a thread that does nothing else: all ranks come at one time, and who finds too many before the door is
//! sent away by the system and tries again after a second.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::hall::{Hall, Mail};
use super::{Admission, timespec};
use crate::control::Orders;

/// How many are taken in before the threads are told of them, and before orders are looked at.
const TOLD: usize = 64;
const ACCEPTED: usize = 4096;

/// How long it waits when no connection can be accepted, which is mostly for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Of what the system tells.
const CLIENTS: u64 = 0;
const AGENTS: u64 = 1;
const ORDERS: u64 = 2;
const BELL: u64 = 3;

/// Where connections come in.
#[derive(Debug)]
pub(crate) struct Doors {
    /// Clients, each on a connection of its own.
    pub(crate) clients: TcpListener,
    /// Agents of other nodes, with all clients of theirs, and who is let in there.
    pub(crate) agents: Option<(TcpListener, Admission)>,
}

/// The doors, and who takes in those who come.
#[derive(Debug)]
pub(super) struct Porter {
    hall: Arc<Hall>,
    epoll: OwnedFd,
    /// Where connections come in, by the name of the door, while they are open.
    doors: Vec<(u64, TcpListener)>,
    /// When it is looked at the doors again, which are shut for lack of descriptors.
    shut_until: Option<Instant>,
    /// It is said once that no connection can be accepted, until one has come in again.
    said: bool,
    /// Who gets the next connection.
    next: usize,
    /// How long newcomers may be silent, and when it is looked for those who were.
    patience: Duration,
    look: Instant,
}

/// However it ends, all threads do.
impl Drop for Porter {
    fn drop(&mut self) {
        self.hall.stop();
    }
}

impl Porter {
    pub(super) fn new(
        hall: Arc<Hall>,
        doors: [Option<TcpListener>; 2],
        orders: &Orders,
        patience: Duration,
    ) -> io::Result<Self> {
        let doors: Vec<_> =
            [CLIENTS, AGENTS].into_iter().zip(doors).filter_map(|(name, door)| Some((name, door?))).collect();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (name, door) in &doors {
            door.set_nonblocking(true)?;
            epoll::add(&epoll, door, EventData::new_u64(*name), EventFlags::IN)?;
        }
        epoll::add(&epoll, orders, EventData::new_u64(ORDERS), EventFlags::IN)?;
        epoll::add(&epoll, hall.porters_bell(), EventData::new_u64(BELL), EventFlags::IN)?;
        let look = Instant::now() + patience;
        Ok(Porter { hall, epoll, doors, shut_until: None, said: false, next: 0, patience, look })
    }

    /// Takes in who comes until it is told to stop, or nobody can come any more and all have gone.
    pub(super) fn serve(mut self, mut orders: Orders) {
        let mut events = Vec::with_capacity(4);
        while !orders.is_to_stop() && !self.hall.stops() && self.hall.has_somebody() {
            events.clear();
            let next = self.shut_until.map_or(self.look, |until| until.min(self.look));
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timespec(next))) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return tracing::error!("the workers' store ends, it cannot wait for who comes: {error}");
                }
            }
            for &Event { data, .. } in &events {
                match data.u64() {
                    ORDERS => orders.take(),
                    BELL => Hall::heard(self.hall.porters_bell()),
                    door => self.accept(door),
                }
            }
            if orders.is_to_close() {
                for (_, door) in self.doors.drain(..) {
                    let _ = epoll::delete(&self.epoll, &door);
                }
                orders.closed();
                self.hall.shut();
            }
            self.look_at_the_clock();
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if now >= self.look {
            self.look = now + self.patience;
            self.hall.visit().look_for_late();
        }
        if self.shut_until.is_some_and(|until| now >= until || !self.hall.is_crowded()) {
            self.shut_until = None;
            self.listen(EventFlags::IN);
        }
    }

    /// What the system is to tell of the doors.
    fn listen(&self, flags: EventFlags) {
        for (name, door) in &self.doors {
            let _ = epoll::modify(&self.epoll, door, EventData::new_u64(*name), flags);
        }
    }

    fn accept(&mut self, name: u64) {
        let mut come = Vec::new();
        for _ in 0..ACCEPTED {
            let Some((_, door)) = self.doors.iter().find(|(door, _)| *door == name) else { break };
            match door.accept() {
                Ok(one) => {
                    self.said = false;
                    come.push(one);
                    if come.len() == TOLD {
                        self.tell(name, &mut come);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    if !mem::replace(&mut self.said, true) {
                        tracing::warn!("the workers' store cannot accept a connection: {error}");
                    }
                    self.tell(name, &mut come);
                    return self.make_room();
                }
            }
        }
        self.tell(name, &mut come);
    }

    /// Gives these to the threads, each its share.
    fn tell(&mut self, door: u64, come: &mut Vec<(TcpStream, SocketAddr)>) {
        let hall = Arc::clone(&self.hall);
        let mut visit = hall.visit();
        for (socket, address) in come.drain(..) {
            self.next = (self.next + 1) % hall.threads();
            match door {
                AGENTS => visit.agent_comes(self.next, socket, address),
                _ => visit.client_comes(self.next, socket, address),
            }
        }
    }

    /// Has somebody go who has not said what it is, if there is one, and waits until there is room or for a while.
    fn make_room(&mut self) {
        // Before it is asked for, so that it is not missed.
        self.hall.wait_for_room();
        let mut visit = self.hall.visit();
        if !visit.make_room() {
            (0..self.hall.threads()).for_each(|thread| visit.leave(thread, Mail::Crowded));
        }
        drop(visit);
        self.shut_until = Some(Instant::now() + PAUSE);
        self.listen(EventFlags::empty());
    }
}
