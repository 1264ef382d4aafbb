//! Nodes as processes of their own, really killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rallypoint_testkit::{Etcd, Version};
use serde_json::Value;

use super::LIMIT;

/// The example `node`, running.
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<Value>,
}

impl Process {
    pub(super) fn start(endpoint: &str, run: &str, min: usize, max: usize, options: &str) -> Self {
        Process::start_by(Command::new(example()), endpoint, run, min, max, options)
    }

    /// Started by `command`, which gets the node's arguments after its own.
    pub(super) fn start_by(
        mut command: Command,
        endpoint: &str,
        run: &str,
        min: usize,
        max: usize,
        options: &str,
    ) -> Self {
        command.args([endpoint, run, &min.to_string(), &max.to_string(), options]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).expect(&line));
            }
        });
        let input = child.stdin.take().unwrap();
        Process { child, input, lines }
    }

    /// Its next line.
    pub(super) fn line(&self) -> Value {
        self.lines.recv_timeout(LIMIT).expect("it says nothing more")
    }

    /// Its next line that has `key`.
    pub(super) fn next(&self, key: &str) -> Value {
        loop {
            let line = self.line();
            if !line[key].is_null() {
                return line;
            }
        }
    }

    /// Its next line that has `key`, which must come within that time.
    pub(super) fn next_within(&self, key: &str, time: Duration) -> Value {
        let until = Instant::now() + time;
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|_| panic!("it says nothing of {key:?} within {time:?}"));
            if !line[key].is_null() {
                return line;
            }
        }
    }

    /// What it has said and nobody has asked for.
    pub(super) fn said(&self) -> Vec<Value> {
        self.lines.try_iter().collect()
    }

    /// The processor time that it has used.
    pub(super) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let ticks = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        // A tick is a hundredth of a second on every Linux that we know.
        Duration::from_millis(10 * ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn order(&mut self, order: &str) {
        writeln!(self.input, "{order}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples/node")
}

/// The rounds that all of `processes` are in next, by process; checked to be one.
pub(super) fn rounds(processes: &[Process]) -> Vec<Value> {
    rounds_within(processes, LIMIT)
}

/// As [`rounds`], within that time.
pub(super) fn rounds_within(processes: &[Process], time: Duration) -> Vec<Value> {
    let until = Instant::now() + time;
    let left = || until.saturating_duration_since(Instant::now());
    let rounds: Vec<Value> = processes.iter().map(|process| process.next_within("round", left())).collect();
    let mut ranks: Vec<u64> = rounds.iter().map(|round| round["rank"].as_u64().unwrap()).collect();
    ranks.sort_unstable();
    assert!(ranks.into_iter().eq(0..processes.len() as u64), "{rounds:?}");
    for key in ["round", "plan", "world_size", "master"] {
        assert!(rounds.iter().all(|round| round[key] == rounds[0][key]), "{rounds:?}");
    }
    rounds
}

const OPTIONS: &str = "lease_timeout=2,last_call_timeout=0.3";

#[test]
fn a_process_that_is_killed_is_missed_by_all_and_comes_back_as_itself() {
    let etcd = Etcd::start(Version::V35);
    let start = || Process::start(&etcd.endpoint(), "killed", 3, 3, OPTIONS);
    let mut group = [start(), start(), start()];
    let names: Vec<Value> = group.iter().map(|process| process.next("node")["node"].clone()).collect();
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
    let first = rounds(&group);

    // Started again within its lease: the same node, the same rank, and no second one.
    group[1].kill();
    group[1] = start();
    assert_eq!(group[1].next("node")["node"], names[1]);
    let second = rounds(&group);
    assert_eq!(second[0]["round"], 2);
    for (before, after) in first.iter().zip(&second) {
        assert_eq!(before["rank"], after["rank"]);
    }

    // Gone for longer: the others are told who died.
    group[2].kill();
    for process in &group[..2] {
        let change = process.next("change")["change"].as_str().unwrap().to_owned();
        assert!(change.starts_with("Died") && change.contains(names[2].as_str().unwrap()), "{change}");
    }
    group[2] = start();
    let third = rounds(&group);
    assert_eq!((&third[0]["round"], &third[0]["world_size"]), (&3.into(), &3.into()));
}

#[test]
fn all_killed_at_once_and_started_again_meet_again() {
    let etcd = Etcd::start(Version::V34);
    let start = || Process::start(&etcd.endpoint(), "all", 4, 4, OPTIONS);
    let mut group: Vec<Process> = (0..4).map(|_| start()).collect();
    let first = rounds(&group);
    for process in &mut group {
        process.kill();
    }
    let group: Vec<Process> = (0..4).map(|_| start()).collect();
    let second = rounds(&group);
    assert!(second[0]["round"].as_u64() > first[0]["round"].as_u64(), "rounds only grow");
}

#[test]
fn processes_leave_and_close_in_good_order() {
    let etcd = Etcd::start(Version::V35);
    // They meet when all are there, however long one of them takes to come.
    let options = "lease_timeout=2,last_call_timeout=20";
    let start = || Process::start(&etcd.endpoint(), "order", 1, 3, options);
    let mut group = vec![start(), start(), start()];
    rounds(&group);
    group[2].order("leave");
    let left = group.pop().unwrap();
    assert_eq!(rounds(&group)[0]["world_size"], 2);
    drop(left);
    group[0].order("close");
    assert_eq!(group[1].next("change")["change"], "Closed { reason: \"told to\" }");
}
