//! A disk that hangs or is full, and a console that takes nothing, keep nobody from ending, and are told of.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launcher::{self, Launcher, RALLYPOINT, hold_thread, threads, wait_until};

/// More than a pipe holds, and less than what waits for a file.
const LINES: usize = 20_000;

/// A folder for logs, and what a worker needs to make way for its next attempt: it waits for the file `go` there.
struct Logs(tempfile::TempDir);

impl Logs {
    fn new() -> Self {
        Logs(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fails once when it may, and then does what it is told.
    fn worker(&self, then: &str) -> String {
        let go = self.path().join("go");
        format!(
            "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
                 echo ready; while [ ! -e {} ]; do sleep 0.01; done; exit 1
             fi
             {then}",
            go.display()
        )
    }

    /// The file of the next attempt of rank 0 is a pipe; nothing reads it.
    fn make_pipe(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.path()).unwrap().flatten().map(|entry| entry.path());
        let run = entries.into_iter().find(|path| path.is_dir()).unwrap();
        let pipe = run.join("attempt_1/0/stdout.log");
        std::fs::create_dir_all(pipe.parent().unwrap()).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        pipe
    }

    fn go(&self) {
        File::create(self.path().join("go")).unwrap();
    }
}

fn start(logs: &Logs, script: &str, more: &[&str]) -> Launcher {
    let folder = logs.path().to_str().unwrap();
    let args = ["--nproc-per-node", "2", "--max-restarts", "1", "--tee", "1", "--log-dir", folder];
    let mut launcher = Launcher::start(&[&args[..], more, &["--", "sh", "-c", script]].concat());
    launcher.wait_for("[0]: ready");
    launcher.wait_for("[1]: ready");
    launcher
}

#[test]
fn a_log_file_that_takes_nothing_is_named_and_costs_no_other_line() {
    let logs = Logs::new();
    let script = logs.worker(&format!("seq {LINES}; echo last"));
    let launcher = start(&logs, &script, &["--shutdown-timeout", "1"]);
    let pipe = logs.make_pipe();
    // Open, so that the launcher can open it too.
    let _held = File::options().read(true).write(true).open(&pipe).unwrap();
    logs.go();
    let ended = launcher.ended().expect(0);
    // It is said what is waited for.
    assert_eq!(ended.with("waiting for what they said last to be written").len(), 1);
    assert!(ended.with("waiting for etcd").is_empty());
    let named = ended.with("takes nothing");
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains(pipe.to_str().unwrap()) && !named[0].contains("console"), "{named:?}");
    for rank in 0..2 {
        let said = ended.with(&format!("[{rank}]: "));
        assert_eq!(said.len(), LINES + 2, "of rank {rank}: all lines are shown");
        assert_eq!(said.last(), Some(&&*format!("[{rank}]: last")));
    }
    let other = pipe.parent().unwrap().parent().unwrap().join("1/stdout.log");
    assert_eq!(std::fs::read_to_string(other).unwrap().lines().count(), LINES + 1);
}

#[test]
fn a_worker_that_waits_for_its_log_file_can_be_stopped() {
    let logs = Logs::new();
    let script = logs.worker("[ $RANK = 0 ] && exec yes; echo here; exec sleep 600");
    let mut launcher = start(&logs, &script, &["--shutdown-timeout", "2"]);
    let pipe = logs.make_pipe();
    let held = File::options().read(true).write(true).open(&pipe).unwrap();
    logs.go();
    launcher.wait_for("[1]: here");
    wait_until("the pipe is full", || (rustix::io::ioctl_fionread(&held).unwrap() >= 64 << 10).then_some(()));
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    let named = ended.with("takes nothing");
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains(pipe.to_str().unwrap()), "{named:?}");
}

#[test]
fn a_disk_that_does_not_open_a_file_does_not_keep_it_from_ending() {
    let logs = Logs::new();
    let script = logs.worker("echo again");
    let mut launcher = start(&logs, &script, &["--shutdown-timeout", "2"]);
    // Nobody has it open: whoever opens it waits.
    let _pipe = logs.make_pipe();
    logs.go();
    launcher.wait_for("starting again");
    let working = launcher.working();
    wait_until("it opens the pipe", || {
        threads(working)
            .into_iter()
            .any(|(id, _)| {
                let at = std::fs::read_to_string(format!("/proc/{working}/task/{id}/wchan"));
                at.is_ok_and(|at| at.contains("fifo") || at.contains("wait_for_partner"))
            })
            .then_some(())
    });
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    assert!(ended.with("again").iter().all(|line| !line.contains("]: ")), "{}", ended.text());
}

