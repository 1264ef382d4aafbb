//! Under a real Slurm: no flag is needed, and its ways to end a job end a run in good order.

use std::thread;
use std::time::{Duration, Instant};

use crate::launcher::{self, Launcher, RALLYPOINT};
use rallypoint_testkit::{Etcd, Slurm, Version, torch_python};

/// What srun starts, a launcher for each node.
fn srun(slurm: &Slurm, args: &[&str]) -> Launcher {
    let mut command = slurm.command("srun");
    command.arg("--label").args(args);
    Launcher::spawn(command)
}

#[test]
fn under_srun_no_flag_is_needed() {
    let Some(slurm) = Slurm::start(4, 100) else { return };
    let script = "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR in $TORCHELASTIC_RUN_ID";
    let ended = srun(&slurm, &["--nodes=4", RALLYPOINT, "run", "--", "sh", "-c", script]).ended().expect(0);
    let mut ranks = ended.with("]: rank ");
    ranks.sort_unstable();
    // Slurm's own numbers stand before the lines, and the launchers' after them.
    let expected: Vec<String> =
        (0..4).map(|rank| format!("{rank}: [{rank}]: rank {rank} of 4 at 127.0.0.1 in yard-100.0")).collect();
    assert_eq!(ranks, expected, "{}", ended.text());
    for task in 0..4 {
        let said = ended.with(&format!("rank_hint {task} (SLURM_PROCID)"));
        assert!(said.len() == 1 && said[0].starts_with(&format!("{task}: ")), "{}", ended.text());
        for part in ["from Slurm: --nnodes 4 (SLURM_STEP_NUM_NODES)", "--rdzv-endpoint 127.0.0.1:20100"] {
            assert!(said[0].contains(part), "{}", said[0]);
        }
        let rack = if task < 3 { "rack core.near" } else { "rack core.far" };
        assert!(said[0].contains(rack), "{}", said[0]);
    }
    assert_eq!(ended.with("this node starts the embedded server").len(), 1, "{}", ended.text());

    // A second step of the same job is another run, here beside the first one's.
    let two = format!(
        "srun --overlap --nodes=2 --ntasks=2 {RALLYPOINT} run -- sh -c 'echo one $TORCHELASTIC_RUN_ID' &\n\
         srun --overlap --nodes=2 --ntasks=2 {RALLYPOINT} run -- sh -c 'echo two $TORCHELASTIC_RUN_ID' &\n\
         wait"
    );
    let job = slurm.submit(&["--nodes=2", "--ntasks-per-node=2"], &two);
    slurm.wait_for_state(&job, "COMPLETED");
    let output = slurm.output(&job);
    for run in ["yard-101.0", "yard-101.1"] {
        let lines = output.lines().filter(|line| line.contains("]: ") && line.ends_with(run)).count();
        assert_eq!(lines, 2, "{run}: {output}");
    }

    // What the user says wins.
    let flags = ["--nodes=2", RALLYPOINT, "run", "--rdzv-id", "mine", "--rdzv-endpoint", "127.0.0.1:20123"];
    let worker = ["--nnodes", "1:2", "--", "sh", "-c", script];
    let ended = srun(&slurm, &[&flags[..], &worker].concat()).ended().expect(0);
    assert_eq!(ended.with(" in mine").len(), 2, "{}", ended.text());
    let said = ended.with("from Slurm");
    assert!(said.len() == 2 && said.iter().all(|line| !line.contains("--nnodes")), "{}", ended.text());

    let ended = srun(&slurm, &["--nodes=2", "--ntasks=4", RALLYPOINT, "run", "--", "true"]).ended().expect(2);
    assert_eq!(ended.with("srun starts 4 launchers on 2 nodes").len(), 4, "{}", ended.text());

    let alone = slurm.submit(&["--nodes=2"], &format!("{RALLYPOINT} run -- echo alone"));
    slurm.wait_for_state(&alone, "COMPLETED");
    assert!(slurm.output(&alone).contains("this Slurm job has 2 nodes"), "{}", slurm.output(&alone));
}

#[test]
fn a_job_that_is_requeued_does_not_meet_its_closed_self() {
    let Some(slurm) = Slurm::start(2, 200) else { return };
    // One etcd for both: the first run is over there, and stays over.
    let etcd = Etcd::start(Version::V35);
    let worker = r#"echo "rank $RANK in $TORCHELASTIC_RUN_ID"; [ "$SLURM_RESTART_COUNT" = 1 ] || sleep 300"#;
    let script = format!("srun {RALLYPOINT} run --rdzv-endpoint {} -- sh -c '{worker}'", etcd.endpoint());
    let job = slurm.submit(&["--nodes=2", "--ntasks-per-node=1"], &script);
    slurm.wait_for_output(&job, &format!("rank 1 in yard-{job}.0\n"));
    slurm.ask("scontrol", &["requeue", &job]);
    // Slurm waits two minutes before it starts a job again, unless it is told to.
    slurm.wait_for_state(&job, "PENDING");
    slurm.ask("scontrol", &["update", &format!("JobId={job}"), "StartTime=now"]);
    slurm.wait_for_state(&job, "COMPLETED");
    let output = slurm.output(&job);
    for rank in 0..2 {
        assert!(output.contains(&format!("rank {rank} in yard-{job}.0-1\n")), "{output}");
    }
}

