//! Groups whose nodes are processes of their own, ours and PyTorch's.
//!
//! Each connects to this program and does what it is told there, one line at a time: `open BACKEND ENDPOINT RUN MIN
//! MAX` (which says how, and does nothing yet), `meet`, `leave`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use rallypoint_testkit::{Etcd, Program, Python};

const TORCH: &str = include_str!("../torch_rendezvous.py");

/// A Python process that has imported torch, from which PyTorch's nodes are forked.
pub(crate) struct Nursery {
    python: Python,
    pub(crate) version: String,
}

impl Nursery {
    pub(crate) fn start() -> Self {
        let mut python = Python::spawn(TORCH, &[]);
        let version = python.read_line();
        Nursery { python, version }
    }
}

/// The nodes of a group, each as the connection that it is told what to do on; those of ours with their process.
pub(crate) struct Group {
    nodes: Vec<BufReader<TcpStream>>,
    _ours: Vec<Program>,
}

impl Group {
    /// So many of our nodes and of PyTorch's, who know of the run and have done nothing yet.
    pub(crate) fn start(
        backend: &str,
        etcd: &Etcd,
        nursery: &mut Nursery,
        ours: usize,
        theirs: usize,
        size: (usize, usize),
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port().to_string();
        let program = program();
        let processes = (0..ours).map(|_| Program::start(&program, &["node", &port], &[])).collect();
        if theirs > 0 {
            nursery.python.write_line(&format!("{theirs} {port}"));
        }
        let run = format!("bench{:016x}", fastrand::u64(..));
        let (min, max) = size;
        let nodes = (0..ours + theirs)
            .map(|_| {
                let (stream, _) = listener.accept().expect("a node connects");
                let mut node = BufReader::new(stream);
                tell(&mut node, &format!("open {backend} {} {run} {min} {max}", etcd.endpoint()));
                assert_eq!(answer(&mut node), "ready");
                node
            })
            .collect();
        Group { nodes, _ours: processes }
    }

    /// Lets all of them meet; the seconds until the last one has.
    pub(crate) fn meet(&mut self) -> f64 {
        let began = Instant::now();
        for node in &mut self.nodes {
            tell(node, "meet");
        }
        let answers: Vec<String> = self.nodes.iter_mut().map(answer).collect();
        let took = began.elapsed().as_secs_f64();
        let world = answers.len();
        let expected: BTreeSet<String> = (0..world).map(|rank| format!("{rank} {world}")).collect();
        assert_eq!(answers.iter().cloned().collect::<BTreeSet<_>>(), expected, "every rank once");
        took
    }

    /// One leaves in good order, then the others meet; the seconds from the leave on.
    pub(crate) fn meet_without_one(&mut self) -> f64 {
        let mut leaver = self.nodes.remove(0);
        let began = Instant::now();
        tell(&mut leaver, "leave");
        assert_eq!(answer(&mut leaver), "left");
        self.meet();
        began.elapsed().as_secs_f64()
    }
}

fn tell(node: &mut BufReader<TcpStream>, line: &str) {
    node.get_mut().write_all(format!("{line}\n").as_bytes()).expect("the node listens");
}

fn answer(node: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let length = node.read_line(&mut line).expect("the node answers");
    assert!(length > 0, "a node has ended");
    line.trim().to_owned()
}

fn program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}