/// A thread that waits for a disk in the kernel does not end by any signal. Nor does one that is traced, and whose end the
/// tracer does not take note of.
#[test]
fn a_thread_that_does_not_end_does_not_keep_the_command_from_ending() {
    for (script, code) in [("echo last", 0), ("exit 3", 1)] {
        let logs = Logs::new();
        let script = format!(
            "echo ready; while [ ! -e {} ]; do sleep 0.01; done; {script}",
            logs.path().join("go").display()
        );
        let launcher = start(&logs, &script, &[]);
        let working = launcher.working();
        // A thread has its name only when it runs.
        let find = || threads(working).into_iter().find(|(_, name)| name == "log file");
        let (thread, _) = wait_until("its log file has a thread", find);
        let mut tracer = hold_thread(thread);
        logs.go();
        let ended = launcher.ended().expect(code);
        let named = ended.with("do not end even by SIGKILL");
        assert!(named.len() == 1 && named[0].contains(&working.to_string()), "{}", ended.text());
        tracer.kill().unwrap();
        tracer.wait().unwrap();
    }
}

/// A launcher that a shell starts with these words before and after it.
fn through_shell(before: &str, args: &str, after: &str) -> launcher::Ended {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before} exec {RALLYPOINT} run {args} {after}")]);
    Launcher::spawn(shell).ended()
}

#[test]
fn a_log_file_at_the_limit_of_its_size_is_like_a_full_disk() {
    let logs = Logs::new();
    let folder = logs.path().display();
    let args = format!("--tee 3 --log-dir {folder} -- sh -c 'seq {LINES}; echo last; echo well >&2'");
    let ended = through_shell("ulimit -f 16;", &args, "").expect(0);
    assert_eq!(ended.with("[0]: ").len(), LINES + 2, "all lines are shown");
    let named = ended.with("cannot be written any more");
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains("/attempt_0/0/stdout.log") && named[0].contains("too large"), "{named:?}");
}

#[test]
fn a_worker_at_the_limit_of_a_files_size_fares_as_without_a_launcher() {
    for (ignores, status) in [("", 153), ("trap '' XFSZ;", 1)] {
        let logs = Logs::new();
        let write = format!("seq {LINES} > {}; echo ended with $?", logs.path().join("big").display());
        let alone =
            Command::new("sh").args(["-c", &format!("{ignores} ulimit -f 16; {write}")]).output().unwrap();
        let alone = String::from_utf8(alone.stdout).unwrap();
        assert_eq!(alone.trim(), format!("ended with {status}"));
        let ended =
            through_shell(&format!("{ignores} ulimit -f 16;"), &format!("-- sh -c '{write}'"), "").expect(0);
        assert_eq!(ended.with(&format!("[0]: {}", alone.trim())).len(), 1, "{}", ended.text());
    }
}

#[test]
fn standard_output_that_cannot_be_written_is_told_once_and_counted() {
    let logs = Logs::new();
    let limited = logs.path().join("out").display().to_string();
    for (before, to, why) in [("", "/dev/full", "No space left"), ("ulimit -f 16;", &limited, "too large")] {
        for (script, code) in [("exit 0", 0), ("exit 3", 1)] {
            let args = format!("--nproc-per-node 2 -- sh -c 'seq {LINES}; {script}'");
            let ended = through_shell(before, &args, &format!("> {to}")).expect(code);
            let told = ended.with("standard output cannot be written");
            assert!(told.len() == 1 && told[0].contains(why), "{}", ended.text());
            let counted = ended.with("could not be written to standard output, and are lost");
            assert_eq!(counted.len(), 1, "{}", ended.text());
            if code == 0 {
                // There is no end to what can be read of the one that is full.
                let kept =
                    if before.is_empty() { 0 } else { std::fs::read_to_string(to).unwrap().lines().count() };
                let lost = counted[0].split("lines=").nth(1).and_then(|rest| rest.split(' ').next());
                let lost: usize = lost.unwrap().parse().unwrap();
                // One line may be there in part.
                assert!((2 * LINES..=2 * LINES + 1).contains(&(kept + lost)), "{kept} and {lost}");
            }
        }
    }
}
