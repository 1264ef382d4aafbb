//! `rallypoint run` beside torchrun: from the command to the first lines of four workers, and the memory it takes.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rallypoint_testkit::torch_python;

use crate::measure::Samples;
use crate::report::{Comparison, Promise};
use crate::{Options, Report};

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

fn ours() -> Command {
    let here = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(here.with_file_name("rallypoint"));
    command.args(["run", "--standalone"]);
    command
}

fn torchrun() -> Command {
    let mut command = Command::new(torch_python());
    command.args(["-m", "torch.distributed.run", "--standalone"]);
    command
}

pub(crate) fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    report.setting.push(format!(
        "{WORKERS} workers (sh -c echo) on one node, --standalone, {cores} cores, {} rounds in turn",
        options.rounds
    ));
    let mut times = [Samples::default(), Samples::default()];
    let mut memory = [Samples::default(), Samples::default()];
    for _ in 0..options.rounds {
        for (at, command) in [ours(), torchrun()].into_iter().enumerate() {
            let (launched, time) = Launched::start(command);
            times[at].push(time);
            memory[at].push(launched.memory());
        }
    }
    let mut promised = Samples::default();
    promised.push(50.0);
    let [ours, theirs] = times;
    let promise = Some(Promise::AtMost(0.1));
    let name = "command to the first lines of 4 workers";
    report.comparisons.push(Comparison { name, unit: "ms", ours, rival: "torchrun", theirs, promise });
    let [ours, theirs] = memory;
    let name = "peak memory of the launcher";
    let against =
        Comparison { name, unit: "MB", ours: ours.clone(), rival: "torchrun", theirs, promise: None };
    let promise = Some(Promise::AtMost(1.0));
    report.comparisons.push(against);
    report.comparisons.push(Comparison {
        name,
        unit: "MB",
        ours,
        rival: "the promise",
        theirs: promised,
        promise,
    });
    report
}