#[test]
fn a_job_whose_time_is_up_ends_in_good_order() {
    let Some(slurm) = Slurm::start(2, 300) else { return };
    // Slurm ends srun at the same time, and what workers say last may not be shown. It signals every process there is,
    // so the shell writes the file itself, and does not end with what it waits for.
    let worker = r#"trap ": >saved-$RANK; exit 0" TERM; echo rank $RANK works; while :; do sleep 1; done"#;
    let script = format!("srun {RALLYPOINT} run -- sh -c '{worker}'");
    let job = slurm.submit(&["--nodes=2", "--ntasks-per-node=1", "--time=10"], &script);
    slurm.wait_for_output(&job, "rank 0 works");
    slurm.wait_for_output(&job, "rank 1 works");
    slurm.ask("scontrol", &["update", &format!("JobId={job}"), "EndTime=now"]);
    slurm.wait_for_state(&job, "TIMEOUT");
    for rank in 0..2 {
        assert!(slurm.folder().join(format!("saved-{rank}")).exists(), "rank {rank}: {}", slurm.output(&job));
    }
    let output = slurm.output(&job);
    assert!(!output.contains("SIGKILL") && output.contains("ending in good order"), "{output}");
}

/// Asks, and has no handler: Slurm signals every process there is.
const SAVES: &str = "
import time
import rallypoint

rallypoint.preemption()
print('it works', flush=True)
while (told := rallypoint.preemption()) is None:
    time.sleep(0.05)
rallypoint.preemption_saved()
time.sleep(600)
";

#[test]
fn a_job_that_is_warned_saves_and_its_script_can_tell() {
    let Some(slurm) = Slurm::start(2, 700) else { return };
    let worker = slurm.folder().join("saves.py");
    std::fs::write(&worker, SAVES).unwrap();
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    let script = format!(
        "export PYTHONPATH={package} PYTHON_EXEC={}\nsrun {RALLYPOINT} run {}\necho srun ended with $?",
        torch_python().display(),
        worker.display()
    );
    let job = slurm.submit(&["--nodes=2", "--ntasks-per-node=1"], &script);
    for rank in 0..2 {
        slurm.wait_for_output(&job, &format!("[{rank}]: it works"));
    }
    // As `--signal=USR1@120` does, two minutes before the end.
    slurm.ask("scancel", &["--signal=USR1", &job]);
    slurm.wait_for_end(&job);
    let output = slurm.output(&job);
    assert!(output.contains("srun ended with 138"), "{output}");
    assert_eq!(output.matches("have saved; this node leaves").count(), 2, "{output}");
}

#[test]
fn a_spare_takes_the_rank_of_a_node_that_dies() {
    let Some(mut slurm) = Slurm::start(4, 400) else { return };
    let worker = r#"echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME"; sleep 300"#;
    // The server is on the first node, and three of the four work. Who comes last is the spare.
    let script =
        format!("srun --no-kill --kill-on-bad-exit=0 {RALLYPOINT} run --nnodes 3 -- sh -c '{worker}'");
    let job = slurm.submit(&["--nodes=4", "--ntasks-per-node=1", "--no-kill"], &script);
    for rank in 0..3 {
        slurm.wait_for_output(&job, &format!("rank {rank} of 3 on "));
    }
    let node_of = |output: &str, rank: usize| {
        let found = output.lines().rev().find_map(|line| {
            line.split_once(&format!("rank {rank} of 3 on 127.0.0."))?
                .1
                .split(',')
                .next()?
                .parse::<usize>()
                .ok()
        });
        found.unwrap()
    };
    let before = slurm.output(&job);
    let dead = (0..3).find(|rank| node_of(&before, *rank) != 1).unwrap();
    let number = node_of(&before, dead);
    slurm.kill_node(number);
    let starts = |rank: usize| {
        slurm.output(&job).lines().filter(|line| line.contains(&format!("rank {rank} of 3 on "))).count()
    };
    let deadline = Instant::now() + launcher::TIMEOUT;
    while !(0..3).all(|rank| starts(rank) == 2) {
        assert!(Instant::now() < deadline, "no spare came: {}", slurm.output(&job));
        thread::sleep(Duration::from_millis(100));
    }
    let after = slurm.output(&job);
    for rank in (0..3).filter(|rank| *rank != dead) {
        assert_eq!(node_of(&after, rank), node_of(&before, rank), "the others keep their ranks: {after}");
    }
    assert_ne!(node_of(&after, dead), number, "{after}");
    slurm.ask("scancel", &[&job]);
    slurm.wait_for_state(&job, "CANCELLED");
}

