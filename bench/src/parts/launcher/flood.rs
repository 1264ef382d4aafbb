//! A worker that writes as much as it can, and what that does to the launcher.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::process::{field, ours, own_processes};
use crate::measure::Samples;
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise};

/// How often the launcher's memory is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A line of 100 bytes with its end, as logs have them.
const LINE: &str =
    "step 1234 of 100000: loss 0.123456, 1234.5 samples a second, gradient norm 0.98765, lr 0.0003000000";
/// What a worker may have to do with the launcher's memory, at most.
const PROMISED: f64 = 50.0;

/// Memory and rate of a launcher whose worker floods it.
struct Flood {
    /// What its processes had resident, in MB, at each look.
    resident: Vec<f64>,
    /// What it took from the worker, in MB a second.
    rate: f64,
}

/// The launcher's output goes where nothing holds it back, so that the launcher itself is the limit.
fn flood(seconds: u64) -> Flood {
    let script = format!("exec timeout {seconds} yes '{LINE}'");
    // timeout ends with 124, which is a failure to the launcher; what it took is known by then.
    let mut child = start(&script, Stdio::null());
    let mut resident = Vec::new();
    let (mut taken, mut at) = (0.0, Instant::now());
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        let own = own_processes(child.id());
        // The last of the chain has the workers.
        if let (3, Some(working)) = (own.len(), own.last()) {
            let memory: Option<f64> = own.iter().map(|pid| field(*pid, "VmRSS:")).sum();
            if let (Some(memory), Some(read)) = (memory, bytes_read(*working)) {
                resident.push(memory);
                (taken, at) = (read / 1e6, Instant::now());
            }
        }
        thread::sleep(LOOK);
    }
    Flood { resident, rate: taken / (at - began).as_secs_f64() }
}

/// The same worker into a pipe that `cat` empties, to the same place: what there is to take. In MB a second.
fn through_cat(seconds: u64) -> f64 {
    let mut writer = Command::new("timeout");
    let writer = writer.args([&seconds.to_string(), "yes", LINE]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("timeout starts");
    let pipe = writer.stdout.take().expect("its output is a pipe");
    let mut reader = Command::new("cat").stdin(pipe).stdout(Stdio::null()).spawn().expect("cat starts");
    let (began, mut taken, mut at) = (Instant::now(), 0.0, Instant::now());
    while matches!(reader.try_wait(), Ok(None)) {
        if let Some(read) = bytes_read(reader.id()) {
            (taken, at) = (read / 1e6, Instant::now());
        }
        thread::sleep(LOOK);
    }
    let _ = writer.wait();
    taken / (at - began).as_secs_f64()
}

/// Runs a worker that writes so many lines and ends; how many of them arrive.
fn lines_that_arrive(lines: u64) -> u64 {
    let script = format!("yes '{LINE}' | head -n {lines}");
    drain(start(&script, Stdio::piped()))
}

fn start(script: &str, out: Stdio) -> Child {
    ours()
        .args(["--nproc-per-node=1", "--no-python", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("the launcher starts")
}

/// Reads all that it writes; the lines.
fn drain(mut child: Child) -> u64 {
    let mut out = child.stdout.take().expect("its output is a pipe");
    let mut buffer = vec![0; 1 << 20];
    let mut lines = 0;
    loop {
        match out.read(&mut buffer).expect("a pipe can be read") {
            0 => break,
            length => lines += buffer[..length].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
    let _ = child.wait();
    lines
}

/// All that a process has read so far.
fn bytes_read(pid: u32) -> Option<f64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("rchar: "))?.trim().parse().ok()
}

/// The middle of some looks.
fn middle(looks: &[f64]) -> f64 {
    let mut samples = Samples::default();
    samples.extend(looks.iter().copied());
    samples.median()
}

pub(super) fn run(plan: &Plan, part: &mut Part) {
    let (rounds, seconds) = (plan.rounds(3, 1), plan.pick(20, 4));
    let lines = plan.pick(20_000_000, 2_000_000);
    part.setting.push(format!(
        "a worker that writes lines of 100 bytes for {seconds} s, as many as are taken, without --log-dir, standard output at \
         /dev/null; then one that writes {lines} and ends, read through a pipe; rounds: {rounds}"
    ));
    let [mut peak, mut first, mut last, mut rate, mut cat, mut arrived] =
        [(); 6].map(|()| Samples::default());
    for round in 1..=rounds {
        plan.say(&format!("a worker that writes without end, round {round} of {rounds}"));
        let flood = flood(seconds);
        let quarter = (flood.resident.len() / 4).max(1);
        peak.push(flood.resident.iter().copied().fold(f64::NAN, f64::max));
        // Not the very beginning, when it has just been started.
        first.push(middle(flood.resident.get(quarter..2 * quarter).unwrap_or_default()));
        last.push(middle(&flood.resident[flood.resident.len().saturating_sub(quarter)..]));
        rate.push(flood.rate);
        cat.push(through_cat(plan.pick(5, 1)));
        plan.say(&format!("a worker that writes {lines} lines, round {round} of {rounds}"));
        arrived.push(lines_that_arrive(lines) as f64);
    }
    let name = "peak memory of the launcher, a worker floods it";
    part.comparisons.push(Comparison::fixed(name, "MB", peak, "the promise", PROMISED));
    let flat = Some(Promise::AtMost(1.1));
    part.comparisons.push(Comparison::new(
        "memory of the launcher in the last quarter of the flood",
        "MB",
        (last, "in the second quarter", first),
        flat,
    ));
    part.comparisons.push(Comparison::new(
        "what a worker can write",
        "MB/s",
        (rate, "yes into cat", cat),
        None,
    ));
    let all = Some(Promise::AtLeast(1.0));
    let written = Samples::one(lines as f64);
    part.comparisons.push(Comparison::new("lines that arrive", "", (arrived, "lines written", written), all));
}
