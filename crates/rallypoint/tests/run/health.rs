//! A node that is not fit does not meet the others, says why, and comes when it is.

use std::fs;

use crate::launcher::{Launcher, RALLYPOINT, wait_until};
use rallypoint_testkit::{Etcd, Version, refused_endpoint};

fn node(etcd: &Etcd, nodes: &str, args: &[&str], script: &str) -> Launcher {
    let endpoint = etcd.endpoint();
    let run = ["--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let conf = ["--rdzv-conf", "last_call_timeout=3,lease_timeout=60", "--health-check-interval", "0.3"];
    Launcher::start(&[&run[..], &conf[..], args, &["--", "sh", "-c", script]].concat())
}

fn events(etcd: &Etcd) -> String {
    asked(etcd, "events")
}

fn asked(etcd: &Etcd, command: &str) -> String {
    let args = [command, "job", "--endpoint", &etcd.endpoint()];
    let output = std::process::Command::new(RALLYPOINT).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_node_that_fails_a_check_stays_away_until_it_passes() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let well = folder.path().join("well");
    let check = format!("test -e {} || {{ echo GPU 3 is lost; exit 4; }}", well.display());
    let passes = ["--health-check", "clock", "--health-check", "disk=1M"];
    let mut second = node(&etcd, "2", &["--health-check", "disk=1M", "--health-check", &check], "exit 0");
    second.wait_for("it ended with exit code 4");
    second.wait_for("GPU 3 is lost");
    let is_named =
        |status: &str| status.lines().any(|line| line.starts_with("sick ") && line.contains("GPU 3 is lost"));
    // It says so to its user before it has told etcd.
    let status = wait_until("it is named", || Some(asked(&etcd, "status")).filter(|status| is_named(status)));
    assert!(status.contains("state    meeting\n"), "the first to come: {status}");
    let in_table = |status: &str| {
        status
            .lines()
            .any(|line| line.starts_with("- ") && line.split_whitespace().any(|word| word == "sick"))
    };
    assert!(in_table(&status) && !status.contains("no nodes are there"), "{status}");
    let mut first = node(&etcd, "2", &passes, "exit 0");
    first.wait_for("1 of 2 is here");
    // Who looks for why nothing begins finds it there, too.
    let events =
        wait_until("it is told", || Some(events(&etcd)).filter(|events| events.contains(" is unhealthy: ")));
    assert!(events.contains("GPU 3 is lost"), "{events}");
    let status = asked(&etcd, "status");
    assert!(is_named(&status) && in_table(&status), "{status}");
    assert!(!status.contains("no name is known"), "all of the two are named: {status}");
    let filtered = |word: &str| {
        let args = ["status", "job", "--endpoint", &etcd.endpoint(), "--filter", word];
        String::from_utf8(std::process::Command::new(RALLYPOINT).args(args).output().unwrap().stdout).unwrap()
    };
    assert!(in_table(&filtered("state=sick")) && !in_table(&filtered("state=joining")));
    fs::write(&well, "").unwrap();
    first.ended().expect(0);
    let ended = second.ended().expect(0);
    // However often it looked.
    assert_eq!(ended.with("it ended with exit code 4").len(), 1, "{}", ended.text());
    assert_eq!(ended.with("passes its health checks again").len(), 1, "{}", ended.text());
}

#[test]
fn a_node_that_is_told_to_ends_with_6_and_one_sentence() {
    let ended = Launcher::run(&[
        "--standalone",
        "--health-check",
        "echo no link on mlx5_0; exit 1",
        "--when-unhealthy",
        "end",
        "true",
    ])
    .expect(6);
    let said = ended.with("error:");
    assert!(
        said[0].contains("this node is not fit: the health check") && said[0].contains("no link on mlx5_0"),
        "{said:?}"
    );
    // All that it wrote, and not only what is in the sentence.
    let two = ["--health-check", "for n in 0 1; do echo mlx5_$n is down; done; exit 1"];
    for what in ["end", "exclude"] {
        let args = [&["--standalone"], &two[..], &["--when-unhealthy", what, "true"]].concat();
        let ended = Launcher::run(&args).expect(6);
        let all = ["mlx5_0 is down", "mlx5_1 is down"].map(|line| ended.with(line).len());
        assert!(all[0] > 0 && all[1] > 0, "{}", ended.text());
    }
    // What is no check of ours is a command, and one that there is not is told with those that there are.
    let ended = Launcher::run(&["--standalone", "--health-check", "gpus", "--when-unhealthy", "end", "true"])
        .expect(6);
    assert!(
        ended.text().contains("failed: command not found: it ended with exit code 127; the checks that are built in are clock, disk, gpu, port"),
        "{}",
        ended.text()
    );
    let ended = Launcher::run(&["--standalone", "--health-check", "disk=much", "true"]).expect(2);
    assert!(ended.text().contains("disk=20G"), "{}", ended.text());
}

#[test]
fn a_spare_that_falls_sick_steps_back_and_may_come_again() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let well = folder.path().join("well");
    fs::write(&well, "").unwrap();
    let check = format!("test -e {}", well.display());
    let mut member = node(&etcd, "1", &[], "echo works; sleep 600");
    member.wait_for("works");
    let mut spare = node(&etcd, "1", &["--health-check", &check], "echo took over");
    spare.wait_for("spare");
    fs::remove_file(&well).unwrap();
    spare.wait_for("this node does not join");
    let words = " is unhealthy: the health check ";
    let said = wait_until("it is told", || Some(events(&etcd)).filter(|said| said.contains(words)));
    assert_eq!(said.matches(words).count(), 1, "{said}");
    // Nobody is there to take its place.
    member.signal("TERM");
    member.ended().expect(143);
    wait_until("the spare, which is away, has no key", || {
        let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", ""]);
        (!keys.contains("job/node/")).then_some(())
    });
    assert!(!spare.heard("took over"));
    fs::write(&well, "").unwrap();
    let ended = spare.ended().expect(0);
    assert_eq!(ended.with("took over").len(), 1, "{}", ended.text());
    let said = events(&etcd);
    assert_eq!(said.matches(" passes its health checks again").count(), 1, "{said}");
}

