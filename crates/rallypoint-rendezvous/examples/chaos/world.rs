//! The processes, and how harm is done to them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_testkit::{Host, Network};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::etcds::{ETCDS, Etcds};
use crate::harm::Deed;
use crate::interrupt;
use crate::options::Options;
use crate::step::Step;
use crate::times::LEASE;
use crate::words::{Word, Words};

const RUN: &str = "chaos";
const OPTIONS: &str = "lease_timeout=2,last_call_timeout=1,read_timeout=1";
/// Machines for nodes that only come for an episode.
const GUESTS: usize = 1;

pub(crate) struct World {
    network: Network,
    pub(crate) etcds: Etcds,
    pub(crate) words: Arc<Words>,
    pub(crate) processes: Vec<Process>,
    /// What was done so far.
    pub(crate) deeds: Vec<Deed>,
    /// The program that is a node.
    node: PathBuf,
    nodes: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) newcomers: usize,
    /// Nobody reaches etcd.
    all_cut: bool,
    random: fastrand::Rng,
}

pub(crate) struct Process {
    pub(crate) name: String,
    /// The number of its machine in the network.
    host: usize,
    pub(crate) started: Duration,
    pub(crate) child: Child,
    input: ChildStdin,
}

/// How a process stands, by its own words.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    Outside,
    In(Value),
    Ended,
}

