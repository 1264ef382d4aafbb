//! A node that is taken away while something else goes wrong: its deadline holds, and who saves is left to.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::{Etcd, Version};

/// Listens, and saves when `WAIT` is gone, whatever SIGTERM says.
const SAVES: &str = r#"
trap 'echo "rank $RANK is told to end"' TERM
file=$RALLYPOINT_PREEMPTION_FILE
: >"$file.listening"
echo "rank $RANK of $WORLD_SIZE works"
while ! [ -e "$file" ]; do sleep 0.05; done
echo "rank $RANK is told: $(cat "$file")"
while [ -e "$WAIT" ]; do sleep 0.05; done
echo "rank $RANK saves"
: >"$file.saved"
while :; do sleep 0.05; done
"#;

fn node(etcd: &Etcd, run: &str, args: &[&str], script: &str, wait: &str) -> Launcher {
    let meet = ["--rdzv-id", run, "--rdzv-endpoint", &etcd.endpoint()];
    let conf = ["--rdzv-conf", "last_call_timeout=8,lease_timeout=5", "--shutdown-timeout", "1"];
    Launcher::start_with(&[&meet[..], &conf[..], args, &["--", "sh", "-c", script]].concat(), |command| {
        command.env("WAIT", wait);
    })
}

/// What is left of the deadline on a machine that has other things to do.
const LATE: Duration = Duration::from_secs(8);

#[test]
fn the_deadline_holds_where_workers_are_stopped_already_and_while_etcd_is_silent() {
    let mut etcd = Etcd::start(Version::V35);
    // One fails, and the other one does not end by SIGTERM: without a deadline it would have 40 s.
    let fails = r#"
        if [ $RANK = 0 ]; then while ! [ -e "$WAIT" ]; do sleep 0.05; done; exit 1; fi
        trap 'echo told to end' TERM; : >"$WAIT"; while :; do sleep 0.05; done"#;
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun").to_str().unwrap().to_owned();
    let args = ["--standalone", "--nproc-per-node", "2", "--shutdown-timeout", "40", "--preempt-grace", "3"];
    let mut stopping = Launcher::start_with(&[&args[..], &["--", "sh", "-c", fails]].concat(), |command| {
        command.env("WAIT", &begun);
    });
    let wait = folder.path().join("wait");
    std::fs::write(&wait, "").unwrap();
    let args = ["--nnodes", "2", "--preempt-grace", "4"];
    let start = || node(&etcd, "job", &args, SAVES, wait.to_str().unwrap());
    let (mut stays, mut silent) = (start(), start());
    stays.wait_for("of 2 works");
    silent.wait_for("of 2 works");
    stopping.wait_for("told to end");
    etcd.pause();
    let signalled = Instant::now();
    stopping.signal("TERM");
    silent.signal("TERM");
    // Whether the nodes had agreed by then on what failed first is left to the machine.
    let ended = stopping.ended();
    let took = signalled.elapsed();
    println!("gone {:.2} s after the signal, of 3 s", took.as_secs_f64());
    assert!(took < Duration::from_secs(3) + LATE, "{}", ended.text());
    assert!(matches!(ended.code, Some(1 | 143)), "{:?}: {}", ended.code, ended.text());
    let ended = silent.ended().expect(143);
    println!("gone {:.2} s after the signal, of 4 s, with a silent etcd", signalled.elapsed().as_secs_f64());
    assert!(signalled.elapsed() < Duration::from_secs(4) + LATE, "{}", ended.text());
    assert_eq!(ended.with("the time to save is over").len(), 1, "{}", ended.text());
    etcd.resume();
    stays.signal("INT");
    stays.ended().expect(130);
}

