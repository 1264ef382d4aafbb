//! The options of `rallypoint run`: torchrun's names, and torchrun's variables for them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rallypoint_agent::{DEFAULT_MAX_DEPARTURES, DEFAULT_SIGNALS, StreamChoice};
use rallypoint_metrics::ListenAddress;
use rallypoint_rendezvous::native::{BACKEND, OPTIONS};
use rallypoint_traces::Endpoint;

use super::hang::Hang;
use super::health::HealthOptions;
use super::numa::Mode;
use super::preempt::Preempt;
use super::values::{EventLogHandler, Exhausted, Nodes, Seconds, WorkersPerNode, port, restarts};
use super::worker_store::{StoreFiles, StoreServer};
use crate::cli::LogFormat;
use crate::cli::connection::Connection;
use crate::cli::exit::TABLE;
use crate::cli::operator::exclusion_time;
use crate::cli::variables::{Unread, Variable, yes_or_no};

/// torchrun's own backends, which mean Rallypoint's here.
pub(crate) const STATIC: &str = "static";
pub(crate) const C10D: &str = "c10d";

/// Run a program as the workers of a distributed job, together with other nodes.
///
/// What torchrun does, for any program. Each node runs this command. The nodes meet through an etcd, or through a server
/// that one of them starts. Each starts its workers, with RANK, WORLD_SIZE, MASTER_ADDR and the others of torchrun's
/// variables. When a worker fails, or a node comes, leaves or dies, all nodes meet again and start their workers afresh.
///
/// Times are in seconds.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = TABLE,
    override_usage = "rallypoint run [OPTIONS] [--] PROGRAM [ARGS]...\n       rallypoint run [OPTIONS] SCRIPT.py [ARGS]...\n       rallypoint run [OPTIONS] -m MODULE [ARGS]..."
)]
pub(crate) struct Run {
    /// The options that come from the environment.
    #[arg(skip)]
    pub(crate) variables: Vec<Variable>,
    /// Variables that look like options, and are none.
    #[arg(skip)]
    pub(crate) unread: Vec<Unread>,
    /// The Python that this command is installed in, if any.
    #[arg(skip)]
    pub(crate) python: Option<OsString>,
    /// What the workers run, and its arguments: all that follows the program's name is the program's. A .py file is run
    /// with Python, as torchrun does; ${local_rank} in arguments is replaced.
    #[arg(value_name = "PROGRAM", required = true, num_args = 1.., trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
    /// The number of nodes, or the least and the most: work begins when MIN are here, after a last call for up to MAX. If
    /// it is not given, 1, or under Slurm's srun the nodes of the step.
    #[arg(long, allow_negative_numbers = true, env = "PET_NNODES", value_name = "MIN[:MAX]")]
    pub(crate) nnodes: Option<Nodes>,
    /// Workers on this node: a number, or one for each gpu, xpu (Intel's) or cpu; auto: for each GPU, or else each CPU. If
    /// it is not given, 1, or under Slurm's srun one for each GPU that the step has on this node.
    #[arg(
        long,
        allow_negative_numbers = true,
        alias = "nproc_per_node",
        env = "PET_NPROC_PER_NODE",
        value_name = "N|auto|gpu|xpu|cpu"
    )]
    pub(crate) nproc_per_node: Option<WorkersPerNode>,
    /// Run on this node alone. Nothing else needs to run, and neither endpoint nor id is needed.
    #[arg(long, env = "PET_STANDALONE", value_parser = yes_or_no)]
    pub(crate) standalone: bool,
    /// The name of the run: nodes with the same name meet. A run that is over stays over, so a new one needs a new name.
    /// Under Slurm's srun it need not be given.
    #[arg(
        long,
        alias = "rdzv_id",
        env = "PET_RDZV_ID",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) rdzv_id: String,
    /// How the nodes meet: `rallypoint`, or `etcd` to meet nodes that run torchrun with PyTorch's own etcd backend. For
    /// commands written for torchrun, `static` and `c10d` mean `rallypoint` on their endpoint.
    #[arg(
        long,
        alias = "rdzv_backend",
        env = "PET_RDZV_BACKEND",
        value_name = "NAME",
        default_value = "rallypoint"
    )]
    pub(crate) rdzv_backend: String,
    /// More settings of how the nodes meet, such as join_timeout=600,last_call_timeout=30; --help lists them.
    #[arg(
        long,
        long_help = rdzv_conf(),
        alias = "rdzv_conf",
        env = "PET_RDZV_CONF",
        value_name = "KEY=VALUE,...",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) rdzv_conf: String,
    /// The address by which other nodes reach this one. If it is not given, the one by which this node reaches the etcd.
    #[arg(long, alias = "local_addr", env = "PET_LOCAL_ADDR", value_name = "ADDRESS")]
    pub(crate) local_addr: Option<String>,
    /// The machine that this node is on, for `rallypoint exclude --host` and for a node that keeps itself out. If it is not given,
    /// what `hostname` says; a pod has to be told.
    #[arg(long, env = "RALLYPOINT_HOST", value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// How long to wait for an etcd that does not answer yet. If it is not given, the join_timeout of --rdzv-conf, 600.
    #[arg(
        long,
        allow_negative_numbers = true,
        alias = "connect_timeout",
        env = "RALLYPOINT_CONNECT_TIMEOUT",
        value_name = "SECONDS"
    )]
    pub(crate) connect_timeout: Option<Seconds>,
    /// How long a group that has lost a node, or given one back, waits for a replacement before it meets with fewer than it
    /// had. If it is not given, 0: it goes on at once, if --nnodes has room for that.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_REPLACEMENT_TIMEOUT",
        value_name = "SECONDS"
    )]
    pub(crate) replacement_timeout: Option<Seconds>,
    /// This node's place among the nodes, from 0. With --master-addr, node 0 starts the server there.
    #[arg(long, allow_negative_numbers = true, alias = "node_rank", env = "PET_NODE_RANK", value_name = "N")]
    pub(crate) node_rank: Option<usize>,
    /// The address of node 0, as torchrun's scripts give it: the nodes meet there, and need no --rdzv-endpoint. With 1
    /// node, and without --standalone, it is the workers' MASTER_ADDR.
    #[arg(long, alias = "master_addr", env = "PET_MASTER_ADDR", value_name = "ADDRESS")]
    pub(crate) master_addr: Option<String>,
    /// The port at --master-addr; 29500, if it is not given. With 1 node, and without --standalone, it is the workers'
    /// MASTER_PORT.
    #[arg(
        long,
        allow_negative_numbers = true,
        alias = "master_port",
        env = "PET_MASTER_PORT",
        value_name = "PORT",
        value_parser = port
    )]
    pub(crate) master_port: Option<u16>,
    #[command(flatten)]
    pub(crate) health: HealthOptions,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// How often this node's workers may be started again after a failure of theirs. A death of another node costs none.
    #[arg(
        long,
        allow_negative_numbers = true,
        value_parser = restarts,
        alias = "max_restarts",
        env = "PET_MAX_RESTARTS",
        value_name = "N",
        default_value_t = 0,
        help_heading = "Workers"
    )]
    pub(crate) max_restarts: u32,
    /// When this node's workers have run for so long without failing first, all its restarts are there again. If it is not
    /// given, they never come back.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_RESTARTS_RETURN_AFTER",
        value_name = "SECONDS",
        help_heading = "Workers"
    )]
    pub(crate) restarts_return_after: Option<Seconds>,
    /// What happens when a worker of this node fails first and there is no restart left.
    #[arg(
        long,
        env = "RALLYPOINT_WHEN_EXHAUSTED",
        value_enum,
        value_name = "WHAT",
        default_value = "close",
        help_heading = "Workers"
    )]
    pub(crate) when_exhausted: Exhausted,
    /// With --when-exhausted exclude and --when-unhealthy exclude: for how long this node is excluded: seconds, or a number with
    /// s, m, h or d. If it is not given, for as long as the run lives.
    #[arg(
        long,
        env = "RALLYPOINT_EXCLUDE_FOR",
        value_name = "TIME",
        value_parser = exclusion_time,
        help_heading = "Workers"
    )]
    pub(crate) exclude_for: Option<Duration>,
    /// So many rounds in a row whose workers fail soon after their start end the run, whoever has restarts left. Of a round that
    /// hung, the time without progress does not count. If it is not given, 5 rounds that hung, and of others restarts alone
    /// count; with 0, of all.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_MAX_FAILED_ROUNDS",
        value_name = "N",
        help_heading = "Workers"
    )]
    pub(crate) max_failed_rounds: Option<u32>,
    /// For --max-failed-rounds: what soon is.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_FAILED_ROUND_TIME",
        value_name = "SECONDS",
        default_value = "60",
        help_heading = "Workers"
    )]
    pub(crate) failed_round_time: Seconds,
    /// With --when-exhausted leave or exclude: how many nodes of the whole run may leave so. The next one closes the run.
    #[arg(long, allow_negative_numbers = true, env = "RALLYPOINT_MAX_DEPARTURES", value_name = "N", default_value_t = DEFAULT_MAX_DEPARTURES, help_heading = "Workers")]
    pub(crate) max_departures: u32,
    /// When neither etcd nor the other nodes answer this node for so long, it stops its workers: the others may have gone
    /// on without it, and two nodes must not work with one rank. 0: it never does. If it is not given, the lease_timeout
    /// and 5 seconds, which is 10.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_FENCE_TIMEOUT",
        value_name = "SECONDS",
        help_heading = "Workers"
    )]
    pub(crate) fence_timeout: Option<Seconds>,
    /// When etcd answers none of the nodes for so long, they stop their workers. If it is not given, they work on until it
    /// is back, though nodes that are not at work yet may reach it meanwhile, and begin without them.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_MAX_ETCD_OUTAGE",
        value_name = "SECONDS",
        help_heading = "Workers"
    )]
    pub(crate) max_etcd_outage: Option<Seconds>,
    /// Who serves the store that workers meet at, at MASTER_ADDR and MASTER_PORT, where this node has rank 0. A program that
    /// listens there itself needs `rank0`. If it is not given, `agent`, or `rank0` where TORCH_DISABLE_SHARE_RDZV_TCP_STORE
    /// is 1.
    #[arg(long, env = "RALLYPOINT_WORKER_STORE", value_enum, value_name = "WHO", help_heading = "Workers")]
    pub(crate) worker_store: Option<StoreServer>,
    #[command(flatten)]
    pub(crate) store_files: StoreFiles,
    /// How long workers that are stopped have from SIGTERM to SIGKILL. If it is not given,
    /// TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or else 25.
    #[arg(
        long,
        allow_negative_numbers = true,
        alias = "shutdown_timeout",
        env = "PET_SHUTDOWN_TIMEOUT",
        value_name = "SECONDS",
        help_heading = "Workers"
    )]
    pub(crate) shutdown_timeout: Option<Seconds>,
    #[command(flatten)]
    pub(crate) preempt: Preempt,
    /// When this node's workers have finished and etcd does not answer, this node ends with success after so long. Nobody
    /// says then whether the other nodes have finished.
    #[arg(
        long,
        allow_negative_numbers = true,
        alias = "exit_barrier_timeout",
        env = "RALLYPOINT_EXIT_BARRIER_TIMEOUT",
        value_name = "SECONDS"
    )]
    #[arg(default_value = "60", help_heading = "Workers")]
    pub(crate) exit_barrier_timeout: Seconds,
    #[command(flatten)]
    pub(crate) hang: Hang,
    /// The role of this node's workers, which they find in ROLE_NAME.
    #[arg(long, env = "PET_ROLE", value_name = "NAME", default_value = "default", help_heading = "Workers")]
    pub(crate) role: String,
    /// Each worker sees one GPU only, as its first, and has LOCAL_RANK 0.
    #[arg(long, alias = "virtual_local_rank", env = "PET_VIRTUAL_LOCAL_RANK", value_parser = yes_or_no, help_heading = "Workers")]
    pub(crate) virtual_local_rank: bool,
    /// The program is the name of a Python module, as in python -m.
    #[arg(short, long, env = "PET_MODULE", value_parser = yes_or_no, conflicts_with = "no_python", help_heading = "Workers")]
    pub(crate) module: bool,
    /// Run the program itself, even if its name ends with .py.
    #[arg(long, alias = "no_python", env = "PET_NO_PYTHON", value_parser = yes_or_no, help_heading = "Workers")]
    pub(crate) no_python: bool,
    /// The signals that end the run on this node. Of others, SIGUSR1 and SIGUSR2 are passed on to workers that handle them.
    #[arg(long, alias = "signals_to_handle", env = "PET_SIGNALS_TO_HANDLE", value_name = "NAMES", default_value = DEFAULT_SIGNALS, help_heading = "Workers")]
    pub(crate) signals_to_handle: String,
    /// Bind each worker to CPUs near the GPU with its local rank; without GPUs, to those of one NUMA node after another.
    #[arg(long, alias = "numa_binding", env = "PET_NUMA_BINDING", value_name = "MODE", value_enum)]
    #[arg(help_heading = "Workers")]
    pub(crate) numa_binding: Option<Mode>,
    /// The worker with this local rank has the terminal itself, keys and all: for pdb and other debuggers.
    #[arg(long, alias = "interactive_rank", env = "RALLYPOINT_INTERACTIVE_RANK", value_name = "LOCAL_RANK")]
    #[arg(help_heading = "Workers")]
    pub(crate) interactive_rank: Option<usize>,
    /// How often to look whether this command was stopped, as by Ctrl-Z, and whether a worker is stuck in the kernel. The
    /// end of a worker is noticed at once, whatever this is.
    #[arg(
        long,
        allow_negative_numbers = true,
        alias = "monitor_interval",
        env = "PET_MONITOR_INTERVAL",
        value_name = "SECONDS"
    )]
    #[arg(default_value = "0.5", help_heading = "Workers")]
    pub(crate) monitor_interval: Seconds,

    /// Folder for the workers' log files; each run makes one of its own in it. If it is not given, a temporary one.
    #[arg(long, alias = "log_dir", env = "PET_LOG_DIR", value_name = "FOLDER", help_heading = "Output")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Streams that go to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in
    /// 0:3,1:2.
    #[arg(
        short,
        long,
        env = "PET_REDIRECTS",
        value_name = "N|RANK:N,...",
        default_value = "0",
        help_heading = "Output"
    )]
    pub(crate) redirects: StreamChoice,
    /// Streams that go to log files and to the console, written the same way.
    #[arg(
        short,
        long,
        env = "PET_TEE",
        value_name = "N|RANK:N,...",
        default_value = "0",
        help_heading = "Output"
    )]
    pub(crate) tee: StreamChoice,
    /// What is put before each line of a worker, '' for nothing. These are replaced: ${role_name}, ${rank}, ${local_rank},
    /// ${hostname}.
    #[arg(
        long,
        alias = "log_line_prefix_template",
        env = "PET_LOG_LINE_PREFIX_TEMPLATE",
        value_name = "TEMPLATE",
        help_heading = "Output"
    )]
    pub(crate) log_line_prefix_template: Option<String>,
    /// Show only the output of the workers with these local ranks.
    #[arg(
        long,
        alias = "local_ranks_filter",
        env = "PET_LOCAL_RANKS_FILTER",
        value_name = "N,...",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    pub(crate) local_ranks_filter: Vec<usize>,
    /// Lines of stdout with one of these words, where --tee is for stdout, also go to filtered_stdout.log. Commas between
    /// words.
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        env = "PET_DUPLICATE_STDOUT_FILTERS",
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub(crate) duplicate_stdout_filters: String,
    /// The same for stderr and filtered_stderr.log.
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        env = "PET_DUPLICATE_STDERR_FILTERS",
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub(crate) duplicate_stderr_filters: String,
    /// How much the launcher itself says: error, warn, info, debug or trace.
    #[arg(
        long,
        env = "RALLYPOINT_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info",
        help_heading = "Output"
    )]
    pub(crate) log_level: String,
    /// How the launcher's own messages are written to stderr.
    #[arg(long, env = "RALLYPOINT_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = "Output")]
    pub(crate) log_format: LogFormat,

    /// Where Prometheus finds this node's metrics, at /metrics. Of several ports, HOST:FIRST-LAST, the first that is free is
    /// taken; port 0 is any free one. If it is not given, nowhere.
    #[arg(long, env = "RALLYPOINT_METRICS_LISTEN", value_name = "HOST:PORT", help_heading = "Output")]
    pub(crate) metrics_listen: Option<ListenAddress>,
    /// The OpenTelemetry collector that gets each round as a trace over all its nodes, by OTLP over HTTP. If it is not
    /// given, none does.
    #[arg(long, env = "RALLYPOINT_OTLP_ENDPOINT", value_name = "URL", help_heading = "Output")]
    pub(crate) otlp_endpoint: Option<Endpoint>,
    /// Where events in torchrun's format go: `console`, one JSON object a line on stderr, or `null`, nowhere.
    #[arg(long, alias = "event_log_handler", env = "PET_EVENT_LOG_HANDLER", value_name = "NAME")]
    #[arg(default_value = "null", help_heading = "Output")]
    pub(crate) event_log_handler: EventLogHandler,

    /// Add what happens to this node to a file, one JSON object a line: rounds and their ranks, failures with their cause, why
    /// workers were stopped, the end. Each node has a file of its own, as in --event-log /logs/$(hostname).jsonl.
    #[arg(long, env = "RALLYPOINT_EVENT_LOG", value_name = "FILE", help_heading = "Output")]
    pub(crate) event_log: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) without_meaning: WithoutMeaning,
}

