//! Nothing outlives a launcher, however it ends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::launcher::{self, Launcher, is_stopped, runs, signal, wait_until};

/// A worker with a child, one that left its process group, and one that nobody waits for.
const FAMILY: &str = r#"
sleep 600 &
setsid sleep 600 &
(setsid sh -c 'sleep 600; true' &)
echo ready $RANK
wait
"#;

fn family(args: &[&str]) -> Launcher {
    let mut launcher =
        Launcher::start(&[args, &["--nproc-per-node", "2", "--", "sh", "-c", FAMILY]].concat());
    launcher.wait_for("ready 0");
    launcher.wait_for("ready 1");
    launcher
}

#[test]
fn killing_the_command_ends_all_it_started() {
    let launcher = family(&[]);
    launcher.signal("KILL");
    launcher.nothing_is_left();
}

#[test]
fn killing_the_process_that_works_ends_all_it_started() {
    let launcher = family(&[]);
    signal(launcher.working(), "KILL");
    let ended = launcher.ended();
    assert_eq!(ended.code, Some(128 + 9), "{}", ended.text());
    assert!(ended.text().contains("signal 9"), "{}", ended.text());
}

/// Whatever grace its workers have, and though it cannot hear that it is to end.
#[test]
fn killing_the_command_ends_all_it_started_also_where_the_launcher_is_stopped() {
    let launcher = family(&["--shutdown-timeout", "3600"]);
    let [_, guard, working] = launcher.chain();
    signal(working, "STOP");
    wait_until("it is stopped", || is_stopped(working).then_some(()));
    launcher.signal("KILL");
    launcher.nothing_is_left();
    // One that is about to end has nothing left by which it is known.
    wait_until("the guard has ended", || (!runs(guard)).then_some(()));
}

/// A stopped process would have no part in its own end.
#[test]
fn a_launcher_that_is_stopped_ends_in_good_order() {
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut launcher = Launcher::start(&["--shutdown-timeout", "3600", "--", "sh", "-c", script]);
    launcher.wait_for("ready");
    let working = launcher.working();
    signal(working, "STOP");
    wait_until("it is stopped", || is_stopped(working).then_some(()));
    launcher.signal("TERM");
    let ended = launcher.ended().expect(143);
    assert_eq!(ended.with("[0]: bye").len(), 1, "{}", ended.text());
}

#[test]
fn killing_the_commands_process_group_ends_all_it_started() {
    use std::os::unix::process::CommandExt;
    let mut launcher = Launcher::start_with(&["--", "sh", "-c", FAMILY], |command| {
        command.process_group(0);
    });
    launcher.wait_for("ready 0");
    assert!(
        Command::new("kill")
            .args(["-KILL", "--", &format!("-{}", launcher.pid())])
            .status()
            .unwrap()
            .success()
    );
    launcher.nothing_is_left();
}

#[test]
fn a_worker_that_fails_takes_all_others_with_it() {
    let script = format!("if [ $RANK = 0 ]; then sleep 0.2; exit 3; fi\n{FAMILY}");
    Launcher::run(&["--nproc-per-node", "3", "--", "sh", "-c", &script]).expect(1);
}

#[test]
fn what_workers_leave_behind_ends_with_them() {
    let ended =
        Launcher::run(&["--shutdown-timeout", "600", "--", "sh", "-c", "sleep 600 & echo left"]).expect(0);
    assert_eq!(ended.with("[0]: left").len(), 1);
}

#[test]
fn ctrl_c_once_ends_in_good_order() {
    let script = "trap 'echo bye $RANK; exit 0' INT; echo ready $RANK; while :; do sleep 0.05; done";
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        let script = script.replace("INT", name);
        let mut launcher = Launcher::start(&["--nproc-per-node", "2", "--", "sh", "-c", &script]);
        launcher.wait_for("ready 0");
        launcher.wait_for("ready 1");
        launcher.signal(name);
        let ended = launcher.ended().expect(code);
        assert_eq!((ended.with("bye 0").len(), ended.with("bye 1").len()), (1, 1), "{}", ended.text());
    }
}

