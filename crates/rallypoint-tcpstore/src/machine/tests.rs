//! What goes in and what comes out, as bytes.

use super::{ConnectionId, Input, Machine, Output};
use crate::{Limits, Refusal};

const VALIDATE: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];

/// A machine, and what it has said.
struct Server {
    machine: Machine,
    outputs: Vec<Output>,
}

impl Server {
    /// With this many connections, which have said who they are.
    fn with(connections: u64, limits: Limits) -> Self {
        let mut server = Server { machine: Machine::new(limits), outputs: Vec::new() };
        for id in (0..connections).map(ConnectionId) {
            server.machine.handle(Input::Opened(id), &mut server.outputs);
            server.machine.handle(Input::Received(id, &VALIDATE), &mut server.outputs);
        }
        server
    }

    /// What comes of these bytes: to whom what is sent, and who is turned away. All of it is read.
    fn receive(&mut self, id: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        self.machine.handle(Input::Received(ConnectionId(id), bytes), &mut self.outputs);
        self.take_sent()
    }

    fn take_sent(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut sent: Vec<(u64, Vec<u8>)> = Vec::new();
        for output in std::mem::take(&mut self.outputs) {
            let Output::Send(id, bytes) = output else { panic!("{output:?}") };
            self.machine.handle(Input::Sent(id, bytes.as_ref().len()), &mut self.outputs);
            match sent.last_mut() {
                Some((last, all)) if *last == id.0 => all.extend_from_slice(bytes.as_ref()),
                _ => sent.push((id.0, bytes.as_ref().to_vec())),
            }
        }
        sent
    }

    /// As `receive`, where the connection is to be ended, and no other.
    fn refused(&mut self, id: u64, bytes: &[u8]) -> Refusal {
        self.machine.handle(Input::Received(ConnectionId(id), bytes), &mut self.outputs);
        match std::mem::take(&mut self.outputs).pop() {
            Some(Output::Close(ConnectionId(ended), refusal)) if ended == id => refusal,
            other => panic!("{other:?}"),
        }
    }
}

/// A key or value.
fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn message(number: u8, fields: &[&[u8]]) -> Vec<u8> {
    [&[number], fields.concat().as_slice()].concat()
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    message(1, &[&string(key), &string(value)])
}

fn get(key: &[u8]) -> Vec<u8> {
    message(3, &[&string(key)])
}

fn wait(key: &[u8]) -> Vec<u8> {
    message(6, &[&number(1), &string(key)])
}

