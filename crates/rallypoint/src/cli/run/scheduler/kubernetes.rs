//! Kubernetes: the pods of an Indexed Job, alone or within a JobSet. How many they are, and what the run is called, no
//! variable says: the manifest does.

use rallypoint_core::Endpoints;

use super::{Scheduled, Surroundings, Taken};
use crate::cli::run::options::Run;
use crate::cli::run::server::Serves;

const INDEX: &str = "JOB_COMPLETION_INDEX";

pub(super) fn take(options: &mut Run, around: Surroundings<'_>) -> Scheduled {
    let mut scheduled = Scheduled::default();
    let Some(index) = around.text(INDEX).and_then(|index| index.parse::<usize>().ok()) else {
        return scheduled;
    };
    if options.is_alone() {
        scheduled.warned = options.nnodes.is_none().then(|| {
            "this pod is one of an Indexed Job, and without --nnodes it runs alone: set PET_NNODES to how many there are, or --standalone where each is to run alone".to_owned()
        });
        return scheduled;
    }
    let mut taken = Taken::from("Kubernetes");
    // The pod that is started in the place of another has its index, and its name.
    let named = around.host.ends_with(&format!("-{index}"));
    if options.meets_at_master() {
        if options.node_rank.is_none() && index < options.nodes().max {
            options.node_rank = Some(index);
            taken.add("--node-rank", index, INDEX);
        }
    } else if options.is_native() {
        if options.node_rank.is_none() {
            // In a JobSet each Job begins with 0; names have the Job's own number before it.
            let hint = if named { around.host.to_owned() } else { index.to_string() };
            taken.add("rank_hint", &hint, if named { "the pod's name" } else { INDEX });
            scheduled.config.insert("rank_hint".to_owned(), hint);
        }
        if named {
            taken.add("node_id", around.host, "the pod's name");
            scheduled.config.insert("node_id".to_owned(), around.host.to_owned());
        }
    }
    if let Some(host) = own_endpoint(options, around.host) {
        // The name may not be known yet, so nobody else could tell.
        scheduled.serves = Some(Serves::Here);
        taken.add("the embedded server on", &host, "the pod's name");
        options.local_addr.get_or_insert(host);
    }
    scheduled.said = taken.said();
    scheduled
}

/// The endpoint's host, if it is this pod's name in its service.
fn own_endpoint(options: &Run, host: &str) -> Option<String> {
    if options.connection.only_connect() {
        return None;
    }
    let endpoints: Endpoints = options.connection.endpoints().parse().ok()?;
    let [endpoint] = endpoints.as_slice() else { return None };
    (endpoint.host.split('.').next() == Some(host)).then(|| endpoint.host.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::super::tests::taken;
    use super::*;

    const POD: [(&str, &str); 2] = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), (INDEX, "3")];

    #[test]
    fn a_pod_has_its_name_and_its_place() {
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint train-0.train:2379";
        let (run, scheduled) = taken(line, "train-3", &POD).unwrap();
        assert_eq!((scheduled.serves, run.local_addr), (None, None));
        assert_eq!(scheduled.config["rank_hint"], "train-3");
        assert_eq!(scheduled.config["node_id"], "train-3");
        assert_eq!(
            scheduled.said.unwrap(),
            "from Kubernetes: rank_hint train-3 (the pod's name), node_id train-3 (the pod's name); flags win"
        );
        // On the host's network the name is the machine's, which other pods may have too.
        let (_, scheduled) = taken(line, "worker7", &POD).unwrap();
        assert_eq!(scheduled.config["rank_hint"], "3");
        assert_eq!(scheduled.config.get("node_id"), None);
    }

    #[test]
    fn the_pod_that_the_endpoint_names_serves() {
        let first = [POD[0], (INDEX, "0")];
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint train-0.train:2379";
        let (run, scheduled) = taken(line, "train-0", &first).unwrap();
        assert_eq!(
            (scheduled.serves, run.local_addr.as_deref()),
            (Some(Serves::Here), Some("train-0.train"))
        );
        let line = "--nnodes 4 --rdzv-id train --rdzv-endpoint etcd://train-0.train:2379";
        assert_eq!(taken(line, "train-0", &first).unwrap().1.serves, None);
    }

    #[test]
    fn kubeflows_variables_are_left_alone() {
        let (run, scheduled) = taken("--nnodes 4 --node-rank 1 --master-addr m", "train-3", &POD).unwrap();
        assert_eq!((run.node_rank, scheduled.config.len(), scheduled.said), (Some(1), 0, None));
        let (run, _) = taken("--nnodes 4 --master-addr m", "train-3", &POD).unwrap();
        assert_eq!(run.node_rank, Some(3));
    }

    #[test]
    fn a_pod_that_runs_alone_is_told() {
        let (_, scheduled) = taken("", "train-3", &POD).unwrap();
        assert!(scheduled.warned.unwrap().contains("PET_NNODES"));
        assert_eq!(taken("--standalone", "train-3", &POD).unwrap().1, Scheduled::default());
        assert_eq!(taken("", "web", &POD[..1]).unwrap().1, Scheduled::default());
    }
}
