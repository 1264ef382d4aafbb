//! Bytes at random, and messages with something wrong in them, from many connections at a time.
//!
//! `RALLYPOINT_FUZZ_SEEDS` is how many seeds are tried, `RALLYPOINT_FUZZ_SEED` the only one.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::{ConnectionId, Input, Machine, Output};
use crate::wire::{MAGIC, Request};
use crate::{Limits, Refusal};

const STEPS: usize = 300;

/// So small that all are reached.
const LIMITS: Limits = Limits {
    key: 32,
    value: 3000,
    keys: 8,
    message: 6 << 10,
    stored: 12 << 10,
    pending: 5 << 10,
    newcomers: 4,
    silence: Duration::from_secs(1),
    unread: 16 << 10,
    outdated: 3 << 10,
};

/// Everybody's but for the hostile, whose keys are short.
const KEY: &[u8] = b"a key that nobody else has";

pub(crate) fn seeds(usual: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("RALLYPOINT_FUZZ_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("RALLYPOINT_FUZZ_SEEDS").unwrap_or(usual)).collect(),
    }
}

/// Tells the seed of a story that fails.
pub(crate) struct SeedReport(pub(crate) u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "replay with RALLYPOINT_FUZZ_SEED={} cargo test -p rallypoint-tcpstore --lib fuzz",
                self.0
            );
        }
    }
}

fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let count = random.usize(..=most);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

/// A message as clients send it.
fn message(random: &mut Rng) -> Vec<u8> {
    let keys: Vec<Vec<u8>> = (0..random.usize(0..5)).map(|_| vec![random.u8(b'a'..b'e')]).collect();
    let all: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let key = all.first().copied().unwrap_or(b"q");
    let most = *random.choice(&[0, 4, 1500, LIMITS.value]).expect("there are some");
    let value = if random.bool() { random.u8(..).to_string().into_bytes() } else { bytes(random, most) };
    let request = match random.u8(0..18) {
        0 => Request::Set(key, &value),
        1 => Request::CompareSet { key, expected: if random.bool() { b"" } else { b"1" }, desired: &value },
        2 => Request::Get(key),
        // A number of its own, or it would mostly be added to something else.
        3 => Request::Add(if random.u8(0..8) == 0 { key } else { b"n" }, random.i64(..)),
        4 => Request::Check(all),
        5 => Request::Wait(all),
        6 => Request::CountKeys,
        7 => Request::Delete(key),
        8 => Request::Append(key, &value),
        9 => Request::MultiGet(all),
        10 => Request::MultiSet(all.into_iter().map(|key| (key, value.as_slice())).collect()),
        11 => Request::CancelWait,
        12 => Request::Ping(random.u32(..)),
        13 => Request::QueuePush(key, &value),
        14 => Request::QueuePop(key),
        15 => Request::QueueLen(key),
        16 => Request::ListKeys,
        _ => Request::Barrier { key: b"n", world_size: random.i64(-1..4) },
    };
    let mut message = Vec::new();
    request.write(&mut message);
    message
}

/// One of which something may be wrong.
fn hostile(random: &mut Rng) -> Vec<u8> {
    let mut message = message(random);
    let at = random.usize(..message.len());
    match random.u8(0..100) {
        0 => message[at] = random.u8(..),
        1 => message.truncate(at),
        2 => message.insert(at, random.u8(..)),
        3 => message.splice(at.., bytes(random, 40)).for_each(drop),
        // A length of any size.
        4 => message.splice(at.., (u64::MAX >> random.u8(0..64)).to_le_bytes()).for_each(drop),
        5 => message = bytes(random, 100),
        _ => {}
    }
    message
}

fn validate() -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Validate(MAGIC).write(&mut bytes);
    bytes
}

/// A machine, and for each connection what was to be sent and has not left.
struct Server {
    machine: Machine,
    unread: BTreeMap<ConnectionId, Vec<crate::Bytes>>,
    next: u64,
}

impl Server {
    fn handle(&mut self, input: Input<'_>) {
        let mut outputs = Vec::new();
        self.machine.handle(input, &mut outputs);
        for output in outputs {
            match output {
                // Nothing comes for one that is gone.
                Output::Send(id, bytes) => self.unread.get_mut(&id).expect("it is there").push(bytes),
                Output::Close(id, _) => drop(self.unread.remove(&id).expect("it is there")),
            }
        }
    }

