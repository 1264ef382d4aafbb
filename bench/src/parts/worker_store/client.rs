//! The clients, a process of their own: many connections, and as little work for each as can be.
//!
//! It is told what to do by lines on its standard input, and answers each with a figure.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rallypoint::tcpstore::wire::{MAGIC, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const VALUE: [u8; 64] = [b'x'; 64];
/// As long as what NCCL's ranks are told.
const ID: [u8; 128] = [b'i'; 128];
/// A set has no reply. So many are sent at a time, and then something that has one.
const SETS: usize = 16;

/// Does what its standard input says, on a server at this port, or at each of these in turn.
pub(crate) fn run(ports: &[u16]) {
    // Half of the machine is the server's.
    let threads = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let mut clients = Clients { runtime, ports: ports.to_vec(), all: Vec::new(), number: 0 };
    for line in io::stdin().lines().map_while(Result::ok) {
        let (what, amount) = line.split_once(' ').expect("a word and a number");
        let amount: f64 = amount.parse().expect("a number");
        println!("{}", clients.carry_out(what, amount));
    }
}

/// A request, as bytes, and how long its reply is.
type Step = (Vec<u8>, usize);

fn step(requests: &[Request<'_>], reply: usize) -> Step {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.write(&mut bytes));
    (bytes, reply)
}

/// The reply tells that all before it was carried out.
fn check() -> Request<'static> {
    Request::Check(Vec::new())
}

struct Connection(TcpStream);

impl Connection {
    async fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket has this");
        let mut connection = Connection(stream);
        // As PyTorch's clients begin.
        connection.ask(&step(&[Request::Validate(MAGIC), Request::Ping(7)], 4)).await;
        connection
    }

    async fn send(&mut self, (request, _): &Step) {
        self.0.write_all(request).await.expect("the server lasts");
    }

    /// The reply's first bytes.
    async fn hear(&mut self, (_, reply): &Step) -> [u8; 8] {
        let mut buffer = [0; 256];
        self.0.read_exact(&mut buffer[..*reply]).await.expect("the server answers");
        *buffer.first_chunk().expect("it is longer")
    }

    async fn ask(&mut self, step: &Step) -> [u8; 8] {
        self.send(step).await;
        self.hear(step).await
    }
}

struct Clients {
    runtime: Runtime,
    ports: Vec<u16>,
    all: Vec<Connection>,
    /// Of what was done, so that no two have the same keys.
    number: usize,
}

impl Clients {
    fn carry_out(&mut self, what: &str, amount: f64) -> f64 {
        self.number += 1;
        let time = Duration::from_secs_f64(amount);
        match what {
            "connect" => self.connect(amount as usize),
            "set" => self.rate(time, SETS, |key| {
                let sets = (0..SETS).map(|_| Request::Set(key, &VALUE)).chain([check()]);
                vec![step(&sets.collect::<Vec<_>>(), 1)]
            }),
            // As PyTorch's clients do it.
            "get" => self.rate(time, 1, |key| {
                vec![step(&[Request::Wait(vec![key])], 1), step(&[Request::Get(key)], 8 + VALUE.len())]
            }),
            "add" => self.rate(time, 1, |key| vec![step(&[Request::Add(&[key, b"/n"].concat(), 1)], 8)]),
            "fan-out" => self.fan_out(time),
            "init" => self.init(amount as i64),
            other => panic!("{other}?"),
        }
    }

    /// Where the client of this number connects.
    fn port(&self, at: usize) -> u16 {
        self.ports[at % self.ports.len()]
    }

    /// Seconds until so many are connected.
    fn connect(&mut self, count: usize) -> f64 {
        let began = Instant::now();
        let opening = join_all((0..count).map(|at| self.runtime.spawn(Connection::open(self.port(at)))));
        let all = self.runtime.block_on(opening);
        self.all = all.into_iter().map(|one| one.expect("it connects")).collect();
        began.elapsed().as_secs_f64()
    }

