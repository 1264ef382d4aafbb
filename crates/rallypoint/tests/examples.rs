//! Every example runs, and does what it says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rallypoint_testkit::{Etcd, Version};

/// Where cargo puts the examples that it builds for this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name)
}

#[test]
fn meet_brings_its_workers_together() {
    let etcd = Etcd::start(Version::V35);
    let output = Command::new(example("meet")).args([etcd.endpoint(), "5".into()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for rank in 0..5 {
        assert_eq!(text.matches(&format!("worker {rank} of 5")).count(), 1, "{text}");
    }
    assert!(text.ends_with("all 5 workers met\n"), "{text}");
}

#[test]
fn meet_says_what_is_wrong() {
    let endpoint = rallypoint_testkit::refused_endpoint();
    let output = Command::new(example("meet")).args([&endpoint, "1"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(text.contains(&endpoint), "{text}");
}

#[test]
fn who_is_left_of_a_rendezvous_does_the_rest() {
    let etcd = Etcd::start(Version::V35);
    let start = || {
        let args = [&etcd.endpoint(), "job42", "2", "3", "200"];
        let mut child =
            Command::new(example("rendezvous")).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        (child, lines)
    };
    let [mut first, mut second, mut third] = [start(), start(), start()];
    // Two may have begun before the third one came.
    let mut round = 0;
    for (_, lines) in [&mut first, &mut second, &mut third] {
        let of_three = lines.find(|line| line.ends_with(" of 3")).unwrap();
        let number = of_three.strip_prefix("round ").and_then(|rest| rest.split(": rank ").next()).unwrap();
        round = number.parse::<u64>().unwrap();
    }
    let next = format!("round {}: rank ", round + 1);
    third.0.kill().unwrap();
    third.0.wait().unwrap();
    for (mut child, lines) in [first, second] {
        let text: Vec<String> = lines.collect();
        assert!(child.wait().unwrap().success(), "{text:?}");
        assert!(text[0].starts_with("Died { node: "), "{text:?}");
        assert!(text[1].starts_with(&next) && text[1].ends_with(" of 2"), "{text:?}");
        assert_eq!(text[2], "done", "{text:?}");
    }
}
