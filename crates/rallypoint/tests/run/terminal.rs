//! `rallypoint run` on a terminal.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use crate::launcher::{Launcher, RALLYPOINT, TIMEOUT, heeding};
use rallypoint_testkit::closed_port;

/// A command line on a terminal of its own, which `script` makes.
fn on_a_terminal(line: &str) -> Command {
    let mut command = heeding("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]).env_remove("NO_COLOR");
    // Shells differ in what Ctrl-C does to them: always the same one.
    command.env("SHELL", "/bin/sh");
    command
}

#[test]
fn ranks_have_colours_there_and_nowhere_else() {
    let line = format!("{RALLYPOINT} run --nproc-per-node 2 -- echo hello");
    let ended = Launcher::spawn(on_a_terminal(&line)).ended().expect(0);
    assert_eq!(ended.with("\u{1b}[36m[0]: \u{1b}[0mhello").len(), 1, "{}", ended.text());
    assert_eq!(ended.with("\u{1b}[33m[1]: \u{1b}[0mhello").len(), 1, "{}", ended.text());
    let mut plain = on_a_terminal(&line);
    plain.env("NO_COLOR", "1");
    assert_eq!(Launcher::spawn(plain).ended().expect(0).with("[0]: hello").len(), 1);
}

/// The launcher is never in the foreground, whose processes alone may write to such a terminal.
#[test]
fn a_terminal_that_stops_writers_in_the_background_does_not_stop_it() {
    let line = format!("stty tostop; {RALLYPOINT} run -- sh -c 'echo hello; echo again >&2'");
    let ended = Launcher::spawn(on_a_terminal(&line)).ended().expect(0);
    assert_eq!((ended.with("hello").len(), ended.with("again").len()), (1, 1), "{}", ended.text());
}

#[test]
fn while_it_waits_one_line_tells_who_is_missing_and_ctrl_c_ends_it() {
    let port = closed_port();
    let line = format!("{RALLYPOINT} run --nnodes 3 --rdzv-id job --rdzv-endpoint 127.0.0.1:{port} true");
    let mut terminal = Typist::start(&line, |_| {});
    terminal.see(&format!("if an etcd should be there, check the port, or write etcd://127.0.0.1:{port}"));
    terminal.see("127.0.0.1 is each machine's own: nodes on other machines cannot reach that");
    terminal.see("waiting for 2 nodes: 1 of 3 is here (");
    // What the key does: the terminal sends the signal to whoever is in the foreground.
    terminal.press(&[3]);
    let (code, seen) = terminal.ended();
    assert_eq!(code, Some(130), "{seen}");
    assert!(seen.contains("ending in good order"), "{seen}");
    assert!(seen.contains(&format!(" s left), run job at 127.0.0.1:{port}")), "{seen}");
}

#[test]
fn on_a_narrow_terminal_the_line_keeps_the_endpoint() {
    let endpoint = format!("127.0.0.1:{}", closed_port());
    let run = format!(
        "{RALLYPOINT} run --nnodes 3 --rdzv-id a-run-with-a-long-name --rdzv-endpoint {endpoint} true"
    );
    let mut terminal = Typist::start(&format!("stty cols 80 rows 24; {run}"), |_| {});
    terminal.see(&format!(" s left), at {endpoint}"));
    terminal.press(&[3]);
    let (_, seen) = terminal.ended();
    assert!(!seen.contains("a-run-with-a-long-name"), "{seen}");
}

#[test]
fn the_last_call_counts_down_and_nobody_seems_to_go_when_it_is_over() {
    let port = closed_port();
    let endpoint = format!("127.0.0.1:{port}");
    let args = ["--nnodes", "2:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let args = [&args[..], &["--rdzv-conf", "last_call_timeout=4", "true"]].concat();
    let line = format!("{RALLYPOINT} run {}", args.join(" "));
    let mut shown = Launcher::spawn(on_a_terminal(&line));
    shown.wait_for("starts the embedded server");
    let other = Launcher::start(&args);
    let text = shown.ended().expect(0).text();
    other.ended().expect(0);
    let seen: Vec<&str> = text.split('\r').collect();
    let left = |line: &&str| line.split("starting in ").nth(1)?.split(' ').next()?.parse::<u32>().ok();
    let left: Vec<u32> = seen.iter().filter_map(left).collect();
    assert!(left.is_sorted_by(|before, after| before >= after), "{left:?}");
    assert!(left.first() > left.last(), "{left:?}");
    let called = seen.iter().position(|line| line.contains("up to 3 may come")).unwrap();
    assert!(!seen[called..].iter().any(|line| line.contains("waiting for 1 node")), "{text}");
}

#[test]
fn a_progress_bar_is_overwritten_there_and_lines_elsewhere() {
    // As tqdm writes: the carriage return comes first.
    let bar = r"printf '\r 10%%'; printf '\r 55%%'; printf '\r100%%\n'; echo next";
    let line = format!("{RALLYPOINT} run -- sh -c \"{bar}\"");
    let ended = Launcher::spawn(on_a_terminal(&line)).ended().expect(0);
    let text = ended.text();
    // The last state stays; what came before was taken away again, if it was shown at all.
    let stays: Vec<&str> =
        text.split('\n').map(|line| line.rsplit("\u{1b}[K").next().unwrap().trim_end()).collect();
    let prefix = "\u{1b}[36m[0]: \u{1b}[0m";
    assert_eq!(stays.iter().filter(|line| line.starts_with(prefix)).count(), 2, "{text:?}");
    for line in ["100%", "next"] {
        assert!(stays.contains(&&*format!("{prefix}{line}")), "{text:?}");
    }
    let ended = Launcher::run(&["--", "sh", "-c", bar]).expect(0);
    assert_eq!(ended.with("[0]:"), ["[0]:  10%", "[0]:  55%", "[0]: 100%", "[0]: next"]);
}

/// A terminal with a command on it: what is typed, and all that was seen. Dropped, it is closed.
struct Typist {
    script: std::process::Child,
    keys: std::process::ChildStdin,
    out: Receiver<Vec<u8>>,
    seen: String,
}

impl Typist {
    fn start(line: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = on_a_terminal(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut script = command.spawn().unwrap();
        let (keys, mut stdout) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let (sender, out) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut buffer)
                && sender.send(buffer[..length].to_vec()).is_ok()
            {}
        });
        Typist { script, keys, out, seen: String::new() }
    }

    /// Reads on; none at the end.
    #[track_caller]
    fn read(&mut self) -> Option<()> {
        match self.out.recv_timeout(TIMEOUT) {
            Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing more is seen: {}", self.seen),
        }
        Some(())
    }

    #[track_caller]
    fn see(&mut self, part: &str) {
        while !self.seen.contains(part) {
            assert!(self.read().is_some(), "it ended without {part:?}: {}", self.seen);
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    fn ended(mut self) -> (Option<i32>, String) {
        while self.read().is_some() {}
        (self.script.wait().unwrap().code(), std::mem::take(&mut self.seen))
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        // Both fail only for one that has ended.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn one_rank_has_the_terminal_for_a_debugger() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    let text = "import os, sys\nif os.environ['RANK'] == '1':\n    print(f'the terminal is mine: {sys.stdin.isatty()}')\n    \
                x = 1\n    breakpoint()\n    print(f'x became {x}')\nelse:\n    print(f'the other: {sys.stdin.isatty()}')\n";
    std::fs::write(&script, text).unwrap();
    let line = format!("{RALLYPOINT} run --nproc-per-node 2 --interactive-rank 1 {}", script.display());
    let mut terminal = Typist::start(&line, |command| {
        command.env("PYTHON_EXEC", "python3").env("TERM", "dumb");
    });
    terminal.see("the other: False");
    terminal.see("(Pdb) ");
    // What is typed before the debugger reads can be lost, as by anybody's hand.
    terminal.press(b"p 6 * 7\n");
    terminal.see("\n42\r\n(Pdb) ");
    terminal.press(b"x = 99\n");
    terminal.see("x = 99\r\n(Pdb) ");
    terminal.press(b"c\n");
    let (code, seen) = terminal.ended();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("the terminal is mine: True") && !seen.contains("[1]:"), "{seen}");
    assert!(seen.contains("x became 99") && seen.contains("all workers have finished"), "{seen}");
}

#[test]
fn ctrl_c_is_that_ranks_and_the_launchers_when_it_does_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    // What it leaves behind is in the terminal's process group, with the command and whatever else a user runs there.
    // A signal that comes just before Python sleeps is heeded when it wakes.
    let text = "import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntry:\n    print('it runs now', flush=True)\n    \
                while True:\n        time.sleep(0.1)\nexcept KeyboardInterrupt:\n    print('caught it')\n";
    std::fs::write(&script, text).unwrap();
    // The key is the shell's too, as it is of the same process group: the shell heeds it and goes on.
    let run = format!("{RALLYPOINT} run --interactive-rank 0 {}", script.display());
    let line = format!("trap : INT; {run}; echo shell goes on: $?");
    let mut terminal = Typist::start(&line, |command| {
        command.env("PYTHON_EXEC", "python3").env("RALLYPOINT_LOG_LEVEL", "info");
    });
    terminal.see("it runs now");
    terminal.press(&[3]);
    terminal.see("caught it");
    let (_, seen) = terminal.ended();
    assert!(seen.contains("shell goes on: 0") && !seen.contains("ending in good order"), "{seen}");

    // While it waits for other nodes, nobody has the terminal.
    let port = closed_port();
    let line = format!(
        "{RALLYPOINT} run --interactive-rank 0 --nnodes 2 --rdzv-id job --rdzv-endpoint 127.0.0.1:{port} true"
    );
    let mut terminal = Typist::start(&line, |_| {});
    terminal.see("1 of 2 is here");
    terminal.press(&[3]);
    let (code, seen) = terminal.ended();
    assert_eq!(code, Some(130), "{seen}");
}

#[test]
fn what_the_interactive_rank_cannot_be_is_refused() {
    let ended = Launcher::run(&["--interactive-rank", "1", "true"]).expect(2);
    assert!(ended.text().contains("--interactive-rank names the local rank 1"), "{}", ended.text());
    let ended = Launcher::run(&["--interactive-rank", "0", "--tee", "3", "true"]).expect(2);
    assert!(ended.text().contains("--tee 1:3"), "{}", ended.text());
    // Without a terminal the streams are its own all the same.
    let ended = Launcher::run(&["--interactive-rank", "0", "--", "echo", "plain"]).expect(0);
    assert_eq!(ended.with("plain"), ["plain"], "{}", ended.text());
}

#[test]
fn the_other_workers_do_not_read_what_is_meant_for_that_one() {
    for _ in 0..5 {
        let mut command = Command::new(RALLYPOINT);
        command.args([
            "run",
            "--standalone",
            "--nproc-per-node",
            "3",
            "--interactive-rank",
            "1",
            "--",
            "sh",
            "-c",
        ]);
        command.arg("read line; echo $LOCAL_RANK has ${line:-nothing}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"it\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["1 has it", "[0]: 0 has nothing", "[2]: 2 has nothing"]);
    }
}
