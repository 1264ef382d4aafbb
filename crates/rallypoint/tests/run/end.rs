//! Nothing blocks the end: no console, no stuck child; and a signal means what the site means by it.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::launcher::{
    self, Launcher, RALLYPOINT, heeding, hold_thread, is_stopped, runs, signal, wait_until,
};

const QUIET: [&str; 2] = ["--shutdown-timeout", "2"];

fn unread(script: &str) -> Launcher {
    Launcher::start_unread(&[&QUIET[..], &["--nproc-per-node", "2", "--", "sh", "-c", script]].concat())
}

/// Waits until a pipe that somebody floods takes nothing any more: there is something in it, and no more comes.
fn wait_until_full(pipe: &impl AsFd) {
    let mut looks = (0, 0);
    wait_until("the pipe is full", || {
        let waiting = rustix::io::ioctl_fionread(pipe).unwrap();
        looks = if waiting == looks.0 { (waiting, looks.1 + 1) } else { (waiting, 0) };
        (waiting > 0 && looks.1 == 40).then_some(())
    });
}

#[test]
fn a_console_that_nobody_reads_does_not_keep_it_from_ending() {
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        for script in ["exec yes", "exec yes >&2"] {
            let mut launcher = unread(script);
            if script.contains(">&2") {
                wait_until_full(launcher.child.stderr.as_ref().unwrap());
            } else {
                wait_until_full(launcher.child.stdout.as_ref().unwrap());
            }
            launcher.signal(name);
            assert_eq!(launcher.code(), Some(code), "{name} {script}");
            launcher.nothing_is_left();
        }
    }
}

#[test]
fn killed_while_nobody_reads_it_leaves_nothing() {
    for script in ["exec yes", "exec yes >&2"] {
        let launcher = unread(script);
        if script.contains(">&2") {
            wait_until_full(launcher.child.stderr.as_ref().unwrap());
        } else {
            wait_until_full(launcher.child.stdout.as_ref().unwrap());
        }
        launcher.signal("KILL");
        launcher.nothing_is_left();
    }
}

/// `2>&1 | tee log` and Ctrl-C, which ends tee too.
#[test]
fn a_console_that_is_gone_does_not_keep_it_from_ending() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!(
        "trap 'exit 0' TERM INT HUP; touch {}; while :; do echo x; sleep 0.01; done",
        ready.display()
    );
    for (name, code) in [("TERM", Some(143)), ("INT", Some(130)), ("HUP", Some(129)), ("KILL", None)] {
        let mut launcher = unread(&script);
        drop((launcher.child.stdout.take(), launcher.child.stderr.take()));
        wait_until("the workers run", || ready.exists().then_some(()));
        launcher.signal(name);
        assert_eq!(launcher.code(), code, "{name}");
        launcher.nothing_is_left();
        std::fs::remove_file(&ready).unwrap();
    }
    let mut launcher = unread("exit 3");
    drop((launcher.child.stdout.take(), launcher.child.stderr.take()));
    assert_eq!(launcher.code(), Some(1), "a failure that cannot be told is one all the same");
}

#[test]
fn a_terminal_that_is_closed_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let line = format!(
        "{RALLYPOINT} run -- sh -c 'touch {}; while :; do echo x; sleep 0.01; done'",
        ready.display()
    );
    let mut script = heeding("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let launcher = Launcher::spawn(script);
    wait_until("the worker runs", || ready.exists().then_some(()));
    launcher.signal("KILL");
    launcher.nothing_is_left();
}

#[test]
fn no_line_is_lost_to_a_reader_that_comes_late() {
    const LINES: usize = 60_000;
    let script = format!("seq -f 'line %g of a worker that says much' {LINES}");
    let mut launcher = Launcher::start_unread(&["--nproc-per-node", "2", "--", "sh", "-c", &script]);
    let mut out = launcher.child.stdout.take().unwrap();
    wait_until_full(&out);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(launcher.code(), Some(0));
    for rank in 0..2 {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}]: line ")));
        for number in 1..=LINES {
            let line = lines.next().unwrap_or_default();
            assert_eq!(line.split(' ').next(), Some(&*number.to_string()), "of rank {rank}");
        }
    }
}

