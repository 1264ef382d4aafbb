//! `rallypoint run` beside torchrun: from the command to the first lines of its workers, to the end of many, and the memory
//! that it takes.

mod flood;
pub(crate) mod process;

use process::{Launched, ours, torchrun};

use crate::measure::{Samples, in_turn};
use crate::plan::Plan;
use crate::results::{Comparison, Part, Promise};

/// As many as a node has GPUs, or nearly.
const FEW: usize = 4;
/// Far more than that.
const MANY: usize = 256;

/// What was measured of one launcher.
#[derive(Default)]
struct Figures {
    start: Samples,
    stop: Samples,
    memory: Samples,
}

/// Starts and stops so many workers, ours first and then torchrun's, if there is one.
fn start_and_stop(plan: &Plan, workers: usize, rounds: u32) -> [Figures; 2] {
    let launchers = if plan.torch { &["rallypoint run", "torchrun"][..] } else { &["rallypoint run"] };
    let mut figures = [(); 2].map(|()| Figures::default());
    for round in 0..rounds {
        for at in in_turn(launchers.len(), round) {
            plan.say(&format!("{workers} workers of {}, round {} of {rounds}", launchers[at], round + 1));
            let (launched, time) = Launched::start(if at == 0 { ours() } else { torchrun() }, workers);
            figures[at].start.push(time);
            figures[at].memory.push(launched.memory());
            figures[at].stop.push(launched.stop());
        }
    }
    figures
}

pub(crate) fn run(plan: &Plan) -> Part {
    let mut part = Part::default();
    let (few, many) = (plan.rounds(7, 2), plan.rounds(5, 1));
    part.setting.push(format!(
        "{FEW} workers (sh -c echo) on one node, --standalone, rounds in turn: {few}; {MANY} of them, rounds in turn: {many}"
    ));
    let [our_few, their_few] = start_and_stop(plan, FEW, few);
    let [our_many, their_many] = start_and_stop(plan, MANY, many);
    let (name, name_of_many) =
        ("peak memory of the launcher", format!("peak memory of the launcher, {MANY} workers"));
    if plan.torch {
        let mut beside = |name: &str, unit, ours: &Samples, theirs: Samples, promise| {
            let sides = (ours.clone(), "torchrun", theirs);
            part.comparisons.push(Comparison::new(name, unit, sides, promise));
        };
        let promise = |most| Some(Promise::AtMost(most));
        let name_of_start = |workers| format!("command to the first lines of {workers} workers");
        beside(&name_of_start(FEW), "ms", &our_few.start, their_few.start, promise(0.1));
        beside(&name_of_start(MANY), "ms", &our_many.start, their_many.start, promise(0.5));
        let stopped = format!("SIGTERM to the end of {MANY} workers and the launcher");
        beside(&stopped, "ms", &our_many.stop, their_many.stop, promise(0.5));
        beside(name, "MB", &our_few.memory, their_few.memory, None);
        beside(&name_of_many, "MB", &our_many.memory, their_many.memory, promise(0.5));
    }
    part.comparisons.push(Comparison::fixed(name, "MB", our_few.memory, "the promise", 50.0));
    flood::run(plan, &mut part);
    part
}
