//! Slurm: one launcher for each node of a step, as `srun --ntasks-per-node=1` starts them.

use std::str::FromStr;

use rallypoint_core::text::count;

use super::{Scheduled, Taking};
use crate::cli::exit::Problem;
use crate::cli::run::options::Run;
use crate::cli::run::server::Serves;
use crate::cli::run::surroundings::Surroundings;
use crate::cli::run::values::{Nodes, WorkersPerNode};

/// The ports of the servers that steps start: below those that the kernel gives away by default, and clear of torchrun's.
const FIRST_PORT: u64 = 20_000;
const PORTS: u64 = 9_000;
/// What a shell of `salloc` runs in, on one node of the job.
const INTERACTIVE_STEP: u64 = 4_294_967_290;

pub(super) fn take(options: &mut Run, around: Surroundings<'_>) -> Result<Scheduled, Problem> {
    let nodes_said = options.nnodes.is_some() || !options.connection.endpoints().is_empty();
    let mut taking = Taking::new(options);
    let step = match Step::of(around) {
        Ok(step) => step,
        Err(variable) if !nodes_said => {
            return Err(Problem::usage(format!(
                "srun has started this launcher, and {variable} is not set, or is not what Slurm sets: give --nnodes, --rdzv-id and --rdzv-endpoint, or --standalone where each node is to run alone"
            )));
        }
        Err(_) => return Ok(taking.done("Slurm")),
    };
    // Several launchers on a node would each start workers for all its GPUs.
    if step.as_ref().is_none_or(|step| step.tasks <= step.nodes) {
        take_workers(&mut taking, around);
    }
    let Some(step) = step else {
        let nodes = around.text("SLURM_NNODES").and_then(|nodes| nodes.parse().ok()).unwrap_or(1);
        taking.scheduled.warned = (nodes > 1 && !nodes_said).then(|| {
            format!("this Slurm job has {nodes} nodes, and srun did not start this launcher, so it runs alone: write srun --ntasks-per-node=1 rallypoint run ...")
        });
        return Ok(taking.done("Slurm"));
    };
    if around.text("SLURM_HET_SIZE").is_some_and(|size| size != "1") {
        // Slurm counts each part of the job for itself.
        if step.tasks > 1 && !nodes_said {
            return Err(Problem::usage(
                "where to meet is not taken from Slurm, since the job is a heterogeneous one: give --nnodes, --rdzv-id and --rdzv-endpoint, or --standalone where each node is to run alone",
            ));
        }
        return Ok(taking.done("Slurm"));
    }
    take_nodes(&mut taking, &step)?;
    // Nodes of other steps know neither this step's name nor its first node. Where the step has all nodes of the job there are
    // none, though the run could do with more.
    let Nodes { min, max } = taking.options.nodes();
    if max <= step.tasks || (min <= step.tasks && step.is_whole_job) {
        take_run(&mut taking, &step);
    }
    Ok(taking.done("Slurm"))
}

/// What Slurm says of a step, and of this task of it.
#[derive(Debug)]
struct Step {
    cluster: String,
    job: u64,
    step: u64,
    /// How often the job was started before.
    restarts: u64,
    nodes: usize,
    /// Whether these are all nodes of the job.
    is_whole_job: bool,
    /// Those that `srun` starts, on all nodes.
    tasks: usize,
    /// This task among all of them, and among those of its node.
    task: usize,
    local_task: usize,
    /// The name of the first node, and of this one.
    first: String,
    node: String,
    /// The switches above this node.
    rack: Option<String>,
}

impl Step {
    /// None where `srun` has not started this process; a variable where it has, and that one does not say so.
    fn of(around: Surroundings<'_>) -> Result<Option<Self>, &'static str> {
        fn number<T: FromStr>(around: Surroundings<'_>, name: &'static str) -> Result<T, &'static str> {
            around.text(name).and_then(|text| text.parse().ok()).ok_or(name)
        }
        const STEP: &str = "SLURM_STEP_ID";
        const LIST: &str = "SLURM_STEP_NODELIST";
        if around.text(STEP).is_none() || number(around, STEP) == Ok(INTERACTIVE_STEP) {
            return Ok(None);
        }
        let nodes = number(around, "SLURM_STEP_NUM_NODES")?;
        let node = around.text("SLURMD_NODENAME").ok_or("SLURMD_NODENAME")?;
        let list = around.text(LIST).ok_or(LIST)?;
        Ok(Some(Step {
            // Of a cluster without a name there is only one.
            cluster: around.text("SLURM_CLUSTER_NAME").unwrap_or_else(|| "slurm".to_owned()),
            job: number(around, "SLURM_JOB_ID")?,
            step: number(around, STEP)?,
            restarts: number(around, "SLURM_RESTART_COUNT").unwrap_or(0),
            nodes: if nodes > 0 { nodes } else { return Err("SLURM_STEP_NUM_NODES") },
            is_whole_job: around.text("SLURM_JOB_NODELIST").is_none_or(|of_job| of_job == list),
            tasks: number(around, "SLURM_STEP_NUM_TASKS").unwrap_or(nodes),
            task: number(around, "SLURM_PROCID")?,
            local_task: number(around, "SLURM_LOCALID").unwrap_or(0),
            first: first_host(&list).ok_or(LIST)?,
            rack: around.text("SLURM_TOPOLOGY_ADDR").and_then(|address| rack(&address, &node)),
            node,
        }))
    }