#[test]
fn ctrl_c_twice_ends_at_once() {
    let script = "trap 'echo no' INT TERM; echo ready; while :; do sleep 0.05; done";
    let mut launcher = Launcher::start(&["--shutdown-timeout", "3600", "--", "sh", "-c", script]);
    launcher.wait_for("ready");
    launcher.signal("INT");
    launcher.wait_for("[0]: no");
    // Two in a moment are one.
    std::thread::sleep(Duration::from_millis(150));
    launcher.signal("INT");
    let ended = launcher.ended().expect(130);
    assert_eq!(ended.with("asked to end again: ending at once").len(), 1, "{}", ended.text());
}

#[test]
fn workers_that_do_not_end_are_killed_after_the_grace_period() {
    // One fails when the other heeds no signal any more.
    let script = "trap '' TERM; [ $RANK = 1 ] || : >$0; until [ -e $0 ]; do sleep 0.05; done; echo ready
        [ $RANK = 1 ] && exit 4; while :; do sleep 0.05; done";
    let folder = tempfile::tempdir().unwrap();
    let deaf = folder.path().join("deaf");
    let args = ["--shutdown-timeout", "0.5", "--nproc-per-node", "2", "--", "sh", "-c", script];
    let ended = Launcher::run(&[&args[..], &[deaf.to_str().unwrap()]].concat()).expect(1);
    assert!(ended.text().contains("killing what is left"), "{}", ended.text());
}

#[test]
fn orphans_that_end_do_not_stay_as_zombies() {
    let script =
        "for i in 1 2 3 4 5; do (setsid sh -c 'exit 0' &); done; echo ready; while :; do sleep 0.05; done";
    let mut launcher = Launcher::start(&["--", "sh", "-c", script]);
    launcher.wait_for("ready");
    let working = launcher.working();
    let zombies = || {
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let is_zombie = |stat: &String| {
            let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
            fields.next() == Some("Z") && fields.next() == Some(&working.to_string())
        };
        stats.filter(is_zombie).count()
    };
    let deadline = std::time::Instant::now() + launcher::TIMEOUT;
    while zombies() > 0 {
        assert!(std::time::Instant::now() < deadline, "{} zombies stay", zombies());
        std::thread::yield_now();
    }
    launcher.signal("TERM");
    launcher.ended().expect(143);
}

/// A launcher whose temporary folder is in this one.
fn below(parent: &Path, script: &str) -> Launcher {
    Launcher::start_with(&["--", "sh", "-c", script], |command| {
        command.env("TMPDIR", parent);
    })
}

fn entries(parent: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(parent).unwrap().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn the_folder_of_a_node_that_was_killed_whole_is_removed_by_the_next() {
    let parent = tempfile::tempdir().unwrap();
    let mut killed = below(parent.path(), "echo ready; exec sleep 600");
    killed.wait_for("ready");
    // All are stopped first, so that none can act on the end of another. The command is the last to go: when it does, the
    // kernel lets the guard's process group go on.
    let chain = killed.chain();
    for pid in chain {
        signal(pid, "STOP");
        wait_until("it is stopped", || is_stopped(pid).then_some(()));
    }
    let mut pids = killed.marked();
    pids.retain(|pid| *pid != chain[0]);
    for pid in pids.into_iter().chain([chain[0]]) {
        signal(pid, "KILL");
        let _ = killed.child.try_wait();
        wait_until("it is gone", || (!runs(pid)).then_some(()));
    }
    let left = entries(parent.path());
    assert_eq!(left.len(), 1, "it could not be removed: {left:?}");
    // The next one removes it, and keeps its own.
    let mut lives = below(parent.path(), "echo ready; exec sleep 600");
    lives.wait_for("ready");
    wait_until("the folder of the first is gone", || (!left[0].exists()).then_some(()));
    let own = entries(parent.path());
    assert_eq!(own.len(), 1, "{own:?}");
    below(parent.path(), "echo done").ended().expect(0);
    below(parent.path(), "exit 3").ended().expect(1);
    assert_eq!(entries(parent.path()), own, "those of others are gone, and its own is there");
    lives.signal("TERM");
    lives.ended().expect(143);
    assert_eq!(entries(parent.path()), Vec::<PathBuf>::new());
}
