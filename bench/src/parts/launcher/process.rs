//! A launcher as a process, with its workers.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rallypoint_testkit::torch_python;

use crate::python::our_python;

/// What each worker does: it says a word, and stays.
const SCRIPT: &str = "echo here; exec sleep 600";

/// A launcher with its workers, stopped when dropped.
pub(crate) struct Launched {
    child: Child,
}

impl Launched {
    /// Starts it and waits for a line of each worker; the time that took, in milliseconds.
    pub(crate) fn start(mut command: Command, workers: usize) -> (Self, f64) {
        let began = Instant::now();
        let mut child = command
            .args([&format!("--nproc-per-node={workers}"), "--no-python", "sh", "-c", SCRIPT])
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("the launcher starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut heard = 0;
        while heard < workers {
            let line = lines.next().expect("it runs until it is stopped").expect("it writes text");
            heard += usize::from(line.contains("here"));
        }
        (Launched { child }, began.elapsed().as_secs_f64() * 1e3)
    }

    /// The most that the launcher's own processes had resident so far, in MB; the workers are not counted.
    pub(super) fn memory(&self) -> f64 {
        own_processes(self.child.id()).into_iter().map(|pid| field(pid, "VmHWM:").expect("it runs")).sum()
    }

    /// Stops it in good order, with its workers; the time until it has ended, in milliseconds.
    pub(super) fn stop(mut self) -> f64 {
        let began = Instant::now();
        self.end();
        began.elapsed().as_secs_f64() * 1e3
    }

    fn end(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // In good order, so that it takes its workers along.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// This process, and those below it that run the same program: a launcher can be a chain of them.
pub(super) fn own_processes(first: u32) -> Vec<u32> {
    let program = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let own = program(first);
    let mut found = vec![first];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        let children: Vec<u32> = children.filter(|pid| own.is_some() && program(*pid) == own).collect();
        found.extend(children);
        at += 1;
    }
    found
}

/// A figure of a process's `status`, in MB; none if it has ended.
pub(super) fn field(pid: u32, name: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

/// The command of a launcher, which ends in good order if this process ends first.
fn launcher(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program).args(args);
    command
}

pub(crate) fn ours() -> Command {
    let here = std::env::current_exe().expect("this program has a path");
    launcher(&here.with_file_name("rallypoint"), &["run", "--standalone"])
}

/// With its own rendezvous: `--standalone` is `c10d`.
pub(crate) fn torchrun() -> Command {
    launcher(&torch_python(), &["-m", "torch.distributed.run", "--standalone"])
}

/// With our backend.
pub(crate) fn torchrun_on_ours() -> Command {
    launcher(&our_python(), &["-m", "torch.distributed.run", "--rdzv-backend=rallypoint"])
}
