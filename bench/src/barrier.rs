//! The barrier on the v2 wire beside PyTorch's `etcd` rendezvous: the time to form a group, and to meet again.
//!
//! Every node is a process of its own, on both sides. Each connects to this program and does what it is told there,
//! one line at a time: `open ENDPOINT RUN MIN MAX` (which says how, and does nothing yet), `meet`, `leave`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use rallypoint_testkit::{Etcd, Program, Python, Version};

use crate::measure::Samples;
use crate::report::{Comparison, Promise};
use crate::{Options, Report};

const TORCH: &str = include_str!("../torch_rendezvous.py");
const MANY: usize = 128;
const FEW: usize = 4;

pub(crate) fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "etcd 3.4 with fsync and --enable-v2, one process for each node, {cores} cores, {} rounds in turn",
        options.rounds
    ));
    let etcd = Etcd::builder(Version::V34).v2().start();
    let mut nursery = Nursery::start();
    report.setting.push(format!("PyTorch {}: its `etcd` rendezvous, on the same etcd", nursery.version));

    let [mut formed, mut theirs_formed] = [(); 2].map(|()| Samples::default());
    for round in 0..options.rounds {
        eprintln!("{MANY} nodes, round {} of {} ...", round + 1, options.rounds);
        formed.push(Group::start(&etcd, &mut nursery, MANY, 0, (MANY, MANY)).meet());
        theirs_formed.push(Group::start(&etcd, &mut nursery, 0, MANY, (MANY, MANY)).meet());
    }

    let [mut again, mut theirs_again, mut mixed_again, mut without, mut theirs_without] =
        [(); 5].map(|()| Samples::default());
    for round in 0..options.rounds {
        eprintln!("meeting again, round {} of {} ...", round + 1, options.rounds);
        for (ours, theirs, samples) in
            [(FEW, 0, &mut again), (0, FEW, &mut theirs_again), (FEW / 2, FEW / 2, &mut mixed_again)]
        {
            let mut group = Group::start(&etcd, &mut nursery, ours, theirs, (FEW, FEW));
            group.meet();
            samples.push(group.meet());
        }
        for (ours, theirs, samples) in [(FEW, 0, &mut without), (0, FEW, &mut theirs_without)] {
            let mut group = Group::start(&etcd, &mut nursery, ours, theirs, (FEW - 1, FEW));
            group.meet();
            samples.push(group.meet_without_one());
        }
    }
    let seconds = |name, ours, rival, theirs, promise| Comparison {
        name,
        unit: "s",
        ours,
        rival,
        theirs,
        promise: Some(Promise::AtMost(promise)),
    };
    let mut second = Samples::default();
    second.push(1.0);
    report.comparisons = vec![
        seconds("a group of 128", formed, "PyTorch", theirs_formed, 0.33),
        seconds("4 nodes meet again", again.clone(), "PyTorch", theirs_again.clone(), 1.0),
        seconds("4 nodes meet again", again, "the promise", second.clone(), 1.0),
        seconds("2 of ours and 2 of PyTorch's meet again", mixed_again, "4 of PyTorch's", theirs_again, 1.0),
        seconds("one of 4 leaves, 3 meet again", without.clone(), "PyTorch", theirs_without, 1.0),
        seconds("one of 4 leaves, 3 meet again", without, "the promise", second, 1.0),
    ];
    report
}

/// A Python process that has imported torch, from which PyTorch's nodes are forked.
struct Nursery {
    python: Python,
    version: String,
}

impl Nursery {
    fn start() -> Self {
        let mut python = Python::spawn(TORCH, &[]);
        let version = python.read_line();
        Nursery { python, version }
    }
}

/// The nodes of a group, each as the connection that it is told what to do on; those of ours with their process.
struct Group {
    nodes: Vec<BufReader<TcpStream>>,
    _ours: Vec<Program>,
}

impl Group {
    fn start(etcd: &Etcd, nursery: &mut Nursery, ours: usize, theirs: usize, size: (usize, usize)) -> Self {
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
                tell(&mut node, &format!("open {} {run} {min} {max}", etcd.endpoint()));
                assert_eq!(answer(&mut node), "ready");
                node
            })
            .collect();
        Group { nodes, _ours: processes }
    }

    /// Lets all of them meet; the seconds until the last one has.
    fn meet(&mut self) -> f64 {
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
    fn meet_without_one(&mut self) -> f64 {
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
