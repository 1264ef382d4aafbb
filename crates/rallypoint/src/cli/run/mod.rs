//! `rallypoint run`: from the options to the agent, and from its outcome to an exit code.

mod checks;
mod devices;
pub(super) mod limits;
mod options;
mod program;
mod progress;
mod server;
mod signals;
mod terminal;
mod writer;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_agent::{
    Agent, Console, DEFAULT_GRACE, Guarded, LogDir, LogSettings, Logs, Orders, Outcome, Part, Prefix,
    Stopper, Stream, WorkerSpec, Workers, parse_signals,
};
use rallypoint_etcd::ErrorKind;
use rallypoint_rendezvous::native::DEFAULT_JOIN_TIMEOUT;
use rallypoint_rendezvous::{Registry, RendezvousError, RendezvousHandler, RendezvousParameters};
use rustix::process::{Pid, Signal};
use tracing::{info, warn};

pub(super) use self::options::Run;
use self::program::Program;
use self::progress::Waiting;
use self::server::Meeting;
use self::terminal::{LogWriter, Terminal};
use super::exit::{CLOSED, NODE, Problem, SIGNAL, WORKERS_FAILED, kind, say};
use super::{LogFormat, start_log_to};

const GRACE_VARIABLE: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
const PREFIX_VARIABLE: &str = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
/// For nodes that have met on our embedded server to go away in good order.
const LAST_GUESTS: Duration = Duration::from_secs(10);

/// For what was said last, where nobody reads and the end was asked for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs the command; the exit code.
pub(super) fn run(options: &Run) -> u8 {
    let orders = match orders(options) {
        Ok(orders) => orders,
        Err(problem) => return problem.report(),
    };
    let cannot = |error| Problem::new(NODE, format!("cannot start the launcher: {error}")).report();
    let guarded = match rallypoint_agent::guard(&orders) {
        Ok(Part::Launcher(guarded)) => guarded,
        Ok(Part::Guard { status, left }) => {
            name_left(&left);
            return guard_code(status);
        }
        Err(error) => return cannot(error),
    };
    let terminal = match Terminal::new() {
        Ok(terminal) => terminal,
        Err(error) => return cannot(error),
    };
    let writer = LogWriter(Arc::clone(&terminal));
    let colours = terminal.colours(Stream::Err);
    // That there is a server inside is told by what the launcher says itself.
    let level = match options.log_level.as_str() {
        "info" => "info,rallypoint_server=warn",
        level => level,
    };
    if let Err(problem) = start_log_to(level, options.log_format, colours, move || writer.clone()) {
        return Problem::usage(problem).report();
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return cannot(error),
    };
    let stopper = Stopper::default();
    let code = runtime.block_on(launch(options, &orders, &guarded, &terminal, &stopper));
    terminal.show(None);
    let code = code.unwrap_or_else(|problem| {
        terminal.say(&problem.shown());
        problem.code
    });
    runtime.block_on(last_words(&terminal, &stopper, orders.grace));
    runtime.shutdown_background();
    if guarded.alone() {
        name_left(&guarded.clean_up());
    }
    code
}

/// Waits for all to be shown: while workers' output is read, and a little longer where the end was asked for.
async fn last_words(terminal: &Terminal, stopper: &Stopper, grace: Duration) {
    let mut asked = stopper.listen();
    tokio::select! {
        biased;
        _ = asked.asked() => terminal.done(LAST_WORDS).await,
        () = terminal.done(grace) => {}
    }
}

fn name_left(left: &[Pid]) {
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(|pid| pid.as_raw_pid().to_string()).collect();
        say(format!(
            "error: processes do not end even by SIGKILL and are left behind: {}\n",
            pids.join(", ")
        ));
    }
}

/// The launcher's own code; one that was killed could say nothing.
fn guard_code(status: std::process::ExitStatus) -> u8 {
    if let Some(code) = status.code() {
        return u8::try_from(code).unwrap_or(NODE);
    }
    let number = status.signal().unwrap_or_default();
    let text = format!("the launcher was ended by signal {number}; its workers were killed");
    Problem::new(SIGNAL.saturating_add(u8::try_from(number).unwrap_or_default()), text).report()
}

fn orders(options: &Run) -> Result<Orders, Problem> {
    let ends = parse_signals(&options.signals_to_handle)
        .map_err(|error| Problem::usage(format!("--signals-to-handle: {error}")))?;
    Ok(Orders { ends, grace: grace(options)? })
}

fn grace(options: &Run) -> Result<Duration, Problem> {
    if let Some(seconds) = options.shutdown_timeout {
        return Ok(seconds.0);
    }
    match std::env::var(GRACE_VARIABLE) {
        Err(_) => Ok(DEFAULT_GRACE),
        Ok(text) => match text.parse::<options::Seconds>() {
            Ok(seconds) => Ok(seconds.0),
            Err(error) => Err(Problem::usage(format!("{GRACE_VARIABLE} is {text:?}: {error}"))),
        },
    }
}

