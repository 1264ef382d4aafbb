//! A node that is taken away: the workers of all nodes get time to save, and nothing that was saved is lost.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::launcher::{Launcher, RALLYPOINT, wait_until};
use rallypoint_testkit::{Etcd, Version, refused_endpoint, torch_python};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
const TRAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/preemption.py");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/preemption.py");
const STEPS: &str = "4000";
const PREEMPTIONS: usize = 20;

/// One whose workers can import the package, and torch.
fn launcher(args: &[&str]) -> Launcher {
    Launcher::start_with(args, |command| {
        command.env("PYTHONPATH", PACKAGE).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHON_EXEC", torch_python());
    })
}

fn node(endpoint: &str, nodes: &str, more: &[&str]) -> Launcher {
    let args = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", endpoint];
    launcher(&[&args[..], more].concat())
}

/// What rank 0 said, in the order of the rounds.
#[derive(Debug, Default)]
struct Training {
    from: Vec<u64>,
    saved: Vec<u64>,
}

impl Training {
    fn read(&mut self, lines: &[String]) {
        let after = |line: &str, words: &str| {
            let rest = line.split_once(words)?.1;
            rest.split(' ').next()?.parse::<u64>().ok()
        };
        self.from.extend(lines.iter().filter_map(|line| after(line, ": from step ")));
        self.saved.extend(lines.iter().filter_map(|line| after(line, ": saved step ")));
    }
}

#[test]
fn a_run_of_four_goes_through_20_preemptions_and_ends_as_it_would_without() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (checkpoint, alone) = (at("checkpoint"), at("alone"));
    std::fs::write(format!("{alone}.hurry"), "").unwrap();
    let reference = launcher(&["--standalone", "--worker-store", "rank0", TRAIN, &alone, STEPS]);
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let start = || node(&endpoint, "4", &["--worker-store", "rank0", TRAIN, &checkpoint, STEPS]);
    let mut nodes: Vec<Launcher> = (0..4).map(|_| start()).collect();
    let mut training = Training::default();
    for round in 1..=PREEMPTIONS {
        // It takes the place of the one that goes.
        nodes.push(start());
        let begins = format!("starting workers round={round} ");
        let working = wait_until("four nodes work", || {
            let working: Vec<usize> = (0..5).filter(|at| nodes[*at].heard(&begins)).collect();
            (working.len() == 4).then_some(working)
        });
        let gone = training.from.len();
        wait_until("they train", || {
            let begun = gone + nodes.iter_mut().map(|node| node.count(": from step ")).sum::<usize>();
            (begun == round).then_some(())
        });
        // Each of them has its turn, the one with rank 0 too.
        let goes = nodes.remove(working[round % 4]);
        goes.signal("TERM");
        let ended = goes.ended().expect(143);
        assert_eq!(ended.with("have saved; this node leaves").len(), 1, "{}", ended.text());
        training.read(&ended.lines);
    }
    std::fs::write(format!("{checkpoint}.hurry"), "").unwrap();
    let mut done = Vec::new();
    for node in nodes {
        let ended = node.ended().expect(0);
        training.read(&ended.lines);
        done.extend(ended.with(": done after ").into_iter().map(str::to_owned));
    }
    let reference = reference.ended().expect(0);
    assert_eq!(done, reference.with(": done after "), "the same as without");
    training.from.sort_unstable();
    training.saved.sort_unstable();
    assert_eq!(training.saved.len(), PREEMPTIONS, "{training:?}");
    assert_eq!(training.from[1..], training.saved, "each round begins where the last one was saved");
}