#[test]
fn a_worker_that_sigkill_does_not_end_is_named_and_left() {
    let mut launcher =
        Launcher::start(&["--shutdown-timeout", "0.5", "--", "sh", "-c", "echo pid $$; exec sleep 600"]);
    let worker: u32 = launcher.wait_for("[0]: pid ").rsplit(' ').next().unwrap().parse().unwrap();
    let mut tracer = hold_thread(worker);
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    assert!(ended.text().contains("do not end even by SIGKILL"), "{}", ended.text());
    assert!(ended.text().contains(&worker.to_string()), "{}", ended.text());
    tracer.kill().unwrap();
    tracer.wait().unwrap();
}

#[test]
fn a_worker_that_sigkill_does_not_end_has_no_grace_where_the_command_was_killed() {
    let mut launcher =
        Launcher::start(&["--shutdown-timeout", "600", "--", "sh", "-c", "echo pid $$; exec sleep 600"]);
    let worker: u32 = launcher.wait_for("[0]: pid ").rsplit(' ').next().unwrap().parse().unwrap();
    let works = launcher.working();
    let mut tracer = hold_thread(worker);
    launcher.signal("KILL");
    wait_until("the launcher has left it", || (!runs(works)).then_some(()));
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    launcher.nothing_is_left();
}

/// A worker with a child, one that left its process group, and one that nobody waits for.
const FAMILY: &str = "sleep 600 & setsid sleep 600 & (setsid env -i sh -c 'sleep 600; true' &)
    echo ready; wait";

#[test]
fn any_two_of_its_processes_can_be_killed_at_once() {
    for pair in [[0, 2], [0, 1], [1, 2]] {
        let mut launcher = Launcher::start(&["--", "sh", "-c", FAMILY]);
        launcher.wait_for("ready");
        let chain = launcher.chain();
        let shown = launcher::command_line(chain[1]);
        assert!(!shown.contains("rallypoint") && !shown.contains("sleep"), "pkill -f would find it: {shown}");
        let names = chain.iter().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap());
        let names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
        assert_eq!(names, ["rallypoint", "launch-guard", "rallypoint"], "killall would find it");
        let family = descendants(chain[2]);
        assert!(family.len() >= 4, "{family:?}");
        let pids = pair.map(|at: usize| chain[at].to_string());
        Command::new("kill").arg("-KILL").args(&pids).status().unwrap();
        launcher.nothing_is_left();
        for pid in family {
            wait_until(&format!("{pid} is gone"), || (!runs(pid)).then_some(()));
        }
    }
}

/// All processes below this one.
fn descendants(of: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let mut found = Vec::new();
    let mut next = vec![of];
    while let Some(of) = next.pop() {
        let children: Vec<u32> =
            pids.iter().copied().filter(|pid| launcher::parent(*pid) == Some(of)).collect();
        found.extend(&children);
        next.extend(&children);
    }
    found
}

#[test]
fn what_left_its_group_is_ended_before_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!(
        "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
             setsid sh -c 'echo $$ > {file}.new; mv {file}.new {file}; exec sleep 600' &
             while [ ! -e {file} ]; do sleep 0.01; done
             exit 1
         fi
         if kill -0 $(cat {file}) 2>/dev/null; then echo it lives on; else echo it is gone; fi",
        file = file.display()
    );
    let ended = Launcher::run(&["--max-restarts", "1", "--", "sh", "-c", &script]).expect(0);
    assert_eq!(ended.with("[0]: it is gone").len(), 1, "{}", ended.text());
}

#[test]
fn children_that_a_shell_had_before_are_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let line = format!("sleep 600 & echo $! > {}; exec {RALLYPOINT} run -- true", file.display());
    let status = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).status().unwrap();
    let child: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let lives = runs(child);
    signal(child, "KILL");
    assert_eq!(status.code(), Some(0));
    assert!(lives);
}

/// Says which signals come, and goes on.
const LISTENER: &str = "trap 'echo got USR1' USR1; trap 'echo got HUP' HUP; trap 'echo got USR2; exit 0' USR2
    echo ready; while :; do sleep 0.02; done";