fn number(number: i64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Every message, one after the other, and its reply.
fn all_messages() -> Vec<(Vec<u8>, Vec<u8>)> {
    let (a, b, n, q) = (string(b"a"), string(b"b"), string(b"n"), string(b"q"));
    let (x, y, empty) = (string(b"x"), string(b"y"), string(b""));
    vec![
        (message(13, &[&[1, 2, 3, 4]]), vec![1, 2, 3, 4]),
        (message(3, &[&a]), empty.clone()),
        (message(1, &[&a, &x]), vec![]),
        (message(3, &[&a]), x.clone()),
        (message(2, &[&a, &y, &b]), x.clone()),
        (message(2, &[&a, &x, &y]), y.clone()),
        (message(2, &[&b, &x, &y]), x.clone()),
        (message(5, &[&number(1), &b]), vec![1]),
        (message(2, &[&b, &empty, &y]), y.clone()),
        (message(5, &[&number(2), &a, &b]), vec![0]),
        (message(4, &[&n, &number(5)]), number(5)),
        (message(4, &[&n, &number(-7)]), number(-2)),
        (message(3, &[&n]), string(b"-2")),
        (message(6, &[&number(2), &a, &n]), vec![0]),
        (message(7, &[]), number(3)),
        (message(8, &[&n]), number(1)),
        (message(8, &[&n]), number(0)),
        (message(9, &[&a, &x]), vec![]),
        (message(9, &[&n, &x]), vec![]),
        (message(10, &[&number(2), &a, &n]), [string(b"yx"), x.clone()].concat()),
        (message(11, &[&number(2), &a, &empty, &n, &y]), vec![]),
        (message(10, &[&number(3), &a, &n, &q]), [empty.clone(), y.clone(), empty.clone()].concat()),
        (message(12, &[]), vec![1]),
        (message(14, &[&q, &x]), vec![]),
        (message(14, &[&q, &y]), vec![]),
        (message(16, &[&q]), number(2)),
        (message(15, &[&q]), [number(2), x].concat()),
        (message(15, &[&q]), [number(1), y].concat()),
        (message(15, &[&q]), number(0)),
        (message(8, &[&a]), number(1)),
        (message(8, &[&n]), number(1)),
        (message(17, &[]), [number(1), b.clone()].concat()),
        (message(18, &[&q, &number(1)]), vec![0]),
    ]
}

#[test]
fn every_message_is_answered_as_pytorch_answers_it() {
    let mut server = Server::with(1, Limits::default());
    for (message, reply) in all_messages() {
        let expected = if reply.is_empty() { vec![] } else { vec![(0, reply)] };
        assert_eq!(server.receive(0, &message), expected, "{message:?}");
    }
}

#[test]
fn it_does_not_matter_how_bytes_are_cut() {
    let (messages, replies): (Vec<_>, Vec<_>) = all_messages().into_iter().unzip();
    let (bytes, expected) = (messages.concat(), replies.concat());
    for size in [1, 2, 7, bytes.len()] {
        let mut server = Server::with(1, Limits::default());
        let sent = bytes.chunks(size).flat_map(|bytes| server.receive(0, bytes));
        assert_eq!(sent.flat_map(|(_, sent)| sent).collect::<Vec<_>>(), expected, "{size}");
        assert_eq!(server.machine.pending, 0);
    }
}

#[test]
fn who_waits_is_told_once_and_not_after_it_has_cancelled_or_gone() {
    let mut server = Server::with(4, Limits::default());
    for id in 0..3 {
        assert_eq!(server.receive(id, &wait(b"k")), []);
    }
    assert_eq!(server.receive(1, &[12]), [(1, vec![1])]);
    server.machine.handle(Input::Closed(ConnectionId(2)), &mut server.outputs);
    assert_eq!(server.receive(3, &set(b"k", b"")), [(0, vec![0])]);
    assert_eq!(server.receive(3, &set(b"k", b"")), []);
    assert_eq!(server.machine.pending, 0);
}

#[test]
fn a_barrier_ends_when_the_last_has_come() {
    let mut server = Server::with(3, Limits::default());
    let barrier = message(18, &[&string(b"k"), &number(3)]);
    assert_eq!(server.receive(0, &barrier), []);
    assert_eq!(server.receive(1, &barrier), []);
    let mut told = server.receive(2, &barrier);
    told.sort();
    assert_eq!(told, [(0, vec![0]), (1, vec![0]), (2, vec![0])]);
}

#[test]
fn bad_input_ends_its_connection_and_no_other() {
    let limits = Limits { key: 4, value: 8, keys: 2, message: 60, ..Limits::default() };
    let huge = number(i64::MIN);
    for (bytes, refusal) in [
        (vec![0], Refusal::UnknownMessage(0)),
        (vec![19], Refusal::UnknownMessage(19)),
        (message(1, &[&number(5)]), Refusal::KeyTooLong { size: 5, limit: 4 }),
        (message(1, &[&huge]), Refusal::KeyTooLong { size: 1 << 63, limit: 4 }),
        (message(1, &[&string(b"k"), &number(9)]), Refusal::ValueTooLong { size: 9, limit: 8 }),
        (message(6, &[&number(3)]), Refusal::TooManyKeys { count: 3, limit: 2 }),
        (
            message(11, &[&number(2), &string(b"kkkk"), &string(&[1; 8]), &string(b"kkkk"), &number(8)]),
            Refusal::MessageTooLong { limit: 60 },
        ),
        ([set(b"k", b"word"), message(4, &[&string(b"k"), &number(1)])].concat(), Refusal::NotANumber),
    ] {
        let mut server = Server::with(2, limits);
        assert_eq!(server.refused(0, &bytes), refusal);
        assert_eq!(server.receive(1, &[13, 1, 2, 3, 4]), [(1, vec![1, 2, 3, 4])]);
        assert_eq!(server.receive(0, &[13, 1, 2, 3, 4]), []);
    }
}

#[test]
fn another_protocol_is_turned_away_at_once() {
    for bytes in [b"GET / HTTP/1.1".as_slice(), &[0, 1, 2, 3, 4], &[22]] {
        let mut server = Server::with(0, Limits::default());
        server.machine.handle(Input::Opened(ConnectionId(0)), &mut server.outputs);
        assert_eq!(server.refused(0, bytes), Refusal::NotTcpStore);
    }
}

#[test]
fn who_does_not_say_what_it_is_makes_room_or_is_late() {
    let mut server = Server::with(2, Limits { newcomers: 3, ..Limits::default() });
    let mut ended = |input| {
        server.machine.handle(input, &mut server.outputs);
        let ended = |output| match output {
            Output::Close(id, refusal) => (id.0, refusal),
            Output::Send(..) => panic!("{output:?}"),
        };
        std::mem::take(&mut server.outputs).into_iter().map(ended).collect::<Vec<_>>()
    };
    for id in 2..5 {
        assert_eq!(ended(Input::Opened(ConnectionId(id))), []);
    }
    assert_eq!(ended(Input::Received(ConnectionId(2), &VALIDATE[..4])), []);
    assert_eq!(ended(Input::Opened(ConnectionId(5))), [(2, Refusal::TooManyNewcomers)]);
    assert_eq!(ended(Input::Received(ConnectionId(3), &VALIDATE)), []);
    assert_eq!(ended(Input::Opened(ConnectionId(6))), []);
    assert_eq!(ended(Input::Crowded), [(4, Refusal::TooManyNewcomers)]);
    assert_eq!(ended(Input::Late(ConnectionId(6))), [(5, Refusal::Silent)]);
    assert_eq!(ended(Input::Late(ConnectionId(7))), [(6, Refusal::Silent)]);
    assert_eq!(ended(Input::Late(ConnectionId(7))), []);
    assert_eq!(ended(Input::Crowded), []);
    assert_eq!(server.receive(3, &[13, 1, 2, 3, 4]), [(3, vec![1, 2, 3, 4])]);
}

#[test]
fn a_full_store_takes_no_more_and_goes_on_answering() {
    let limits = Limits { stored: 1000, ..Limits::default() };
    let mut server = Server::with(2, limits);
    assert_eq!(server.receive(0, &set(b"k", &[7; 600])), []);
    assert_eq!(server.refused(0, &set(b"l", &[7; 400])), Refusal::StoreFull { limit: 1000 });
    assert_eq!(server.receive(1, &message(8, &[&string(b"k")])), [(1, number(1))]);
    assert_eq!(server.receive(1, &set(b"l", &[7; 400])), []);

    // The digits of a number count too.
    let mut server = Server::with(1, Limits { stored: 128 + 1 + 19, ..Limits::default() });
    let add = message(4, &[&string(b"n"), &number(i64::MIN)]);
    assert_eq!(server.refused(0, &add), Refusal::StoreFull { limit: 148 });
}

#[test]
fn of_those_who_have_much_pending_the_largest_makes_room() {
    let limits = Limits { pending: 3000, ..Limits::default() };
    let mut server = Server::with(3, limits);
    let half = set(b"k", &[7; 4000]);
    assert_eq!(server.receive(0, &half[..1000]), []);
    assert_eq!(server.receive(1, &half[..1500]), []);
    assert_eq!(server.refused(1, &half[1500..2100]), Refusal::TooMuchPending { limit: 3000 });
    assert_eq!(server.receive(2, &wait(&[1; 1500])), []);
    assert_eq!(server.refused(2, &half[..900]), Refusal::TooMuchPending { limit: 3000 });
    assert_eq!(server.machine.pending, 1000);
}

#[test]
fn who_does_not_read_is_not_served_further() {
    let mut server = Server::with(2, Limits { unread: 2000, ..Limits::default() });
    assert_eq!(server.receive(0, &set(b"k", &[7; 1500])), []);
    let id = ConnectionId(1);
    server.machine.handle(Input::Received(id, &get(b"k").repeat(3)), &mut server.outputs);
    assert!(server.machine.is_held_back(id));
    // Two replies, each a length and a value; the third request waits.
    assert_eq!(server.outputs.len(), 4);
    assert_eq!(server.take_sent().len(), 1);
    assert_eq!(server.take_sent(), [(1, string(&[7; 1500]))]);
    assert!(!server.machine.is_held_back(id));
}

#[test]
fn values_that_only_unread_replies_hold_are_bounded() {
    let limits = Limits { unread: 1 << 20, outdated: 10_000, ..Limits::default() };
    let mut server = Server::with(2, limits);
    let mut unread = Vec::new();
    for round in 0..2 {
        server.machine.handle(Input::Received(ConnectionId(0), &set(b"k", &[round; 6000])), &mut unread);
        server.machine.handle(Input::Received(ConnectionId(1), &get(b"k")), &mut unread);
    }
    assert!(unread.iter().all(|output| matches!(output, Output::Send(..))));
    server.machine.handle(Input::Received(ConnectionId(0), &set(b"k", b"")), &mut unread);
    assert!(matches!(unread.pop(), Some(Output::Close(ConnectionId(1), Refusal::TooMuchUnread { .. }))));
    drop(unread);
    assert_eq!(server.machine.alive.bytes(), 0);
}

#[test]
fn of_one_attempt_the_number_of_the_attempt_is_left_out() {
    let mut server = Server::with(1, Limits::default());
    server.machine = server.machine.of_one_attempt();
    let of_rank =
        |key: &str| server.receive(0, &message(4, &[&string(key.as_bytes()), &1_i64.to_le_bytes()]));
    let counts = ["//worker/attempt_0/k", "//worker/attempt_12/k", "/k"].map(of_rank);
    assert_eq!(counts, [1_i64, 2, 3].map(|count| vec![(0, count.to_le_bytes().to_vec())]));
    for key in ["//worker/attempt_/k", "//worker/attempt_1", "/worker/attempt_1/k", "//worker/attempt_1x/k"] {
        let count = server.receive(0, &message(4, &[&string(key.as_bytes()), &1_i64.to_le_bytes()]));
        assert_eq!(count, [(0, 1_i64.to_le_bytes().to_vec())], "{key}");
    }
}