#[test]
fn a_node_that_is_sick_until_the_run_has_ended_well_says_so() {
    let etcd = Etcd::start(Version::V35);
    let mut sick = node(&etcd, "1:2", &["--health-check", "false"], "echo never");
    sick.wait_for("this node does not join");
    node(&etcd, "1:2", &[], "exit 0").ended().expect(0);
    let ended = sick.ended().expect(0);
    let said = "the run has ended well, without this node: it has not passed its health checks";
    assert_eq!(ended.with(said).len(), 1, "{}", ended.text());
    assert!(ended.with("never").is_empty());
}

#[test]
fn a_node_that_others_cannot_reach_is_found_before_workers_are_started() {
    let etcd = Etcd::start(Version::V35);
    let port = ["--health-check", "port", "--health-check-timeout", "6"];
    // An address for documentation, which nobody has.
    let away = [&port[..], &["--local-addr", "192.0.2.7", "--when-unhealthy", "end"]].concat();
    let bad = node(&etcd, "2:3", &away, "echo never");
    let good = [(); 2].map(|()| node(&etcd, "2:3", &port, "echo of $WORLD_SIZE"));
    let bad = bad.ended().expect(6);
    assert!(bad.text().contains("\"port\" failed"), "{}", bad.text());
    assert!(bad.with("never").is_empty());
    for node in good {
        let ended = node.ended().expect(0);
        assert!(ended.with("of 3").is_empty() && !ended.with("of 2").is_empty(), "{}", ended.text());
    }
}

#[test]
fn a_node_that_stays_away_does_not_say_that_etcd_is_silent() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, end) = (etcd.endpoint(), folder.path().join("end"));
    let start = |args: &[&str], script: &str| {
        let run = ["--nnodes", "2:3", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
        let conf = ["--rdzv-conf", "last_call_timeout=2,lease_timeout=2", "--health-check", "port"];
        let check = ["--health-check-timeout", "4"];
        Launcher::start(&[&run[..], &conf[..], &check[..], args, &["--", "sh", "-c", script]].concat())
    };
    let mut away = start(&["--local-addr", "192.0.2.7"], "echo never");
    let works = format!("echo at work; until [ -e {} ]; do sleep 0.1; done", end.display());
    let mut others = [(); 2].map(|()| start(&[], &works));
    away.wait_for("this node does not join");
    others.iter_mut().for_each(|node| _ = node.wait_for("at work"));
    // Longer than its lease was.
    std::thread::sleep(std::time::Duration::from_secs(3));
    away.signal("INT");
    let ended = away.ended().expect(130);
    fs::write(&end, "").unwrap();
    others.into_iter().for_each(|node| _ = node.ended().expect(0));
    assert!(!ended.text().contains("has not renewed"), "it has given its lease back: {}", ended.text());
}

#[test]
fn of_two_nodes_neither_begins_where_the_one_cannot_reach_the_other() {
    let etcd = Etcd::start(Version::V35);
    let port = ["--health-check", "port", "--health-check-timeout", "5", "--when-unhealthy", "end"];
    // It is there first, so it has rank 0.
    let mut away = node(&etcd, "2", &[&port[..], &["--local-addr", "192.0.2.7"]].concat(), "echo never");
    away.wait_for("1 of 2 is here");
    let other = node(&etcd, "2", &port, "echo never").ended().expect(6);
    assert!(other.text().contains("two nodes cannot tell"), "{}", other.text());
    assert!(other.with("never").is_empty(), "{}", other.text());
    away.wait_for("waiting for 1 node");
    assert!(!away.heard("]: never"));
}