    /// Its name among all of its cluster. A run that is over stays over, so a job that is requeued has another.
    fn run_id(&self) -> String {
        let Step { cluster, job, step, restarts, .. } = self;
        let again = if *restarts > 0 { format!("-{restarts}") } else { String::new() };
        format!("{cluster}-{job}.{step}{again}")
    }

    /// Jobs with neighbouring numbers, and the steps of one job, are often on one machine, and get different ports.
    fn port(&self) -> u16 {
        let number = self.job % PORTS + self.step % PORTS * 4001 + self.restarts % PORTS * 2003;
        u16::try_from(FIRST_PORT + number % PORTS).unwrap_or(u16::MAX)
    }

    /// Whether this is the launcher that the others look for on the first node.
    fn is_first(&self) -> bool {
        self.node == self.first && self.local_task == 0
    }
}

/// A worker for each GPU of the step on this node.
fn take_workers(taking: &mut Taking<'_>, around: Surroundings<'_>) {
    const GPUS: &str = "SLURM_GPUS_ON_NODE";
    let gpus = around.text(GPUS).and_then(|gpus| gpus.parse().ok()).filter(|gpus| *gpus > 0);
    if let (None, Some(gpus)) = (taking.options.nproc_per_node, gpus) {
        taking.options.nproc_per_node = Some(WorkersPerNode::Number(gpus));
        taking.say("--nproc-per-node", gpus, GPUS);
    }
}

/// The nodes of the step, each of which has one launcher.
fn take_nodes(taking: &mut Taking<'_>, step: &Step) -> Result<(), Problem> {
    let Step { nodes, tasks, .. } = *step;
    match taking.options.nnodes {
        None if tasks != nodes => Err(Problem::usage(format!(
            "srun starts {tasks} launchers on {}, and each node needs one: write srun --ntasks-per-node=1, and say with --nproc-per-node how many workers it starts (or --standalone, where each is to run alone)",
            count(nodes, "node")
        ))),
        None => {
            taking.options.nnodes = Some(Nodes { min: nodes, max: nodes });
            taking.say("--nnodes", nodes, "SLURM_STEP_NUM_NODES");
            Ok(())
        }
        Some(given) => {
            taking.scheduled.warned = (tasks > nodes && tasks > given.max && given.max > 1).then(|| {
                format!("srun starts {tasks} launchers on {}, and --nnodes is {}: the others stand by as spares, on the same machines; for one launcher on each node write srun --ntasks-per-node=1", count(nodes, "node"), given.max)
            });
            Ok(())
        }
    }
}

/// What the run is called, where its nodes meet, and this node's rank.
fn take_run(taking: &mut Taking<'_>, step: &Step) {
    if taking.options.rdzv_id.trim().is_empty() {
        taking.options.rdzv_id = step.run_id();
        taking.scheduled.names_run = true;
        taking.say("--rdzv-id", step.run_id(), "SLURM_JOB_ID, SLURM_STEP_ID and others");
    }
    if taking.options.is_alone() {
        return;
    }
    let by_master = taking.options.meets_at_master();
    if by_master {
        take_master(taking, step);
    } else if taking.options.connection.endpoints().is_empty() && !taking.wants_tls() {
        let endpoint = format!("{}:{}", step.first, step.port());
        taking.say("--rdzv-endpoint", &endpoint, "SLURM_STEP_NODELIST and SLURM_JOB_ID");
        taking.options.connection.endpoint = endpoint;
        take_server(taking, step, Serves::Own);
    } else {
        taking.scheduled.names_run = false;
        if taking.options.connection.endpoints().is_empty() {
            taking.scheduled.warned = Some(
                "where to meet is not taken from Slurm, since TLS is asked for and the server that a job starts has none: give --rdzv-endpoint".to_owned(),
            );
        }
        if let Some(own) = taking.own_endpoint(&step.node).filter(|_| step.local_task == 0) {
            taking.be_known_as(&own, "SLURMD_NODENAME");
        }
    }
    if taking.options.is_native() && !by_master && taking.options.node_rank.is_none() {
        taking.set("rank_hint", step.task.to_string(), "SLURM_PROCID");
    }
    if let Some(rack) = step.rack.clone().filter(|_| taking.options.is_native()) {
        taking.set("rack", rack, "SLURM_TOPOLOGY_ADDR");
    }
}