async fn launch(
    options: &Run,
    orders: &Orders,
    guarded: &Guarded,
    terminal: &Arc<Terminal>,
    stopper: &Stopper,
) -> Result<u8, Problem> {
    let workers = Workers::default();
    signals::listen(&orders.ends, stopper, guarded, &workers);
    tokio::spawn(signals::follow(guarded.clone(), workers.clone()));
    for (flag, why) in options.without_meaning.given() {
        warn!("{flag} has no effect: {why}");
    }
    let spec = spec(options, orders.grace)?;
    checks::check(options, spec.local_world_size)?;
    limits::make_room(spec.local_world_size);
    let alone = options.standalone || (options.nnodes.max == 1 && options.connection.endpoints().is_empty());
    let run_id = run_id(options, alone)?;
    let logs = logs(options, guarded, &run_id)?;
    let kept = logs.kept().map(Path::to_owned);
    if let (None, Some(kept)) = (&options.log_dir, &kept) {
        info!("without --log-dir, the workers' log files are kept in {}", kept.display());
    }
    let mut listener = stopper.listen();
    let meeting = tokio::select! {
        meeting = async { if alone { server::alone() } else { server::find(&options.connection).await } } => meeting?,
        signal = listener.asked() => return Ok(signal_code(signal)),
    };
    let parameters = parameters(options, &meeting.endpoints, &run_id)?;
    let timeout = ["join_timeout", "timeout"].iter().find_map(|name| parameters.seconds(name).ok().flatten());
    let timeout = timeout.unwrap_or(DEFAULT_JOIN_TIMEOUT);
    let patience = options.connect_timeout.map_or(timeout, |seconds| seconds.0);
    let handler = tokio::select! {
        handler = connect(&parameters, &meeting, patience) => handler?,
        signal = listener.asked() => return Ok(signal_code(signal)),
    };
    let shown = handler.progress();
    let console: Arc<dyn Console> = Arc::<Terminal>::clone(terminal);
    let agent = Agent::new(spec, handler, logs, console).adopting_orphans().with_workers(workers);
    let agent = if meeting.server.is_some() { agent.hosting_server() } else { agent };
    let waiting = Waiting { run: run_id.clone(), endpoint: parameters.endpoint.clone(), timeout };
    let progress = tokio::spawn(progress::show(Arc::clone(terminal), shown, agent.phase(), waiting));
    let outcome = agent.run(listener).await;
    progress.abort();
    terminal.show(None);
    // One without a file in it is not kept.
    let kept = kept.filter(|folder| folder.exists()).map(|folder| folder.display().to_string());
    let code = report(outcome, options.log_format, &run_id, kept.as_deref(), terminal);
    if let Some(server) = meeting.server {
        let mut asked = stopper.listen();
        tokio::select! {
            _ = tokio::time::timeout(LAST_GUESTS, server.left_alone()) => {}
            _ = asked.asked() => {}
        }
    }
    code
}

fn spec(options: &Run, grace: Duration) -> Result<WorkerSpec, Problem> {
    let (program, args) =
        options.command.split_first().ok_or_else(|| Problem::usage("there is no program"))?;
    let program =
        Program::choose(program, args, options.module, options.no_python, options.python.as_deref())?;
    let template = options.log_line_prefix_template.clone().or_else(|| std::env::var(PREFIX_VARIABLE).ok());
    let prefix = template.map_or_else(|| Ok(Prefix::default()), |template| template.parse());
    let prefix = prefix.map_err(|error| Problem::usage(format!("--log-line-prefix-template: {error}")))?;
    // torchrun tells its Python the same with -u; a program that is a Python gets it this way.
    let unbuffered = program.unbuffered.then(|| ("PYTHONUNBUFFERED", "1".into()));
    let mut spec = WorkerSpec::new(program.path, devices::workers(options.nproc_per_node)?);
    spec.args = program.args;
    spec.role.clone_from(&options.role);
    spec.max_restarts = options.max_restarts;
    spec.grace = grace;
    spec.exit_barrier_timeout = options.exit_barrier_timeout.0;
    spec.signals.clone_from(&options.signals_to_handle);
    spec.virtual_local_rank = options.virtual_local_rank;
    spec.environment = unbuffered.into_iter().collect();
    spec.prefix = prefix;
    Ok(spec)
}

fn run_id(options: &Run, alone: bool) -> Result<String, Problem> {
    let given = options.rdzv_id.trim();
    if alone && options.nnodes.max > 1 {
        return Err(Problem::usage(format!(
            "--standalone is for 1 node, and --nnodes says up to {}: leave one of them out",
            options.nnodes.max
        )));
    }
    if alone {
        return Ok(if given.is_empty() { uuid::Uuid::new_v4().to_string() } else { given.to_owned() });
    }
    if options.connection.endpoints().is_empty() {
        return Err(Problem::usage(
            "more than 1 node, and no place to meet: say where with --rdzv-endpoint HOST:PORT, the same on all nodes",
        ));
    }
    if given.is_empty() {
        return Err(Problem::usage(
            "the run has no name: give it one with --rdzv-id NAME, the same on all nodes",
        ));
    }
    Ok(given.to_owned())
}

