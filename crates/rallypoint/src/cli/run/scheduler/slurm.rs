//! Slurm: one launcher for each node of a step, as `srun --ntasks-per-node=1` starts them.

use super::{Scheduled, Surroundings, Taken};
use crate::cli::exit::Problem;
use crate::cli::run::options::{Nodes, Run, WorkersPerNode};
use crate::cli::run::server::Serves;

/// The ports of the servers that steps start: below those that the kernel gives away, and clear of torchrun's own.
const FIRST_PORT: u64 = 20_000;
const PORTS: u64 = 9_000;

pub(super) fn take(options: &mut Run, around: Surroundings<'_>) -> Result<Scheduled, Problem> {
    let mut scheduled = Scheduled::default();
    let placed = options.nnodes.is_some() || !options.connection.endpoints().is_empty();
    let in_step = ["SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_PROCID"];
    if !in_step.iter().all(|name| around.text(name).is_some()) {
        let nodes = around.text("SLURM_JOB_NUM_NODES").and_then(|nodes| nodes.parse().ok()).unwrap_or(1);
        scheduled.warned = (nodes > 1 && !placed).then(|| {
            format!("this Slurm job has {nodes} nodes, and srun did not start this launcher, so it runs alone: write srun --ntasks-per-node=1 rallypoint run ...")
        });
        return Ok(scheduled);
    }
    if around.text("SLURM_HET_SIZE").is_some_and(|size| size != "1") {
        scheduled.warned = (!placed).then(|| {
            "nothing is taken from Slurm, since the job is a heterogeneous one: give --nnodes, --rdzv-id and --rdzv-endpoint".to_owned()
        });
        return Ok(scheduled);
    }
    let mut taken = Taken::from("Slurm");
    let task = around.number("SLURM_PROCID", "--nnodes, --rdzv-id and --rdzv-endpoint")?;
    if options.nnodes.is_none() {
        let nodes = nodes(around)?;
        options.nnodes = Some(Nodes { min: nodes, max: nodes });
        taken.add("--nnodes", nodes, "SLURM_STEP_NUM_NODES");
    }
    let gpus = around.text("SLURM_GPUS_ON_NODE").and_then(|gpus| gpus.parse().ok()).filter(|gpus| *gpus > 0);
    if let (None, Some(gpus)) = (options.nproc_per_node, gpus) {
        options.nproc_per_node = Some(WorkersPerNode::Number(gpus));
        taken.add("--nproc-per-node", gpus, "SLURM_GPUS_ON_NODE");
    }
    if options.rdzv_id.trim().is_empty() {
        options.rdzv_id = run_id(around)?;
        taken.add("--rdzv-id", &options.rdzv_id, "SLURM_JOB_ID and SLURM_STEP_ID");
    }
    if options.is_alone() {
        scheduled.said = taken.said();
        return Ok(scheduled);
    }
    if options.meets_at_master() {
        if options.master_addr.as_ref().is_none_or(String::is_empty) {
            let (first, port) = place(around, "--master-addr")?;
            taken.add("--master-addr", &first, "SLURM_STEP_NODELIST");
            options.master_addr = Some(first);
            if options.master_port.is_none() {
                taken.add("--master-port", port, "SLURM_JOB_ID");
                options.master_port = Some(port);
            }
        }
        if options.node_rank.is_none() && task < options.nodes().max {
            options.node_rank = Some(task);
            taken.add("--node-rank", task, "SLURM_PROCID");
        }
    } else if options.connection.endpoints().is_empty() {
        let (first, port) = place(around, "--rdzv-endpoint")?;
        options.connection.endpoint = format!("{first}:{port}");
        taken.add("--rdzv-endpoint", &options.connection.endpoint, "SLURM_STEP_NODELIST and SLURM_JOB_ID");
        let here = around.text("SLURMD_NODENAME").map_or(task == 0, |name| name == first);
        scheduled.serves = Some(if here { Serves::Only } else { Serves::Elsewhere });
        if here {
            options.local_addr.get_or_insert(first);
        }
    }
    if options.is_native() && options.node_rank.is_none() {
        taken.add("rank_hint", task, "SLURM_PROCID");
        scheduled.config.insert("rank_hint".to_owned(), task.to_string());
    }
    if let Some(rack) = rack(around).filter(|_| options.is_native()) {
        taken.add("rack", &rack, "SLURM_TOPOLOGY_ADDR");
        scheduled.config.insert("rack".to_owned(), rack);
    }
    scheduled.said = taken.said();
    Ok(scheduled)
}

