//! The trunks among the sockets: agents of other nodes, each with all clients of its node.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};

use super::hall::{Hall, Visit};
use super::{READ, Sockets};
use crate::ids::IdMap;
use crate::trunk::Secret;
use crate::trunk::frame::{Broken, Frame, Frames};
use crate::trunk::handshake::{ANSWER, Door};
use crate::trunk::link::Link;
use crate::trunk::streams::Streams;
use crate::{Bytes, ConnectionId, Input, Refusal};

/// How much is written to a trunk at a time, and before others have a turn.
const FILL: usize = 64 << 10;
const TURN: usize = 1 << 20;
/// How many may have connected and not shown yet that they know the secret, on all threads. Beyond, the oldest makes room.
const MOST_NEWCOMERS: usize = 16 << 10;
/// How long they may take. All nodes come at one time, and TLS takes its own.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// A node that is gone without a word is noticed after a few of these.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Who is let in as an agent.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    pub(crate) secret: Secret,
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// Why a trunk is ended.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error(
        "only agents of this round are let in here, and it is none (a worker whose node has no store proxy?)"
    )]
    Stranger,
    #[error("it does not know the secret of this round")]
    WrongSecret,
    #[error("it has connected and not said what it is")]
    Late,
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Broken(#[from] Broken),
}

#[derive(Debug)]
enum State {
    /// Not let in yet.
    Newcomer {
        door: Door,
        answer: Vec<u8>,
        until: Instant,
    },
    Member {
        frames: Frames,
        streams: Streams,
    },
}

#[derive(Debug)]
struct Trunk {
    link: Link,
    address: SocketAddr,
    state: State,
    /// What the link has not taken yet.
    out: Vec<u8>,
    /// What was sent to clients that are held back, which the machine is told in the trunk's own turn.
    untold: Vec<(ConnectionId, usize)>,
    waited_for: EventFlags,
}

impl Trunk {
    fn wants(&self) -> EventFlags {
        let streams = matches!(&self.state, State::Member { streams, .. } if streams.has_output());
        if streams || self.link.wants_write() || !self.out.is_empty() || !self.untold.is_empty() {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        }
    }

    /// The stream of a client, and all of them.
    fn streams(&mut self) -> Option<&mut Streams> {
        match &mut self.state {
            State::Newcomer { .. } => None,
            State::Member { streams, .. } => Some(streams),
        }
    }
}

/// The trunks, and whose clients are on which.
#[derive(Debug, Default)]
pub(super) struct Trunks {
    admission: Option<Admission>,
    all: IdMap<Box<Trunk>>,
    /// The trunk of each client on one, and its stream there.
    clients: IdMap<(ConnectionId, u32)>,
    /// Those that are not let in yet, the oldest first, and how many there may be.
    newcomers: BTreeSet<ConnectionId>,
    most_newcomers: usize,
}