impl World {
    /// For the episodes from `first` on.
    pub(crate) fn start(options: &Options, first: u64) -> Self {
        let seed = options.seed;
        let mut random = fastrand::Rng::with_seed(seed);
        let by_seed = random.usize(5..=8);
        let nodes = options.nodes.unwrap_or(by_seed);
        let (min, max) = (2, nodes + 1 - random.usize(..3));
        let network = Network::start(ETCDS + 2 * nodes + GUESTS).unwrap_or_else(|why| panic!("{why}"));
        let mut world = World {
            etcds: Etcds::start(&network),
            network,
            words: Arc::new(Words::new(&options.logs, &format!("{seed}-{first}"), options.plant)),
            processes: Vec::new(),
            deeds: Vec::new(),
            node: options.node.clone(),
            nodes,
            min,
            max,
            newcomers: 0,
            all_cut: false,
            random,
        };
        for index in 0..nodes {
            world.start_node(&format!("n{index}"), ETCDS + index);
        }
        world
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} nodes, {} to {} in a round", self.nodes, self.min, self.max)
    }

    pub(crate) fn name_of(&self, process: usize) -> &str {
        &self.processes[process].name
    }

    pub(crate) fn address_of(&self, process: usize) -> String {
        self.network.host(self.processes[process].host).address()
    }

    fn start_node(&mut self, name: &str, host: usize) {
        let (min, max) = (self.min.to_string(), self.max.to_string());
        let options = format!("{OPTIONS},node_id={name}");
        let mut command = self.network.host(host).command(&self.node);
        command.args([&self.etcds.endpoints(), RUN, &min, &max, &options]);
        // What it says there it has said before.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let started = self.words.now();
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take().unwrap();
        let (words, number, name) = (Arc::clone(&self.words), self.processes.len(), name.to_owned());
        words.note(&format!("{name} ({number}) is started at {}", self.network.host(host).address()));
        self.processes.push(Process { name: name.clone(), host, started, child, input });
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                words.said(number, &name, serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
            words.said(number, &name, json!({ "ended": true }));
        });
    }

    /// The last process of a name that lives, or just the last.
    fn last_index(&self, name: &str) -> usize {
        let standings = self.standings(&self.words.since(0));
        let of_name = |index: &usize| self.processes[*index].name == name;
        let lives = |index: &usize| standings[*index] != Standing::Ended;
        let all = || (0..self.processes.len()).rev().filter(of_name);
        all().find(lives).or(all().next()).expect("a node of that name")
    }

    fn last(&mut self, name: &str) -> &mut Process {
        let index = self.last_index(name);
        &mut self.processes[index]
    }

    fn signal(&mut self, name: &str, signal: Signal) {
        // It fails only for a process that has ended.
        let _ = kill_process(Pid::from_child(&self.last(name).child), signal);
    }

    fn host_of(&mut self, name: &str) -> Host {
        let host = self.last(name).host;
        self.network.host(host)
    }

    /// The nodes, the leader first.
    pub(crate) fn order(&mut self) -> Vec<String> {
        let key = format!("rallypoint/{RUN}/group/leader");
        let leader = self.etcds.ask(&["get", "--print-value-only", &key]);
        let mut names: Vec<String> = (0..self.nodes).map(|index| format!("n{index}")).collect();
        let leader = leader.trim().rsplit_once(' ').map_or("", |(name, _)| name);
        names.sort_by_key(|name| name != leader);
        names
    }

    pub(crate) fn snapshot_sometimes(&mut self) {
        if self.random.u32(..4) == 0 {
            self.etcds.forget_snapshot();
        }
    }

    pub(crate) fn carry_out(&mut self, step: &Step) {
        self.words.note(&format!("{step:?}"));
        let process = step.node().map(|name| self.last_index(name));
        let from = self.words.now();
        match step {
            Step::Kill(name) => self.kill(name),
            Step::Start(name) => {
                let host = self.last(name).host;
                self.start_node(name, host);
            }
            Step::Stop(name) => self.signal(name, Signal::STOP),
            Step::Continue(name) => self.signal(name, Signal::CONT),
            Step::Cut(name) => self.host_of(name).cut(),
            Step::Lose(name) => self.host_of(name).lose(),
            // While all are cut, that is mended with the rest.
            Step::Mend(_) if self.all_cut => {}
            Step::Mend(name) => self.host_of(name).mend(),
            Step::Order(name, order) => {
                // It may have ended.
                let _ = writeln!(self.last(name).input, "{order}");
            }
            Step::Replace(name) => {
                let (host, nodes) = (self.last(name).host, self.nodes);
                let other = if host < ETCDS + nodes { host + nodes } else { host - nodes };
                self.start_node(name, other);
            }
            Step::Newcomer => {
                self.newcomers += 1;
                let host = ETCDS + 2 * self.nodes;
                self.start_node(&format!("guest{}", self.processes.len()), host);
            }
            Step::CutAllNodes => {
                self.all_cut = true;
                self.hosts_of_nodes().iter().for_each(Host::cut);
            }
            Step::MendAllNodes => {
                self.all_cut = false;
                self.hosts_of_nodes().iter().for_each(Host::mend);
            }
            _ => self.etcds.harm(&self.network, step),
        }
        self.words.note(&format!("  done: {step:?}"));
        self.deeds.push(Deed { step: step.clone(), process, from, to: self.words.now() });
    }

    /// On return it has ended.
    fn kill(&mut self, name: &str) {
        let process = self.last_index(name);
        self.signal(name, Signal::KILL);
        while self.standings(&self.words.since(0))[process] != Standing::Ended {
            interrupt::sleep(Duration::from_millis(1));
        }
    }

    /// A fault that is not among the deeds.
    pub(crate) fn stall_in_secret(&mut self) {
        self.signal("n0", Signal::STOP);
        interrupt::sleep(2 * LEASE);
        self.signal("n0", Signal::CONT);
    }

    fn hosts_of_nodes(&self) -> Vec<Host> {
        self.network.hosts()[ETCDS..ETCDS + 2 * self.nodes].to_vec()
    }

    /// How each process stands by now.
    pub(crate) fn standings(&self, words: &[Word]) -> Vec<Standing> {
        let mut standings = vec![Standing::Outside; self.processes.len()];
        for word in words {
            let standing = &mut standings[word.process];
            if word.is_end() {
                *standing = Standing::Ended;
            } else if word.round().is_some() {
                *standing = Standing::In(word.line.clone());
            } else if word.change().is_some() || word.error().is_some() {
                *standing = Standing::Outside;
            }
        }
        standings
    }

    /// Starts those again that have ended. Whether there is an excuse for that is another question.
    pub(crate) fn revive(&mut self) {
        let standings = self.standings(&self.words.since(0));
        for index in 0..self.nodes {
            let name = format!("n{index}");
            let last = self.last_index(&name);
            if standings[last] == Standing::Ended {
                let host = self.processes[last].host;
                self.start_node(&name, host);
            }
        }
    }

    /// What each process said since that word, one after the other.
    pub(crate) fn said_since(&self, from: usize) -> String {
        let words = self.words.since(from);
        let mut text = String::new();
        for (process, it) in self.processes.iter().enumerate() {
            let mut said = words.iter().filter(|word| word.process == process).peekable();
            if said.peek().is_none() {
                continue;
            }
            text += &format!("  {} ({process}) at {}\n", it.name, self.address_of(process));
            for word in said {
                text += &format!("    {:9.3} s  {}\n", word.at.as_secs_f64(), word.line);
            }
        }
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