#[test]
fn nohup_protects() {
    let mut command = heeding("nohup");
    command.args([RALLYPOINT, "run", "--", "sh", "-c", LISTENER]);
    let mut launcher = Launcher::spawn(command);
    launcher.wait_for("ready");
    launcher.chain().into_iter().for_each(|pid| signal(pid, "HUP"));
    launcher.signal("USR1");
    launcher.wait_for("[0]: got USR1");
    launcher.signal("USR2");
    let ended = launcher.ended().expect(0);
    assert!(ended.with("HUP").is_empty(), "{}", ended.text());
}

#[test]
fn a_signal_that_is_not_to_be_handled_does_nothing_to_the_workers() {
    let mut launcher = Launcher::start(&["--signals-to-handle", "SIGTERM", "--", "sh", "-c", LISTENER]);
    launcher.wait_for("ready");
    launcher.signal("HUP");
    launcher.wait_for("SIGHUP is not one of --signals-to-handle");
    launcher.signal("USR2");
    let ended = launcher.ended().expect(0);
    assert!(ended.with("got HUP").is_empty(), "{}", ended.text());
}

#[test]
fn sigusr1_and_sigusr2_are_passed_on_and_end_nothing() {
    // Rank 1 has no handler, and would be ended by it.
    let script = format!("[ $RANK = 0 ] || {{ echo ready; exec sleep 600; }}; {LISTENER}");
    let args = ["--nproc-per-node", "2", "--", "sh", "-c", &script];
    let mut launcher = Launcher::start(&args);
    launcher.wait_for("[0]: ready");
    launcher.wait_for("[1]: ready");
    launcher.signal("USR1");
    launcher.wait_for("[0]: got USR1");
    launcher.wait_for("ranks=[1]");
    launcher.signal("TERM");
    launcher.ended().expect(143);
    let mut launcher = Launcher::start(&[&["--signals-to-handle", "SIGUSR1"], &args[..]].concat());
    launcher.wait_for("[0]: ready");
    launcher.wait_for("[1]: ready");
    launcher.signal("USR1");
    launcher.ended().expect(138);
}

/// As systemd does, and some schedulers do.
#[test]
fn a_signal_to_every_process_at_once_is_one() {
    let script = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut launcher = Launcher::start(&["--", "sh", "-c", script]);
    launcher.wait_for("ready");
    launcher.chain().into_iter().for_each(|pid| signal(pid, "TERM"));
    let ended = launcher.ended().expect(143);
    assert_eq!(ended.with("[0]: saved").len(), 1, "{}", ended.text());
}

/// `timeout` signals the command, and then the group that the command is in.
#[test]
fn two_signals_in_a_moment_are_one_request() {
    let script = "trap 'sleep 1; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut launcher = Launcher::start(&["--", "sh", "-c", script]);
    launcher.wait_for("ready");
    launcher.signal("TERM");
    // Together they would be one to the system.
    std::thread::sleep(Duration::from_millis(50));
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    assert_eq!(ended.with("[0]: saved").len(), 1, "{}", ended.text());
}

/// Another signal is no repetition of the first, however soon it comes.
#[test]
fn a_sigterm_right_after_a_hangup_ends_at_once_as_was_said() {
    let script = "trap '' HUP TERM; echo ready; while :; do sleep 1; done";
    let mut launcher = Launcher::start(&["--shutdown-timeout", "600", "--", "sh", "-c", script]);
    launcher.wait_for("[0]: ready");
    launcher.signal("HUP");
    launcher.wait_for("SIGHUP: ending in good order; SIGTERM to end at once");
    std::thread::sleep(Duration::from_millis(200));
    launcher.signal("TERM");
    launcher.wait_for("asked to end again");
    launcher.ended().expect(129);
}

/// The shell passes on what the terminal has sent already.
#[test]
fn a_terminal_that_hangs_up_twice_leaves_workers_their_time() {
    let script = "trap 'sleep 0.5; echo saved; exit 0' HUP; echo ready; while :; do sleep 0.02; done";
    let mut launcher = Launcher::start(&["--", "sh", "-c", script]);
    launcher.wait_for("ready");
    launcher.signal("HUP");
    launcher.wait_for("SIGHUP: ending in good order; SIGTERM to end at once");
    launcher.signal("HUP");
    let ended = launcher.ended().expect(129);
    assert_eq!(ended.with("[0]: saved").len(), 1, "{}", ended.text());
}