impl Trunks {
    /// Those of one of so many threads.
    pub(super) fn new(admission: Option<Admission>, threads: usize) -> Self {
        Trunks { admission, most_newcomers: MOST_NEWCOMERS / threads, ..Trunks::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// When it is to be looked for newcomers that are late.
    pub(super) fn look(&self) -> Option<Instant> {
        match &self.all.get(self.newcomers.first()?)?.state {
            State::Newcomer { until, .. } => Some(*until),
            State::Member { .. } => None,
        }
    }

    /// The trunk that this was for, if the client is on one.
    pub(super) fn push(&mut self, client: ConnectionId, bytes: Bytes) -> Option<ConnectionId> {
        let (trunk, stream) = *self.clients.get(&client)?;
        self.all.get_mut(&trunk)?.streams()?.push(stream, bytes);
        Some(trunk)
    }

    /// Ends a client that is on a trunk; which one.
    pub(super) fn close(
        &mut self,
        client: ConnectionId,
        refusal: Refusal,
        hall: &Hall,
    ) -> Option<ConnectionId> {
        let (id, stream) = self.clients.remove(&client)?;
        let trunk = self.all.get_mut(&id)?;
        let address = trunk.address;
        hall.complain(
            address,
            format_args!("the workers' store ended a connection of the node at {address}: {refusal}"),
        );
        trunk.streams()?.end(stream);
        Some(id)
    }
}

impl Sockets {
    /// An agent has connected, or somebody who takes itself for one.
    pub(super) fn open_trunk(
        &mut self,
        id: ConnectionId,
        socket: TcpStream,
        address: SocketAddr,
    ) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let _ = socket.set_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
        let tls = self.trunks.admission.as_ref().and_then(|admission| admission.tls.as_ref());
        let door = Door::new().ok_or_else(|| io::Error::other("the system has no randomness"))?;
        let out = door.greeting().to_vec();
        let trunk = Trunk {
            link: Link::new(socket, tls)?,
            address,
            state: State::Newcomer { door, answer: Vec::new(), until: Instant::now() + HANDSHAKE },
            out,
            untold: Vec::new(),
            waited_for: EventFlags::IN,
        };
        epoll::add(&self.epoll, &trunk.link.socket, EventData::new_u64(id.0), EventFlags::IN)?;
        self.trunks.all.insert(id, Box::new(trunk));
        self.trunks.newcomers.insert(id);
        if self.trunks.newcomers.len() > self.trunks.most_newcomers {
            self.turn_away_oldest();
        }
        self.flush_trunk(id);
        Ok(())
    }

    /// Whether there was one that was not let in yet, and has made room.
    pub(super) fn turn_away_oldest(&mut self) -> bool {
        let oldest = self.trunks.newcomers.first().copied();
        oldest.inspect(|id| self.end_trunk(*id, Some(&Turned::Late))).is_some()
    }

    pub(super) fn turn_away_late(&mut self, now: Instant) {
        while self.trunks.look().is_some_and(|until| now >= until) && self.turn_away_oldest() {}
    }

    /// Does for a trunk what can be done without waiting, but for writing what comes of it. From `filled` on, the buffer is free.
    pub(super) fn trunk_turn(&mut self, id: ConnectionId, flags: EventFlags, filled: usize) {
        let Some(trunk) = self.trunks.all.get_mut(&id) else { return };
        if !trunk.untold.is_empty() {
            let mut visit = self.hall.visit();
            for (client, count) in mem::take(&mut trunk.untold) {
                visit.handle(Input::Sent(client, count));
                if !visit.is_held_back(client)
                    && let Some((_, stream)) = self.trunks.clients.get(&client)
                    && let Some(streams) = trunk.streams()
                {
                    streams.let_send(*stream);
                }
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read_trunk(id, filled);
        }
        self.addressed.push(id);
    }

    fn read_trunk(&mut self, id: ConnectionId, filled: usize) {
        // Out of the table, so that what comes can be handed on while it is read.
        let Some(mut trunk) = self.trunks.all.remove(&id) else { return };
        let mut buffer = mem::take(&mut self.buffer);
        let mut went = Ok(());
        let read = trunk.link.read(&mut buffer[filled..filled + READ], |bytes| {
            if went.is_ok() {
                went = self.received_on_trunk(id, &mut trunk.state, &mut trunk.out, bytes);
            }
        });
        self.buffer = buffer;
        self.trunks.all.insert(id, trunk);
        match (went, read) {
            (Err(why), _) => self.end_trunk(id, Some(&why)),
            (Ok(()), Ok(true)) => {}
            (Ok(()), Ok(false)) => self.end_trunk(id, None),
            // Whoever breaks its connection has ended; one that fails to speak TLS has not.
            (Ok(()), Err(error)) if error.kind() != io::ErrorKind::InvalidData => self.end_trunk(id, None),
            (Ok(()), Err(error)) => self.end_trunk(id, Some(&error.into())),
        }
    }

    fn received_on_trunk(
        &mut self,
        id: ConnectionId,
        state: &mut State,
        out: &mut Vec<u8>,
        bytes: &[u8],
    ) -> Result<(), Turned> {
        let mut bytes = bytes;
        if let State::Newcomer { door, answer, .. } = state {
            let (more, rest) = bytes.split_at(bytes.len().min(ANSWER - answer.len()));
            answer.extend_from_slice(more);
            bytes = rest;
            if !Door::may_be_answer(answer) {
                return Err(Turned::Stranger);
            }
            let Some(answer) = answer.first_chunk() else { return Ok(()) };
            let secret = self.trunks.admission.as_ref().map(|admission| &admission.secret);
            let welcome =
                secret.and_then(|secret| door.welcome(answer, secret)).ok_or(Turned::WrongSecret)?;
            out.extend_from_slice(&welcome);
            self.trunks.newcomers.remove(&id);
            *state = State::Member { frames: Frames::default(), streams: Streams::default() };
        }
        if let State::Member { frames, streams } = state {
            let hall = Arc::clone(&self.hall);
            let mut visit = hall.visit();
            frames.read(bytes, |stream, frame| self.take_frame(&mut visit, id, streams, stream, frame))?;
            streams.check()?;
        }
        Ok(())
    }

    fn take_frame(
        &mut self,
        visit: &mut Visit<'_>,
        id: ConnectionId,
        streams: &mut Streams,
        stream: u32,
        frame: Frame<'_>,
    ) -> Result<(), Broken> {
        match frame {
            Frame::Open => {
                let client = visit.name(self.number);
                streams.open(stream, client)?;
                self.trunks.clients.insert(client, (id, stream));
                visit.handle(Input::Opened(client));
            }
            Frame::Data(data) => {
                if let Some(client) = streams.received(stream, data.len())? {
                    visit.handle(Input::Received(client, data));
                    // Who does not read its replies may not send more requests.
                    if !visit.is_held_back(client) {
                        streams.let_send(stream);
                    }
                }
            }
            Frame::Window(more) => streams.has_room(stream, more)?,
            Frame::Close => {
                if let Some(client) = streams.closed(stream)? {
                    self.trunks.clients.remove(&client);
                    visit.handle(Input::Closed(client));
                }
            }
        }
        Ok(())
    }

    /// Writes what a trunk takes without waiting.
    pub(super) fn flush_trunk(&mut self, id: ConnectionId) {
        let Some(trunk) = self.trunks.all.get_mut(&id) else { return };
        let mut turn = 0;
        while turn < TURN {
            if let State::Member { streams, .. } = &mut trunk.state {
                let untold = &mut trunk.untold;
                streams.fill(&mut trunk.out, FILL, |client, count| untold.push((client, count)));
            }
            if trunk.out.is_empty() && !trunk.link.wants_write() {
                break;
            }
            match trunk.link.write(&trunk.out) {
                Ok(0) => break,
                Ok(count) => {
                    turn += count;
                    drop(trunk.out.drain(..count));
                }
                Err(_) => return self.end_trunk(id, None),
            }
        }
        if trunk.out.is_empty() {
            // An idle trunk holds no memory for what it was sent.
            trunk.out = Vec::new();
        }
        if !trunk.untold.is_empty() {
            let mut visit = self.hall.visit();
            trunk.untold.retain(|&(client, count)| {
                let held_back = visit.is_held_back(client);
                if !held_back {
                    // Nothing comes of this.
                    visit.handle(Input::Sent(client, count));
                }
                held_back
            });
        }
        if trunk.untold.is_empty() {
            trunk.untold = Vec::new();
        }
        let wanted = trunk.wants();
        if trunk.waited_for != wanted {
            trunk.waited_for = wanted;
            let socket = &trunk.link.socket;
            if epoll::modify(&self.epoll, socket, EventData::new_u64(id.0), wanted).is_err() {
                self.end_trunk(id, None);
            }
        }
    }

    /// Ends a trunk, and all clients on it. `why` is none where the other side has ended it.
    fn end_trunk(&mut self, id: ConnectionId, why: Option<&Turned>) {
        let Some(trunk) = self.trunks.all.remove(&id) else { return };
        self.trunks.newcomers.remove(&id);
        let _ = epoll::delete(&self.epoll, &trunk.link.socket);
        match (&trunk.state, why) {
            (_, None) => tracing::debug!("the agent at {} has gone", trunk.address),
            (State::Newcomer { .. }, Some(why)) => {
                let address = trunk.address;
                self.hall.complain(address, format_args!("the workers' store turned {address} away: {why}"));
            }
            (State::Member { .. }, Some(why)) => {
                tracing::warn!(
                    "the workers' store ended the connection of the node at {}: {why}",
                    trunk.address
                );
            }
        }
        if let State::Member { streams, .. } = &trunk.state {
            for client in streams.ids() {
                self.trunks.clients.remove(&client);
                self.gone.push(client);
            }
        }
        drop(trunk);
        self.hall.has_room();
    }
}
