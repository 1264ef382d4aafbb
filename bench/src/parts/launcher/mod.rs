//! `rallypoint run` beside torchrun: from the command to the first lines of four workers, and the memory it takes.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rallypoint_testkit::torch_python;

use crate::measure::{Samples, in_turn};
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise};

const WORKERS: usize = 4;
/// What each worker does: it says a word, and stays.
const SCRIPT: &str = "echo here; exec sleep 600";

/// A launcher with its workers, stopped when dropped.
struct Launched {
    child: Child,
}

impl Launched {
    /// Starts it and waits for a line of each worker; the time that took, in milliseconds.
    fn start(mut command: Command) -> (Self, f64) {
        let began = Instant::now();
        let mut child = command
            .args([&format!("--nproc-per-node={WORKERS}"), "--no-python", "sh", "-c", SCRIPT])
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("the launcher starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut heard = 0;
        while heard < WORKERS {
            let line = lines.next().expect("it runs until it is stopped").expect("it writes text");
            heard += usize::from(line.contains("here"));
        }
        (Launched { child }, began.elapsed().as_secs_f64() * 1e3)
    }

    /// The most that the launcher's own processes had resident so far, in MB; the workers are not counted.
    fn memory(&self) -> f64 {
        let first = self.child.id();
        let own = std::fs::read_link(format!("/proc/{first}/exe")).expect("the process runs");
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        let is_launcher =
            |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own);
        std::iter::once(first).chain(children.filter(is_launcher)).map(peak).sum()
    }
}

fn peak(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.expect("it has memory") / 1024.0
}

impl Drop for Launched {
    fn drop(&mut self) {
        // In good order, so that it takes its workers along.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

/// The command of a launcher, which ends in good order if this process ends first.
fn launcher(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program).args(args);
    command
}

fn ours() -> Command {
    let here = std::env::current_exe().expect("this program has a path");
    launcher(&here.with_file_name("rallypoint"), &["run", "--standalone"])
}

fn torchrun() -> Command {
    launcher(&torch_python(), &["-m", "torch.distributed.run", "--standalone"])
}

pub(crate) fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let rounds = plan.rounds(7, 2);
    part.setting
        .push(format!("{WORKERS} workers (sh -c echo) on one node, --standalone, rounds in turn: {rounds}"));
    let launchers = if plan.torch { &["rallypoint run", "torchrun"][..] } else { &["rallypoint run"] };
    let [mut times, mut memory] = [(); 2].map(|()| [(); 2].map(|()| Samples::default()));
    for round in 0..rounds {
        for at in in_turn(launchers.len(), round) {
            plan.say(&format!("{}, round {} of {rounds}", launchers[at], round + 1));
            let (launched, time) = Launched::start(if at == 0 { ours() } else { torchrun() });
            times[at].push(time);
            memory[at].push(launched.memory());
        }
    }
    let [our_time, their_time] = times;
    let [our_memory, their_memory] = memory;
    let name = "peak memory of the launcher";
    if plan.torch {
        let promise = Some(Promise::AtMost(0.1));
        let time = "command to the first lines of 4 workers";
        part.comparisons.push(Comparison::new(time, "ms", (our_time, "torchrun", their_time), promise));
        let beside = (our_memory.clone(), "torchrun", their_memory);
        part.comparisons.push(Comparison::new(name, "MB", beside, None));
    }
    part.comparisons.push(Comparison::fixed(name, "MB", our_memory, "the promise", 50.0));
    part
}