fn logs(options: &Run, guarded: &Guarded, run_id: &str) -> Result<Logs, Problem> {
    let dir = match &options.log_dir {
        // As torchrun does: what was asked for stays.
        None if options.redirects.any() || options.tee.any() => {
            let name = format!("rallypoint_logs_{:08x}", fastrand::u32(..));
            LogDir::Kept(std::env::temp_dir().join(name))
        }
        None => LogDir::Temporary(guarded.folder().to_owned()),
        Some(path) if path.as_os_str() == "/dev/null" => LogDir::Nowhere,
        Some(path) => LogDir::Kept(path.clone()),
    };
    let shown = &options.local_ranks_filter;
    let mut settings = LogSettings::console(dir);
    settings.redirects = options.redirects.clone();
    settings.tee = options.tee.clone();
    settings.shown = (!shown.is_empty()).then(|| shown.iter().copied().collect());
    settings.filter_out = options::words(&options.duplicate_stdout_filters);
    settings.filter_err = options::words(&options.duplicate_stderr_filters);
    Logs::open(settings, run_id).map_err(|error| Problem::new(NODE, super::exit::chain(&error)))
}

fn parameters(options: &Run, endpoints: &str, run_id: &str) -> Result<RendezvousParameters, Problem> {
    let usage = |error: rallypoint_rendezvous::ParameterError| Problem::usage(error.to_string());
    let nodes = options.nnodes;
    let mut parameters =
        RendezvousParameters::new(&options.rdzv_backend, endpoints, run_id, nodes.min, nodes.max)
            .map_err(usage)?;
    parameters.config = RendezvousParameters::parse_config(&options.rdzv_conf)
        .map_err(|error| usage(error).about("--rdzv-conf"))?;
    parameters.local_addr = options.local_addr.clone().filter(|address| !address.is_empty());
    options.connection.configure(&mut parameters.config)?;
    Ok(parameters)
}

impl Problem {
    fn about(self, flag: &str) -> Self {
        Problem { text: format!("{flag}: {}", self.text), ..self }
    }
}

/// Connects, and waits for an etcd that is not there yet. What listens on this very node has come already.
async fn connect(
    parameters: &RendezvousParameters,
    meeting: &Meeting,
    patience: Duration,
) -> Result<Arc<dyn RendezvousHandler>, Problem> {
    let patience = if meeting.taken { Duration::ZERO } else { patience };
    let made = Registry::with_defaults().create_within(parameters, patience).await;
    made.map_err(|error| match &error {
        RendezvousError::Connection { .. } if meeting.taken && no_etcd(&error) => {
            let problem = Problem::rendezvous(&error);
            Problem {
                code: NODE,
                text: format!(
                    "the port of {} is in use by something that is no etcd: choose another --rdzv-endpoint ({})",
                    parameters.endpoint, problem.text
                ),
            }
        }
        _ => Problem::rendezvous(&error),
    })
}

/// Whether what listens there does not even answer as an etcd does.
fn no_etcd(error: &RendezvousError) -> bool {
    !matches!(kind(error), Some(ErrorKind::Auth | ErrorKind::PermissionDenied | ErrorKind::Tls))
}

fn signal_code(signal: Signal) -> u8 {
    SIGNAL.saturating_add(u8::try_from(signal.as_raw()).unwrap_or_default())
}

/// Says how it went; the exit code.
fn report(
    outcome: Result<Outcome, rallypoint_agent::AgentError>,
    format: LogFormat,
    run_id: &str,
    kept: Option<&str>,
    terminal: &Arc<Terminal>,
) -> Result<u8, Problem> {
    match outcome.map_err(|error| Problem::agent(&error))? {
        Outcome::Succeeded(success) => {
            let (workers, nodes) = (success.workers, success.nodes);
            info!(
                run = run_id,
                workers,
                nodes,
                restarts = success.restarts,
                logs = kept,
                "all workers have finished"
            );
            Ok(0)
        }
        Outcome::Failed(report) => {
            let text = match format {
                LogFormat::Text => report.to_string(),
                LogFormat::Json => {
                    let fields = serde_json::json!({ "message": report.in_short(), "failure": report });
                    format!("{}\n", serde_json::json!({ "level": "ERROR", "fields": fields }))
                }
            };
            terminal.say(&text);
            Ok(WORKERS_FAILED)
        }
        Outcome::Closed { reason } => {
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            Err(Problem::new(CLOSED, format!("run {run_id:?} was closed while its workers ran{why}")))
        }
        Outcome::Stopped(signal) => Ok(signal_code(signal)),
    }
}
