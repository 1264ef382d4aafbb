//! The servers are real, keep their data, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may unwrap as the tests do")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rallypoint_testkit::{Certs, Cluster, Etcd, Version};

/// Set in the process that `a_killed_process_leaves_no_etcd` starts and kills.
const VICTIM: &str = "RALLYPOINT_TESTKIT_VICTIM";

#[test]
fn each_version_answers_and_keeps_its_data_over_a_restart() {
    for version in Version::all() {
        let mut etcd = Etcd::start(version);
        let release = etcd.etcdctl(&["endpoint", "status", "--write-out=fields"]);
        assert!(release.contains(&format!("\"Version\" : \"{version}.")), "{release}");
        let (endpoint, pid) = (etcd.endpoint(), etcd.pid());

        assert_eq!(etcd.etcdctl(&["put", "color", "green"]).trim(), "OK");
        etcd.terminate();
        assert!(!runs(pid));
        etcd.restart();

        assert_ne!(etcd.pid(), pid);
        assert_eq!(etcd.endpoint(), endpoint);
        assert_eq!(etcd.etcdctl(&["get", "--print-value-only", "color"]).trim(), "green");
    }
}

#[test]
fn v2_is_served_only_when_asked_for() {
    for version in Version::WITH_V2 {
        let without = Etcd::start(version);
        let with = Etcd::builder(version).v2().start();
        assert!(v2_keys(&with).contains("200 OK"), "{}", v2_keys(&with));
        assert!(v2_keys(&without).contains("404 Not Found"), "{}", v2_keys(&without));
    }
}

#[test]
fn a_paused_server_is_stopped_until_it_is_resumed() {
    let mut etcd = Etcd::start(Version::V35);
    etcd.pause();
    assert_eq!(state(etcd.pid()), Some('T'));
    etcd.resume();
    assert_eq!(etcd.etcdctl(&["put", "k", "v"]).trim(), "OK");
    etcd.pause();
    etcd.restart();
    assert_eq!(etcd.etcdctl(&["get", "--print-value-only", "k"]).trim(), "v");
}

#[test]
fn tls_is_spoken_and_client_certificates_are_demanded() {
    let certs = Certs::generate();
    for version in Version::all() {
        let tls = Etcd::builder(version).tls(&certs).start();
        assert!(tls.url().starts_with("https://"));
        let _ = tls.etcdctl(GET);
        assert_eq!(tls.metric("etcd_server_has_leader"), 1.0);
        assert!(!accepts(&tls, &[&format!("--cacert={}", certs.other_ca().display())]));

        let mutual = Etcd::builder(version).mutual_tls(&certs).start();
        let _ = mutual.etcdctl(GET);
        assert!(!accepts(&mutual, &["--cert=", "--key="]));

        let elsewhere = Etcd::builder(version).tls_of_elsewhere(&certs).start();
        assert!(!accepts(&elsewhere, &[]));
    }
}

#[test]
fn a_cluster_elects_another_leader_when_one_dies_and_takes_it_back() {
    let mut cluster = Cluster::start(Version::V35, 3);
    assert_eq!(cluster.endpoints().split(',').count(), 3);
    let first = cluster.leader();
    cluster.node(first).kill();
    let second = cluster.leader();
    assert_ne!(first, second);
    assert_eq!(cluster.nodes()[second].etcdctl(&["put", "k", "v"]).trim(), "OK");
    cluster.node(first).restart();
    assert_eq!(cluster.nodes()[first].etcdctl(&["get", "--print-value-only", "k"]).trim(), "v");
}

#[test]
fn nothing_is_left_after_a_drop() {
    let etcd = Etcd::start(Version::V34);
    let (pid, dir) = (etcd.pid(), etcd.dir().to_owned());
    assert!(runs(pid) && dir.join("data").is_dir());
    drop(etcd);
    assert!(!runs(pid) && !dir.exists());

    let certs = Certs::generate();
    let ca = certs.ca().to_owned();
    assert!(ca.exists());
    drop(certs);
    assert!(!ca.exists());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let etcd = thread::spawn(|| Etcd::start(Version::V35)).join().unwrap();
    assert_eq!(etcd.etcdctl(&["put", "k", "v"]).trim(), "OK");
}

#[test]
fn a_killed_process_leaves_no_etcd() {
    if std::env::var_os(VICTIM).is_some() {
        let etcd = Etcd::start(Version::V35);
        println!("\netcd {} {}", etcd.pid(), etcd.dir().display());
        loop {
            thread::park();
        }
    }

    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_leaves_no_etcd", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(victim.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .find(|line| line.starts_with("etcd "))
        .expect("the victim says which etcd it started");
    let words: Vec<&str> = line.split(' ').collect();
    let pid = words[1].parse().unwrap();
    assert!(runs(pid));

    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while runs(pid) {
        assert!(Instant::now() < deadline, "etcd {pid} outlived the process that started it");
        thread::sleep(Duration::from_millis(10));
    }
    // Nobody was left to remove the folder.
    fs::remove_dir_all(Path::new(words[2])).unwrap();
}

/// The state letter of a process, if there is one.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// A zombie has ended; its new parent may be slow to notice.
fn runs(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

fn v2_keys(etcd: &Etcd) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(etcd.endpoint()).unwrap();
    stream.write_all(b"GET /v2/keys/ HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What is answered, however long that takes.
const GET: &[&str] = &["get", "k", "--dial-timeout=60s"];

/// Whether etcdctl gets an answer soon; later flags win over those of [`Etcd::etcdctl`].
fn accepts(etcd: &Etcd, flags: &[&str]) -> bool {
    let args = [&["get", "k", "--dial-timeout=2s", "--command-timeout=2s"], flags].concat();
    catch_unwind(AssertUnwindSafe(|| etcd.etcdctl(&args))).is_ok()
}
