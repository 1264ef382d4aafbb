//! PyTorch under `rallypoint run`: what its workers find is what torchrun gives them.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::torch_python;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).canonicalize().unwrap()
}

type Environments = BTreeMap<String, BTreeMap<String, String>>;

/// The environment of each worker, by its rank.
fn environments(mut command: Command, args: &[&str]) -> Environments {
    const SCRIPT: &str = "import json, os; print('ENV', json.dumps(dict(os.environ)))";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.py");
    std::fs::write(&script, SCRIPT).unwrap();
    command.args(args).arg(script).current_dir(folder.path());
    // torchrun would share its own store with its workers, which only its c10d backend can do.
    command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1").env("PYTHON_EXEC", torch_python());
    command.env_remove("OMP_NUM_THREADS");
    let ended = Launcher::spawn(command).ended().expect(0);
    let read = |line: &&str| {
        let environment: BTreeMap<String, String> =
            serde_json::from_str(line.split_once("ENV ").unwrap().1).unwrap();
        (environment["RANK"].clone(), environment)
    };
    ended.with("ENV ").iter().map(read).collect()
}

fn torchrun() -> Command {
    let mut command = Command::new(torch_python());
    command.args(["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]);
    command
}

fn ours() -> Command {
    let mut command = Command::new(RALLYPOINT);
    command.arg("run").arg("--standalone");
    command
}

#[test]
fn workers_find_the_environment_that_torchrun_gives_them() {
    let logs = tempfile::tempdir().unwrap();
    let dir = logs.path().to_str().unwrap();
    for args in [
        &["--nproc-per-node=2", "--rdzv-id=job", "--local-addr=127.0.0.1"][..],
        &[
            "--nproc-per-node=1",
            "--rdzv-id=job",
            "--local-addr=127.0.0.1",
            "--role=reader",
            "--max-restarts=3",
        ],
        &["--nproc-per-node=2", "--rdzv-id=job", "--local-addr=127.0.0.1", "--virtual-local-rank"],
    ] {
        let args = [&["--log-dir", dir], args].concat();
        let (theirs, ours) = (environments(torchrun(), &args), environments(ours(), &args));
        assert!(!theirs.is_empty());
        assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
        for (rank, theirs) in &theirs {
            compare(rank, theirs, &ours[rank]);
        }
    }
}

fn compare(rank: &str, theirs: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for name in names {
        let (theirs, ours) = (theirs.get(name), ours.get(name));
        match name.as_str() {
            // The test's own, to find processes by.
            "RALLYPOINT_TEST_MARK" => {}
            "MASTER_PORT" => {
                for port in [theirs, ours] {
                    assert!(
                        port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0)),
                        "{name}: {port:?}"
                    );
                }
            }
            // In a folder of a name drawn by lot, at the same place.
            "TORCHELASTIC_ERROR_FILE" => {
                let place = |file: Option<&String>| {
                    let file = file.unwrap().split('/').rev().take(3).collect::<Vec<_>>().join("/");
                    assert!(file.ends_with("attempt_0"), "{file}");
                    file
                };
                assert_eq!(place(theirs), place(ours), "rank {rank}");
            }
            _ => assert_eq!(theirs, ours, "{name} of rank {rank}: torchrun's and ours"),
        }
    }
}

#[test]
fn the_ddp_example_gives_the_same_loss_under_torchrun_and_with_any_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let loss = |mut command: Command, workers: &str, name: &str| {
        let script = example("ddp.py");
        let checkpoint = folder.path().join(name);
        command.args(["--nproc-per-node", workers]).arg(script).arg("--checkpoint").arg(checkpoint);
        command.env("PYTHON_EXEC", torch_python());
        let ended = Launcher::spawn(command).ended().expect(0);
        ended.with("done after")[0].rsplit_once("loss ").unwrap().1.parse::<f64>().unwrap()
    };
    let theirs = loss(torchrun(), "2", "theirs");
    for workers in ["1", "2", "3"] {
        let ours = loss(ours(), workers, workers);
        assert!((ours - theirs).abs() < 1e-5, "{workers} workers: {ours} instead of {theirs}");
    }
}