#[test]
#[ignore = "it takes long: scripts/test long"]
fn the_example_with_torch_saves_together_and_goes_on_from_there_with_who_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint").to_str().unwrap().to_owned();
    let etcd = Etcd::start(Version::V35);
    let start = || {
        let train = [
            EXAMPLE,
            "--checkpoint",
            &checkpoint,
            "--steps",
            "150",
            "--pace",
            "0.02",
            "--save-every",
            "1000",
        ];
        node(&etcd.endpoint(), "1:2", &train)
    };
    let (mut stays, mut goes) = (start(), start());
    wait_until("they train", || {
        (stays.heard(": from step 0 with 2") || goes.heard(": from step 0 with 2")).then_some(())
    });
    goes.signal("TERM");
    let ended = goes.ended().expect(143);
    assert_eq!(ended.with("have saved; this node leaves").len(), 1, "{}", ended.text());
    let stayed = stays.ended().expect(0);
    let lines = [&ended.lines[..], &stayed.lines].concat();
    let saved: Vec<&str> =
        lines.iter().filter_map(|line| Some(line.split_once(": saved step ")?.1)).collect();
    assert_eq!(saved.len(), 1, "{lines:#?}");
    assert_eq!(stayed.with(&format!(": from step {} with 1 workers", saved[0])).len(), 1, "{lines:#?}");
    assert_eq!(stayed.with("]: done after 150 steps: loss 0.0").len(), 1, "{lines:#?}");
}

/// Listens, tells what it is told, and says that it has saved; its data loader would tell of a signal.
const SAVES: &str = r#"
told() { told=1; echo "rank $RANK is signalled"; }
trap told USR1
sh -c 'trap "echo the data loader is signalled" USR1; echo loads; while :; do sleep 0.05; done' &
file=$RALLYPOINT_PREEMPTION_FILE
: >"$file.listening"
echo "rank $RANK of $WORLD_SIZE works"
while ! [ -e "$file" ]; do sleep 0.05; done
while [ -e "$WAIT" ]; do sleep 0.05; done
echo "rank $RANK is told: $(cat "$file")"
: >"$file.saved"
wait
"#;

fn saves(endpoint: &str, nodes: &str, more: &[&str]) -> Launcher {
    node(endpoint, nodes, &[more, &["--", "sh", "-c", SAVES]].concat())
}

