//! Kubernetes: the pods of an Indexed Job, alone or within a JobSet. How many they are, and what the run is called, no
//! variable says: the manifest does.

use super::{Scheduled, Taking};
use crate::cli::run::options::Run;
use crate::cli::run::server::Serves;
use crate::cli::run::surroundings::Surroundings;

const INDEX: &str = "JOB_COMPLETION_INDEX";
const POD: &str = "the pod's name";

pub(super) fn take(options: &mut Run, around: Surroundings<'_>) -> Scheduled {
    let mut taking = Taking::new(options);
    // A pod may have its whole name, with that of its service.
    let host = around.host.split('.').next().unwrap_or_default();
    let index = around.text(INDEX).and_then(|index| index.parse::<usize>().ok());
    if index.is_some() && taking.options.nnodes.is_none() {
        taking.scheduled.warned = Some(
            "this pod is one of an Indexed Job, and without --nnodes the run has one node: set PET_NNODES to how many there are, or --standalone where each is to run alone".to_owned(),
        );
    }
    if taking.options.is_alone() {
        return taking.done("Kubernetes");
    }
    if let Some(own) = taking.own_endpoint(host) {
        // The name may not be known to anybody yet, this pod included.
        taking.serve(Serves::Here, &own, POD);
    }
    if let Some(index) = index.filter(|_| taking.options.is_native() && taking.options.node_rank.is_none()) {
        // The pod that is started in the place of another has its name. On the host's network it is the machine's.
        if host.ends_with(&format!("-{index}")) {
            // In a JobSet each Job begins with 0; names have the Job's own number before it.
            taking.set("rank_hint", host.to_owned(), POD);
            taking.set("node_id", host.to_owned(), POD);
        } else {
            taking.set("rank_hint", index.to_string(), INDEX);
        }
    }
    taking.done("Kubernetes")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::super::tests::taken;
    use super::*;

    const POD_3: [(&str, &str); 2] = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), (INDEX, "3")];

    #[test]
    fn a_pod_has_its_name_and_its_place() {
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint train-0.train:2379";
        let (run, scheduled) = taken(line, "train-3", &POD_3).unwrap();
        assert_eq!((scheduled.serves, run.local_addr), (None, None));
        assert_eq!(scheduled.config["rank_hint"], "train-3");
        assert_eq!(scheduled.config["node_id"], "train-3");
        assert_eq!(
            scheduled.said.unwrap(),
            "from Kubernetes: rank_hint train-3 (the pod's name), node_id train-3 (the pod's name); flags win"
        );
        // On the host's network the name is the machine's, which other pods may have too.
        let (_, scheduled) = taken(line, "worker7", &POD_3).unwrap();
        assert_eq!(scheduled.config["rank_hint"], "3");
        assert_eq!(scheduled.config.get("node_id"), None);
    }

    #[test]
    fn the_pod_that_the_endpoint_names_serves() {
        let first = [POD_3[0], (INDEX, "0")];
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint train-0.train:2379";
        let (run, scheduled) = taken(line, "train-0", &first).unwrap();
        assert_eq!(
            (scheduled.serves, run.local_addr.as_deref()),
            (Some(Serves::Here), Some("train-0.train"))
        );
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint etcd://train-0.train:2379";
        assert_eq!(taken(line, "train-0", &first).unwrap().1.serves, None);
        // A pod of a StatefulSet has no index; and with its whole name it is the same pod.
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint train-0.train:2379";
        let (_, scheduled) = taken(line, "train-0.train.space", &POD_3[..1]).unwrap();
        assert_eq!((scheduled.serves, scheduled.config.len()), (Some(Serves::Here), 0));
        let (run, scheduled) = taken("--nnodes 4 --master-addr train-0.train", "train-0", &first).unwrap();
        assert_eq!(
            (scheduled.serves, run.local_addr.as_deref()),
            (Some(Serves::Here), Some("train-0.train"))
        );
    }

    #[test]
    fn kubeflows_variables_are_left_alone() {
        let (run, scheduled) = taken("--nnodes 4 --node-rank 1 --master-addr m", "train-3", &POD_3).unwrap();
        assert_eq!((run.node_rank, scheduled.config.len(), scheduled.said), (Some(1), 0, None));
        // Each Job of a set begins with 0, so an index alone is nobody's rank.
        let (run, scheduled) =
            taken("--nnodes 4 --master-addr set-node-1-0.set", "set-node-1-3", &POD_3).unwrap();
        assert_eq!((run.node_rank, scheduled.config["rank_hint"].as_str()), (None, "set-node-1-3"));
    }

    #[test]
    fn a_pod_that_runs_alone_is_told() {
        for line in ["", "--rdzv-endpoint e:2379 --rdzv-id train"] {
            assert!(taken(line, "train-3", &POD_3).unwrap().1.warned.unwrap().contains("PET_NNODES"));
        }
        assert_eq!(taken("--standalone", "train-3", &POD_3).unwrap().1, Scheduled::default());
        assert_eq!(taken("", "web", &POD_3[..1]).unwrap().1, Scheduled::default());
    }
}
