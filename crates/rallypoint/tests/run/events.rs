//! What happened in a run: kept with it in etcd, shown by `rallypoint events`, and added to a file.

use std::process::{Command, Output};

use crate::launcher::{Launcher, wait_until};
use rallypoint_testkit::{Etcd, Version};
use serde_json::Value;

const RALLYPOINT: &str = env!("CARGO_BIN_EXE_rallypoint");

fn node(etcd: &Etcd, nodes: &str, name: &str, args: &[&str], script: &str) -> Launcher {
    let (endpoint, conf) = (etcd.endpoint(), format!("last_call_timeout=1,lease_timeout=5,node_id={name}"));
    let run = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
    Launcher::start(&[&run[..], args, &["--", "sh", "-c", script]].concat())
}

fn rallypoint(etcd: &Etcd, args: &[&str]) -> Output {
    Command::new(RALLYPOINT).args(args).args(["--endpoint", &etcd.endpoint()]).output().unwrap()
}

/// The events of the run, as JSON.
fn events(etcd: &Etcd) -> Vec<Value> {
    let output = rallypoint(etcd, &["events", "job", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

fn is_there(etcd: &Etcd, kind: &str) -> Option<Value> {
    events(etcd).into_iter().find(|event| event["event"] == kind)
}

#[test]
fn a_run_tells_what_happened_in_it_from_its_first_node_to_its_end() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let go = folder.path().join("go");
    let file = folder.path().join("logs/a.jsonl");
    let works = format!("echo at work; while [ ! -e {} ]; do sleep 0.05; done", go.display());
    // It fails once, with a record as torch has it, when the spare has come in.
    let fails = format!(
        "echo at work; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exec sh -c '{works}'; \
         while [ ! -e {}.fail ]; do sleep 0.05; done; \
         echo '{{\"message\": {{\"message\": \"ValueError: no data\", \"extraInfo\": {{\"py_callstack\": \"Traceback: <line 1>\"}}}}}}' \
         >$TORCHELASTIC_ERROR_FILE; exit 9",
        go.display()
    );
    // Who is watched tells as much as others.
    let metrics = ["--metrics-listen", "127.0.0.1:0", "--otlp-endpoint", "http://127.0.0.1:9"];
    let log = [&["--event-log", file.to_str().unwrap(), "--max-restarts", "1"], &metrics[..]].concat();
    let mut a = node(&etcd, "2", "a", &log, &fails);
    let mut b = node(&etcd, "2", "b", &[], &works);
    a.wait_for("at work");
    b.wait_for("at work");
    let mut spare = node(&etcd, "2", "spare", &[], &works);
    spare.wait_for("standing by as a spare");
    let waiting = wait_until("the spare is told of", || is_there(&etcd, "waiting"));
    assert_eq!(
        (waiting["spares"].as_u64(), waiting["text"].as_str()),
        (Some(1), Some("1 node stands by as a spare"))
    );
    // As when the machine loses its power.
    b.pull_the_plug();
    spare.wait_for("at work");
    // What it says from now on is of the next attempt.
    a.forget();
    std::fs::write(format!("{}.fail", go.display()), "").unwrap();
    wait_until("it failed", || is_there(&etcd, "failed"));
    a.wait_for("starting again");
    a.wait_for("at work");
    std::fs::write(&go, "").unwrap();
    let a = a.ended().expect(0);
    spare.ended().expect(0);

    let all = events(&etcd);
    let of = |kind: &str| all.iter().filter(|event| event["event"] == kind).cloned().collect::<Vec<_>>();
    let formed = of("formed");
    assert_eq!(formed.len(), 3, "{all:#?}");
    assert_eq!(formed.iter().map(|event| event["round"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(formed[0]["members"].as_array().unwrap().len(), 2);
    let (gone, newcomer) = (&formed[1]["gone"][0], &formed[1]["joined"][0]);
    assert_eq!((gone["node"].as_str(), gone["why"].as_str()), (Some("b"), Some("died")), "{formed:#?}");
    assert_eq!((newcomer["node"].as_str(), &newcomer["rank"]), (Some("spare"), &gone["rank"]));
    assert!(formed[1]["text"].as_str().unwrap().contains("in place of b"), "{formed:#?}");
    let lost = of("lost");
    assert_eq!((lost[0]["lost"][0]["node"].as_str(), lost[0]["within_ms"].as_u64()), (Some("b"), Some(5000)));
    let failed = &of("failed")[0];
    assert_eq!(failed["by"], "a");
    assert_eq!(
        (failed["exit"].as_str(), failed["message"].as_str()),
        (Some("exit code 9"), Some("ValueError: no data"))
    );
    assert_eq!(failed["traceback"], "Traceback: <line 1>");
    assert_eq!(kinds(&all).last(), Some(&"closed"));
    assert!(of("working").len() >= 2 && !of("stopped").is_empty(), "{all:#?}");
    // As etcd has it, but that a cause comes before what followed from it.
    let others = all.iter().filter(|event| event["event"] != "failed");
    let order: Vec<i64> = others.map(|event| event["revision"].as_i64().unwrap()).collect();
    assert!(order.is_sorted(), "{order:?}");
    let is_cause = |event: &Value| event["event"] == "failed";
    let follows = |event: &Value| event["event"] == "stopped" && event["round"] == failed["round"];
    let stopped = all.iter().position(follows).unwrap_or(all.len());
    assert!(all.iter().position(is_cause).unwrap() < stopped, "{all:#?}");

    let shown = rallypoint(&etcd, &["events", "job"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    for part in [
        "node 1 (b) died",
        "failed with exit code 9: ValueError: no data",
        "3 rounds, 1 death, 1 failure",
        "\n    Traceback: <line 1>\n",
        "workers ran",
    ] {
        assert!(text.contains(part) || text.contains(&part.replace("node 1", "node 0")), "{part}: {text}");
    }
    let summary = rallypoint(&etcd, &["events", "job", "--summary", "--json"]);
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert_eq!((summary["deaths"].as_u64(), summary["failures"].as_u64()), (Some(1), Some(1)));
    let share = summary["working_share"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{summary}");

    // What a saw, for good.
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rounds = ["joined", "working", "stopped"];
    let expected = [&rounds[..], &["joined", "working", "failed", "stopped"], &rounds, &["closed"]].concat();
    assert_eq!(kinds(&lines), expected, "{text}\n{}", a.text());
    assert!(lines.iter().all(|line| line["run_id"] == "job" && line["by"] == "a"), "{text}");
    assert!(lines[2]["why"].as_str().unwrap().contains("(b) died"), "{text}");
    assert_eq!(lines.last().unwrap()["reason"], "all workers have finished");
}

#[test]
fn what_happens_next_is_followed() {
    let etcd = Etcd::start(Version::V35);
    let mut command = Command::new(RALLYPOINT);
    command.args(["events", "job", "--follow", "--endpoint", &etcd.endpoint()]);
    let mut follower = Launcher::spawn(command);
    let node = node(&etcd, "1", "a", &[], "true");
    node.ended().expect(0);
    for part in [
        "round 1 formed: 1 node in",
        "the workers of round 1 were started",
        "a closed the run: all workers have finished",
    ] {
        follower.wait_for(part);
    }
    // It ends with the run.
    follower.ended().expect(0);
}

#[test]
fn a_run_that_is_not_there_and_a_file_that_cannot_be_written_are_told_of() {
    let etcd = Etcd::start(Version::V35);
    let output = rallypoint(&etcd, &["events", "other"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.contains("no run \"other\"")), (Some(1), true), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let ended = node(&etcd, "1", "a", &["--event-log", path], "true").ended().expect(6);
    assert!(
        ended.text().contains("cannot write") && ended.text().contains("it is a folder"),
        "{}",
        ended.text()
    );
}

/// Three nodes, two of which work: one that works is excluded, ends and says why; the spare takes its place; who waits it out
/// is let in again.
#[test]
fn who_is_excluded_says_so_and_a_spare_takes_its_place() {
    let etcd = Etcd::start(Version::V35);
    let endpoint = etcd.endpoint();
    let command = |args: &[&str]| {
        let args = [args, &["--endpoint", &endpoint]].concat();
        let output = Command::new(RALLYPOINT).args(args).output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.code(), text)
    };
    let node = |name: &str, more: &str| {
        let conf = format!("lease_timeout=20,node_id={name}{more}");
        let meet = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", &conf];
        Launcher::start(&[&meet[..], &["--no-python", "sh", "-c", "echo at work; sleep 600"]].concat())
    };
    let (code, text) = command(&["exclude", "job", "--node", "b", "--reason", "so"]);
    assert_eq!(code, Some(1), "there is no run yet: {text}");
    let (mut a, mut b) = (node("a", ""), node("b", ""));
    a.wait_for("at work");
    b.wait_for("at work");
    let mut spare = node("c", "");
    spare.wait_for("standing by");

    let (code, text) =
        command(&["exclude", "job", "--node", "b", "--reason", "GPU 3 is broken", "--for", "1h"]);
    assert_eq!(code, Some(0), "{text}");
    let ended = b.ended().expect(7);
    let told = "this node is excluded from the run, until about ";
    assert_eq!(ended.with(told).len(), 1, "{}", ended.text());
    assert!(
        ended.text().contains("GPU 3 is broken; `rallypoint include` lets it in again"),
        "{}",
        ended.text()
    );
    spare.wait_for("at work");
    a.wait_for("(b) was excluded from the run; meeting again");
    // Who comes again is told at once, or waits.
    assert!(node("b", "").ended().expect(7).text().contains(told));
    let mut waits = node("b", ",when_excluded=wait");
    waits.wait_for("waiting to be let in again");
    let (_, text) = command(&["status", "job", "--filter", "state=excluded"]);
    assert!(text.contains("excluded 1 node: node b (GPU 3 is broken)"), "{text}");
    assert!(text.contains("-     b     excluded"), "{text}");
    let (code, text) = command(&["excluded", "job"]);
    assert!(code == Some(0) && text.contains("an operator  GPU 3 is broken"), "{text}");

    let (code, text) = command(&["include", "job", "--all"]);
    assert!(code == Some(0) && text.contains("everybody may join run job again"), "{text}");
    waits.wait_for("standing by as a spare");
    let (code, text) = command(&["include", "job", "--node", "b"]);
    assert!(code == Some(1) && text.contains("nobody by that name is excluded"), "{text}");
    let (_, text) = command(&["events", "job"]);
    for told in ["an operator excluded node b from the run, until about", "an operator let all in again"] {
        assert!(text.contains(told), "{text}");
    }
    let long = "n".repeat(1001);
    let (code, text) = command(&["exclude", "job", "--node", &long, "--reason", "so"]);
    assert!(code == Some(2) && text.contains("no name has more than 1000"), "{text}");
    let (code, text) = command(&["exclude", "job", "--host", "h", "--reason", "so", "--for", "2s"]);
    assert_eq!(code, Some(0), "{text}");
    let over = "host h is excluded no longer: its time is over";
    let events =
        wait_until("it is over", || Some(command(&["events", "job"]).1).filter(|text| text.contains(over)));
    assert_eq!(events.matches("its time is over").count(), 1, "b was let in: {events}");
    let (code, text) = command(&["close", "job", "--reason", "enough"]);
    assert_eq!(code, Some(0), "{text}");
    for node in [a, spare, waits] {
        node.ended().expect(5);
    }
    let (code, text) = command(&["exclude", "job", "--host", "h", "--reason", "so"]);
    assert_eq!(code, Some(5), "{text}");
}