#[test]
fn scripts_that_start_launchers_in_other_ways_work_as_before() {
    let Some(slurm) = Slurm::start(2, 600) else { return };
    let run = |script: &str| {
        let job = slurm.submit(&["--nodes=2", "--ntasks-per-node=1"], script);
        slurm.wait_for_end(&job);
        (slurm.state(&job), slurm.output(&job))
    };
    // A step for each node, in a loop, as scripts for torchrun have it.
    let node = "--nnodes 2 --node-rank $((i - 1)) --master-addr 127.0.0.1 --master-port 20699";
    let (state, output) = run(&format!(
        "for i in 1 2; do srun --nodes=1 --ntasks=1 --nodelist=127.0.0.$i {RALLYPOINT} run {node} -- sh -c 'echo rank $RANK of $WORLD_SIZE' & done; wait"
    ));
    assert_eq!(state, "COMPLETED", "{output}");
    assert!(output.contains("rank 0 of 2") && output.contains("rank 1 of 2"), "{output}");

    // One run after the other in one step has the name and the place of the first.
    let twice =
        r#"for turn in a b c d e; do "$0" run -- sh -c "sleep 0.\$RANK; echo $turn \$RANK" || exit; done"#;
    let (state, output) = run(&format!("srun sh -c '{twice}' {RALLYPOINT}"));
    assert_eq!(state, "COMPLETED", "{output}");
    let all = ["a", "b", "c", "d", "e"].map(|turn| [format!("{turn} 0\n"), format!("{turn} 1\n")]).concat();
    assert!(all.iter().all(|said| output.contains(said)), "{output}");

    // One that a worker starts is alone; a job that a worker hands in has the worker's environment, and is not.
    let (state, output) =
        run(&format!("srun {RALLYPOINT} run -- {RALLYPOINT} run -- sh -c 'echo inner $RANK of $WORLD_SIZE'"));
    assert_eq!(state, "COMPLETED", "{output}");
    assert_eq!(output.matches("inner 0 of 1").count(), 2, "{output}");
    let (state, output) = run(&format!(
        "export RALLYPOINT_LAUNCHED_IN=600.0 TORCHELASTIC_RUN_ID=before; srun {RALLYPOINT} run -- sh -c 'echo rank $RANK of $WORLD_SIZE'"
    ));
    assert_eq!(state, "COMPLETED", "{output}");
    assert!(output.contains("rank 0 of 2") && output.contains("rank 1 of 2"), "{output}");

    // Somebody else has the port.
    let _held = std::net::TcpListener::bind("127.0.0.1:20604").unwrap();
    let (state, output) = run(&format!("srun --kill-on-bad-exit=1 {RALLYPOINT} run -- true"));
    assert_eq!(state, "FAILED", "{output}");
    assert!(
        output.contains("the port of 127.0.0.1:20604, which was taken from the number of the job, is in use")
    );
}

/// Of `docs/slurm.md`, as they stand, but for what this machine has not: GPUs, and an etcd of those names.
#[test]
fn the_scripts_of_the_page_run() {
    let Some(slurm) = Slurm::start(4, 500) else { return };
    let etcd = Etcd::start(Version::V35);
    std::fs::write(
        slurm.folder().join("train.py"),
        "import os; print('rank', os.environ['RANK'], 'is done')",
    )
    .unwrap();
    let page = include_str!("../../../../docs/slurm.md");
    let scripts: Vec<&str> = page
        .split("```sh\n#!/bin/bash\n")
        .skip(1)
        .filter_map(|part| part.split_once("```").map(|(script, _)| script))
        .filter(|script| script.contains("rallypoint run"))
        .collect();
    assert_eq!(scripts.len(), 3, "one job, with an etcd, with spares");
    for (script, nodes) in scripts.into_iter().zip([4, 4, 3]) {
        assert!(script.contains(" --gpus-per-node=8") && script.contains("rallypoint run"));
        let script = script.replace(" --gpus-per-node=8", "");
        let script = script.replace("etcd1:2379,etcd2:2379,etcd3:2379", &etcd.endpoint());
        let script = script.replace("rallypoint run", &format!("{RALLYPOINT} run"));
        let job = slurm.submit(&[], &script);
        slurm.wait_for_state(&job, "COMPLETED");
        let output = slurm.output(&job);
        for rank in 0..nodes {
            assert!(output.contains(&format!("rank {rank} is done")), "{script}\n{output}");
        }
        assert!(!output.contains(&format!("rank {nodes} is done")), "{script}\n{output}");
    }
}
