//! Real processes: a Python in a lock, one that is stopped, a shell that waits for its child, one that is gone.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rallypoint_stacks::{Folded, Process, fold, look, look_longer};

const LOCKED: &str = "
import threading
lock = threading.Lock()
def stuck_in_a_lock():
    lock.acquire()
    print('here', flush=True)
    lock.acquire()
stuck_in_a_lock()
";

struct Kept(Child);

impl Kept {
    fn start(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        let kept = Kept(child);
        kept.wait_until("sleeps", 'S');
        kept
    }

    /// Who has said its last word sleeps a moment later, and a signal counts when it has its turn: on a busy machine,
    /// later still. Of who waits for a child, it is the child.
    fn wait_until(&self, what: &str, state: char) {
        let stat = || {
            let mut pid = self.0.id().to_string();
            let children =
                |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            while let Some(child) = children(&pid).split(' ').next().filter(|child| !child.is_empty()) {
                pid = child.to_owned();
            }
            std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap()
        };
        // The state, and the processor time that it has had.
        let now = || {
            let stat = stat();
            let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
            (fields[0].to_owned(), fields[11].to_owned(), fields[12].to_owned())
        };
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            let before = now();
            std::thread::sleep(Duration::from_millis(50));
            if before == now() && before.0.starts_with(state) {
                return;
            }
            assert!(Instant::now() < limit, "it {what}: {}", stat());
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // All of its group: a shell has started another.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

fn text(process: &Process) -> String {
    let main = process.main().unwrap_or_else(|| panic!("it has threads: {process}"));
    main.frames.iter().map(|frame| format!("{frame}\n")).collect()
}

#[test]
fn each_is_seen_or_named_within_the_time() {
    let python = Kept::start("python3", &["-c", LOCKED]);
    let stopped = Kept::start("python3", &["-c", LOCKED]);
    let shell = Kept::start("sh", &["-c", "python3 -c \"$0\"; exit 3", LOCKED]);
    let plain = Kept::start("sh", &["-c", "echo here; exec sleep 600"]);
    let status = Command::new("kill").args(["-STOP", &stopped.0.id().to_string()]).status().unwrap();
    assert!(status.success());
    stopped.wait_until("is stopped", 'T');
    let pids = [python.0.id(), stopped.0.id(), shell.0.id(), plain.0.id(), u32::MAX >> 1];
    let seen = look(&pids, Duration::from_secs(20));
    let [python_seen, stopped_seen, shell_seen, plain_seen, gone] = &seen[..] else { panic!("one for each") };
    for process in [python_seen, stopped_seen, shell_seen] {
        assert!(text(process).contains("stuck_in_a_lock (<string>:7)"), "{process}");
        assert!(process.unseen.is_empty(), "{process}");
    }
    // Below Python's calls is what it has called.
    assert!(text(python_seen).lines().next().unwrap().contains("libc"), "{python_seen}");
    assert_eq!(python_seen.main().unwrap().state, "S");
    assert_eq!(stopped_seen.main().unwrap().state, "T");
    assert_ne!(shell_seen.pid, shell.0.id(), "what it waits for was looked at");
    assert!(plain_seen.unseen[0].starts_with("Python's frames:"), "{plain_seen}");
    assert!(
        !plain_seen.main().unwrap().frames.is_empty(),
        "compiled code is seen all the same: {plain_seen}"
    );
    assert!(gone.unseen[0].contains("gone"), "{gone}");
    let folded = fold(seen.iter().take(3).enumerate().map(|(rank, process)| Folded::of(rank, process)));
    assert_eq!(folded[0].ranks, [1], "the one that is stopped is odd: {folded:?}");
    assert_eq!(folded[1].ranks, [0, 2]);
    // They were left as they were.
    for (child, state) in [(&python, "S"), (&stopped, "T")] {
        let seen = look(&[child.0.id()], Duration::from_secs(20));
        assert_eq!(seen[0].main().unwrap().state, state);
    }
}

/// As on a machine that is too busy for the time.
#[test]
fn while_none_is_seen_it_is_looked_longer() {
    let python = Kept::start("python3", &["-c", LOCKED]);
    let pids = [python.0.id()];
    let late = look(&pids, Duration::ZERO).remove(0);
    assert_eq!(late.unseen, ["it could not be looked at within 0 s"]);
    let began = Instant::now();
    let seen = look_longer(&pids, Duration::ZERO, Duration::from_secs(20)).remove(0);
    assert!(text(&seen).contains("stuck_in_a_lock (<string>:7)"), "{seen}");
    assert!(began.elapsed() < Duration::from_secs(20), "and no longer than that");
}

/// Its child sleeps, and is no Python either.
#[test]
fn one_that_waits_in_vfork_is_looked_at_itself() {
    // `clone` with CLONE_VFORK.
    let vforks = r#"$| = 1; print "here\n"; if (syscall(56, 0x4011, 0, 0, 0, 0) == 0) { sleep 600 }"#;
    let waits = Kept::start("perl", &["-e", vforks]);
    let seen = look(&[waits.0.id()], Duration::from_secs(20)).remove(0);
    assert_eq!(seen.pid, waits.0.id(), "{seen}");
    assert!(seen.main().unwrap().waits_for_child, "{seen}");
    assert!(seen.to_string().contains("waits for its child, as in vfork (D"), "{seen}");
    let line = Folded::of(3, &seen).line();
    assert!(line.starts_with("rank 3, waiting for a child as in vfork: "), "{line}");
}

/// It ends when it sees that it is traced, while it waits in the kernel and does not stop for the look.
const ENDS_WHEN_TRACED: &str = "
import ctypes, os, signal, threading
def watch():
    while b'TracerPid:\\t0\\n' in open('/proc/self/status', 'rb').read():
        pass
    os._exit(7)
threading.Thread(target=watch, daemon=True).start()
print('here', flush=True)
if ctypes.CDLL(None).syscall(56, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    signal.pause()
";

#[test]
fn how_a_process_ends_that_is_looked_at_is_left_for_its_parent() {
    let mut command = Command::new("python3");
    command.args(["-c", ENDS_WHEN_TRACED]).stdout(Stdio::piped()).process_group(0);
    let mut kept = Kept(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(kept.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // Its first thread is in `vfork` then, or soon.
    std::thread::sleep(Duration::from_millis(300));
    let _ = look(&[kept.0.id()], Duration::from_secs(5));
    assert_eq!(kept.0.wait().unwrap().code(), Some(7));
}
