//! Workers that fail once: how often the next attempt works, under `rallypoint run` and under torchrun.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rallypoint_testkit::torch_python;

use crate::measure::{Samples, in_turn};
use crate::parts::launcher::process::{ours, torchrun, torchrun_on_ours};
use crate::plan::Plan;
use crate::results::{Comparison, Outcome, Part, Promise};

/// A run that has not ended by then hangs.
const LIMIT: Duration = Duration::from_secs(100);

/// Who restarts the workers, and how it is started.
type Launcher = (&'static str, fn() -> Command);

const LAUNCHERS: [Launcher; 3] = [
    ("rallypoint run", ours),
    ("torchrun with its c10d", torchrun),
    ("torchrun with rallypoint", torchrun_on_ours),
];

pub(crate) fn run(plan: &Plan) -> Part {
    let runs = plan.rounds(20, 1);
    let mut well = [0.0; LAUNCHERS.len()];
    for round in 0..runs {
        for at in in_turn(LAUNCHERS.len(), round) {
            let (whose, launcher) = LAUNCHERS[at];
            let went_well = goes_well(launcher());
            well[at] += f64::from(u8::from(went_well));
            let how = if went_well { "well" } else { "not well" };
            plan.say(&format!("a restart under {whose} went {how}, run {} of {runs}", round + 1));
        }
    }
    let ours = Samples::one(well[0]);
    let name = format!("restarts that went well, of {runs}");
    let beside = |at: usize| {
        let theirs = Samples::one(well[at]);
        Comparison::new(&name, "", (ours.clone(), LAUNCHERS[at].0, theirs), None)
    };
    let of_all = Comparison {
        name: name.clone(),
        unit: String::new(),
        ours: ours.clone(),
        rival: "all of them".to_owned(),
        theirs: Outcome::Measured(Samples::one(f64::from(runs))),
        promise: Some(Promise::AtLeast(1.0)),
    };
    Part {
        setting: vec![format!(
            "2 workers with gloo on one node, --max-restarts 1; rank 1 fails once, when all have met; a run that has not ended \
             after {} s went not well; runs in turn: {runs}",
            LIMIT.as_secs()
        )],
        comparisons: vec![beside(1), beside(2), of_all],
        ..Part::default()
    }
}

/// Whether the command has ended as if nothing had happened.
fn goes_well(mut launcher: Command) -> bool {
    let python = torch_python();
    let mut child = launcher
        .args(["--nproc-per-node=2", "--max-restarts=1", "--no-python"])
        .args([python.as_os_str(), "bench/python/restarts.py".as_ref()])
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("the launcher starts");
    wait(&mut child).is_some_and(|status| status.success())
}

/// Waits for its end, and stops it if that does not come.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // In good order, so that it takes its workers along.
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    let _ = child.wait();
    None
}