#[test]
fn who_saves_is_stopped_neither_by_another_nodes_death_nor_without_time_by_a_node_that_comes() {
    let folder = tempfile::tempdir().unwrap();
    let wait = folder.path().join("wait");
    std::fs::write(&wait, "").unwrap();
    let etcd = Etcd::start(Version::V35);
    let args = ["--nnodes", "1:3", "--preempt-grace", "100"];
    let start = || node(&etcd, "job", &args, SAVES, wait.to_str().unwrap());
    let mut nodes = [start(), start(), start()];
    nodes.iter_mut().for_each(|node| _ = node.wait_for("of 3 works"));
    let [mut goes, mut dies, mut stays] = nodes;
    goes.signal("TERM");
    for node in [&mut stays, &mut dies, &mut goes] {
        node.wait_for("is told: ");
    }
    dies.pull_the_plug();
    for node in [&mut stays, &mut goes] {
        node.wait_for("died; the workers of this node go on saving");
    }
    // One that saves later than the other is left to.
    std::fs::remove_file(&wait).unwrap();
    let ended = goes.ended().expect(143);
    assert!(ended.text().contains(" saves"), "{}", ended.text());
    stays.wait_for(" saves");
    stays.wait_for("rank 0 of 1 works");
    assert_eq!(stays.count("is told to end"), 1, "after it had saved");

    // It comes, and the other saves before they meet.
    stays.forget();
    let mut comes = start();
    assert!(stays.wait_for("is told: ").contains(r#""nodes":[]"#), "nobody goes");
    stays.wait_for(" saves");
    for node in [&mut stays, &mut comes] {
        node.wait_for("of 2 works");
    }
    stays.signal("INT");
    comes.signal("INT");
}

#[test]
fn a_worker_that_fails_while_it_saves_is_named_and_in_the_events() {
    let etcd = Etcd::start(Version::V35);
    let fails = r#"f=$RALLYPOINT_PREEMPTION_FILE; : >$f.listening; echo works
        while ! [ -e $f ]; do sleep 0.05; done; [ $RANK = 0 ] || { echo "no space left" >&2; exit 3; }; sleep 600"#;
    let mut fails = node(&etcd, "job", &["--nnodes", "1", "--nproc-per-node", "2"], fails, "");
    fails.wait_for("[0]: works");
    fails.wait_for("[1]: works");
    fails.signal("TERM");
    let ended = fails.ended().expect(143);
    let said = ended.with("before all had saved: this node leaves");
    assert!(said.len() == 1 && said[0].contains("rank 1 on ") && said[0].contains("exit code 3"), "{said:?}");
    let events =
        Command::new(RALLYPOINT).args(["events", "job", "--endpoint", &etcd.endpoint()]).output().unwrap();
    let events = String::from_utf8(events.stdout).unwrap();
    assert!(events.contains("failed with exit code 3"), "{events}");
}

/// More than the 16 that workers are told of by name is what `RALLYPOINT_PREEMPTED_NODES=17` is for.
#[test]
fn all_nodes_that_are_preempted_at_once_save_and_leave_in_time() {
    let count = std::env::var("RALLYPOINT_PREEMPTED_NODES").map_or(4, |count| count.parse().unwrap());
    let saves = r#"file=$RALLYPOINT_PREEMPTION_FILE; : >"$file.listening"; echo "rank $RANK of $WORLD_SIZE works"
        while ! [ -e "$file" ]; do sleep 0.5; done; echo "rank $RANK saves"; : >"$file.saved"; sleep 600"#;
    let etcd = Etcd::start(Version::V35);
    let nnodes = count.to_string();
    let args = ["--nnodes", &nnodes, "--preempt-grace", "60"];
    let mut nodes: Vec<_> = (0..count).map(|_| node(&etcd, "job", &args, saves, "")).collect();
    nodes.iter_mut().for_each(|node| _ = node.wait_for(&format!(" of {count} works")));
    let signalled = Instant::now();
    nodes.iter().for_each(|node| node.signal("TERM"));
    let mut without_word = 0;
    for node in nodes {
        let ended = node.ended().expect(143);
        assert_eq!(ended.with(" saves").len(), 1, "{}", ended.text());
        without_word += ended.with("the time to save is over").len();
    }
    println!("{count} nodes are gone {:.2} s after the signal", signalled.elapsed().as_secs_f64());
    assert!(signalled.elapsed() < Duration::from_secs(60) && without_word == 0, "long before the deadline");
}