#[test]
fn of_two_that_go_at_once_all_workers_are_told_and_who_stays_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let wait = folder.path().join("wait");
    std::fs::write(&wait, "").unwrap();
    let etcd = Etcd::start(Version::V35);
    let start = || {
        let args = ["--nnodes", "1:3", "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=60"];
        let more = ["--rdzv-endpoint", &etcd.endpoint(), "--preempt-notify", "SIGUSR1", "--", "sh", "-c"];
        Launcher::start_with(&[&args[..], &more[..], &[SAVES]].concat(), |command| {
            command.env("WAIT", &wait);
        })
    };
    let mut nodes: Vec<Launcher> = (0..3).map(|_| start()).collect();
    for node in &mut nodes {
        node.wait_for("of 3 works");
        node.wait_for("loads");
    }
    let mut stays = nodes.pop().unwrap();
    for node in &nodes {
        node.signal("TERM");
    }
    wait_until("all have heard of both", || {
        (stays.count("is preempted by SIGTERM: its workers have ") == 2).then_some(())
    });
    std::fs::remove_file(&wait).unwrap();
    for node in nodes {
        let ended = node.ended().expect(143);
        assert!(ended.text().contains("is signalled"), "{}", ended.text());
        assert!(!ended.text().contains("the data loader is signalled"), "{}", ended.text());
        let told = ended.with("is told: ");
        assert!(told.len() == 1 && told[0].contains(r#"{"here":true,"deadline":"#), "{}", ended.text());
    }
    stays.wait_for("leaves: it is preempted; meeting again");
    stays.wait_for("rank 0 of 1 works");
    let events =
        Command::new(RALLYPOINT).args(["events", "job", "--endpoint", &etcd.endpoint()]).output().unwrap();
    let events = String::from_utf8(events.stdout).unwrap();
    assert_eq!(events.matches("is preempted by SIGTERM: the workers have ").count(), 2, "{events}");
    stays.signal("TERM");
    let ended = stays.ended().expect(143);
    let told = ended.with("is told: ");
    assert!(told[0].contains(r#"{"here":false,"#), "{}", ended.text());
    assert_eq!(told[0].matches(r#""signal":"SIGTERM""#).count(), 2, "both are named: {}", ended.text());
    assert!(!ended.text().contains("the data loader is signalled"), "{}", ended.text());
}

#[test]
fn who_wants_to_get_in_waits_until_all_have_saved() {
    let folder = tempfile::tempdir().unwrap();
    let wait = folder.path().join("wait");
    std::fs::write(&wait, "").unwrap();
    let etcd = Etcd::start(Version::V35);
    let start = || {
        let args = ["--nnodes", "1:3", "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=6"];
        let more = ["--rdzv-endpoint", &etcd.endpoint(), "--", "sh", "-c", SAVES];
        Launcher::start_with(&[&args[..], &more[..]].concat(), |command| {
            command.env("WAIT", &wait);
        })
    };
    let (mut stays, mut goes) = (start(), start());
    for node in [&mut stays, &mut goes] {
        node.wait_for("of 2 works");
    }
    goes.signal("TERM");
    stays.wait_for("is preempted by SIGTERM");
    let mut comes = start();
    comes.wait_for("up to 3 may come");
    // Long enough for the others to be told of it.
    std::thread::sleep(Duration::from_millis(700));
    std::fs::remove_file(&wait).unwrap();
    let ended = goes.ended().expect(143);
    assert_eq!(ended.with("have saved; this node leaves").len(), 1, "{}", ended.text());
    for mut node in [stays, comes] {
        node.wait_for("starting workers round=2 ");
        node.wait_for("of 2 works");
        node.signal("TERM");
    }
}

#[test]
fn all_that_are_warned_at_once_save_and_end_with_the_code_of_the_warning() {
    let endpoint = refused_endpoint();
    // The server is in one of them.
    let signal = ["--preempt-signal", "SIGUSR1"];
    let mut nodes: Vec<Launcher> = (0..2).map(|_| saves(&endpoint, "2", &signal)).collect();
    for node in &mut nodes {
        node.wait_for("of 2 works");
    }
    for node in &nodes {
        node.signal("USR1");
    }
    for node in nodes {
        let ended = node.ended().expect(128 + 10);
        assert_eq!(
            ended.with("the workers of all nodes have saved; this node leaves").len(),
            1,
            "{}",
            ended.text()
        );
        assert!(
            ended.text().contains("is preempted by SIGUSR1\n"),
            "nobody knows until when: {}",
            ended.text()
        );
    }
}

#[test]
fn a_worker_that_does_not_save_ends_at_the_deadline_or_when_it_is_asked_again() {
    let script = r#"trap '' TERM; : >"$RALLYPOINT_PREEMPTION_FILE.listening"; echo works; while :; do sleep 0.05; done"#;
    let mut late = Launcher::start(&["--preempt-grace", "2", "--", "sh", "-c", script]);
    let mut asked = Launcher::start(&["--preempt-grace", "3600", "--", "sh", "-c", script]);
    let mut deaf = Launcher::start(&[
        "--",
        "sh",
        "-c",
        "trap 'echo bye; exit' TERM; echo works; while :; do sleep 0.05; done",
    ]);
    // It comes to the end of its work in that time.
    let script = r#"f=$RALLYPOINT_PREEMPTION_FILE; : >$f.listening; echo works; while ! [ -e $f ]; do sleep 0.05; done"#;
    let mut done = Launcher::start(&["--", "sh", "-c", script]);
    for launcher in [&mut late, &mut asked, &mut deaf, &mut done] {
        launcher.wait_for("works");
    }
    let signalled = Instant::now();
    for launcher in [&late, &asked, &deaf, &done] {
        launcher.signal("TERM");
    }
    done.ended().expect(0);
    asked.wait_for("is preempted by SIGTERM");
    let ended = deaf.ended().expect(143);
    assert_eq!(ended.with("bye").len(), 1, "{}", ended.text());
    assert!(!ended.text().contains("preempted"), "it is as it was: {}", ended.text());
    let ended = late.ended().expect(143);
    assert!(ended.text().contains("the time to save is over"), "{}", ended.text());
    assert!(ended.text().contains("killing what is left"), "{}", ended.text());
    assert!(signalled.elapsed() < Duration::from_secs(20), "not the 25 s of --shutdown-timeout");
    asked.signal("TERM");
    let ended = asked.ended().expect(143);
    assert_eq!(ended.with("asked to end again: ending at once").len(), 1, "{}", ended.text());
}
