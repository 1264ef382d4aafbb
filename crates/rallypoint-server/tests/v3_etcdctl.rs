//! etcd's own command line client does not notice that this is not etcd.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use rallypoint_server::Server;
use rallypoint_testkit::etcdctl;
use v3_support::Target;

fn command(server: &Server) -> Command {
    let mut command = Command::new(etcdctl());
    command.env("ETCDCTL_API", "3").arg("--endpoints").arg(server.url()).args(["--command-timeout", "20s"]);
    command
}

/// Runs it with some input; what it printed.
fn run(server: &Server, args: &[&str], input: &str) -> String {
    let mut command = command(server);
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{args:?}: {stdout}{stderr}");
    // Some answers of health checks go there.
    stdout + &stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_works() {
    let Target::Ours(server) = Target::ours() else { unreachable!() };
    tokio::task::spawn_blocking(move || {
        let ctl = |args: &[&str]| run(&server, args, "");
        assert_eq!(ctl(&["put", "a", "1"]), "OK\n");
        assert_eq!(ctl(&["put", "a", "2", "--prev-kv"]), "OK\na\n1\n");
        ctl(&["put", "b", "3"]);
        assert_eq!(ctl(&["get", "a"]), "a\n2\n");
        assert_eq!(ctl(&["get", "", "--prefix", "--keys-only"]), "a\n\nb\n\n");
        assert_eq!(ctl(&["get", "a", "--rev", "2", "--print-value-only"]), "1\n");
        assert_eq!(ctl(&["del", "b", "--prev-kv"]), "1\nb\n3\n");
        let txn = run(&server, &["txn"], "value(\"a\") = \"2\"\n\nput a 3\nget a\n\nput a 4\n\n");
        assert_eq!(txn, "SUCCESS\n\nOK\n\na\n3\n");
        assert_eq!(ctl(&["compaction", "3"]), "compacted revision 3\n");

        // From a revision on; "--" would run a command for each event.
        let mut watch =
            command(&server).args(["watch", "a", "--rev", "3"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
        let seen: Vec<_> = lines.by_ref().take(6).map(Result::unwrap).collect();
        assert_eq!(seen, ["PUT", "a", "2", "PUT", "a", "3"]);
        watch.kill().unwrap();
        watch.wait().unwrap();

        let granted = ctl(&["lease", "grant", "60"]);
        let lease = granted.split(' ').nth(1).unwrap();
        assert!(granted.ends_with("granted with TTL(60s)\n"), "{granted}");
        ctl(&["put", "leased", "1", "--lease", lease]);
        assert!(ctl(&["lease", "list"]).contains(lease));
        assert!(ctl(&["lease", "timetolive", lease, "--keys"]).contains("attached keys([leased])"));
        assert!(ctl(&["lease", "keep-alive", lease, "--once"]).contains("TTL(60)"));
        assert!(ctl(&["lease", "revoke", lease]).contains("revoked"));
        assert_eq!(ctl(&["get", "leased"]), "");

        assert!(ctl(&["endpoint", "health"]).contains("is healthy"));
        let status = ctl(&["endpoint", "status"]);
        assert!(status.contains("3.5.") && status.contains("true"), "{status}");
        let members = ctl(&["member", "list"]);
        assert!(members.contains("started") && members.contains(server.url()), "{members}");
        assert_eq!(ctl(&["alarm", "list"]), "");

        // Recipes of the client: one waits for another.
        assert_eq!(ctl(&["lock", "mutex", "echo", "held"]), "held\n");
        let mut leader =
            command(&server).args(["elect", "post", "me"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(leader.stdout.take().unwrap()));
        assert!(lines.next().unwrap().unwrap().starts_with("post/"));
        assert_eq!(lines.next().unwrap().unwrap(), "me");
        leader.kill().unwrap();
        leader.wait().unwrap();
    })
    .await
    .unwrap();
}
