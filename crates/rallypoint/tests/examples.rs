//! Every example runs, and does what it says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::PathBuf;
use std::process::Command;

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
