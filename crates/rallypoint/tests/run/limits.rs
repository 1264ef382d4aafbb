//! A launcher that the system allows too little, or that has very many workers: it says which limit it is, heeds signals,
//! and leaves nothing behind.

use std::process::Command;

use crate::launcher::{Ended, Launcher, RALLYPOINT};

/// The command, where users other than the one of the tests can run it.
struct ForAll {
    folder: tempfile::TempDir,
}

impl ForAll {
    fn new() -> Self {
        let folder = folder_for_all();
        std::fs::copy(RALLYPOINT, folder.path().join("rallypoint")).unwrap();
        ForAll { folder }
    }

    /// Runs workers under this limit, as a user who has no other process; and looks at what stays.
    fn run(&self, limit: &str, args: &[&str]) -> Ended {
        let temporary = folder_for_all();
        // Root has no limit of processes. Others have their processes counted afresh where they make a namespace.
        let mut command = Command::new("setpriv");
        if is_root() {
            let user = fastrand::u32(20_000..60_000).to_string();
            command.args(["--reuid", &user, "--clear-groups", "--"]);
        } else {
            command.args(["--", "unshare", "--user", "--"]);
        }
        let program = self.folder.path().join("rallypoint");
        command.arg("prlimit").arg(limit).arg("--").arg(program).arg("run").args(args);
        command.env("TMPDIR", temporary.path());
        let ended = Launcher::spawn(command).ended();
        let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{limit}: {left:?}");
        ended
    }
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.split_whitespace().take(2).eq(["Uid:", "0"]))
}

/// One that other users can reach: the temporary folder of the tests may be theirs alone.
fn folder_for_all() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// From where the launcher can be loaded at all up to where all goes well, every limit is told in one sentence.
fn every_limit_is_told(flag: &str, first: u32, name: &str) {
    let command = ForAll::new();
    for limit in first.. {
        let args = ["--standalone", "--nproc-per-node=2", "--", "sleep", "0"];
        let ended = command.run(&format!("{flag}={limit}"), &args);
        if ended.code == Some(0) {
            assert!(limit > first + 5, "the limit was never reached");
            return;
        }
        let text = ended.text();
        assert_eq!(ended.code, Some(6), "{flag}={limit}: {text}");
        assert_eq!(ended.with("error: ").len(), 1, "{flag}={limit}: {text}");
        let told = ended.with("error: ")[0];
        assert!(told.contains(name) && told.contains("raise"), "{flag}={limit}: {text}");
        for wrong in ["panicked", "does not answer", "no server", "rdzv-endpoint"] {
            assert!(!text.contains(wrong), "{flag}={limit}: {text}");
        }
    }
}

#[test]
fn too_few_open_files_are_told() {
    every_limit_is_told("--nofile", 4, "open files");
}

#[test]
fn too_few_processes_and_threads_are_told() {
    every_limit_is_told("--nproc", 1, "ulimit -u");
}

#[test]
fn a_signal_is_heeded_while_workers_are_being_started() {
    const WORKERS: usize = 1500;
    let temporary = tempfile::tempdir().unwrap();
    let count = format!("--nproc-per-node={WORKERS}");
    let mut launcher =
        Launcher::start_with(&[&count, "--", "sh", "-c", "echo here; exec sleep 600"], |command| {
            command.env("TMPDIR", temporary.path());
        });
    launcher.wait_for("starting workers");
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    assert!(ended.with("]: here").len() < WORKERS, "all were started first");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