    fn open(&mut self) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        self.unread.insert(id, Vec::new());
        self.handle(Input::Opened(id));
        id
    }

    /// What a connection reads, of all that there is for it.
    fn read(&mut self, id: ConnectionId) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some(unread) = self.unread.get_mut(&id).filter(|unread| !unread.is_empty()) {
            let bytes: Vec<u8> = unread.drain(..).flat_map(|bytes| bytes.as_ref().to_vec()).collect();
            self.handle(Input::Sent(id, bytes.len()));
            read.extend(bytes);
        }
        read
    }

    fn check(&self) {
        let machine = &self.machine;
        let pending: usize = machine.connections.values().map(|connection| connection.pending()).sum();
        assert_eq!(machine.pending, pending);
        assert!(pending <= LIMITS.pending, "{pending} bytes are pending");
        assert!(machine.newcomers.len() <= LIMITS.newcomers);
        assert!(
            machine
                .connections
                .keys()
                .eq(machine.connections.keys().filter(|id| self.unread.contains_key(id)))
        );
        assert_eq!(machine.connections.len(), self.unread.len());
        assert_eq!(machine.unread, machine.connections.values().map(|connection| connection.unread).sum());
        let stored = machine.keys.size().all() + machine.queues.size().all();
        assert!(stored <= LIMITS.stored, "{stored} bytes are stored");
        for (id, unread) in &self.unread {
            let unread: usize = unread.iter().map(|bytes| bytes.as_ref().len()).sum();
            assert_eq!(machine.connections[id].unread, unread);
        }
        // What is replaced while many are to read it lives until they are ended, one with each input.
        let alive = machine.alive.bytes();
        assert!(alive <= LIMITS.outdated + 3 * LIMITS.stored, "{alive} bytes are alive");
    }
}

/// Does hostile things, and sees after each that another client is served as ever.
fn story(seed: u64) {
    let _told = SeedReport(seed);
    let mut random = Rng::with_seed(seed);
    let mut server = Server { machine: Machine::new(LIMITS), unread: BTreeMap::new(), next: 0 };
    let witness = server.open();
    server.handle(Input::Received(witness, &validate()));
    let mut asked = Vec::new();
    Request::Set(KEY, b"value").write(&mut asked);
    server.handle(Input::Received(witness, &asked));
    asked.clear();
    [Request::Get(KEY), Request::Check(vec![KEY]), Request::Ping(7)]
        .iter()
        .for_each(|one| one.write(&mut asked));
    let answer = [&5_u64.to_le_bytes()[..], b"value", &[0], &7_u32.to_le_bytes()].concat();

    for _ in 0..STEPS {
        let others: Vec<_> = server.unread.keys().copied().filter(|id| *id != witness).collect();
        let other = random.choice(&others).copied();
        match (random.u8(0..20), other) {
            (0..2, _) | (_, None) => {
                let id = server.open();
                if random.u8(0..8) > 0 {
                    server.handle(Input::Received(id, &validate()));
                }
            }
            (2, Some(id)) => {
                server.unread.remove(&id);
                server.handle(Input::Closed(id));
            }
            (3, Some(id)) if random.u8(0..4) == 0 => server.handle(Input::Late(id)),
            (4, Some(_)) if random.u8(0..4) == 0 => server.handle(Input::Crowded),
            (5..8, Some(id)) => drop(server.read(id)),
            (_, Some(id)) if !server.machine.is_held_back(id) => {
                let pieces: Vec<u8> = (0..random.usize(1..6)).flat_map(|_| hostile(&mut random)).collect();
                let end = if random.u8(0..4) == 0 { random.usize(..=pieces.len()) } else { pieces.len() };
                server.handle(Input::Received(id, &pieces[..end]));
            }
            _ => {}
        }
        server.check();
        server.handle(Input::Received(witness, &asked));
        assert_eq!(server.read(witness), answer);
        server.check();
    }
    // All that was held is let go.
    for id in server.unread.keys().copied().collect::<Vec<_>>() {
        server.unread.remove(&id);
        server.handle(Input::Closed(id));
    }
    assert_eq!(server.machine.pending, 0);
    let stored = server.machine.keys.size().values + server.machine.queues.size().values;
    assert_eq!(server.machine.alive.bytes(), stored);
}

/// What comes of these pieces from one connection: all that is sent to it, and why it is ended.
fn outcome(pieces: &[&[u8]]) -> (Vec<u8>, Option<Refusal>) {
    let limits = Limits { pending: usize::MAX, unread: usize::MAX, outdated: usize::MAX, ..LIMITS };
    let mut machine = Machine::new(limits);
    let id = ConnectionId(0);
    let (mut outputs, mut sent, mut refusal) = (Vec::new(), Vec::new(), None);
    machine.handle(Input::Opened(id), &mut outputs);
    for piece in pieces {
        machine.handle(Input::Received(id, piece), &mut outputs);
    }
    for output in outputs {
        match output {
            Output::Send(_, bytes) => sent.extend_from_slice(bytes.as_ref()),
            Output::Close(_, why) => refusal = Some(why),
        }
    }
    // Keys are listed in any order.
    sent.sort_unstable();
    (sent, refusal)
}

#[test]
fn hostile_bytes_do_no_harm_to_others_and_what_is_held_is_bounded() {
    seeds(50).into_iter().for_each(story);
}

#[test]
fn it_does_not_matter_how_hostile_bytes_are_cut() {
    for seed in seeds(200) {
        let _told = SeedReport(seed);
        let mut random = Rng::with_seed(seed);
        let mut bytes = validate();
        (0..random.usize(1..30)).for_each(|_| bytes.extend(hostile(&mut random)));
        let (mut rest, mut pieces) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            let most = *random.choice(&[1, 9, 2000]).expect("there are some");
            let (piece, after) = rest.split_at(random.usize(1..=rest.len().min(most)));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(outcome(&pieces), outcome(&[&bytes]));
    }
}
