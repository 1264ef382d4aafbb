//! Nodes of both kinds as processes of their own, told what to do in the same words.
//!
//! A node of ours is this test program, run again (see [`node::run_if_asked`]). PyTorch's nodes are forked from
//! one Python process, so that torch is imported once.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod node;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_testkit::{Etcd, Program, Python};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// No answer takes so long, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(260);

const TORCH: &str = include_str!("torch_node.py");

/// Whose code a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Torch,
}

/// A node, in a process of its own. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    process: Process,
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

#[derive(Debug)]
enum Process {
    Ours(Program),
    Torch(Pid),
}

/// What a node has met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) rank: u64,
    pub(crate) world: u64,
    pub(crate) master: (String, u64),
}

/// What a node is opened with.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) backend: &'static str,
    pub(crate) endpoint: String,
    pub(crate) id: String,
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) last_call: u64,
    pub(crate) timeout: u64,
}

impl Run {
    /// A run of its own on this etcd, with a last call of a second.
    pub(crate) fn new(etcd: &Etcd, min: usize, max: usize) -> Self {
        let id = format!("run{:016x}", fastrand::u64(..));
        Run { backend: "etcd", endpoint: etcd.endpoint(), id, min, max, last_call: 1, timeout: 90 }
    }

    pub(crate) fn node(&self, kind: Kind) -> Node {
        let mut node = Node::start(kind);
        node.open(self);
        node
    }
}

impl Node {
    pub(crate) fn start(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port().to_string();
        let process = match kind {
            Kind::Ours => Process::Ours(node::start(&port)),
            Kind::Torch => Process::Torch(fork(&port)),
        };
        let (writer, _) = listener.accept().expect("the node connects");
        writer.set_nodelay(true).expect("an open socket");
        writer.set_read_timeout(Some(PATIENCE)).expect("an open socket");
        let reader = BufReader::new(writer.try_clone().expect("an open socket"));
        Node { kind, process, reader, writer }
    }

    pub(crate) fn open(&mut self, run: &Run) {
        let opened = self.ask(&json!({
            "do": "open",
            "backend": run.backend,
            "endpoint": run.endpoint,
            "run": run.id,
            "min": run.min,
            "max": run.max,
            "config": {
                "timeout": run.timeout.to_string(),
                "last_call_timeout": run.last_call.to_string(),
            },
        }));
        assert_eq!(opened["ok"], true, "{:?} node: {opened}", self.kind);
    }

    /// Tells it something without waiting for the answer.
    pub(crate) fn tell(&mut self, what: &Value) {
        writeln!(self.writer, "{what}").expect("the node listens");
    }

    pub(crate) fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line);
        assert!(matches!(read, Ok(length) if length > 0), "{:?} node does not answer: {read:?}", self.kind);
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    pub(crate) fn ask(&mut self, what: &Value) -> Value {
        self.tell(what);
        self.answer()
    }

    /// Asks for something that must go well.
    pub(crate) fn get(&mut self, what: &Value) -> Value {
        let mut answer = self.ask(what);
        assert!(answer.get("ok").is_some(), "{:?} node, {what}: {answer}", self.kind);
        answer["ok"].take()
    }

    /// Begins to meet; [`Node::met`] waits for the end.
    pub(crate) fn meet(&mut self) {
        self.tell(&json!({"do": "meet"}));
    }

    pub(crate) fn met(&mut self) -> Met {
        let answer = self.answer();
        let met = answer.get("ok").unwrap_or_else(|| panic!("{:?} node did not meet: {answer}", self.kind));
        let number = |name: &str| met[name].as_u64().expect("a number");
        Met {
            rank: number("rank"),
            world: number("world"),
            master: (met["address"].as_str().expect("a text").to_owned(), number("port")),
        }
    }

    pub(crate) fn waiting(&mut self) -> u64 {
        self.get(&json!({"do": "waiting"})).as_u64().expect("a number")
    }

    /// Waits until it counts somebody who waits.
    pub(crate) fn sees_waiting(&mut self) -> u64 {
        let began = Instant::now();
        loop {
            let waiting = self.waiting();
            if waiting > 0 {
                return waiting;
            }
            assert!(began.elapsed() < PATIENCE, "the {:?} node counts nobody", self.kind);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill(&mut self) {
        match &mut self.process {
            Process::Ours(program) => program.kill(),
            // It fails only for a process that is gone.
            Process::Torch(pid) => drop(kill_process(*pid, Signal::KILL)),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lets all of them meet, in this order; what they met, one after the other.
pub(crate) fn meet(nodes: &mut [Node]) -> Vec<Met> {
    for node in nodes.iter_mut() {
        node.meet();
    }
    let met: Vec<Met> = nodes.iter_mut().map(Node::met).collect();
    assert_one_group(&met);
    met
}

/// Ranks 0 to n-1 once each, one world size, one master.
pub(crate) fn assert_one_group(met: &[Met]) {
    let mut ranks: Vec<u64> = met.iter().map(|met| met.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..met.len() as u64).collect::<Vec<_>>(), "{met:?}");
    for one in met {
        assert_eq!(one.world, met.len() as u64, "{met:?}");
        assert_eq!(one.master, met[0].master, "{met:?}");
    }
    assert!(!met[0].master.0.is_empty() && met[0].master.1 > 0, "{met:?}");
}

/// A process forked from the one that has imported torch, which connects to `port`.
fn fork(port: &str) -> Pid {
    static NURSERY: OnceLock<Mutex<Python>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let mut python = Python::spawn(TORCH, &[]);
        assert_eq!(python.read_line(), "ready");
        Mutex::new(python)
    });
    let mut nursery = nursery.lock().unwrap_or_else(PoisonError::into_inner);
    nursery.write_line(port);
    let pid = nursery.read_line().parse().ok().and_then(Pid::from_raw);
    pid.expect("it says the id of the process")
}