impl Run {
    /// How many nodes, as was said; one, where nobody said it.
    pub(crate) fn nodes(&self) -> Nodes {
        self.nnodes.unwrap_or(Nodes { min: 1, max: 1 })
    }

    /// There is nobody to meet.
    pub(crate) fn is_alone(&self) -> bool {
        self.standalone || (self.nodes().max == 1 && self.connection.endpoints().is_empty())
    }

    /// The backend is Rallypoint's own, by this name or by one of torchrun's that mean it.
    pub(crate) fn is_native(&self) -> bool {
        [BACKEND, STATIC, C10D].contains(&self.rdzv_backend.as_str())
    }

    /// The nodes meet at the master, for want of an endpoint.
    pub(crate) fn meets_at_master(&self) -> bool {
        let named = self.master_addr.as_ref().is_some_and(|address| !address.is_empty())
            || self.master_port.is_some()
            || self.node_rank.is_some();
        let meant = named || self.rdzv_backend == STATIC;
        self.connection.endpoints().is_empty() && self.is_native() && meant
    }

    /// How many workers on this node, as was said; one, where nobody said it.
    pub(crate) fn workers(&self) -> WorkersPerNode {
        self.nproc_per_node.unwrap_or(WorkersPerNode::Number(1))
    }
}

/// torchrun's options that have no meaning here: each is accepted with a word in the log, or refused.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Of torchrun, without effect here")]
pub(crate) struct WithoutMeaning {
    /// No effect: programs are started, not forked.
    #[arg(long, alias = "start_method", env = "PET_START_METHOD", value_name = "METHOD")]
    #[arg(value_parser = ["spawn", "fork", "forkserver"])]
    start_method: Option<String>,
    /// Refused: it names a Python class, which only torchrun can load.
    #[arg(long, alias = "logs_specs", env = "PET_LOGS_SPECS", value_name = "NAME")]
    pub(crate) logs_specs: Option<String>,
    /// No effect: a script is run by a Python of its own.
    #[arg(long, alias = "run_path", env = "PET_RUN_PATH", value_parser = yes_or_no)]
    run_path: bool,
}

