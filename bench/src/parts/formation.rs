//! Forming a group of processes: all contenders.

use std::time::Duration;

use super::contender::{Contender, Field, NATIVE, ON_V2, TORCH_ETCD, Tries, Whose};
use crate::measure::{Samples, in_turn};
use crate::nodes::{Failure, Group, MeetingServer, Size};
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Part, Promise, Row, Table};

const PROCESSES: [usize; 8] = [2, 4, 8, 16, 32, 64, 128, 256];
const PROCESSES_SHORT: [usize; 3] = [2, 8, 32];
/// Groups that are given less time.
const SMALL: usize = 64;
/// Who was too slow so often is not asked again: some are quick in one round and take minutes in the next.
const CHANCES: usize = 2;
/// What took this long altogether is not tried again at that size.
const BUDGET: Duration = Duration::from_secs(40);

/// How long a group may take.
pub(crate) fn limit(plan: &Plan, size: usize) -> Duration {
    Duration::from_secs(plan.pick(if size > SMALL { 150 } else { 60 }, 10))
}

pub(crate) fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let rounds = plan.rounds(3, 1);
    let mut field = Field::enter(plan, true);
    let sizes = plan.pick(&PROCESSES[..], &PROCESSES_SHORT);
    part.setting.push(format!(
        "one process for each node, a fresh server for each group, rounds in turn: {rounds}; no further round \
         once those of one size took {} s, and at most {} s each ({} s for {SMALL} nodes or fewer); who was too slow \
         twice is not asked again",
        BUDGET.as_secs(),
        limit(plan, sizes[sizes.len() - 1]).as_secs(),
        limit(plan, SMALL).as_secs()
    ));
    let mut times = time_table("formation-time", field.columns());
    let mut requests = request_table("formation-requests", field.columns());
    let mut out: Vec<bool> = field.contenders.iter().map(|_| false).collect();
    for &size in sizes {
        let mut tries: Vec<Tries> = out.iter().map(|out| Tries::new(CHANCES, *out)).collect();
        let mut counts: Vec<Samples> = out.iter().map(|_| Samples::default()).collect();
        for round in 0..rounds {
            for at in in_turn(tries.len(), round).filter(|at| tries_more(&tries[*at])).collect::<Vec<_>>() {
                let contender = field.contenders[at];
                plan.say(&format!("{}: {size} nodes, round {} of {rounds}", contender.column, round + 1));
                match meet(contender, &mut field, size, limit(plan, size)) {
                    Ok((seconds, requests)) => {
                        tries[at].add(Ok(seconds));
                        counts[at].push(requests);
                    }
                    Err(failure) => {
                        assert_ne!(contender.whose, Whose::Ours, "{}: {failure:?}", contender.column);
                        plan.say(&format!("{}: {failure:?}", contender.column));
                        tries[at].add(Err(failure));
                    }
                }
            }
        }
        // Who was too slow for this size is not asked to form a larger group.
        out = tries.iter().map(Tries::has_failed).collect();
        times.rows.push(row(size, "s", tries.into_iter().map(Tries::outcome).collect()));
        let counted = |samples: Samples| match samples.is_empty() {
            true => Outcome::NotRun,
            false => Outcome::Measured(samples),
        };
        requests.rows.push(row(size, "", counts.into_iter().map(counted).collect()));
    }
    part.comparisons.extend(promised(plan, &times));
    part.tables.extend([times, requests]);
    part
}

pub(crate) fn time_table(id: &str, columns: Vec<String>) -> Table {
    table(id, "Time until the last node has met the others", columns)
}

pub(crate) fn request_table(id: &str, columns: Vec<String>) -> Table {
    table(id, "Requests per node", columns)
}

fn table(id: &str, title: &str, columns: Vec<String>) -> Table {
    let (id, title, rows_are) = (id.to_owned(), title.to_owned(), "nodes".to_owned());
    Table { id, title, rows_are, columns, rows: Vec::new() }
}

/// The figures of groups of `size` nodes.
pub(crate) fn row(size: usize, unit: &str, cells: Vec<Outcome>) -> Row {
    Row { name: grouped(size), x: Some(size as f64), unit: unit.to_owned(), cells }
}

fn tries_more(tries: &Tries) -> bool {
    tries.wants_more(BUDGET)
}

/// The seconds and the requests per node that it takes.
fn meet(
    contender: Contender,
    field: &mut Field,
    size: usize,
    limit: Duration,
) -> Result<(f64, f64), Failure> {
    let place = MeetingServer::fresh(contender.wire);
    let size = match contender.whose {
        Whose::Ours => Size::all(size, 0),
        _ => Size::all(0, size),
    };
    let mut group = Group::start(contender.backend, &place, field.nursery(contender.whose), size);
    let seconds = group.meet(limit)?;
    Ok((seconds, group.requests_per_node()))
}

/// Those of ours that something is promised of, beside PyTorch's `etcd` in the same run.
fn promised(plan: &Plan, times: &Table) -> Vec<Comparison> {
    let column = |name: &str| times.columns.iter().position(|column| column == name);
    let Some(theirs) = column(TORCH_ETCD) else { return Vec::new() };
    let largest = times.rows.len() - 1;
    let before = largest.saturating_sub(1);
    let cases = [(NATIVE, largest, 0.02), (ON_V2, before, 0.33)];
    let compared = cases.into_iter().filter_map(|(name, row, bound)| {
        let row = &times.rows[row];
        let Outcome::Measured(ours) = row.cells[column(name)?].clone() else { return None };
        let theirs = row.cells[theirs].clone();
        Some(Comparison {
            name: format!("{} processes meet: {name}", row.name),
            unit: "s".to_owned(),
            ours,
            rival: TORCH_ETCD.to_owned(),
            theirs,
            promise: plan.in_full(Promise::AtMost(bound)),
        })
    });
    compared.collect()
}

/// `10,000`.
pub(crate) fn grouped(number: usize) -> String {
    match (number / 1_000, number % 1_000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}