/// The others have not met it yet, and would wait for a server that is gone.
#[test]
fn who_waits_hears_it_when_the_node_with_the_server_goes() {
    let endpoint = refused_endpoint();
    let folder = tempfile::tempdir().unwrap();
    let sick = folder.path().join("sick");
    let check = format!("while ! [ -e {} ]; do sleep 0.05; done; exit 1", sick.display());
    let run = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint];
    let checked = ["--health-check", &check, "--when-unhealthy", "end", "true"];
    let mut server = Launcher::start(&[&run[..], &checked[..]].concat());
    server.wait_for("this node starts the embedded server");
    let mut waits = Launcher::start(&[&run[..], &["true"]].concat());
    waits.wait_for("waiting for 1 node: 1 of 2 is here");
    fs::write(&sick, "").unwrap();
    server.ended().expect(6);
    let ended = waits.ended().expect(5);
    assert!(
        ended.text().contains("ended, and with it the server that the nodes had met on"),
        "{}",
        ended.text()
    );
}

/// It is kept out as a machine of its own, also when it is well and comes under another name.
#[test]
fn a_node_that_is_told_to_is_kept_out_with_its_host_until_it_is_let_in() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let well = folder.path().join("well");
    fs::write(&well, "").unwrap();
    let endpoint = etcd.endpoint();
    let start = |name: &str, host: &str, script: &str| {
        let run = ["--nnodes", "1", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--host", host];
        let conf = format!("last_call_timeout=3,lease_timeout=60,node_id={name}");
        let check = format!("test -e {}", well.display());
        let check = ["--health-check", &check, "--health-check-interval", "0.3"];
        let excludes = ["--when-unhealthy", "exclude", "--rdzv-conf", &conf, "--", "sh", "-c", script];
        Launcher::start(&[&run[..], &check[..], &excludes[..]].concat())
    };
    let mut member = start("pod-0", "machine-a", "echo works; sleep 600");
    member.wait_for("works");
    let mut spare = start("pod-1", "machine-b", "echo never");
    spare.wait_for("spare");
    fs::remove_file(&well).unwrap();
    let ended = spare.ended().expect(6);
    let said = "this node is excluded from the run, with all nodes of host machine-b: the health check";
    assert!(ended.text().contains(said), "{}", ended.text());
    fs::write(&well, "").unwrap();
    let again = start("pod-2", "machine-b", "echo never").ended().expect(7);
    assert!(again.text().contains("is excluded") && again.with("]: never").is_empty(), "{}", again.text());
    let kept_out = asked(&etcd, "excluded");
    assert!(kept_out.contains("machine-b") && !kept_out.contains("machine-a"), "{kept_out}");
    // On another machine the same pod is welcome.
    let mut moved = start("pod-1", "machine-c", "echo never");
    moved.wait_for("spare");
    let include = ["include", "job", "--host", "machine-b", "--endpoint", &endpoint];
    let included = std::process::Command::new(RALLYPOINT).args(include).output().unwrap();
    assert!(included.status.success(), "{included:?}");
    let mut again = start("pod-2", "machine-b", "echo never");
    again.wait_for("spare");
}

/// A sick node goes anyhow; its host goes with it only where the others can do without all nodes there.
#[test]
fn a_sick_node_does_not_take_a_member_on_its_host_along() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let (endpoint, well) = (etcd.endpoint(), folder.path().join("well"));
    fs::write(&well, "").unwrap();
    let check = format!("test -e {}", well.display());
    let sickly = ["--health-check", &check, "--health-check-interval", "0.3", "--when-unhealthy", "exclude"];
    let start = |name: &str, host: &str, args: &[&str]| {
        let run = ["--nnodes", "2", "--rdzv-id", "job", "--rdzv-endpoint", &endpoint, "--host", host];
        let conf = format!("last_call_timeout=3,lease_timeout=60,node_id={name}");
        let works = ["--", "sh", "-c", "echo works; exec sleep 600"];
        Launcher::start(&[&run[..], &["--rdzv-conf", &conf], args, &works].concat())
    };
    let mut members = [("a", "h1"), ("b", "h2")].map(|(name, host)| start(name, host, &[]));
    members.iter_mut().for_each(|node| _ = node.wait_for("works"));
    let mut spare = start("c", "h2", &sickly);
    spare.wait_for("spare");
    fs::remove_file(&well).unwrap();
    let ended = spare.ended().expect(6);
    let said = "only this node is excluded, and not all nodes of its host h2: the group needs 2 nodes, and would have 1";
    assert!(ended.text().contains(said), "{}", ended.text());
    let kept_out = asked(&etcd, "excluded");
    assert!(kept_out.contains("\nc ") && !kept_out.contains("h2"), "{kept_out}");
    let mut other = start("d", "h2", &[]);
    other.wait_for("spare");
    assert!(members.iter_mut().all(|node| node.count("works") == 1), "they have worked on");
}

/// While it looks at itself it does not wait for others, and others do not wait for it alone.
#[test]
fn a_node_says_that_it_makes_its_checks_while_they_take_their_time() {
    let (etcd, folder) = (Etcd::start(Version::V35), tempfile::tempdir().unwrap());
    let go = folder.path().join("go");
    let check = format!("while ! [ -e {} ]; do sleep 0.05; done", go.display());
    let mut slow = node(&etcd, "1", &["--health-check", &check], "exit 0");
    slow.wait_for("making this node's health checks");
    assert!(!slow.heard("waiting for"));
    fs::write(&go, "").unwrap();
    slow.ended().expect(0);
}
