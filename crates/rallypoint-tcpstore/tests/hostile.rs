//! A server in a process of its own, and those who would have it hold more than it may: what it tells of them, what it takes, and
//! that others are served meanwhile.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rallypoint_tcpstore::wire::{MAGIC, Request};
use rallypoint_tcpstore::{Limits, TcpStoreServer};
use socket2::{Domain, Socket, Type};

const MIB: usize = 1 << 20;
/// Small, so that it does not take long to reach them.
const STORED: usize = 32 * MIB;
const PENDING: usize = 16 * MIB;
const OUTDATED: usize = 16 * MIB;
/// All of these, one thing more of the largest kind on each of its threads, and what the process takes by itself.
const MOST_MEMORY: usize = STORED + PENDING + OUTDATED + 3 * 32 * MIB + 32 * MIB;
/// For the slowest answer to somebody else, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two questions of the witness, which would take a core for itself.
const BETWEEN_PINGS: Duration = Duration::from_millis(1);

const SERVES: &str = "RALLYPOINT_HOSTILE_SERVES";

/// The process of the tests below, which start it.
#[test]
#[ignore = "no test of its own"]
fn serve() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let limits = Limits { stored: STORED, pending: PENDING, outdated: OUTDATED, ..Limits::default() };
    let server = TcpStoreServer::bind_on_threads("127.0.0.1:0".parse().unwrap(), limits, 3).unwrap();
    println!("port {}", server.local_addr().port());
    // Until the test ends.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Killed when dropped.
struct Server {
    process: Child,
    address: SocketAddr,
    log: mpsc::Receiver<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "serve", "--ignored", "--nocapture"]).env(SERVES, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| line.split_once("port ")?.1.parse().ok()).unwrap();
        // Its harness has something to say at the end, too.
        thread::spawn(move || lines.for_each(drop));
        let (told, log) = mpsc::channel();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        thread::spawn(move || lines.map_while(|line| told.send(line).ok()).for_each(drop));
        Server { process, address: SocketAddr::from(([127, 0, 0, 1], port)), log }
    }

    /// The most memory that it has ever had.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        most.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    /// The line of the log with these words, once it is there.
    fn wait_for(&self, words: &str) -> String {
        let mut said = Vec::new();
        while let Ok(line) = self.log.recv_timeout(Duration::from_secs(60)) {
            if line.contains(words) {
                return line;
            }
            said.push(line);
        }
        panic!("not told: {words}\n{}", said.join("\n"));
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(&message(&Request::Validate(MAGIC))).unwrap();
    client
}

fn message(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.write(&mut bytes);
    bytes
}

/// Returns when the server has carried out what came before.
fn ping(client: &mut TcpStream) {
    client.write_all(&message(&Request::Ping(7))).unwrap();
    let mut pong = [0; 4];
    client.read_exact(&mut pong).unwrap();
    assert_eq!(pong, 7_u32.to_le_bytes());
}

/// Says that it is over when it is dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has a server suffer these connections, and sees that it tells of one of them in these words, that its memory has a bound, and
/// that somebody else is served all the time.
fn suffer(words: &str, attack: impl FnOnce(SocketAddr) -> Vec<TcpStream>) {
    let server = Server::start();
    let mut witness = connect(server.address);
    let over = AtomicBool::new(false);
    let slowest = thread::scope(|scope| {
        // Also where what follows panics: the scope waits for the witness.
        let end = Ending(&over);
        let watching = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                ping(&mut witness);
                slowest = slowest.max(asked.elapsed());
                thread::sleep(BETWEEN_PINGS);
            }
            slowest
        });
        let connections = attack(server.address);
        let line = server.wait_for(words);
        assert!(line.contains("the workers' store ended the connection of 127.0.0.1:"), "{line}");
        // Of those that were not ended all is carried out.
        for mut connection in connections {
            let _ = connection.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut connection, &mut std::io::sink());
        }
        drop(end);
        watching.join().unwrap()
    });
    let memory = server.memory();
    eprintln!("{words}: {} MiB, the slowest answer to another took {slowest:?}", memory / MIB);
    assert!(memory < MOST_MEMORY, "{} MiB", memory / MIB);
    assert!(slowest < PATIENCE, "{slowest:?}");
}

/// Sends what may be cut off, since the server ends some of these.
fn send(client: &mut TcpStream, bytes: &[u8]) {
    let _ = client.write_all(bytes);
}

#[test]
fn another_protocol_is_told_of_in_the_log() {
    suffer("this is no client of a TCPStore", |address| {
        let mut browser = TcpStream::connect(address).unwrap();
        send(&mut browser, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
        vec![browser]
    });
}

/// Whoever comes first does not hide the others.
#[test]
fn another_protocol_from_another_address_is_told_of_right_after_the_first() {
    let server = Server::start();
    for from in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] {
        let browser = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        browser.bind(&SocketAddr::new(from.parse().unwrap(), 0).into()).unwrap();
        browser.connect(&server.address.into()).unwrap();
        let mut browser = TcpStream::from(browser);
        send(&mut browser, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
        server.wait_for(&format!("ended the connection of {from}:"));
    }
}

#[test]
fn a_length_beyond_all_bounds_is_told_of_in_the_log() {
    suffer("a value of 9223372036854775808 bytes, where 8388608 is the most", |address| {
        let mut client = connect(address);
        send(&mut client, &[&[1], &1_u64.to_le_bytes()[..], b"k", &(1_u64 << 63).to_le_bytes()].concat());
        vec![client]
    });
}

#[test]
fn a_flood_of_waits_is_bounded() {
    suffer("too much is waiting", |address| {
        let keys: Vec<Vec<u8>> = (0..120_u32).map(|key| key.to_le_bytes().repeat(2000)).collect();
        let wait = message(&Request::Wait(keys.iter().map(Vec::as_slice).collect()));
        let mut waiting: Vec<_> = (0..200).map(|_| connect(address)).collect();
        waiting.iter_mut().for_each(|client| send(client, &wait));
        waiting
    });
}

#[test]
fn half_messages_are_bounded() {
    suffer("too much is waiting", |address| {
        let set = message(&Request::Set(b"k", &vec![7; 8 * MIB]));
        let mut halves: Vec<_> = (0..200).map(|_| connect(address)).collect();
        halves.iter_mut().for_each(|client| send(client, &set[..MIB]));
        halves
    });
}

/// Each has asked for a value that another takes the place of before the next asks.
#[test]
fn replies_that_are_not_read_are_bounded() {
    suffer("replies are not read", |address| {
        let mut setter = connect(address);
        let mut lazy = Vec::new();
        for number in 0..100 {
            setter.write_all(&message(&Request::Set(b"k", &vec![number; 8 * MIB]))).unwrap();
            ping(&mut setter);
            let mut client = connect(address);
            send(&mut client, &message(&Request::Get(b"k")).repeat(5));
            lazy.push(client);
        }
        ping(&mut setter);
        lazy
    });
}

#[test]
fn lists_of_a_full_store_are_bounded() {
    suffer("replies are not read", |address| {
        let mut setter = connect(address);
        for number in 0..3900_u32 {
            let key = number.to_le_bytes().repeat(2000);
            setter.write_all(&message(&Request::Set(&key, b"v"))).unwrap();
        }
        ping(&mut setter);
        let mut lazy = Vec::new();
        for _ in 0..50 {
            let mut client = connect(address);
            send(&mut client, &message(&Request::ListKeys).repeat(3));
            lazy.push(client);
        }
        ping(&mut setter);
        lazy
    });
}
