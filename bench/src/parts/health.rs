//! What it costs to be looked after: a heartbeat in a worker, and the checks of a node before it meets others.

use std::process::{Command, Stdio};

use rallypoint_testkit::torch_python;

use crate::measure::{Samples, in_turn};
use crate::parts::launcher::process::{Launched, ours};
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Part, Row, Table};

const WORKERS: usize = 4;
/// A heartbeat takes no longer, in nanoseconds.
const PROMISED: f64 = 1000.0;

/// What a node looks at before it starts its workers. A GPU is not everywhere.
const CHECKS: [(&str, &[&str]); 5] = [
    ("no checks", &[]),
    ("disk", &["disk"]),
    ("clock", &["clock"]),
    ("a command", &["true"]),
    ("all three", &["disk", "clock", "true"]),
];

pub(crate) fn run(plan: &Plan) -> Part {
    let rounds = plan.rounds(21, 3);
    let setting = format!(
        "{WORKERS} workers (sh -c echo) on one node, --standalone, rounds in turn: {rounds}; 200,000 heartbeats at a time, the best of 5"
    );
    let mut part = Part { setting: vec![setting], ..Part::default() };
    let starts = starts(plan, rounds);
    let sides = (starts[CHECKS.len() - 1].clone(), "no checks", starts[0].clone());
    part.comparisons.push(Comparison::new(
        "command to the first lines, with three checks",
        "ms",
        sides,
        None,
    ));
    part.tables.push(Table {
        id: "health-start".to_owned(),
        title: "Command to the first lines of the workers".to_owned(),
        rows_are: "with".to_owned(),
        columns: CHECKS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        rows: vec![Row {
            name: format!("{WORKERS} workers"),
            x: None,
            unit: "ms".to_owned(),
            cells: starts.into_iter().map(Outcome::Measured).collect(),
        }],
    });
    if plan.torch {
        let [beat, nothing] = heartbeats(plan, plan.rounds(7, 1));
        let sides = (beat.clone(), "a function that does nothing", nothing);
        part.comparisons.push(Comparison::new("a heartbeat", "ns", sides, None));
        part.comparisons.push(Comparison::fixed("a heartbeat", "ns", beat, "the promise", PROMISED));
    }
    part
}

/// From the command to the first lines of all workers, with each of the [`CHECKS`], in milliseconds.
fn starts(plan: &Plan, rounds: u32) -> [Samples; CHECKS.len()] {
    let mut figures = CHECKS.map(|_| Samples::default());
    for round in 0..rounds {
        for at in in_turn(CHECKS.len(), round) {
            let (name, checks) = CHECKS[at];
            plan.say(&format!("start with {name}, round {} of {rounds}", round + 1));
            let mut command = ours();
            checks.iter().for_each(|check| _ = command.args(["--health-check", check]));
            figures[at].push(Launched::start(command, WORKERS).1);
        }
    }
    figures
}

/// What a heartbeat takes in a worker that is looked after, and a call of nothing beside it, in nanoseconds.
fn heartbeats(plan: &Plan, rounds: u32) -> [Samples; 2] {
    let mut figures = [(); 2].map(|()| Samples::default());
    for round in 0..rounds {
        plan.say(&format!("heartbeats, round {} of {rounds}", round + 1));
        for (samples, time) in figures.iter_mut().zip(worker(ours())) {
            samples.push(time);
        }
    }
    figures
}

/// The figures that the worker prints.
fn worker(mut launcher: Command) -> Vec<f64> {
    let output = launcher
        .args(["--hang-timeout=600", "--no-python"])
        .args([torch_python().as_os_str(), "bench/python/heartbeat.py".as_ref()])
        .env("PYTHONPATH", "python")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .expect("the launcher starts");
    let text = String::from_utf8(output.stdout).expect("it writes text");
    let times = text.lines().filter_map(|line| line.split_once("time ")?.1.trim().parse().ok());
    let times: Vec<f64> = times.collect();
    assert_eq!(times.len(), 2, "a heartbeat was timed: {text}");
    times
}