    /// How many requests a second all connections have answered, each of which asks when it has the last answer.
    fn rate(&mut self, time: Duration, worth: usize, steps: impl Fn(&[u8]) -> Vec<Step>) -> f64 {
        let began = Instant::now();
        let until = began + time;
        let asking = std::mem::take(&mut self.all).into_iter().enumerate().map(|(at, mut connection)| {
            let key = format!("/key/{at}");
            let (set, steps) =
                (step(&[Request::Set(key.as_bytes(), &VALUE), check()], 1), steps(key.as_bytes()));
            self.runtime.spawn(async move {
                connection.ask(&set).await;
                let mut done = 0;
                while Instant::now() < until {
                    for step in &steps {
                        connection.ask(step).await;
                    }
                    done += 1;
                }
                (connection, done)
            })
        });
        let asked = self.runtime.block_on(join_all(asking.collect::<Vec<_>>()));
        let took = began.elapsed();
        let mut all_done = 0;
        for asked in asked {
            let (connection, done) = asked.expect("the server answers");
            self.all.push(connection);
            all_done += done * worth;
        }
        all_done as f64 / took.as_secs_f64()
    }

    /// All wait for one key, which comes: how many are told a second.
    fn fan_out(&mut self, time: Duration) -> f64 {
        let began = Instant::now();
        let (mut told, mut took) = (0, Duration::ZERO);
        let mut setter = self.runtime.block_on(Connection::open(self.port(0)));
        while told == 0 || began.elapsed() < time {
            let key = format!("/go/{}/{told}", self.number);
            let begin = Arc::new(step(&[Request::Wait(vec![key.as_bytes()]), check()], 1));
            let begun = std::mem::take(&mut self.all).into_iter().map(|mut connection| {
                let begin = Arc::clone(&begin);
                self.runtime.spawn(async move {
                    connection.ask(&begin).await;
                    connection
                })
            });
            let begun = self.runtime.block_on(join_all(begun.collect::<Vec<_>>()));
            let told_all = begun.into_iter().map(|one| {
                let (mut connection, begin) = (one.expect("the server answers"), Arc::clone(&begin));
                self.runtime.spawn(async move {
                    connection.hear(&begin).await;
                    connection
                })
            });
            let told_all: Vec<_> = told_all.collect();
            let set = step(&[Request::Set(key.as_bytes(), &VALUE)], 0);
            let came = Instant::now();
            let told_all = self.runtime.block_on(async {
                setter.send(&set).await;
                join_all(told_all).await
            });
            took += came.elapsed();
            self.all = told_all.into_iter().map(|one| one.expect("the server answers")).collect();
            told += self.all.len();
        }
        told as f64 / took.as_secs_f64()
    }

    /// Seconds until so many have connected and exchanged what `init_process_group` exchanges for NCCL, with its barrier.
    fn init(&mut self, ranks: i64) -> f64 {
        self.all.clear();
        let began = Instant::now();
        let name = |what: &str| format!("/{}/{what}", self.number);
        let [count, id, barrier, last] = ["init/", "0:default", "barrier", "barrier:last"].map(name);
        let steps = Arc::new([
            step(&[Request::Add(count.as_bytes(), 1)], 8),
            step(&[Request::Wait(vec![id.as_bytes()])], 1),
            step(&[Request::Get(id.as_bytes())], 8 + ID.len()),
            step(&[Request::Add(barrier.as_bytes(), 1)], 8),
            step(&[Request::Wait(vec![last.as_bytes()])], 1),
        ]);
        let set_id = Arc::new(step(&[Request::Set(id.as_bytes(), &ID)], 0));
        let set_last = Arc::new(step(&[Request::Set(last.as_bytes(), b"1")], 0));
        let meeting = (0..ranks).map(|rank| {
            let (steps, set_id, set_last) = (Arc::clone(&steps), Arc::clone(&set_id), Arc::clone(&set_last));
            let port = self.port(rank as usize);
            self.runtime.spawn(async move {
                let mut connection = Connection::open(port).await;
                let [count, wait_for_id, get_id, arrive, pass] = &*steps;
                connection.ask(count).await;
                if rank == 0 {
                    connection.send(&set_id).await;
                }
                connection.ask(wait_for_id).await;
                connection.ask(get_id).await;
                if i64::from_le_bytes(connection.ask(arrive).await) == ranks {
                    connection.send(&set_last).await;
                }
                connection.ask(pass).await;
                connection
            })
        });
        let met = self.runtime.block_on(join_all(meeting.collect::<Vec<_>>()));
        let took = began.elapsed().as_secs_f64();
        met.into_iter().for_each(|one| drop(one.expect("all meet")));
        took
    }
}