#[test]
fn a_launcher_that_does_not_end_is_killed() {
    let mut launcher = Launcher::start(&["--shutdown-timeout", "0", "--", "sh", "-c", FAMILY]);
    launcher.wait_for("ready");
    // As in a debugger: no signal gets through to it, and nothing lets it go on.
    let mut debugger = hold_thread(launcher.working());
    launcher.signal("TERM");
    let ended = launcher.ended().expect(137);
    let _ = debugger.kill();
    let _ = debugger.wait();
    assert!(ended.text().contains("the launcher was ended by signal 9"), "{}", ended.text());
}

#[test]
fn the_workers_stop_and_go_on_with_the_command() {
    let mut launcher = Launcher::start(&["--", "sh", "-c", "echo pid $$; exec sleep 600"]);
    let worker: u32 = launcher.wait_for("[0]: pid ").rsplit(' ').next().unwrap().parse().unwrap();
    launcher.signal("STOP");
    wait_until("the worker is stopped", || is_stopped(worker).then_some(()));
    launcher.signal("CONT");
    wait_until("the worker goes on", || (!is_stopped(worker)).then_some(()));
    launcher.signal("STOP");
    wait_until("the worker is stopped", || is_stopped(worker).then_some(()));
    // As shells do with a job that is stopped.
    launcher.signal("TERM");
    launcher.signal("CONT");
    launcher.ended().expect(143);
}

#[test]
fn a_worker_is_told_to_end_before_its_children_are() {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let script = format!(
        "sh -c \"trap 'touch {told}; echo the child was told; exit 0' TERM; echo child; while :; do sleep 0.02; done\" &
         trap 'sleep 0.3; [ -e {told} ] || echo saved first; exit 0' TERM
         echo worker; while :; do sleep 0.02; done",
        told = told.display()
    );
    let mut launcher = Launcher::start(&["--", "sh", "-c", &script]);
    launcher.wait_for("[0]: child");
    launcher.wait_for("[0]: worker");
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    assert_eq!(ended.with("[0]: saved first").len(), 1, "{}", ended.text());
    assert_eq!(ended.with("[0]: the child was told").len(), 1, "{}", ended.text());
}

#[test]
fn many_workers_are_not_too_many_for_a_low_limit_of_open_files() {
    let run = |limit: &str, program: &str| {
        let mut command = Command::new("sh");
        let line = format!("ulimit {limit}; exec {RALLYPOINT} run --nproc-per-node 150 -- {program}");
        command.args(["-c", &line]);
        Launcher::spawn(command).ended()
    };
    run("-S -n 256", "sleep 2").expect(0);
    let refused = run("-n 256", "sleep 600").expect(6);
    assert!(refused.text().contains("the hard limit is 256"), "{}", refused.text());
}

#[test]
fn a_temporary_folder_that_is_not_there_is_named_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for (variable, wrong) in [("TMPDIR", "/proc/no/such"), ("TMP", missing.to_str().unwrap())] {
        let launcher = Launcher::start_with(&["--tee=1", "--", "echo", "well met"], |command| {
            command.env_remove("TMPDIR").env(variable, wrong).current_dir(folder.path());
        });
        let ended = launcher.ended().expect(0);
        assert_eq!(ended.with("[0]: well met").len(), 1);
        let said = ended.with(&format!("{variable} is {wrong}, which is no folder that can be written"));
        assert_eq!(said.len(), 1, "{}", ended.text());
        let kept = ended.with("log files are kept in ")[0].split("kept in ").nth(1).unwrap();
        let kept = std::path::Path::new(kept).parent().unwrap();
        assert!(kept.file_name().unwrap().to_str().unwrap().starts_with("rallypoint_logs_"));
        std::fs::remove_dir_all(kept).unwrap();
    }
    assert!(!missing.exists(), "it is not made");
}
