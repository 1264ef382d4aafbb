//! What happens to servers that keep running, or come back otherwise than they went.

use std::path::Path;

use crate::{Cluster, Etcd};

/// The password of `root` after [`Etcd::ask_for_passwords`].
const ROOT: &str = "--user=root:root";
/// Where [`Etcd::exhaust_space`] writes.
const BALLAST: &str = "testkit/ballast/";

impl Etcd {
    /// Saves what it holds into a file.
    pub fn save(&self, snapshot: &Path) {
        let _ = self.etcdctl(&["snapshot", "save", &snapshot.to_string_lossy()]);
    }

    /// Kills it if it runs, and starts it on the same ports with what a snapshot holds: its revisions begin again where
    /// they were then.
    pub fn restore(&mut self, snapshot: &Path) {
        self.restore_ahead(snapshot, 0);
    }

    /// As [`Etcd::restore`], with all revisions so much higher, as etcd advises where clients keep watching.
    pub fn restore_ahead(&mut self, snapshot: &Path, revisions: u64) {
        self.kill();
        self.fill_from(snapshot, revisions);
        self.restart();
    }

    /// Kills it if it runs, and starts it on the same ports without anything that it held. One that is alone; a cluster
    /// does not let a member in that has forgotten it.
    pub fn restart_empty(&mut self) {
        self.kill();
        self.forget_data();
        self.restart();
    }

    /// Writes until it has no room left, and refuses all writes (`NOSPACE`). For one with a small
    /// `--quota-backend-bytes`.
    pub fn exhaust_space(&self) {
        let value = "x".repeat(100_000);
        for n in 0..1000 {
            if let Err(said) = self.try_etcdctl(&["put", &format!("{BALLAST}{n}"), &value]) {
                assert!(said.contains("database space exceeded"), "{said}");
                assert!(self.etcdctl(&["alarm", "list"]).contains("NOSPACE"));
                return;
            }
        }
        panic!("{self} still has room after 100 MB: give it a --quota-backend-bytes");
    }

    /// Ends what [`Etcd::exhaust_space`] began, as an operator does. In a cluster: for all members.
    pub fn free_space(&self) {
        let _ = self.etcdctl(&["del", "--prefix", BALLAST]);
        let answer = self.etcdctl(&["get", BALLAST, "--write-out=fields"]);
        let revision = answer.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        let _ = self.etcdctl(&["compact", "--physical", revision.expect("an answer has a revision")]);
        let _ = self.etcdctl(&["defrag", "--cluster"]);
        let _ = self.etcdctl(&["alarm", "disarm"]);
        assert_eq!(self.etcdctl(&["alarm", "list"]), "", "{self} still has an alarm");
    }

    /// From now on everybody is asked for a password. There are `root`, whose password is `root`, and `user`, who may
    /// read and write what begins with `prefix`.
    pub fn ask_for_passwords(&self, user: &str, password: &str, prefix: &str) {
        for args in [
            &["user", "add", "root:root"][..],
            &["user", "grant-role", "root", "root"],
            &["user", "add", &format!("{user}:{password}")],
            &["role", "add", user],
            &["role", "grant-permission", user, "--prefix=true", "readwrite", prefix],
            &["user", "grant-role", user, user],
            &["auth", "enable"],
        ] {
            let _ = self.etcdctl(args);
        }
    }

    /// One more user, who may read and write what begins with `prefix`.
    pub fn add_user(&self, user: &str, password: &str, prefix: &str) {
        for args in [
            &["user", "add", &format!("{user}:{password}")][..],
            &["role", "add", user],
            &["role", "grant-permission", user, "--prefix=true", "readwrite", prefix],
            &["user", "grant-role", user, user],
        ] {
            let _ = self.etcdctl(&[args, &[ROOT]].concat());
        }
    }

    /// Ends what [`Etcd::ask_for_passwords`] began.
    pub fn ask_for_no_passwords(&self) {
        let _ = self.etcdctl(&["auth", "disable", ROOT]);
    }

    /// Takes the role of `user` away: what they may do from now on is nothing.
    pub fn revoke_role(&self, user: &str) {
        let _ = self.etcdctl(&["user", "revoke-role", user, user, ROOT]);
    }

    /// Gives it back.
    pub fn grant_role(&self, user: &str) {
        let _ = self.etcdctl(&["user", "grant-role", user, user, ROOT]);
    }
}

impl Cluster {
    /// Kills all members that run, and starts them with what a snapshot of one of them holds.
    pub fn restore(&mut self, snapshot: &Path) {
        self.restore_ahead(snapshot, 0);
    }

    /// As [`Cluster::restore`], with all revisions so much higher, as etcd advises where clients keep watching.
    pub fn restore_ahead(&mut self, snapshot: &Path, revisions: u64) {
        self.restart_with(|member| member.fill_from(snapshot, revisions));
    }

    /// Kills all members that run, and starts them without anything that they held.
    pub fn restart_empty(&mut self) {
        self.restart_with(Etcd::forget_data);
    }
}