/// The nodes of the step, each of which has one launcher.
fn nodes(around: Surroundings<'_>) -> Result<usize, Problem> {
    let nodes = around.number("SLURM_STEP_NUM_NODES", "--nnodes")?;
    let tasks = match around.text("SLURM_STEP_NUM_TASKS") {
        Some(_) => around.number("SLURM_STEP_NUM_TASKS", "--nnodes")?,
        None => nodes,
    };
    match (nodes, tasks) {
        (0, _) => Err(Problem::usage("SLURM_STEP_NUM_NODES is 0: give --nnodes".to_owned())),
        (nodes, tasks) if tasks != nodes => Err(Problem::usage(format!(
            "srun starts {tasks} launchers on {nodes} nodes, and each node needs one: write srun --ntasks-per-node=1, and say with --nproc-per-node how many workers it starts (or --standalone, where each is to run alone)"
        ))),
        (nodes, _) => Ok(nodes),
    }
}

/// The step, among all of its cluster, and which time it is that Slurm has started the job.
fn run_id(around: Surroundings<'_>) -> Result<String, Problem> {
    let job = around.needed("SLURM_JOB_ID", "--rdzv-id")?;
    let step = around.needed("SLURM_STEP_ID", "--rdzv-id")?;
    let cluster = around.text("SLURM_CLUSTER_NAME").unwrap_or_else(|| "slurm".to_owned());
    // A run that is over stays over, so a job that is requeued needs another name.
    let again = around.text("SLURM_RESTART_COUNT").filter(|count| count != "0");
    Ok(format!("{cluster}-{job}.{step}{}", again.map(|count| format!("-{count}")).unwrap_or_default()))
}

/// The first node of the step, and a port that other steps there do not have.
fn place(around: Surroundings<'_>, instead: &str) -> Result<(String, u16), Problem> {
    let list = around.needed("SLURM_STEP_NODELIST", instead)?;
    let first = first_host(&list).ok_or_else(|| {
        Problem::usage(format!("SLURM_STEP_NODELIST is {list:?}, which names no node: give {instead}"))
    })?;
    let number = |name: &str| match around.text(name) {
        Some(_) => around.number(name, instead).map(|number| number as u64),
        None => Ok(0),
    };
    let (job, step, again) =
        (number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?, number("SLURM_RESTART_COUNT")?);
    // Jobs that follow each other, and the steps of one, are often on one machine: they are apart.
    let port = FIRST_PORT + (job % PORTS + step % PORTS * 101 + again % PORTS * 1009) % PORTS;
    Ok((first, u16::try_from(port).unwrap_or(u16::MAX)))
}

/// The first name of Slurm's list of hosts: `n007` of `n[007-009,12],other`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(at) = rest.find([',', '[']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            return Some(host).filter(|host| !host.is_empty());
        }
        let (ranges, after) = rest[at + 1..].split_once(']')?;
        host.push_str(ranges.split([',', '-']).next()?);
        rest = after;
    }
    host.push_str(rest);
    Some(host).filter(|host| !host.is_empty())
}

