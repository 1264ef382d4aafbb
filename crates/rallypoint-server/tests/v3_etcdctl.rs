//! etcd's own command line clients, 3.4's and 3.5's, do not notice that this is not etcd.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod v3_support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use rallypoint_server::{Config, Numbering, Server};
use rallypoint_testkit::Version;
use v3_support::Target;

/// A client of a release, and the server it talks to.
struct Ctl {
    version: Version,
    server: Server,
}

impl Ctl {
    fn command(&self) -> Command {
        let mut command = Command::new(self.version.etcdctl());
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.server.url());
        command.args(["--command-timeout", "20s"]);
        command
    }

    /// Runs it; what it printed.
    fn run(&self, args: &[&str]) -> String {
        self.run_with(args, "")
    }

    fn run_with(&self, args: &[&str], input: &str) -> String {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert!(status.success(), "{} {args:?}: {stdout}{stderr}", self.version);
        // Some answers of health checks go there.
        stdout + &stderr
    }

    /// Runs it until it has printed so many lines.
    fn first_lines(&self, args: &[&str], number: usize) -> Vec<String> {
        let mut child = self.command().args(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = lines.take(number).map(Result::unwrap).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        lines
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_3_4_works() {
    works(Version::V34).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_3_5_works() {
    works(Version::V35).await;
}

async fn works(version: Version) {
    let numbers = |config: &mut Config| config.numbering = Numbering::FromOne;
    let Target::Ours(server) = Target::ours_with(numbers) else { unreachable!() };
    let ctl = Ctl { version, server };
    tokio::task::spawn_blocking(move || everything(&ctl)).await.unwrap();
}

fn everything(ctl: &Ctl) {
    assert_eq!(ctl.run(&["put", "a", "1"]), "OK\n");
    assert_eq!(ctl.run(&["put", "a", "2", "--prev-kv"]), "OK\na\n1\n");
    ctl.run(&["put", "b", "3"]);
    assert_eq!(ctl.run(&["get", "a"]), "a\n2\n");
    assert_eq!(ctl.run(&["get", "", "--prefix", "--keys-only"]), "a\n\nb\n\n");
    assert_eq!(ctl.run(&["get", "a", "--rev", "2", "--print-value-only"]), "1\n");
    assert_eq!(ctl.run(&["del", "b", "--prev-kv"]), "1\nb\n3\n");
    let txn = ctl.run_with(&["txn"], "value(\"a\") = \"2\"\n\nput a 3\nget a\n\nput a 4\n\n");
    assert_eq!(txn, "SUCCESS\n\nOK\n\na\n3\n");
    assert_eq!(ctl.run(&["compaction", "3"]), "compacted revision 3\n");
    // From a revision on; "--" would run a command for each event.
    assert_eq!(ctl.first_lines(&["watch", "a", "--rev", "3"], 6), ["PUT", "a", "2", "PUT", "a", "3"]);

    let granted = ctl.run(&["lease", "grant", "60"]);
    let lease = granted.split(' ').nth(1).unwrap();
    assert!(granted.ends_with("granted with TTL(60s)\n"), "{granted}");
    ctl.run(&["put", "leased", "1", "--lease", lease]);
    assert!(ctl.run(&["lease", "list"]).contains(lease));
    assert!(ctl.run(&["lease", "timetolive", lease, "--keys"]).contains("attached keys([leased])"));
    assert!(ctl.run(&["lease", "keep-alive", lease, "--once"]).contains("TTL(60)"));
    assert!(ctl.run(&["lease", "revoke", lease]).contains("revoked"));
    assert_eq!(ctl.run(&["get", "leased"]), "");

    assert!(ctl.run(&["endpoint", "health"]).contains("is healthy"));
    let status = ctl.run(&["endpoint", "status"]);
    assert!(status.contains("3.5.") && status.contains("true"), "{status}");
    let members = ctl.run(&["member", "list"]);
    assert!(members.contains("started") && members.contains(ctl.server.url()), "{members}");
    assert_eq!(ctl.run(&["alarm", "list"]), "");

    // Recipes of the client: one waits for another.
    assert_eq!(ctl.run(&["lock", "mutex", "echo", "held"]), "held\n");
    let elected = ctl.first_lines(&["elect", "post", "me"], 2);
    assert!(elected[0].starts_with("post/") && elected[1] == "me", "{elected:?}");

    assert!(ctl.run(&["defrag"]).contains("Finished defragmenting"));
    let hashed = ctl.run(&["endpoint", "hashkv"]);
    assert!(hashed.contains(ctl.server.url().trim_start_matches("http://")), "{hashed}");
    assert!(ctl.run(&["user", "add", "root:secret"]).contains("created"));
    assert!(ctl.run(&["user", "add", "reader:secret"]).contains("created"));
    ctl.run(&["role", "add", "reads"]);
    ctl.run(&["role", "grant-permission", "--prefix", "reads", "read", "a"]);
    ctl.run(&["user", "grant-role", "reader", "reads"]);
    // It grants the root role by itself.
    assert!(ctl.run(&["auth", "enable", "--user", "root:secret"]).contains("Authentication Enabled"));
    assert_eq!(ctl.run(&["get", "a", "--user", "reader:secret"]), "a\n3\n");
    let role = ctl.run(&["role", "get", "reads", "--user", "reader:secret"]);
    assert!(role.contains("[a, b) (prefix a)"), "{role}");
    assert!(ctl.run(&["auth", "disable", "--user", "root:secret"]).contains("Authentication Disabled"));
}
