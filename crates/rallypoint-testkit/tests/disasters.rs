//! What happens to a server leaves it exactly as it says.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may unwrap as the tests do")]

use rallypoint_testkit::{Cluster, Etcd, Version};

fn put(etcd: &Etcd, key: &str, value: &str) {
    assert_eq!(etcd.etcdctl(&["put", key, value]).trim(), "OK");
}

fn get(etcd: &Etcd, key: &str) -> String {
    etcd.etcdctl(&["get", "--print-value-only", key]).trim().to_owned()
}

fn revision(etcd: &Etcd) -> u64 {
    let answer = etcd.etcdctl(&["get", "none", "--write-out=fields"]);
    answer.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap().parse().unwrap()
}

#[test]
fn a_restored_server_holds_what_it_held_and_counts_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    let mut etcd = Etcd::start(Version::V35);
    put(&etcd, "k", "saved");
    etcd.save(&snapshot);
    let saved_at = revision(&etcd);
    put(&etcd, "k", "lost");
    put(&etcd, "later", "lost");

    let endpoint = etcd.endpoint();
    etcd.restore(&snapshot);
    assert_eq!((get(&etcd, "k"), get(&etcd, "later")), ("saved".to_owned(), String::new()));
    assert_eq!((revision(&etcd), etcd.endpoint()), (saved_at, endpoint));

    etcd.restore_ahead(&snapshot, 1000);
    assert_eq!(get(&etcd, "k"), "saved");
    assert!(revision(&etcd) >= saved_at + 1000, "{}", revision(&etcd));
    // What came before is gone, so that nobody takes it for news.
    let said = etcd.try_etcdctl(&["get", "k", &format!("--rev={saved_at}")]).unwrap_err();
    assert!(said.contains("compacted"), "{said}");
}

#[test]
fn a_restored_cluster_is_one_cluster_with_what_the_snapshot_holds() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    let mut cluster = Cluster::start(Version::V35, 3);
    put(&cluster.nodes()[0], "k", "saved");
    cluster.nodes()[0].save(&snapshot);
    let saved_at = revision(&cluster.nodes()[0]);
    put(&cluster.nodes()[1], "k", "lost");

    for ahead in [0, 1000] {
        cluster.restore_ahead(&snapshot, ahead);
        for member in cluster.nodes() {
            assert_eq!(get(member, "k"), "saved");
            assert!(revision(member) >= saved_at + ahead);
        }
        put(&cluster.nodes()[0], "k", "new");
        assert_eq!(get(&cluster.nodes()[2], "k"), "new");
    }
    cluster.restart_empty();
    assert!(cluster.nodes().iter().all(|member| get(member, "k").is_empty() && revision(member) == 1));
}

#[test]
fn an_emptied_server_begins_anew_at_the_same_address() {
    for version in Version::all() {
        let mut etcd = Etcd::start(version);
        put(&etcd, "k", "v");
        let endpoint = etcd.endpoint();
        etcd.restart_empty();
        assert_eq!((get(&etcd, "k"), revision(&etcd), etcd.endpoint()), (String::new(), 1, endpoint));
    }
}

#[test]
fn a_full_server_refuses_writes_until_it_has_room_again() {
    let etcd = Etcd::builder(Version::V35).arg("--quota-backend-bytes=1048576").start();
    put(&etcd, "k", "before");
    etcd.exhaust_space();
    let said = etcd.try_etcdctl(&["put", "k", "refused"]).unwrap_err();
    assert!(said.contains("database space exceeded"), "{said}");
    assert_eq!(get(&etcd, "k"), "before", "it can be read");
    etcd.free_space();
    put(&etcd, "k", "after");
}

#[test]
fn passwords_are_asked_for_and_a_role_is_taken_away_and_given_back() {
    let etcd = Etcd::start(Version::V35);
    etcd.ask_for_passwords("guest", "secret", "a/");
    let as_guest = |key: &str| etcd.try_etcdctl(&["put", key, "v", "--user=guest:secret"]);
    let denied = |said: Result<String, String>| said.is_err_and(|said| said.contains("permission denied"));
    assert!(etcd.try_etcdctl(&["put", "a/k", "v"]).is_err(), "nobody in particular");
    assert_eq!(as_guest("a/k").unwrap().trim(), "OK");
    assert!(denied(as_guest("b/k")));

    etcd.revoke_role("guest");
    assert!(denied(as_guest("a/k")));
    etcd.grant_role("guest");
    assert_eq!(as_guest("a/k").unwrap().trim(), "OK");

    etcd.ask_for_no_passwords();
    put(&etcd, "b/k", "v");
}
