//! A server gone mad: frames at random, and frames with something wrong in them, to a proxy with clients.
//!
//! `RALLYPOINT_FUZZ_SEEDS` is how many seeds are tried, `RALLYPOINT_FUZZ_SEED` the only one.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tokio::task::spawn_blocking;

use super::{StoreProxy, Upstream};
use crate::Secret;
use crate::machine::fuzz::{SeedReport, seeds};
use crate::trunk::frame::{Frame, MOST_DATA};
use crate::trunk::handshake::{ANSWER, Door};

const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: u32 = 4;
const FRAMES: usize = 60;

fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let count = random.usize(..=most);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

fn rave(random: &mut Rng) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..random.usize(..FRAMES) {
        // Of streams that there are, that were never opened, and of none.
        let stream = if random.u8(..20) == 0 { random.u32(..) } else { random.u32(1..=CLIENTS) };
        match random.u8(..100) {
            0..70 => {
                let most = *random.choice(&[1, 100, MOST_DATA]).unwrap();
                Frame::Data(&bytes(random, most)).write(stream, &mut all);
            }
            70..80 => {
                let most = 1 << random.u32(1..20);
                Frame::Window(random.u32(..most)).write(stream, &mut all);
            }
            80..90 => Frame::Close.write(stream, &mut all),
            90 => Frame::Open.write(stream, &mut all),
            91 => all.extend(bytes(random, 100)),
            _ => {}
        }
    }
    all
}

/// Lets one proxy in, waits until it has clients, raves, and goes.
fn mad_server(listener: &TcpListener, secret: &Secret, random: &mut Rng) {
    let (mut trunk, _) = listener.accept().unwrap();
    trunk.set_read_timeout(Some(PATIENCE)).unwrap();
    let door = Door::new().unwrap();
    trunk.write_all(&door.greeting()).unwrap();
    let mut answer = [0; ANSWER];
    trunk.read_exact(&mut answer).unwrap();
    trunk.write_all(&door.welcome(&answer, secret).unwrap()).unwrap();
    // The clients' streams, each opened and with one byte.
    trunk.read_exact(&mut vec![0; CLIENTS as usize * (8 + 8 + 1)]).unwrap();
    let raved = rave(random);
    let mut left = raved.as_slice();
    // In pieces, until it is left for something or has said everything.
    while !left.is_empty() {
        let (now, later) = left.split_at(random.usize(1..=left.len()));
        if trunk.write_all(now).is_err() {
            break;
        }
        left = later;
    }
}

/// One that reads what comes, or does not; to its end.
fn client(address: SocketAddr, reads: bool) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&[0]).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return,
            // Nobody else is kept from an end by who waits here for one.
            Ok(_) if !reads => return,
            Ok(_) => {}
            Err(error) => {
                let ended = error.kind() == std::io::ErrorKind::ConnectionReset;
                return assert!(ended, "{error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_gone_mad_ends_its_proxys_clients_and_no_more() {
    for seed in seeds(50) {
        let _report = SeedReport(seed);
        let mut random = Rng::with_seed(seed);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, secret) = (listener.local_addr().unwrap().port(), Secret::random().unwrap());
        let reads: Vec<bool> = (0..CLIENTS).map(|_| random.u8(..4) > 0).collect();
        let raving = thread::spawn(move || mad_server(&listener, &secret, &mut random));
        let upstream = Upstream { host: "127.0.0.1".to_owned(), port, secret, tls: None };
        let proxy = StoreProxy::connect(&upstream, PATIENCE).await.unwrap();
        let address = proxy.local_addr();
        let clients: Vec<_> =
            reads.into_iter().map(|reads| spawn_blocking(move || client(address, reads))).collect();
        for client in clients {
            client.await.unwrap();
        }
        spawn_blocking(|| raving.join().unwrap()).await.unwrap();
        // It is gone, and the proxy knows.
        let known = async {
            while proxy.lost().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, known).await.unwrap();
    }
}
