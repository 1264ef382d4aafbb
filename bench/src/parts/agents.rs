//! Agents of torchrun with our backend and with PyTorch's own; `bench/python/agents.py` measures them.

use std::collections::BTreeMap;

use rallypoint_testkit::{Etcd, Version};
use serde::Deserialize;

use crate::measure::Samples;
use crate::plan::Plan;
use crate::python::{self, our_python};
use crate::results::{Comparison, Outcome, Part, Promise, Row, Table};

const OURS: &str = "rallypoint";

/// What agents.py prints last.
#[derive(Debug, Deserialize)]
struct Measured {
    /// Seconds until all have met, by backend; none where they have not.
    times: BTreeMap<String, Vec<Option<f64>>>,
    /// Seconds until the rest has met again.
    again: Vec<f64>,
    /// Seconds until the workers of two torchruns run, when the third was killed.
    torchrun: Vec<f64>,
    lease: f64,
}

pub(crate) fn run(plan: &Plan) -> Part {
    let (agents, limit) = (plan.pick("64", "16"), plan.pick("100", "20"));
    let rounds = plan.rounds(3, 1);
    let etcd = Etcd::builder(Version::V34).v2().start();
    let args = [&etcd.endpoint(), agents, &rounds.to_string(), limit];
    let mut agents_of_torchrun = python::start(&our_python(), "agents", &args);
    let measured: Measured = loop {
        let line = agents_of_torchrun.read_line();
        match serde_json::from_str(&line) {
            Ok(measured) => break measured,
            Err(_) => plan.say(&line),
        }
    };
    part(plan, measured, agents, limit.parse().expect("a number"), rounds)
}

fn part(plan: &Plan, measured: Measured, agents: &str, limit: f64, rounds: u32) -> Part {
    let outcome = |seconds: Vec<Option<f64>>| {
        if seconds.contains(&None) {
            return Outcome::NotWithin(limit);
        }
        let mut samples = Samples::default();
        samples.extend(seconds.into_iter().flatten());
        Outcome::Measured(samples)
    };
    let outcomes: Vec<(String, Outcome)> =
        measured.times.into_iter().map(|(backend, seconds)| (backend, outcome(seconds))).collect();
    let best = outcomes
        .iter()
        .filter(|(backend, _)| backend != OURS)
        .min_by(|(_, a), (_, b)| a.figure().total_cmp(&b.figure()))
        .expect("PyTorch has backends");
    let Some((_, Outcome::Measured(ours))) = outcomes.iter().find(|(backend, _)| backend == OURS) else {
        panic!("{agents} agents formed no group with {OURS}")
    };
    let compared = Comparison {
        name: format!("{agents} agents of torchrun meet"),
        unit: "s".to_owned(),
        ours: ours.clone(),
        rival: format!("torch {}, its best", best.0),
        theirs: best.1.clone(),
        promise: plan.in_full(Promise::AtMost(0.2)),
    };
    // The promise is of the longest.
    let at_most = |name, seconds: &[f64]| {
        let longest = Samples::one(seconds.iter().copied().fold(0.0, f64::max));
        Comparison::fixed(name, "s", longest, "lease and 2 s", measured.lease + 2.0)
    };
    let name = format!("one of {agents} agents is killed, the rest has met again: the longest");
    let whole = at_most(name, &measured.again);
    let name = "one of 3 torchruns is killed, new workers run on the others: the longest";
    let workers = at_most(name.to_owned(), &measured.torchrun);
    let columns = outcomes.iter().map(|(backend, _)| match backend.as_str() {
        OURS => OURS.to_owned(),
        theirs => format!("torch {theirs}"),
    });
    let columns = columns.collect();
    let cells = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    Part {
        setting: vec![format!(
            "{agents} agents as processes, rounds in turn: {rounds}, at most {limit} s each; etcd 3.4 with --enable-v2 \
             for all but c10d"
        )],
        tables: vec![Table {
            id: "agents".to_owned(),
            title: "Time until all agents have met".to_owned(),
            rows_are: "agents".to_owned(),
            columns,
            rows: vec![Row { name: agents.to_owned(), x: None, unit: "s".to_owned(), cells }],
        }],
        comparisons: vec![compared, whole, workers],
        ..Part::default()
    }
}
