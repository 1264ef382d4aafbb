//! As a pod of an Indexed Job has it: the name of the pod is its host's, and is known to nobody yet.

use std::process::{Command, Stdio};

use crate::launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::closed_port;

/// Runs what follows with a host's name of its own; without root, in a user namespace.
fn on_host(name: &str) -> Command {
    let own = ["--uts"];
    let of_user = ["--uts", "--user", "--map-root-user"];
    let works = |options: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(options).arg("true").stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let options = if works(&own) { &own[..] } else { &of_user[..] };
    let mut command = Command::new("unshare");
    command.args(options).args(["sh", "-c", "hostname \"$0\"; exec \"$@\"", name]);
    command
}

#[test]
fn the_first_pod_serves_before_its_name_is_known_and_ranks_follow_the_names() {
    let port = closed_port();
    let pod = |index: usize, endpoint: String| {
        let mut command = on_host(&format!("train-{index}"));
        command.args([RALLYPOINT, "run", "--nnodes", "3", "--rdzv-id", "train", "--rdzv-endpoint"]);
        command.arg(endpoint).args(["--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"]);
        command.env("KUBERNETES_SERVICE_HOST", "10.96.0.1").env("JOB_COMPLETION_INDEX", index.to_string());
        Launcher::spawn(command)
    };
    // No name server knows it. The others are given the address, as they would find it by the name later.
    let elsewhere = || format!("etcd://127.0.0.1:{port}");
    let pods = [pod(2, elsewhere()), pod(1, elsewhere()), pod(0, format!("train-0.train:{port}"))];
    for (index, ended) in [2, 1, 0].into_iter().zip(pods.map(Launcher::ended)) {
        let ended = ended.expect(0);
        let said = format!("]: rank {index} of 3 at train-0.train");
        assert_eq!(ended.with(&said).len(), 1, "{}", ended.text());
        let taken = ended.with("from Kubernetes: ");
        let hints = format!("rank_hint train-{index} (the pod's name), node_id train-{index}");
        assert!(taken.len() == 1 && taken[0].contains(&hints), "{}", ended.text());
        let serves = ended.text().contains("starts the embedded server");
        assert_eq!(serves, index == 0, "{}", ended.text());
    }
}