impl WithoutMeaning {
    /// Those that were given, with why they do nothing.
    pub(crate) fn given(&self) -> Vec<(&'static str, &'static str)> {
        let all = [
            (self.start_method.is_some(), "--start-method", "programs are started, not forked"),
            (self.run_path, "--run-path", "a script is run by a Python of its own"),
        ];
        all.into_iter().filter(|(given, ..)| *given).map(|(_, flag, why)| (flag, why)).collect()
    }
}

/// The help of `--rdzv-conf`.
fn rdzv_conf() -> String {
    let mut text =
        "More settings of how the nodes meet. Those that have flags of their own need not be given here.\n\n\
                    Of the backend `rallypoint`:\n"
            .to_owned();
    for (name, what) in OPTIONS.into_iter().filter(|(_, what)| !what.starts_with("the same,")) {
        text.push_str(&format!("- {name}: {what}\n"));
    }
    text.push_str(
        "- is_host: true or false: whether this node may start the server\n\
         - worker_store, store_cacert, store_cert, store_key: the same as those flags\n\
         - health_check, health_check_timeout, health_check_interval, when_unhealthy, exclude_for: the same as those flags, with `;` between several checks\n\n\
         Of the backend `etcd`: join_timeout (or timeout), last_call_timeout, etcd_prefix, protocol, cacert, cert, key, \
         worker_store and its files, health_check and what belongs to it.",
    );
    text
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use clap::Parser;

    use super::super::values::words;
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        run: Run,
    }

    /// The options of a command line, which is split at spaces.
    pub(crate) fn parsed(line: &str) -> Result<Run, clap::Error> {
        let words = ["rallypoint"].into_iter().chain(line.split_whitespace()).chain(["train.py"]);
        Ok(Cli::try_parse_from(words)?.run)
    }

    #[test]
    fn numbers_of_nodes_are_torchruns() {
        assert_eq!("3".parse(), Ok(Nodes { min: 3, max: 3 }));
        assert_eq!("2:4".parse(), Ok(Nodes { min: 2, max: 4 }));
        for text in ["", "0", "4:2", "a", "1:2:3", "0:2", "-1"] {
            assert!(text.parse::<Nodes>().is_err(), "{text}");
        }
    }

    #[test]
    fn two_commas_are_one() {
        assert_eq!(words("apple,oran,,ge"), ["apple", "oran,ge"]);
        assert!(words("").is_empty());
    }
}
