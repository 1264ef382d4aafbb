//! The processes, and how harm is done to them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_testkit::{Cluster, Etcd, Host, Network, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::plan::{Step, Which};
use crate::words::{Word, Words};

pub(crate) const LEASE: Duration = Duration::from_secs(2);
pub(crate) const LAST_CALL: Duration = Duration::from_secs(1);
pub(crate) const A_FEW_SECONDS: Duration = Duration::from_secs(5);
/// Nothing may happen in this time.
const QUIET: Duration = Duration::from_millis(2500);
const RUN: &str = "chaos";
const OPTIONS: &str = "lease_timeout=2,last_call_timeout=1,read_timeout=1";
const ETCDS: usize = 3;
/// Machines for nodes that only come for an episode.
const GUESTS: usize = 1;

pub(crate) struct World {
    network: Network,
    cluster: Cluster,
    pub(crate) words: Arc<Words>,
    processes: Vec<Process>,
    nodes: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
    newcomers: usize,
    /// The etcd that something is being done to, and the one it is cut from.
    victim: usize,
    other: usize,
    folder: tempfile::TempDir,
    has_snapshot: bool,
    random: fastrand::Rng,
}

pub(crate) struct Process {
    pub(crate) name: String,
    /// The number of its machine in the network.
    host: usize,
    child: Child,
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
    pub(crate) fn start(seed: u64, nodes: Option<usize>, first: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let by_seed = random.usize(5..=8);
        let nodes = nodes.unwrap_or(by_seed);
        let (min, max) = (2, nodes + 1 - random.usize(..3));
        let network = Network::start(ETCDS + 2 * nodes + GUESTS).unwrap_or_else(|why| panic!("{why}"));
        let builder = Etcd::builder(Version::V35)
            .unsafe_no_fsync()
            .arg("--quota-backend-bytes=8388608")
            .arg("--auto-compaction-mode=revision")
            .arg("--auto-compaction-retention=2000");
        let cluster = Cluster::start_on(&builder, &network.hosts()[..ETCDS]);
        let mut world = World {
            network,
            cluster,
            words: Arc::new(Words::new(log_path(seed, first))),
            processes: Vec::new(),
            nodes,
            min,
            max,
            newcomers: 0,
            victim: 0,
            other: 0,
            folder: tempfile::tempdir().unwrap(),
            has_snapshot: false,
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

    fn start_node(&mut self, name: &str, host: usize) {
        let program = std::env::current_exe().unwrap().with_file_name("node");
        let (min, max) = (self.min.to_string(), self.max.to_string());
        let options = format!("{OPTIONS},node_id={name}");
        let mut command = self.network.host(host).command(program);
        command.args([&self.cluster.endpoints(), RUN, &min, &max, &options]);
        // What it says there it has said before.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take().unwrap();
        let (words, number, name) = (Arc::clone(&self.words), self.processes.len(), name.to_owned());
        words.note(&format!("{name} ({number}) is started at {}", self.network.host(host).address()));
        self.processes.push(Process { name: name.clone(), host, child, input });
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
        let leader = self.cluster.nodes()[0].etcdctl(&["get", "--print-value-only", &key]);
        let mut names: Vec<String> = (0..self.nodes).map(|index| format!("n{index}")).collect();
        names.sort_by_key(|name| name != leader.trim());
        names
    }

    fn etcd(&self, which: Which) -> usize {
        let leader = self.cluster.leader();
        match which {
            Which::Leader => leader,
            Which::Follower => (leader + 1) % ETCDS,
        }
    }

    fn snapshot(&self) -> PathBuf {
        self.folder.path().join("snapshot")
    }

    pub(crate) fn snapshot_if_none(&mut self) {
        if !self.has_snapshot {
            self.cluster.nodes()[0].save(&self.snapshot());
            self.has_snapshot = true;
        }
    }

    pub(crate) fn snapshot_sometimes(&mut self) {
        if self.random.u32(..4) == 0 {
            self.has_snapshot = false;
            let _ = std::fs::remove_file(self.snapshot());
        }
    }

    pub(crate) fn carry_out(&mut self, step: &Step) {
        self.words.note(&format!("{step:?}"));
        match step {
            Step::Kill(name) => {
                let process = self.last_index(name);
                self.signal(name, Signal::KILL);
                while self.standings(&self.words.since(0))[process] != Standing::Ended {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Step::Start(name) => {
                let host = self.last(name).host;
                self.start_node(name, host);
            }
            Step::Stop(name) => self.signal(name, Signal::STOP),
            Step::Continue(name) => self.signal(name, Signal::CONT),
            Step::Cut(name) => self.host_of(name).cut(),
            Step::Lose(name) => self.host_of(name).lose(),
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
            Step::CutAllNodes => self.hosts_of_nodes().iter().for_each(Host::cut),
            Step::MendAllNodes => self.hosts_of_nodes().iter().for_each(Host::mend),
            _ => self.harm_etcd(step),
        }
        self.words.note(&format!("  done: {step:?}"));
    }

    fn hosts_of_nodes(&self) -> Vec<Host> {
        self.network.hosts()[ETCDS..ETCDS + 2 * self.nodes].to_vec()
    }

    fn harm_etcd(&mut self, step: &Step) {
        let victim = self.victim;
        match step {
            Step::KillEtcd(which) => {
                self.victim = self.etcd(*which);
                self.cluster.node(self.victim).kill();
            }
            Step::RestartEtcd => self.cluster.node(victim).restart(),
            Step::StopEtcd(which) => {
                self.victim = self.etcd(*which);
                self.cluster.node(self.victim).pause();
            }
            Step::ContinueEtcd => self.cluster.node(victim).resume(),
            Step::CutEtcd(which) => {
                self.victim = self.etcd(*which);
                self.network.host(self.victim).cut();
            }
            Step::MendEtcd => self.network.host(victim).mend(),
            Step::CutFollowerFromLeader => {
                (self.other, self.victim) = (self.etcd(Which::Leader), self.etcd(Which::Follower));
                self.network.host(self.victim).cut_from(&self.network.host(self.other));
            }
            Step::MendFollowerToLeader => {
                self.network.host(victim).mend_to(&self.network.host(self.other));
            }
            Step::StopAllEtcds => (0..ETCDS).for_each(|index| self.cluster.node(index).pause()),
            Step::ContinueAllEtcds => (0..ETCDS).for_each(|index| self.cluster.node(index).resume()),
            Step::RestartAllEtcds => self.cluster.restart_all(),
            Step::Compact => {
                let revision = self.revision().to_string();
                // It may have been compacted that far already.
                let _ = self.cluster.nodes()[0].try_etcdctl(&["compact", "--physical", &revision]);
            }
            Step::FillDisk => self.cluster.nodes()[0].exhaust_space(),
            Step::FreeDisk => self.cluster.nodes()[0].free_space(),
            Step::AskForPasswords => {
                let etcd = &self.cluster.nodes()[0];
                for args in [
                    &["user", "add", "root:root"][..],
                    &["user", "grant-role", "root", "root"],
                    &["auth", "enable"],
                ] {
                    // The user may be there from before.
                    let _ = etcd.try_etcdctl(args);
                }
            }
            Step::AskForNoPasswords => self.cluster.nodes()[0].ask_for_no_passwords(),
            Step::LoseData => self.cluster.restart_empty(),
            Step::Restore => self.cluster.restore(&self.folder.path().join("snapshot")),
            Step::RestoreAhead => self.cluster.restore_ahead(&self.folder.path().join("snapshot"), 1_000_000),
            Step::OthersWrite => {
                let (before, etcd) = (self.revision(), &self.cluster.nodes()[0]);
                for n in 0..60 {
                    let _ = etcd.etcdctl(&["put", "other", &n.to_string()]);
                }
                self.words.note(&format!("  revision {before} to {}", self.revision()));
            }
            _ => unreachable!("{step:?} is nothing that is done to etcd"),
        }
    }

    fn revision(&self) -> u64 {
        let answer = self.cluster.nodes()[0].etcdctl(&["get", "none", "--write-out=fields"]);
        answer.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap().parse().unwrap()
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

    /// Waits until all that live are in one round, but those that there is no room for. `notice`: the time in which all
    /// news must have come of what was done.
    pub(crate) fn converge(&mut self, notice: Duration, patience: Duration) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let whole = self.is_whole();
            if whole.is_ok() && began.elapsed() >= notice {
                return Ok(());
            }
            if began.elapsed() >= patience {
                let why = whole.err().unwrap_or_default();
                return Err(format!("{patience:?} after the last fault the group is not whole: {why}"));
            }
            std::thread::sleep(Duration::from_millis(20));
            self.revive();
        }
    }

    fn is_whole(&self) -> Result<(), String> {
        let standings = self.standings(&self.words.since(0));
        let alive: Vec<usize> =
            (0..standings.len()).filter(|process| standings[*process] != Standing::Ended).collect();
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for process in &alive {
            if let Some(other) = names.insert(self.name_of(*process), *process) {
                return Err(format!("{} runs twice: {other} and {process}", self.name_of(*process)));
            }
        }
        let rounds: Vec<&Value> = alive
            .iter()
            .filter_map(
                |process| if let Standing::In(round) = &standings[*process] { Some(round) } else { None },
            )
            .collect();
        let wanted = alive.len().min(self.max);
        let one = rounds.iter().all(|round| round["plan"] == rounds[0]["plan"]);
        let full = rounds.len() == wanted && rounds.iter().all(|round| round["world_size"] == wanted);
        if one && full {
            Ok(())
        } else {
            Err(format!("{wanted} of {} should be in one round: {rounds:?}", alive.len()))
        }
    }

    /// A time in which nothing happens, and nobody has anything to do.
    pub(crate) fn quiet(&mut self) -> Vec<String> {
        let from = self.words.count();
        let busy = |world: &World| -> Vec<Option<Duration>> {
            world.processes.iter().map(|process| processor_time(process.child.id())).collect()
        };
        let (before, revision, began) = (busy(self), self.revision(), Instant::now());
        std::thread::sleep(QUIET);
        let (after, passed) = (busy(self), began.elapsed());
        let written = self.revision() - revision;
        let mut broken = Vec::new();
        for (process, (before, after)) in before.iter().zip(&after).enumerate() {
            let (Some(before), Some(after)) = (before, after) else { continue };
            if *after - *before > passed / 5 {
                let name = self.name_of(process);
                broken.push(format!("{name} ({process}) spins: {:?} in {passed:?}", *after - *before));
            }
        }
        if written > 10 {
            broken.push(format!("nothing happens, and etcd is written to {written} times"));
        }
        for word in self.words.since(from) {
            if word.change().is_some() || word.round().is_some() || word.error().is_some() {
                let name = self.name_of(word.process);
                broken.push(format!("nothing happens, and {name} ({}) says {}", word.process, word.line));
            }
        }
        broken
    }

    /// Sends those away that only came for the episode. False if there were none.
    pub(crate) fn dismiss_newcomers(&mut self) -> bool {
        for process in self.processes.iter_mut().filter(|process| process.name.starts_with("guest")) {
            // It has ended if it is of an earlier episode.
            let _ = writeln!(process.input, "leave");
        }
        let guests = std::mem::take(&mut self.newcomers) > 0;
        let deadline = Instant::now() + Duration::from_secs(5);
        while guests && Instant::now() < deadline {
            let standings = self.standings(&self.words.since(0));
            let here = |(index, process): (usize, &Process)| {
                process.name.starts_with("guest") && standings[index] != Standing::Ended
            };
            if !self.processes.iter().enumerate().any(here) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        guests
    }

    /// Closes the run. What is broken in how it ends: it leaves its mark, and nothing else.
    pub(crate) fn farewell(&mut self) -> Vec<String> {
        self.words.note("told to close");
        for name in self.order() {
            let _ = writeln!(self.last(&name).input, "close");
        }
        let deadline = Instant::now() + LEASE + A_FEW_SECONDS;
        while self.standings(&self.words.since(0)).iter().any(|standing| *standing != Standing::Ended) {
            if Instant::now() >= deadline {
                return vec!["the run is closed, and not all have left".to_owned()];
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = self.cluster.nodes()[0].etcdctl(&["get", "--prefix", "rallypoint/", "--keys-only"]);
        let left: Vec<&str> = left.split_whitespace().filter(|key| !key.ends_with("/group/round")).collect();
        if left.is_empty() {
            Vec::new()
        } else {
            vec![format!("the run has ended well, and leaves {left:?}")]
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
            text += &format!("  {} ({process}) at {}\n", it.name, self.network.host(it.host).address());
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

/// The processor time that a process has used; none if it has ended.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(") ").next()?.split(' ').skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Where the log goes: beside what is built, and never over another one.
fn log_path(seed: u64, first: u64) -> PathBuf {
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("chaos");
    let name =
        |n: u32| if n == 0 { format!("{seed}-{first}.log") } else { format!("{seed}-{first}.{n}.log") };
    (0..).map(|n| target.join(name(n))).find(|path| !path.exists()).unwrap()
}
