//! Groups too large for one machine's processes: nodes as tasks of one process, beside the floor of etcd.

use rallypoint::cli::bench::{Formation, disband, form};
use rallypoint_rendezvous::native::NativeSettings;
use rallypoint_testkit::{Etcd, Version};

use super::at_work;
use super::formation::{grouped, request_table, row, time_table};
use crate::measure::Samples;
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Part, Promise};

/// Nodes, on a few connections.
const TASKS: [usize; 4] = [10, 100, 1_000, 10_000];

pub(crate) async fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let rounds = plan.rounds(7, 1);
    part.setting.push(format!(
        "nodes of one process on 8 connections, etcd 3.5 with fsync and fresh for each group; \
         rounds: {rounds}, with three groups of each size below 10,000; the floor is as many lease grants and puts \
         by the raw client"
    ));
    let sizes = plan.pick(&TASKS[..], &TASKS[..3]);
    let mut formed: Vec<(usize, Vec<Formation>)> = sizes.iter().map(|size| (*size, Vec::new())).collect();
    for round in 0..rounds {
        for (size, formations) in &mut formed {
            plan.say(&format!("{} nodes as tasks, round {} of {rounds}", grouped(*size), round + 1));
            for _ in 0..groups_each(*size) {
                formations.push(formed_anew(*size).await);
            }
        }
    }
    let [ours, floor] = ["rallypoint, as tasks", "the floor of etcd"].map(str::to_owned);
    let mut times = time_table("tasks-time", vec![ours.clone(), floor]);
    let mut counts = request_table("tasks-requests", vec![ours]);
    for (size, formations) in &formed {
        let measured = |figure: fn(&Formation) -> f64| Outcome::Measured(samples(formations, figure));
        times.rows.push(row(
            *size,
            "s",
            vec![measured(|one| one.seconds), measured(|one| one.floor_seconds)],
        ));
        counts.rows.push(row(*size, "", vec![measured(requests)]));
    }
    part.tables.extend([times, counts]);
    part.comparisons.extend(promised(plan, &formed));
    at_work::run(plan, &mut part).await;
    part
}

/// What is over sooner has more of chance in it.
fn groups_each(size: usize) -> usize {
    if size < 10_000 { 3 } else { 1 }
}

async fn formed_anew(size: usize) -> Formation {
    let etcd = Etcd::start(Version::V35);
    let run = format!("bench-{:016x}", fastrand::u64(..));
    let settings = NativeSettings::new(&etcd.endpoint(), &run, size, size).expect("they can be used");
    let group = form(&settings, size).await.expect("a group forms");
    assert!(group.formation.ranks_ok, "every rank once");
    let formation = group.formation.clone();
    disband(group).await;
    formation
}

fn promised(plan: &Plan, formed: &[(usize, Vec<Formation>)]) -> Vec<Comparison> {
    let seconds = |one: &Formation| one.seconds;
    let per_node = |one: &Formation| one.seconds / one.nodes as f64 * 1e6;
    let (_, ten) = &formed[0];
    let mut compared = Vec::new();
    for (size, formations) in &formed[1..] {
        let beside_floor =
            (samples(formations, seconds), "the floor", samples(formations, |one| one.floor_seconds));
        let name = format!("{} nodes meet", grouped(*size));
        compared.push(Comparison::new(name, "s", beside_floor, plan.in_full(Promise::AtMost(2.0))));
    }
    if let [.., (1_000, fewer), (10_000, more)] = formed {
        let beside_fewer = (samples(more, per_node), "of 1,000", samples(fewer, per_node));
        let promise = plan.in_full(Promise::AtMost(1.3));
        compared.push(Comparison::new("time per node, of 10,000", "us", beside_fewer, promise));
    }
    for (size, formations) in &formed[1..] {
        let beside_ten = (samples(formations, requests), "of 10", samples(ten, requests));
        let name = format!("requests per node, of {}", grouped(*size));
        compared.push(Comparison::new(name, "", beside_ten, Some(Promise::AtMost(1.0))));
    }
    compared
}

fn requests(one: &Formation) -> f64 {
    one.requests_per_node.expect("a real etcd counts")
}

fn samples(formations: &[Formation], figure: impl Fn(&Formation) -> f64) -> Samples {
    let mut samples = Samples::default();
    samples.extend(formations.iter().map(figure));
    samples
}
