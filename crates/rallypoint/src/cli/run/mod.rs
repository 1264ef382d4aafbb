//! `rallypoint run`: from the options to the agent, and from its outcome to an exit code.

mod checks;
mod devices;
mod error_file;
mod events;
mod files;
mod hang;
mod health;
pub(super) mod limits;
pub(super) mod meet;
mod numa;
mod options;
mod preempt;
mod program;
mod progress;
mod room;
mod scheduler;
mod server;
mod signals;
mod stuck;
mod surroundings;
mod telemetry;
mod terminal;
mod timer;
mod values;
mod worker_store;
mod writer;

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rallypoint_agent::{
    Agent, Console, DEFAULT_GRACE, DEFAULT_HUNG_ROUNDS, Events, FailedRounds, FailureReport, Guarded,
    Interactive, Orders, Outcome, Part, Prefix, Stopper, Stream, WorkerSpec, Workers, allowed_cpus,
    parse_signals,
};
use rallypoint_core::round::DEFAULT_LAST_CALL;
use rallypoint_core::time::bounded;
use rallypoint_etcd::ErrorKind;
use rallypoint_rendezvous::native::{BACKEND, DEFAULT_JOIN_TIMEOUT, NativeSettings};
use rallypoint_rendezvous::{EtcdBarrier, Registry, RendezvousHandler, RendezvousParameters};
use rustix::process::{Pid, Signal};
use tokio::time::Instant;
use tracing::{info, warn};

use self::events::EventLog;
use self::meet::Meet;
use self::numa::Machine;
pub(super) use self::options::Run;
use self::program::Program;
use self::progress::Waiting;
use self::server::Meeting;
use self::signals::SHORTEST_LOOK;
use self::surroundings::Surroundings;
use self::telemetry::Telemetry;
use self::terminal::{LogWriter, Terminal};
use self::timer::TimerFile;
use self::values::{EventLogHandler, Seconds, WorkersPerNode};
use self::worker_store::StoreServer;
use self::writer::Lost;
use super::exit::{
    CLOSED, EndpointFlags, NO_SERVER, NODE, Problem, SIGNAL, WORKERS_FAILED, cause, no_etcd, say,
};
use super::variables::{Unread, named};
use super::{LogFormat, start_log_to};

const GRACE_VARIABLE: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
const PREFIX_VARIABLE: &str = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
const HEALTH_VARIABLE: &str = "TORCHELASTIC_HEALTH_CHECK_PORT";
/// For nodes that have met on our embedded server to go away in good order.
const LAST_GUESTS: Duration = Duration::from_secs(10);
/// For those of a run that goes on without this node.
const FOR_EVER: Duration = Duration::MAX;

/// How often it is looked whether the server of a run that is over has made room for the next one's.
const NEXT_SERVER: Duration = Duration::from_millis(200);

/// For what was said last, where nobody reads and the end was asked for.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Where there is no time for it: for what a console that is read takes at once.
const LAST_WORD: Duration = Duration::from_millis(50);

/// Runs the command; the exit code.
pub(super) fn run(options: &Run) -> u8 {
    let orders = match orders(options) {
        Ok(orders) => orders,
        Err(problem) => return problem.naming(&options.variables).report(),
    };
    if let Err(problem) = limits::check_files() {
        return problem.report();
    }
    let cannot = |error| limits::cannot_start(&error).report();
    let guarded = match rallypoint_agent::guard(&orders) {
        Ok(Part::Launcher(guarded)) => guarded,
        Ok(Part::Guard { status, left }) => {
            name_left(&left);
            let code = guard_code(status);
            rallypoint_agent::announce(code);
            return code;
        }
        Err(error) => return cannot(error),
    };
    if let Err(problem) = limits::check_threads() {
        return problem.report();
    }
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
        return Problem::usage(format!("--log-level: {problem}")).naming(&options.variables).report();
    }
    let runtime = match limits::runtime() {
        Ok(runtime) => runtime,
        Err(problem) => return problem.report(),
    };
    let stopper = Stopper::default();
    let code = runtime.block_on(launch(options, &orders, &guarded, &terminal, &stopper));
    terminal.show(None);
    let code = code.unwrap_or_else(|problem| {
        let problem = problem.naming(&options.variables);
        terminal.say(&match options.log_format {
            LogFormat::Text => problem.shown(),
            LogFormat::Json => {
                json_line(&serde_json::json!({ "message": problem.text, "exit_code": problem.code }))
            }
        });
        error_file::keep(&error_file::of_problem(&problem));
        problem.code
    });
    let (grace, preemption) = (grace(options).unwrap_or(DEFAULT_GRACE), options.preempt.grace());
    runtime.block_on(last_words(&terminal, &stopper, grace, preemption));
    runtime.shutdown_background();
    if guarded.alone() {
        name_left(&guarded.clean_up());
    }
    rallypoint_agent::announce(code);
    code
}

