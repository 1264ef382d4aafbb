//! An agent gone mad: frames at random, and frames with something wrong in them, on real sockets.
//!
//! `RALLYPOINT_FUZZ_SEEDS` is how many seeds are tried, `RALLYPOINT_FUZZ_SEED` the only one.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use fastrand::Rng;

use super::frame::{Frame, MOST_DATA};
use super::handshake::{Guest, Secret};
use crate::TcpStoreServer;
use crate::machine::fuzz::{SeedReport, seeds};
use crate::wire::{MAGIC, Request};

const FRAMES: usize = 60;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// A trunk that is let in.
fn trunk(address: SocketAddr, secret: &Secret) -> TcpStream {
    let mut trunk = connect(address);
    let (mut greeting, mut welcome) = ([0; 20], [0; 36]);
    trunk.read_exact(&mut greeting).unwrap();
    let guest = Guest::new(&greeting).unwrap();
    trunk.write_all(&guest.answer(secret)).unwrap();
    trunk.read_exact(&mut welcome).unwrap();
    assert!(guest.is_welcome(&welcome, secret));
    trunk
}

fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let count = random.usize(..=most);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

/// What a client may say; at times cut off, or anything.
fn said(random: &mut Rng) -> Vec<u8> {
    let mut said = Vec::new();
    let value = bytes(random, 300);
    for request in [
        Request::Validate(MAGIC),
        Request::Set(b"theirs", &value),
        Request::Wait(vec![b"never"]),
        Request::Get(b"theirs"),
    ] {
        request.write(&mut said);
    }
    match random.u8(..4) {
        0 => said.truncate(random.usize(..said.len())),
        1 => said = bytes(random, MOST_DATA),
        2 => said[random.usize(..5)] ^= 1,
        _ => {}
    }
    said
}

fn rave(random: &mut Rng) -> Vec<u8> {
    let (mut all, mut last) = (Vec::new(), 0);
    for _ in 0..FRAMES {
        let stream = if random.u8(..20) == 0 { random.u32(..) } else { random.u32(..=last + 1) };
        match random.u8(..10) {
            0..4 => {
                last += 1;
                Frame::Open.write(last, &mut all);
                Frame::Data(&said(random)).write(last, &mut all);
            }
            4..7 => Frame::Data(&said(random)).write(stream, &mut all),
            7 => {
                let most = 1 << random.u32(1..32);
                Frame::Window(random.u32(..most)).write(stream, &mut all);
            }
            8 => Frame::Close.write(stream, &mut all),
            _ if random.u8(..10) == 0 => all.extend(bytes(random, 100)),
            _ => {}
        }
    }
    all
}

#[tokio::test]
async fn an_agent_gone_mad_harms_no_other() {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, agents, secret) = (listen(), listen(), Secret::random().unwrap());
    let address = agents.local_addr().unwrap();
    let server = TcpStoreServer::for_round_of_proxies(
        own,
        agents,
        secret,
        None,
        rallypoint_metrics::WorkerStore::default(),
    )
    .unwrap();
    let client = server.local_addr();
    let raving = move || {
        let mut good = connect(client);
        let mut hello = Vec::new();
        Request::Validate(MAGIC).write(&mut hello);
        good.write_all(&hello).unwrap();
        for seed in seeds(50) {
            let _report = SeedReport(seed);
            let mut random = Rng::with_seed(seed);
            let raved = rave(&mut random);
            let mut mad = trunk(address, &secret);
            let mut left = raved.as_slice();
            // In pieces, until it is ended for something or has said everything.
            while !left.is_empty() {
                let (now, later) = left.split_at(random.usize(1..=left.len()));
                if mad.write_all(now).is_err() {
                    break;
                }
                left = later;
            }
            if random.bool() {
                mad.shutdown(std::net::Shutdown::Write).unwrap_or(());
                let _ = mad.read_to_end(&mut Vec::new());
            }
            // Others are answered.
            good.write_all(&[13, 1, 2, 3, 4]).unwrap();
            let mut pong = [0; 4];
            good.read_exact(&mut pong).unwrap();
            assert_eq!(pong, [1, 2, 3, 4]);
        }
    };
    tokio::task::spawn_blocking(raving).await.unwrap();
    server.stop().await;
}