/// What torchrun's flags for node 0 leave open.
fn take_master(taking: &mut Taking<'_>, step: &Step) {
    let port_said = taking.options.master_port.is_some();
    if taking.options.master_addr.as_ref().is_none_or(String::is_empty) {
        taking.options.master_addr = Some(step.first.clone());
        taking.say("--master-addr", &step.first, "SLURM_STEP_NODELIST");
        if !port_said {
            taking.options.master_port = Some(step.port());
            taking.say("--master-port", step.port(), "SLURM_JOB_ID");
        }
        take_server(taking, step, if port_said { Serves::Here } else { Serves::Own });
    } else if taking.options.node_rank.is_none() {
        // The address is the user's: whose it is says more than a rank that nobody gave.
        taking.scheduled.serves = Some(Serves::OnDemand);
        taking.scheduled.names_run = false;
    }
    // A spare has no rank that it could ask for.
    if taking.options.node_rank.is_none() && step.task < taking.options.nodes().max {
        taking.options.node_rank = Some(step.task);
        taking.say("--node-rank", step.task, "SLURM_PROCID");
    }
}

/// The launcher on the first node has the server.
fn take_server(taking: &mut Taking<'_>, step: &Step, serves: Serves) {
    if step.is_first() {
        taking.serve(serves, &step.first, "SLURM_STEP_NODELIST");
    } else {
        taking.scheduled.serves = Some(Serves::Elsewhere);
    }
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

/// The switches of an address such as `core.s1.n1`; none in a cluster without a topology. The name of a node may have dots
/// of its own.
fn rack(address: &str, node: &str) -> Option<String> {
    let switches = address.strip_suffix(node)?.strip_suffix('.')?;
    Some(switches.to_owned()).filter(|switches| !switches.is_empty())
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
        assert_eq!(run.connection.endpoints(), "n07:28712");
        assert_eq!((scheduled.serves, run.local_addr), (Some(Serves::Elsewhere), None));
        assert_eq!(scheduled.config["rank_hint"], "2");
        assert_eq!(scheduled.config["rack"], "core.s1");
        assert!(scheduled.names_run);
        assert_eq!(
            scheduled.said.unwrap(),
            "from Slurm: --nproc-per-node 8 (SLURM_GPUS_ON_NODE), --nnodes 4 (SLURM_STEP_NUM_NODES), --rdzv-id yard-4711.1 (SLURM_JOB_ID, SLURM_STEP_ID and others), --rdzv-endpoint n07:28712 (SLURM_STEP_NODELIST and SLURM_JOB_ID), rank_hint 2 (SLURM_PROCID), rack core.s1 (SLURM_TOPOLOGY_ADDR); flags win"
        );
        // The first node has the server, and the address that the others know.
        let first =
            [("SLURMD_NODENAME", "n07"), ("SLURM_TOPOLOGY_ADDR", "core.s1.n07"), ("SLURM_PROCID", "0")];
        let (run, scheduled) = taken("", "n07", &with(&first)).unwrap();
        assert_eq!((scheduled.serves, run.local_addr.as_deref()), (Some(Serves::Own), Some("n07")));
        assert!(scheduled.said.unwrap().contains("--local-addr n07 (SLURM_STEP_NODELIST)"));
    }

    #[test]
    fn a_job_that_is_requeued_meets_nobody_of_its_past() {
        let (run, _) = taken("", "n09", &with(&[("SLURM_RESTART_COUNT", "2")])).unwrap();
        assert_eq!((run.rdzv_id.as_str(), run.connection.endpoints()), ("yard-4711.1-2", "n07:23718"));
    }

    #[test]
    fn flags_win() {
        let line = "--nnodes 2:3 --nproc-per-node 1 --rdzv-id mine --rdzv-endpoint etcd1:2379 --local-addr 10.0.0.9 --rdzv-conf rank_hint=7";
        let (run, scheduled) = taken(line, "n09", &STEP).unwrap();
        assert_eq!((run.nodes(), run.rdzv_id.as_str()), (Nodes { min: 2, max: 3 }, "mine"));
        assert_eq!(run.connection.endpoints(), "etcd1:2379");
        assert_eq!((scheduled.serves, run.local_addr.as_deref()), (None, Some("10.0.0.9")));
        // What was not said is taken still, and nothing else is said to be.
        assert_eq!(scheduled.config.get("rank_hint"), None);
        assert_eq!(scheduled.said.unwrap(), "from Slurm: rack core.s1 (SLURM_TOPOLOGY_ADDR); flags win");
        assert!(!scheduled.names_run);
        let (run, scheduled) = taken("--standalone", "n09", &STEP).unwrap();
        assert_eq!((run.nnodes, scheduled), (None, Scheduled::default()));
        let (run, scheduled) = taken("--nnodes 1", "n09", &STEP).unwrap();
        assert_eq!((run.connection.endpoints(), scheduled.config.len()), ("", 0));
        // No server with TLS is started on demand: who wants it says where it is.
        for line in ["--cacert ca.pem", "--rdzv-conf protocol=https", "--rdzv-conf cacert=ca.pem"] {
            let (run, scheduled) = taken(line, "n09", &STEP).unwrap();
            assert_eq!(run.connection.endpoints(), "", "{line}");
            assert!(scheduled.warned.unwrap().contains("TLS"), "{line}");
        }
    }

    #[test]
    fn nodes_of_several_steps_have_nothing_in_common() {
        // A step for each node, in a loop, as scripts for torchrun have it.
        let one = [
            ("SLURM_STEP_NUM_NODES", "1"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NODELIST", "n09"),
            ("SLURM_JOB_NODELIST", "n[07-09,12]"),
        ];
        let (run, scheduled) =
            taken("--nnodes 2 --node-rank 1 --master-addr n07", "n09", &with(&one)).unwrap();
        assert_eq!((run.rdzv_id.as_str(), run.node_rank), ("", Some(1)));
        assert_eq!((scheduled.serves, scheduled.config.len()), (None, 0));
        let (run, _) = taken("--nnodes 1:2 --rdzv-endpoint n07:2379", "n09", &with(&one)).unwrap();
        assert_eq!(run.rdzv_id, "");
    }

    #[test]
    fn torchruns_flags_for_the_master_are_completed() {
        let (run, scheduled) = taken("--master-addr n08", "n09", &STEP).unwrap();
        assert_eq!(
            (run.master_addr.as_deref(), run.master_port, run.node_rank),
            (Some("n08"), None, Some(2))
        );
        assert_eq!((run.connection.endpoints(), scheduled.serves), ("", Some(Serves::OnDemand)));
        let (run, scheduled) = taken("--node-rank 3", "n09", &STEP).unwrap();
        assert_eq!((run.master_addr.as_deref(), run.master_port), (Some("n07"), Some(28_712)));
        assert_eq!((scheduled.config.get("rank_hint"), scheduled.serves), (None, Some(Serves::Elsewhere)));
        // A spare has no rank that it could ask for.
        assert_eq!(taken("--nnodes 2 --master-addr n08", "n09", &STEP).unwrap().0.node_rank, None);
    }

    #[test]
    fn another_backend_gets_no_hints() {
        let (run, scheduled) = taken("--rdzv-backend etcd", "n09", &STEP).unwrap();
        assert_eq!((run.nodes().max, scheduled.config.len()), (4, 0));
        assert_eq!((run.connection.endpoints(), scheduled.serves), ("n07:28712", Some(Serves::Elsewhere)));
    }

    #[test]
    fn several_launchers_on_a_node_are_refused() {
        let many = |line: &str| taken(line, "n09", &with(&[("SLURM_STEP_NUM_TASKS", "32")]));
        let problem = many("").unwrap_err();
        assert!(
            problem.text.contains("32 launchers on 4 nodes") && problem.text.contains("--ntasks-per-node=1")
        );
        // Unless they are meant, which --nnodes says.
        let (run, scheduled) = many("--nnodes 32").unwrap();
        assert_eq!((run.nproc_per_node, scheduled.warned), (None, None), "the GPUs are for all of them");
        assert!(many("--nnodes 4").unwrap().1.warned.unwrap().contains("--nnodes is 4"));
        // One of those on the first node has the server.
        let serves = |local| {
            let task = [("SLURM_STEP_NUM_TASKS", "32"), ("SLURMD_NODENAME", "n07"), ("SLURM_LOCALID", local)];
            taken("--nnodes 32", "n07", &with(&task)).unwrap().1.serves
        };
        assert_eq!((serves("0"), serves("1")), (Some(Serves::Own), Some(Serves::Elsewhere)));
    }

    #[test]
    fn who_was_not_started_by_srun_is_told() {
        let batch = [("SLURM_JOB_ID", "4711"), ("SLURM_NNODES", "4"), ("SLURM_PROCID", "0")];
        let (run, scheduled) = taken("", "n07", &batch).unwrap();
        assert!(run.nnodes.is_none() && scheduled.warned.unwrap().contains("4 nodes"));
        assert_eq!(taken("--nnodes 1", "n07", &batch).unwrap().1, Scheduled::default());
        // The shell of salloc is a step of its own, on one node.
        let shell =
            with(&[("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NNODES", "4")]);
        assert!(taken("", "n07", &shell).unwrap().1.warned.unwrap().contains("4 nodes"));
        let problem = taken("", "n07", &with(&[("SLURM_HET_SIZE", "2")])).unwrap_err();
        assert!(problem.text.contains("heterogeneous"));
        let (run, scheduled) = taken("--nnodes 4", "n07", &with(&[("SLURM_HET_SIZE", "2")])).unwrap();
        assert_eq!(run.nproc_per_node, Some(WorkersPerNode::Number(8)));
        assert_eq!((run.rdzv_id.as_str(), scheduled.config.len()), ("", 0));
    }

    #[test]
    fn what_slurm_does_not_set_so_is_named() {
        for (name, value) in [
            ("SLURM_STEP_NUM_NODES", "x"),
            ("SLURM_STEP_NUM_NODES", "0"),
            ("SLURM_STEP_ID", "-1"),
            ("SLURM_PROCID", ""),
            ("SLURMD_NODENAME", ""),
            ("SLURM_STEP_NODELIST", "n[1-"),
            ("SLURM_STEP_NODELIST", ""),
        ] {
            let problem = taken("", "n09", &with(&[(name, value)])).unwrap_err();
            assert!(problem.text.contains(name), "{name}={value}: {}", problem.text);
            // Who says all of it needs no word of Slurm's.
            let (run, _) =
                taken("--nnodes 4 --rdzv-id r --rdzv-endpoint e", "n09", &with(&[(name, value)])).unwrap();
            assert_eq!(run.connection.endpoints(), "e");
        }
        let huge = with(&[
            ("SLURM_JOB_ID", "18446744073709551615"),
            ("SLURM_RESTART_COUNT", "18446744073709551615"),
        ]);
        assert!(taken("", "n09", &huge).unwrap().0.connection.endpoints().starts_with("n07:2"));
    }

    #[test]
    fn a_step_with_all_nodes_of_its_job_may_have_fewer_than_the_most() {
        let line = "--nnodes 3:8 --rdzv-endpoint etcd1:2379";
        assert_eq!(
            taken(line, "n09", &with(&[("SLURM_JOB_NODELIST", "n[07-09,12]")])).unwrap().0.rdzv_id,
            "yard-4711.1"
        );
        assert_eq!(taken(line, "n09", &with(&[("SLURM_JOB_NODELIST", "n[07-20]")])).unwrap().0.rdzv_id, "");
    }

    #[test]
    fn a_launcher_within_a_worker_takes_nothing() {
        let within = |step| taken("", "n09", &with(&[("RALLYPOINT_LAUNCHED_IN", step)])).unwrap().0.nnodes;
        assert_eq!(within("4711.1"), None);
        // A job that a worker hands in has the worker's environment.
        assert_eq!(within("4700.0"), Some(Nodes { min: 4, max: 4 }));
    }

    #[test]
    fn a_node_that_the_endpoint_names_is_known_by_that_name() {
        let (run, scheduled) = taken("--rdzv-endpoint n09:2379", "n09", &STEP).unwrap();
        assert_eq!((run.local_addr.as_deref(), scheduled.serves), (Some("n09"), None));
        assert_eq!(taken("--rdzv-endpoint etcd://n09:2379", "n09", &STEP).unwrap().0.local_addr, None);
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
        for (address, node, above) in [
            ("core.s1.n09", "n09", Some("core.s1")),
            ("s2.n09.site", "n09.site", Some("s2")),
            ("n09", "n09", None),
            ("core.s1.n08", "n09", None),
        ] {
            assert_eq!(rack(address, node).as_deref(), above, "{address}");
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