/// Waits for all to be shown: while workers' output is read, and a little longer where the end was asked for; no longer than
/// a node that is taken away has, from when it was told.
async fn last_words(terminal: &Terminal, stopper: &Stopper, grace: Duration, preemption: Option<Duration>) {
    let mut asked = stopper.listen();
    let told = asked.clone();
    let a_little = move || {
        let left = preemption.zip(told.preempted_for()).map(|(time, passed)| time.saturating_sub(passed));
        left.map_or(LAST_WORDS, |left| left.clamp(LAST_WORD, LAST_WORDS))
    };
    tokio::select! {
        biased;
        _ = asked.asked() => terminal.done(a_little()).await,
        () = terminal.done(grace) => {}
    }
    if let Some(Lost { lines, error }) = terminal.lost() {
        warn!(lines, error, "lines of the workers could not be written to standard output, and are lost");
        terminal.done(a_little()).await;
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
    // The keys of a terminal that a worker has are the worker's.
    let ends =
        ends.into_iter().filter(|signal| !(interactive(options) && signals::terminals(*signal))).collect();
    // All that the workers may have until they are gone.
    let grace = grace(options)?.max(options.preempt.grace().unwrap_or_default());
    Ok(Orders { ends, grace, on_terminal: interactive(options) })
}

/// Whether a worker has the terminal.
fn interactive(options: &Run) -> bool {
    options.interactive_rank.is_some() && std::io::stdin().is_terminal()
}

fn grace(options: &Run) -> Result<Duration, Problem> {
    if let Some(seconds) = options.shutdown_timeout {
        return Ok(seconds.0);
    }
    match std::env::var(GRACE_VARIABLE) {
        Err(_) => Ok(DEFAULT_GRACE),
        Ok(text) => match text.parse::<Seconds>() {
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
    let variable = |name: &str| std::env::var(name).ok();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let around = Surroundings { variable: &variable, host: &host };
    let preempts = options.preempt.signals(around);
    signals::listen(&orders.ends, &preempts, interactive(options), stopper, guarded, &workers);
    tokio::spawn(signals::follow(guarded.clone(), workers.clone(), options.monitor_interval.0));
    for (flag, why) in checks::without_effect(options) {
        warn!("{} has no effect: {why}", named(flag, &options.variables));
    }
    for Unread { name, meant } in &options.unread {
        match meant {
            Some(meant) => warn!("{name} is set, and nothing reads it: did you mean {meant}?"),
            None => warn!("{name} is set, and nothing reads it; rallypoint run --help names the variables"),
        }
    }
    if std::env::var_os(HEALTH_VARIABLE).is_some() {
        warn!(
            "{HEALTH_VARIABLE} has no effect: there is no server for health checks, as in torchrun's public release"
        );
    }
    let mut options = options.clone();
    let scheduled = scheduler::take(&mut options, around)?;
    scheduled.said.iter().for_each(|said| info!("{said}"));
    scheduled.warned.iter().for_each(|warned| warn!("{warned}"));
    let mut spec = spec(&options)?;
    spec.preemption = options.preempt.settings(around);
    let launched_in = scheduler::launched_in(around);
    spec.environment.extend(launched_in.map(|place| (scheduler::LAUNCHED_IN, place.into())));
    spec.interactive = options.interactive_rank.map(|local_rank| Interactive {
        local_rank,
        group: guarded.terminal_group().filter(|_| interactive(&options)),
    });
    checks::check(&options, spec.local_world_size)?;
    limits::make_room(spec.local_world_size);
    let mut meet = meet::of(&mut options, scheduled)?;
    let (options, alone) = (&options, meet.alone);
    spec.worker_store = StoreServer::choose(options.worker_store, &options.store_files)?;
    meet.said.iter().for_each(|said| info!("{said}"));
    meet.warned.iter().for_each(|warned| warn!("{warned}"));
    for (flag, why) in &meet.without_effect {
        warn!("{} has no effect: {why}", named(flag, &options.variables));
    }
    let run_id = run_id(options, alone)?;
    let health = options.health.take(&options.variables, options.exclude_for, &mut meet.config)?;
    let last_call = check_parameters(options, &meet, &run_id)?;
    let chosen = options.shutdown_timeout.is_some() || std::env::var_os(GRACE_VARIABLE).is_some();
    let late = checks::late_for_last_call(options.nodes(), spec.grace, last_call).filter(|_| chosen);
    late.iter().for_each(|late| warn!("{late}"));
    let telemetry = Telemetry::start(options, &mut meet).await?;
    let (logs, held) = files::open(options, guarded, &run_id, spec.local_world_size)?;
    spec.preemption.folder = held.as_ref().map(|_| guarded.folder().to_owned());
    let kept = logs.kept().map(Path::to_owned);
    if let (None, Some(kept)) = (&options.log_dir, &kept) {
        info!("without --log-dir, the workers' log files are kept in {}", kept.display());
    }
    let file = options.event_log.as_deref().map(|path| files::event_log(path, &run_id)).transpose()?;
    let timer = TimerFile::make(guarded.folder());
    let mut timer = timer.map_err(|(path, error)| {
        Problem::new(
            NODE,
            format!("cannot make the pipe {} for the workers' timers: {error}", path.display()),
        )
    })?;
    if let Some(timer) = &mut timer {
        spec.environment.push((timer::FILE, timer.path.clone().into()));
        tokio::spawn(timer.watch(workers.clone()));
    }
    spec.hang = options.hang.spec(guarded);
    let mut listener = stopper.listen();
    let reached = tokio::select! {
        reached = reach(options, &meet, &run_id, &telemetry) => reached?,
        signal = listener.asked() => return Ok(signal_code(signal)),
    };
    let Reached { meeting, parameters, handler, timeout } = reached;
    let health = health::start(health, &parameters, kept.as_deref());
    let console: Arc<dyn Console> = Arc::<Terminal>::clone(terminal);
    let record = (options.event_log_handler == EventLogHandler::Console)
        .then(|| Arc::new(EventLog::new(&spec, &*handler, Arc::clone(terminal))));
    let stuck = stuck::watch(workers.clone(), stuck::limit()?, options.monitor_interval.0.max(SHORTEST_LOOK));
    let agent = Agent::new(spec, Arc::clone(&handler), logs, console)
        .adopting_orphans()
        .with_workers(workers)
        .with_health(health);
    let (endpoint, server) = (parameters.endpoint.clone(), agent.server());
    let waiting = Waiting { handler, run: run_id.clone(), endpoint, timeout, server: server.clone() };
    let agent =
        agent.with_events(record.clone().map(|record| record as Arc<dyn Events>)).with_events(file.clone());
    let agent = if meeting.server.is_some() { agent.hosting_server() } else { agent };
    // A server that is only ever connected to is no node's.
    let agent = if options.connection.only_connect() { agent } else { agent.asking_for_server() };
    let progress = tokio::spawn(progress::show(Arc::clone(terminal), agent.phase(), waiting));
    let running = agent.run(listener);
    tokio::pin!(running);
    let (outcome, stuck) = tokio::select! {
        outcome = &mut running => (outcome, None),
        stuck = stuck => {
            // Workers that are stuck have no use for a grace; the others are told why this node leaves.
            stopper.give_up(stuck);
            (running.await, Some(stuck))
        }
    };
    progress.abort();
    terminal.show(None);
    telemetry.flush().await;
    record.iter().for_each(|record| record.agent(&outcome));
    file.iter().for_each(|file| file.flush());
    let replaced = outcome.as_ref().is_err_and(rallypoint_agent::AgentError::is_replaced);
    // One without a file in it is not kept.
    let kept = kept.filter(|folder| files::is_there(folder)).map(|folder| folder.display().to_string());
    let code = match stuck {
        Some(stuck) => Err(stuck::problem(stuck)),
        None => match outcome {
            Ok(outcome) => report(outcome, options.log_format, &run_id, kept.as_deref(), terminal),
            Err(error) => {
                let ends_with_run = meeting.server.is_some() || server.borrow().is_some();
                Err(Problem::agent(&error, if ends_with_run { meet.place.embedded() } else { meet.place }))
            }
        },
    };
    if let Some(server) = meeting.server {
        let mut asked = stopper.listen();
        let patience = if replaced { FOR_EVER } else { LAST_GUESTS };
        if replaced {
            warn!(
                "another process has this node's place now; the server that the nodes have met on is in this one, and serves them until they are done"
            );
        }
        tokio::select! {
            _ = tokio::time::timeout(patience, server.left_alone()) => {}
            _ = asked.asked() => {}
        }
    }
    code
}

fn spec(options: &Run) -> Result<WorkerSpec, Problem> {
    let (program, args) =
        options.command.split_first().ok_or_else(|| Problem::usage("there is no program"))?;
    let program =
        Program::choose(program, args, options.module, options.no_python, options.python.as_deref())?;
    let template = options.log_line_prefix_template.clone().or_else(|| std::env::var(PREFIX_VARIABLE).ok());
    let prefix = template.map_or_else(|| Ok(Prefix::default()), |template| template.parse());
    let prefix = prefix.map_err(|error| Problem::usage(format!("--log-line-prefix-template: {error}")))?;
    // torchrun tells its Python the same with -u; a program that is a Python gets it this way.
    let unbuffered = program.unbuffered.then(|| ("PYTHONUNBUFFERED", "1".into()));
    let mut spec = WorkerSpec::new(program.path, devices::workers(options.workers())?);
    spec.args = program.args;
    spec.role.clone_from(&options.role);
    spec.max_restarts = options.max_restarts;
    spec.restarts_return_after = options.restarts_return_after.map(|seconds| seconds.0);
    spec.when_exhausted = options.when_exhausted.into();
    spec.exclude_for = options.exclude_for;
    let most = options.max_failed_rounds.unwrap_or(DEFAULT_HUNG_ROUNDS);
    let (within, only_hung) = (options.failed_round_time.0, options.max_failed_rounds.is_none());
    spec.max_failed_rounds = (most > 0).then_some(FailedRounds { most, within, only_hung });
    spec.max_departures = options.max_departures;
    spec.fence_timeout = options.fence_timeout.map(|seconds| seconds.0);
    spec.max_etcd_outage = options.max_etcd_outage.map(|seconds| seconds.0);
    spec.grace = grace(options)?;
    spec.exit_barrier_timeout = options.exit_barrier_timeout.0;
    spec.signals.clone_from(&options.signals_to_handle);
    spec.virtual_local_rank = options.virtual_local_rank;
    spec.environment = unbuffered.into_iter().collect();
    spec.prefix = prefix;
    spec.cpus = cpus(options, spec.local_world_size)?;
    Ok(spec)
}

/// The CPUs of each worker, if they are to be bound.
fn cpus(options: &Run, workers: usize) -> Result<Vec<numa::Cpus>, Problem> {
    let Some(mode) = options.numa_binding else { return Ok(Vec::new()) };
    let gpus = if options.workers() == WorkersPerNode::Cpu { Vec::new() } else { devices::addresses()? };
    let allowed = allowed_cpus().map_err(|error| {
        Problem::new(NODE, format!("--numa-binding: cannot tell the CPUs of this process: {error}"))
    })?;
    let bound = numa::bind(mode, workers, &gpus, &Machine { root: Path::new("/"), allowed })?;
    for (local_rank, cpus) in bound.iter().enumerate() {
        info!(local_rank, gpu = gpus.get(local_rank), "bound to the CPUs {}", numa::list(cpus));
    }
    Ok(bound)
}

fn run_id(options: &Run, alone: bool) -> Result<String, Problem> {
    let given = options.rdzv_id.trim();
    if alone && options.nodes().max > 1 {
        return Err(Problem::usage(format!(
            "--standalone is for 1 node, and --nnodes says up to {}: leave one of them out",
            options.nodes().max
        )));
    }
    if alone {
        return Ok(if given.is_empty() { uuid::Uuid::new_v4().to_string() } else { given.to_owned() });
    }
    if options.connection.endpoints().is_empty() {
        return Err(Problem::usage(
            "more than 1 node, and no place to meet: say where with --rdzv-endpoint HOST:PORT, the same on all nodes, or with --master-addr and --node-rank",
        ));
    }
    if given.is_empty() {
        return Err(Problem::usage(
            "the run has no name: give it one with --rdzv-id NAME, the same on all nodes",
        ));
    }
    Ok(given.to_owned())
}

fn parameters(
    options: &Run,
    meet: &Meet,
    endpoints: &str,
    run_id: &str,
) -> Result<RendezvousParameters, Problem> {
    let usage = |error: rallypoint_rendezvous::ParameterError| Problem::usage(error.to_string());
    let nodes = options.nodes();
    let mut parameters =
        RendezvousParameters::new(&options.rdzv_backend, endpoints, run_id, nodes.min, nodes.max)
            .map_err(usage)?;
    parameters.config = meet.config.clone();
    parameters.local_addr = options.local_addr.clone().filter(|address| !address.is_empty());
    let token = server::token(&options.connection, &meet.config)?;
    if token.is_some() && !options.is_native() {
        return Err(Problem::usage(
            "a token (--token-file or RALLYPOINT_TOKEN) is for Rallypoint's own backend: PyTorch's nodes, which --rdzv-backend etcd is to meet, cannot show one",
        ));
    }
    if !meet.alone {
        options.connection.configure(&mut parameters.config)?;
    } else if let Some(token) = token {
        // A server of this node's own has neither TLS nor users, whatever the site's etcd has.
        parameters.config.entry("token".to_owned()).or_insert_with(|| token.as_str().to_owned());
    }
    Ok(parameters)
}

/// That what the rendezvous is told can work, before anything is made or started for it. How long its last call is.
fn check_parameters(options: &Run, meet: &Meet, run_id: &str) -> Result<Duration, Problem> {
    // Where they meet is found later.
    let parameters = parameters(options, meet, "localhost", run_id)?;
    let checked = match parameters.backend.as_str() {
        BACKEND => NativeSettings::from_parameters(&parameters).map(|_| ()),
        EtcdBarrier::NAME => EtcdBarrier::check(&parameters),
        // Which there is not, as the registry says.
        _ => Ok(()),
    };
    checked.map_err(|error| Problem::rendezvous(&error.into(), meet.place))?;
    Ok(parameters.seconds("last_call_timeout").ok().flatten().unwrap_or(DEFAULT_LAST_CALL))
}

/// Where the nodes meet, and this node's way there.
struct Reached {
    meeting: Meeting,
    parameters: RendezvousParameters,
    handler: Arc<dyn RendezvousHandler>,
    /// How long joining waits.
    timeout: Duration,
}

/// Finds the server, or starts it, and connects.
async fn reach(options: &Run, meet: &Meet, run_id: &str, telemetry: &Telemetry) -> Result<Reached, Problem> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let meeting = if meet.alone {
            server::alone(server::token(&options.connection, &meet.config)?)?
        } else {
            server::find(&options.connection, &meet.config, meet.serves, meet.place, options.nodes().max)
                .await?
        };
        let mut parameters = parameters(options, meet, &meeting.endpoints, run_id)?;
        telemetry.give_to(&mut parameters);
        let timeout =
            ["join_timeout", "timeout"].iter().find_map(|name| parameters.seconds(name).ok().flatten());
        let timeout = timeout.unwrap_or(DEFAULT_JOIN_TIMEOUT);
        let deadline = began + bounded(meet.patience.unwrap_or(timeout));
        let handler = connect(&parameters, &meeting, meet.place, deadline).await?;
        // The server of the run before this one, which is about to end: only where that had the same name.
        let over = meet.name_again && meeting.server.is_none();
        if !over || Instant::now() >= deadline || !handler.is_closed().await.unwrap_or(false) {
            if meeting.taken {
                info!(
                    endpoint = parameters.endpoint,
                    "a server is there: the nodes meet on it, and this one starts none"
                );
            }
            return Ok(Reached { meeting, parameters, handler, timeout });
        }
        if !std::mem::replace(&mut told, true) {
            info!(
                endpoint = parameters.endpoint,
                "the run there is over; waiting for the server of the next one"
            );
        }
        drop(handler);
        tokio::time::sleep(NEXT_SERVER).await;
    }
}

/// Connects, and waits for an etcd that is not there yet. What listens on this very node has come already.
async fn connect(
    parameters: &RendezvousParameters,
    meeting: &Meeting,
    place: EndpointFlags,
    deadline: Instant,
) -> Result<Arc<dyn RendezvousHandler>, Problem> {
    let patience = match meeting.taken {
        true => Duration::ZERO,
        false => deadline.saturating_duration_since(Instant::now()),
    };
    let made = Registry::with_defaults().create_within(parameters, patience).await;
    let plain = parameters.get("protocol").is_none_or(|it| it == "http");
    made.map_err(|error| match cause(&error) {
        Some(cause) if plain && meeting.taken && no_etcd_here(parameters, cause) => {
            // The other nodes find the same there, and end with the same code.
            let (endpoint, flag) = (&parameters.endpoint, place.port());
            let text = format!(
                "the port of {endpoint} is in use by something that is no etcd, or by one that wants TLS: choose another {flag}, or give --cacert"
            );
            Problem::new(NO_SERVER, text)
        }
        Some(cause) if plain && cause.hangs_up() => no_etcd(&parameters.endpoint, place),
        _ => Problem::rendezvous(&error, place),
    })
}

/// Whether what listens on this node does not even answer as an etcd does. One without the v2 API may be one all the same.
fn no_etcd_here(parameters: &RendezvousParameters, cause: &rallypoint_etcd::Error) -> bool {
    let let_in = !matches!(cause.kind(), ErrorKind::Auth | ErrorKind::PermissionDenied | ErrorKind::Tls);
    parameters.backend == BACKEND && let_in || cause.hangs_up()
}

/// An error as the lines of the log are.
fn json_line(fields: &serde_json::Value) -> String {
    let timestamp = rallypoint_agent::rfc3339(SystemTime::now());
    format!("{}\n", serde_json::json!({ "timestamp": timestamp, "level": "ERROR", "fields": fields }))
}

fn signal_code(signal: Signal) -> u8 {
    SIGNAL.saturating_add(u8::try_from(signal.as_raw()).unwrap_or_default())
}

/// Says how it went; the exit code.
fn report(
    outcome: Outcome,
    format: LogFormat,
    run_id: &str,
    kept: Option<&str>,
    terminal: &Arc<Terminal>,
) -> Result<u8, Problem> {
    match outcome {
        Outcome::Succeeded(success) => {
            let (workers, nodes) = (success.workers, success.nodes);
            let restarts = success.restarts;
            // Of other nodes nobody has said it.
            let whose = if success.without_word && nodes > 1 { "this node's" } else { "all" };
            info!(run = run_id, workers, nodes, restarts, logs = kept, "{whose} workers have finished");
            Ok(0)
        }
        Outcome::Failed(report) | Outcome::Left(report) => {
            say_failure(&report, format, terminal);
            Ok(WORKERS_FAILED)
        }
        Outcome::NotNeeded => {
            info!(run = run_id, "the run has ended well; this node stood by and was not needed");
            Ok(0)
        }
        Outcome::StayedAway => {
            info!(
                run = run_id,
                "the run has ended well, without this node: it has not passed its health checks"
            );
            Ok(0)
        }
        Outcome::Closed { reason } => {
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            Err(Problem::new(
                CLOSED,
                format!("run {run_id:?} was closed before its workers had finished{why}"),
            ))
        }
        Outcome::Stopped { signal, failure } => {
            match failure {
                Some(report) => say_failure(&report, format, terminal),
                None => error_file::keep(&error_file::of_signal(signal)),
            }
            Ok(signal_code(signal))
        }
    }
}

fn say_failure(report: &FailureReport, format: LogFormat, terminal: &Terminal) {
    let text = match format {
        LogFormat::Text => report.to_string(),
        LogFormat::Json => json_line(&serde_json::json!({ "message": report.in_short(), "failure": report })),
    };
    terminal.say(&text);
    error_file::keep(&error_file::of_failure(report));
}