/// The switches above this node, of an address such as `core.s1.n1`; none in a cluster without a topology.
fn rack(around: Surroundings<'_>) -> Option<String> {
    let address = around.text("SLURM_TOPOLOGY_ADDR")?;
    // The name of a node may have dots of its own.
    let node = around.text("SLURMD_NODENAME")?;
    address.strip_suffix(&node)?.strip_suffix('.').filter(|switches| !switches.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::super::tests::taken;
    use super::*;

    /// Of the third of four nodes, as Slurm 22.05 has them.
    const STEP: [(&str, &str); 12] = [
        ("SLURM_CLUSTER_NAME", "yard"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_JOB_NUM_NODES", "4"),
        ("SLURM_STEP_ID", "1"),
        ("SLURM_STEP_NUM_NODES", "4"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "n[07-09,12]"),
        ("SLURM_PROCID", "2"),
        ("SLURM_NODEID", "2"),
        ("SLURMD_NODENAME", "n09"),
        ("SLURM_GPUS_ON_NODE", "8"),
        ("SLURM_TOPOLOGY_ADDR", "core.s1.n09"),
    ];

    fn with(changed: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        changed.iter().copied().chain(STEP).collect()
    }

    #[test]
    fn a_step_needs_no_flag() {
        let (run, scheduled) = taken("", "n09", &STEP).unwrap();
        assert_eq!((run.nodes(), run.rdzv_id.as_str()), (Nodes { min: 4, max: 4 }, "yard-4711.1"));
        assert_eq!(run.nproc_per_node, Some(WorkersPerNode::Number(8)));
        assert_eq!(run.connection.endpoints(), "n07:24812");
        assert_eq!((scheduled.serves, run.local_addr), (Some(Serves::Elsewhere), None));
        assert_eq!(scheduled.config["rank_hint"], "2");
        assert_eq!(scheduled.config["rack"], "core.s1");
        assert_eq!(
            scheduled.said.unwrap(),
            "from Slurm: --nnodes 4 (SLURM_STEP_NUM_NODES), --nproc-per-node 8 (SLURM_GPUS_ON_NODE), --rdzv-id yard-4711.1 (SLURM_JOB_ID and SLURM_STEP_ID), --rdzv-endpoint n07:24812 (SLURM_STEP_NODELIST and SLURM_JOB_ID), rank_hint 2 (SLURM_PROCID), rack core.s1 (SLURM_TOPOLOGY_ADDR); flags win"
        );
        // The first node has the server, and the address that the others know.
        let (run, scheduled) = taken("", "n07", &with(&[("SLURMD_NODENAME", "n07")])).unwrap();
        assert_eq!((scheduled.serves, run.local_addr.as_deref()), (Some(Serves::Only), Some("n07")));
    }

    #[test]
    fn a_job_that_is_requeued_meets_nobody_of_its_past() {
        let (run, _) = taken("", "n09", &with(&[("SLURM_RESTART_COUNT", "2")])).unwrap();
        assert_eq!((run.rdzv_id.as_str(), run.connection.endpoints()), ("yard-4711.1-2", "n07:26830"));
    }

    #[test]
    fn flags_win() {
        let line =
            "--nnodes 2:3 --nproc-per-node 1 --rdzv-id mine --rdzv-endpoint etcd1:2379 --local-addr 10.0.0.9";
        let (run, scheduled) = taken(line, "n09", &STEP).unwrap();
        assert_eq!((run.nodes(), run.rdzv_id.as_str()), (Nodes { min: 2, max: 3 }, "mine"));
        assert_eq!(run.connection.endpoints(), "etcd1:2379");
        assert_eq!((scheduled.serves, run.local_addr.as_deref()), (None, Some("10.0.0.9")));
        // Who did not say it has them still.
        assert_eq!(scheduled.config["rank_hint"], "2");
        let (run, scheduled) = taken("--standalone", "n09", &STEP).unwrap();
        assert_eq!((run.nnodes, scheduled), (None, Scheduled::default()));
        let (run, scheduled) = taken("--nnodes 1", "n09", &STEP).unwrap();
        assert_eq!((run.connection.endpoints(), scheduled.config.len()), ("", 0));
    }

    #[test]
    fn torchruns_flags_for_the_master_are_completed() {
        let (run, scheduled) = taken("--master-addr n08", "n09", &STEP).unwrap();
        assert_eq!(
            (run.master_addr.as_deref(), run.master_port, run.node_rank),
            (Some("n08"), None, Some(2))
        );
        assert_eq!((run.connection.endpoints(), scheduled.serves), ("", None));
        let (run, scheduled) = taken("--node-rank 3", "n09", &STEP).unwrap();
        assert_eq!((run.master_addr.as_deref(), run.master_port), (Some("n07"), Some(24_812)));
        assert_eq!(scheduled.config.get("rank_hint"), None);
        // A spare has no rank that it could ask for.
        assert_eq!(taken("--nnodes 2 --master-addr n08", "n09", &STEP).unwrap().0.node_rank, None);
    }

    #[test]
    fn another_backend_gets_no_hints() {
        let (run, scheduled) = taken("--rdzv-backend etcd", "n09", &STEP).unwrap();
        assert_eq!((run.nodes().max, scheduled.config.len()), (4, 0));
    }

    #[test]
    fn several_launchers_on_a_node_are_refused() {
        let problem = taken("", "n09", &with(&[("SLURM_STEP_NUM_TASKS", "32")])).unwrap_err();
        assert!(
            problem.text.contains("32 launchers on 4 nodes") && problem.text.contains("--ntasks-per-node=1")
        );
        // Unless they are meant.
        let (run, _) = taken("--nnodes 32", "n09", &with(&[("SLURM_STEP_NUM_TASKS", "32")])).unwrap();
        assert_eq!(run.nodes().max, 32);
        let problem = taken("", "n09", &with(&[("SLURM_STEP_NUM_NODES", "x")])).unwrap_err();
        assert!(problem.text.contains("SLURM_STEP_NUM_NODES is \"x\"") && problem.text.contains("--nnodes"));
    }

    #[test]
    fn who_was_not_started_by_srun_is_told() {
        let batch = [("SLURM_JOB_ID", "4711"), ("SLURM_JOB_NUM_NODES", "4"), ("SLURM_PROCID", "0")];
        let (run, scheduled) = taken("", "n07", &batch).unwrap();
        assert!(run.nnodes.is_none() && scheduled.warned.unwrap().contains("4 nodes"));
        assert_eq!(taken("--nnodes 1", "n07", &batch).unwrap().1, Scheduled::default());
        let (run, scheduled) = taken("", "n07", &with(&[("SLURM_HET_SIZE", "2")])).unwrap();
        assert!(run.nnodes.is_none() && scheduled.warned.unwrap().contains("heterogeneous"));
    }

    #[test]
    fn a_step_of_one_node_meets_nobody() {
        let one = [("SLURM_STEP_NUM_NODES", "1"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")];
        let (run, scheduled) = taken("", "n09", &with(&one)).unwrap();
        assert_eq!((run.connection.endpoints(), run.rdzv_id.as_str()), ("", "yard-4711.1"));
        assert_eq!(scheduled.config.len(), 0);
    }

    #[test]
    fn a_rack_is_what_is_above_the_node() {
        for (address, node, rack) in [
            ("core.s1.n09", "n09", Some("core.s1")),
            ("s2.n09.site", "n09.site", Some("s2")),
            ("n09", "n09", None),
            ("core.s1.n08", "n09", None),
        ] {
            let changed = with(&[("SLURM_TOPOLOGY_ADDR", address), ("SLURMD_NODENAME", node)]);
            let config = taken("", "n09", &changed).unwrap().1.config;
            assert_eq!(config.get("rack").map(String::as_str), rack, "{address}");
        }
    }

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("n1", Some("n1")),
            ("n[007-009,12],other", Some("n007")),
            ("n[5,7]", Some("n5")),
            ("a,b[1-2]", Some("a")),
            ("rack[2-3]-n[01-16]", Some("rack2-n01")),
            ("n[1-2]-ib.site", Some("n1-ib.site")),
            ("", None),
            ("n[1-2", None),
            (",a", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }
}
