//! The exit codes of `rallypoint run`, and one line for each thing that can go wrong.

use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_agent::{AgentError, SERVER_ENDED};
use rallypoint_core::text::plain;
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v2::NO_V2;
use rallypoint_rendezvous::{ParameterError, RendezvousError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ulimit;
use super::variables::{Variable, named};

/// Workers failed more often than they may be started again.
pub(crate) const WORKERS_FAILED: u8 = 1;
/// The command was called wrongly.
pub(crate) const USAGE: u8 = 2;
/// The nodes did not meet, or could not go on together.
pub(crate) const NO_RENDEZVOUS: u8 = 3;
/// No server answers at the endpoint, none can be started there, or it does not let us in.
pub(crate) const NO_SERVER: u8 = 4;
/// The run is closed.
pub(crate) const CLOSED: u8 = 5;
/// This node lacks something: a port, a folder, a process.
pub(crate) const NODE: u8 = 6;
/// This node is excluded from the run.
pub(crate) const EXCLUDED: u8 = 7;
/// The program cannot be run, as a shell says it.
pub(crate) const CANNOT_RUN: u8 = 126;
/// The program does not exist, as a shell says it.
pub(crate) const NOT_FOUND: u8 = 127;
/// Ended by a signal, whose number is added; as a shell says it.
pub(crate) const SIGNAL: u8 = 128;

/// Before its rank, the name of a node that has been given one.
pub(crate) const NODE_RANK: &str = "node-rank-";

/// The table of `rallypoint run --help`.
pub(crate) const TABLE: &str = "\
Examples:
  rallypoint run --standalone --nproc-per-node 4 train.py --lr 0.1
  rallypoint run --nnodes 2:4 --nproc-per-node gpu \\
      --rdzv-endpoint etcd1:2379 --rdzv-id job42 train.py

Exit codes:
  0     the workers of all nodes have succeeded
  1     workers failed, and there is no restart left
  2     wrong usage
  3     the nodes did not meet: too few in time, or with different settings
  4     no etcd at the endpoint, or it does not let this node in
  5     the run is closed
  6     this node lacks something: a folder it can write, open files, processes;
        or it has failed a health check
  7     this node is excluded from the run
  126   the program cannot be run
  127   the program does not exist
  128+N ended by signal N: 130 after Ctrl-C, 143 after SIGTERM";

/// Where a command meets others, in the flags that its user knows it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointFlags {
    /// `--rdzv-endpoint`, and the run has a name.
    Endpoint,
    /// `--rdzv-endpoint` of a command that was written for torchrun, which need not name the run.
    Unnamed,
    /// The same on a server that one of the nodes runs, and that ends with the run.
    Embedded,
    /// `--master-addr`: node 0 has the server.
    Master,
    /// The first node of what a scheduler has started, where no flag says anything else.
    Scheduler,
    /// `--endpoint` of an operator's command.
    Operator,
    /// Of torchrun, with options in `--rdzv-conf`.
    Torchrun,
}

impl EndpointFlags {
    /// Where the server is one of the nodes'.
    pub(crate) fn embedded(self) -> Self {
        if self == EndpointFlags::Endpoint { EndpointFlags::Embedded } else { self }
    }

    /// The flags that say where it is.
    pub(crate) fn flags(self) -> &'static str {
        match self {
            EndpointFlags::Endpoint
            | EndpointFlags::Embedded
            | EndpointFlags::Unnamed
            | EndpointFlags::Scheduler
            | EndpointFlags::Torchrun => "--rdzv-endpoint",
            EndpointFlags::Master => "--master-addr and --master-port",
            EndpointFlags::Operator => "--endpoint",
        }
    }

    /// The one that has the port.
    pub(crate) fn port(self) -> &'static str {
        if self == EndpointFlags::Master { "--master-port" } else { self.flags() }
    }

    /// What to look at where nobody answers there.
    fn nobody(self) -> &'static str {
        match self {
            EndpointFlags::Endpoint
            | EndpointFlags::Embedded
            | EndpointFlags::Unnamed
            | EndpointFlags::Torchrun => "; check --rdzv-endpoint, and that an etcd runs there",
            EndpointFlags::Master => "; check --master-addr and --master-port, and that node 0 runs there",
            EndpointFlags::Scheduler => {
                "; it is the first node of the step: see what its launcher says, or give --rdzv-endpoint"
            }
            EndpointFlags::Operator => "; check --endpoint, and that an etcd runs there",
        }
    }

    /// What to look at where the certificate is another's.
    fn other_name(self) -> &'static str {
        match self {
            EndpointFlags::Endpoint
            | EndpointFlags::Embedded
            | EndpointFlags::Unnamed
            | EndpointFlags::Scheduler
            | EndpointFlags::Torchrun => "; name the etcd in --rdzv-endpoint as its certificate does",
            EndpointFlags::Master => "; name node 0 in --master-addr as its certificate does",
            EndpointFlags::Operator => "; name the etcd in --endpoint as its certificate does",
        }
    }

    /// What to look at where the user is not let in.
    fn not_let_in(self) -> &'static str {
        match self {
            EndpointFlags::Torchrun => {
                "; check token_file, or user and password, in --rdzv-conf, RALLYPOINT_TOKEN, or RALLYPOINT_USER and RALLYPOINT_PASSWORD, and what that user may do"
            }
            _ => "; check --token-file, or --user and its password, and what that user may do",
        }
    }

    /// What to do where the etcd asks who this is.
    fn who(self) -> &'static str {
        match self {
            EndpointFlags::Torchrun => {
                "; this server asks for a token or a password: give token_file in --rdzv-conf, or RALLYPOINT_TOKEN, or user and password"
            }
            _ => {
                "; this server asks for a token or a password: give --token-file FILE (in dashboard --etcd-token-file), or --user NAME with a password"
            }
        }
    }

    /// What to look at where there is no trust.
    fn no_trust(self) -> &'static str {
        match self {
            EndpointFlags::Torchrun => {
                "; check cacert, cert and key in --rdzv-conf, or RALLYPOINT_CACERT, RALLYPOINT_CLIENT_CERT and RALLYPOINT_CLIENT_KEY"
            }
            _ => "; check --cacert, --cert and --key",
        }
    }

    /// What to do where TLS is spoken to an etcd that has none.
    fn speaks_no_tls(self) -> &'static str {
        match self {
            EndpointFlags::Torchrun => {
                "; what listens there does not speak TLS, or has ended the connection: if it has no TLS, leave out cacert, cert and key in --rdzv-conf, RALLYPOINT_CACERT and the like, and https"
            }
            _ => {
                "; what listens there does not speak TLS, or has ended the connection: if it has no TLS, leave out --cacert, --cert and --key, and https"
            }
        }
    }

    /// What says that the etcd has TLS.
    fn tls(self) -> &'static str {
        if self == EndpointFlags::Torchrun { "cacert in --rdzv-conf" } else { "--cacert FILE" }
    }

    /// What to look at where too few have come.
    fn too_few(self) -> &'static str {
        match self {
            EndpointFlags::Endpoint
            | EndpointFlags::Embedded
            | EndpointFlags::Operator
            | EndpointFlags::Torchrun => "; check that all nodes use this --rdzv-id and --rdzv-endpoint",
            EndpointFlags::Unnamed => "; check that all nodes use this --rdzv-endpoint",
            EndpointFlags::Scheduler => "; see what the launchers on the other nodes of the step say",
            EndpointFlags::Master => {
                "; check that all nodes use this --master-addr and --master-port, and each a --node-rank of its own"
            }
        }
    }

    /// What to do about a run that is over.
    fn over(self) -> &'static str {
        match self {
            EndpointFlags::Endpoint | EndpointFlags::Operator | EndpointFlags::Torchrun => {
                "; start a new one with another --rdzv-id"
            }
            EndpointFlags::Embedded | EndpointFlags::Scheduler => "; start all nodes again",
            EndpointFlags::Unnamed | EndpointFlags::Master => {
                "; start all nodes again, or name the new run with --rdzv-id"
            }
        }
    }
}

/// Why a command ends without having done what it should: one line, and an exit code.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Problem { code, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Problem::new(USAGE, text)
    }

    /// With what to do, where that is known from the kind.
    pub(crate) fn rendezvous(error: &RendezvousError, place: EndpointFlags) -> Self {
        if let Some(advice) = limit(error, ulimit::files) {
            return Problem::new(NODE, format!("cannot meet the other nodes: {advice}"));
        }
        if let RendezvousError::Replaced { run_id, node, by } = error
            && let Some(rank) = node.strip_prefix(NODE_RANK)
        {
            let text = format!(
                "run {run_id:?}: another process, at {by}, was started with --node-rank {rank} and has this node's place now: give each node a --node-rank of its own"
            );
            return Problem::new(NO_RENDEZVOUS, text);
        }
        if let RendezvousError::Connection { endpoint, source } = error
            && source.to_string().contains(NO_V2)
        {
            return Problem::new(NO_SERVER, without_v2(endpoint, place));
        }
        if let RendezvousError::Connection { endpoint, .. } = error
            && cause(error).is_some_and(rallypoint_etcd::Error::shows_nobody)
        {
            return who_is_this(endpoint, place);
        }
        if let RendezvousError::Mismatch { run_id, setting, ours, theirs } = error
            && let Some((_, bound)) =
                [("min_nodes", "MIN"), ("max_nodes", "MAX")].iter().find(|(it, _)| it == setting)
        {
            let text = format!(
                "run {run_id:?} has {theirs} for {bound} of --nnodes, this node has {ours}: start all nodes with the same --nnodes"
            );
            return Problem::new(NO_RENDEZVOUS, text);
        }
        let (code, advice) = match error {
            // What kept the name is gone.
            RendezvousError::Closed { reason, .. } if reason.ends_with(SERVER_ENDED) => {
                (CLOSED, place.embedded().over())
            }
            RendezvousError::Closed { .. } => (CLOSED, place.over()),
            RendezvousError::Excluded { .. } => (
                EXCLUDED,
                "; `rallypoint include` lets it in again, and with when_excluded=wait in --rdzv-conf it waits for that",
            ),
            RendezvousError::Connection { .. } => {
                (cause(error).map_or(NO_SERVER, of_etcd), advice(cause(error), place))
            }
            RendezvousError::NotMet { needed, here, .. } if here < needed => (NO_RENDEZVOUS, place.too_few()),
            RendezvousError::NotMet { .. } => (
                NO_RENDEZVOUS,
                "; wait longer: the join_timeout of --rdzv-conf must be above its last_call_timeout",
            ),
            RendezvousError::Parameter(ParameterError(text)) if text.contains(" option '") => {
                return Problem::usage(format!("--rdzv-conf: {text}"));
            }
            RendezvousError::Port { port: 1.., .. } if place == EndpointFlags::Torchrun => {
                (NODE, "; choose another master_port in --rdzv-conf, or leave it out")
            }
            RendezvousError::Port { port: 1.., .. } => {
                (NODE, "; choose another --master-port (the master_port of --rdzv-conf), or leave it out")
            }
            RendezvousError::Port { .. } => (NODE, "; end what holds them"),
            RendezvousError::Unhealthy { .. } => (NODE, ""),
            RendezvousError::Parameter(_) => (USAGE, ""),
            _ => (NO_RENDEZVOUS, ""),
        };
        Problem::new(code, format!("{}{advice}", chain(error)))
    }

    pub(crate) fn agent(error: &AgentError, place: EndpointFlags) -> Self {
        if let AgentError::Rendezvous(error) = error {
            return Problem::rendezvous(error, place);
        }
        if let Some(advice) = limit(error, ulimit::advice) {
            return Problem::new(NODE, format!("cannot start the workers: {advice}"));
        }
        match error {
            AgentError::NotAgain { .. } => Problem::new(
                NO_RENDEZVOUS,
                format!("{error}; start another node in time, or allow fewer with --nnodes MIN:MAX"),
            ),
            AgentError::ServerGone { .. } => {
                Problem::new(NO_SERVER, format!("{error}; start that node again, and the others"))
            }
            AgentError::Unreachable { source, .. } => {
                Problem::new(NO_SERVER, format!("{}{}", chain(error), advice(cause(source), place)))
            }
            AgentError::Start { program, source } if source.raw_os_error() == Some(NO_PROGRAM) => {
                let text = format!(
                    "cannot start {program:?}: it is no program of this system; if it is a script, let it begin with #! and its interpreter, or name that before it"
                );
                Problem::new(CANNOT_RUN, text)
            }
            AgentError::Start { source, .. } => {
                let missing = source.kind() == std::io::ErrorKind::NotFound;
                Problem::new(if missing { NOT_FOUND } else { CANNOT_RUN }, chain(error))
            }
            AgentError::Logs(_)
            | AgentError::Gpu(_)
            | AgentError::Port(_)
            | AgentError::WorkerStore { .. }
            | AgentError::StoreProxy(_)
            | AgentError::Signals(_) => Problem::new(NODE, chain(error)),
            _ => Problem::new(NO_RENDEZVOUS, chain(error)),
        }
    }

    /// In words of the variables that options come from, where they do.
    pub(crate) fn naming(mut self, variables: &[Variable]) -> Self {
        self.text = named(&self.text, variables);
        self
    }

    /// Says it, and returns the code.
    pub(crate) fn report(&self) -> u8 {
        say(self.shown());
        self.code
    }

    /// As it is shown. The words of others are among it: a reason to close a run may hold anything.
    pub(crate) fn shown(&self) -> String {
        let lines: Vec<String> = self.text.lines().map(plain).collect();
        format!("error: {}\n", lines.join("\n"))
    }
}

/// What the system says of a file that it cannot run.
const NO_PROGRAM: i32 = rustix::io::Errno::NOEXEC.raw_os_error();
/// For a message that is the last thing before the end.
const SAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes to stderr, from a thread of its own: nobody may be there to read it, and the end does not wait for that.
pub(crate) fn say(text: String) {
    let (tell, told) = std::sync::mpsc::channel();
    let text = Arc::new(text);
    let own = Arc::clone(&text);
    let write = move || {
        let _ = tell.send(());
        // A terminal that is gone has nothing to show.
        let _ = std::io::stderr().write_all(own.as_bytes());
        let _ = tell.send(());
    };
    match std::thread::Builder::new().spawn(write) {
        Ok(_) => {
            // On a machine that is busy it may take a while to begin, which says nothing of who reads.
            let _ = told.recv();
            let _ = told.recv_timeout(SAY_TIMEOUT);
        }
        Err(_) => say_here(&text),
    }
}

/// The same where no thread can be started.
fn say_here(text: &str) {
    let stderr = std::io::stderr();
    let timeout = Timespec { tv_sec: SAY_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    // What is ready takes a short text at once.
    if poll(&mut ready, Some(&timeout)).is_ok_and(|ready| ready > 0) {
        let _ = stderr.lock().write_all(text.as_bytes());
    }
}

/// What to do about an etcd that has only the v3 API.
fn without_v2(endpoint: &str, place: EndpointFlags) -> String {
    let (backend, instead) = match place {
        EndpointFlags::Torchrun => ("rallypoint-etcd", "write --rdzv-backend rallypoint"),
        _ => ("etcd", "leave the option out"),
    };
    format!(
        "--rdzv-backend {backend} speaks etcd's v2 API, and what answers at {endpoint} has none: {instead} on all nodes, which then meet on the v3 API; only to meet PyTorch's own etcd backend, put `rallypoint gateway` in front of it, or start an etcd 3.4 or 3.5 with --enable-v2"
    )
}

/// What to say of an error of a rendezvous to who uses torchrun: what is wrong, and what to do.
#[must_use]
pub fn torchrun_words(error: &RendezvousError) -> String {
    Problem::rendezvous(error, EndpointFlags::Torchrun).text
}

/// The same of the first connection, without TLS: who has never answered may be something else.
#[must_use]
pub fn torchrun_words_at_first(error: &RendezvousError) -> String {
    match error {
        RendezvousError::Connection { endpoint, .. }
            if cause(error).is_some_and(rallypoint_etcd::Error::hangs_up) =>
        {
            no_etcd(endpoint, EndpointFlags::Torchrun).text
        }
        _ => torchrun_words(error),
    }
}

/// The exit code of an error of the etcd client: files that cannot be used are a mistake in the command.
pub(crate) fn of_etcd(error: &rallypoint_etcd::Error) -> u8 {
    if error.is_of_tls_files() { USAGE } else { NO_SERVER }
}

/// What kept us from an etcd, where that is known.
pub(crate) fn cause(error: &RendezvousError) -> Option<&rallypoint_etcd::Error> {
    let RendezvousError::Connection { source, .. } = error else { return None };
    source.downcast_ref()
}

/// What is said where the etcd asks who this is, and nothing was given.
pub(crate) fn who_is_this(endpoint: &str, place: EndpointFlags) -> Problem {
    Problem::new(NO_SERVER, format!("etcd at {endpoint}{}", place.who().replacen("; ", ": ", 1)))
}

/// With the flag that names another address, where that is to be chosen.
pub(crate) fn with_flag(text: &str, flag: &str) -> String {
    text.replace(
        "stop what listens there, or choose another",
        &format!("stop what listens there, or choose another {flag}"),
    )
}

/// What is said of one that takes connections and speaks something else than an etcd does.
pub(crate) fn no_etcd(endpoint: &str, place: EndpointFlags) -> Problem {
    let (tls, flags) = (place.tls(), place.flags());
    let text = format!(
        "{endpoint} does not speak plain etcd: if it uses TLS give {tls}, otherwise check {flags} (a gateway for the v2 API is no etcd)"
    );
    Problem::new(NO_SERVER, text)
}

/// What to do about a connection that did not come about.
pub(crate) fn advice(error: Option<&rallypoint_etcd::Error>, place: EndpointFlags) -> &'static str {
    if error.is_some_and(rallypoint_etcd::Error::speaks_no_tls) {
        return place.speaks_no_tls();
    }
    if error.is_some_and(rallypoint_etcd::Error::asks_nobody) {
        return "; start it with the token too, or leave the token out here";
    }
    if error.is_some_and(rallypoint_etcd::Error::shows_nobody) {
        return place.who();
    }
    match error.map(rallypoint_etcd::Error::kind) {
        Some(ErrorKind::Auth | ErrorKind::PermissionDenied) => place.not_let_in(),
        Some(ErrorKind::Tls) if error.is_some_and(|error| chain(error).contains("not valid for name")) => {
            place.other_name()
        }
        Some(ErrorKind::Tls) => place.no_trust(),
        Some(ErrorKind::NoSpace) => {
            "; compact and defragment it and disarm its alarm, or raise the quota; if it is `rallypoint serve`, its log says what is full"
        }
        Some(ErrorKind::Settings) => "",
        _ => place.nobody(),
    }
}

/// What to do where a limit of the system is the cause.
fn limit(error: &(dyn Error + 'static), advice: fn(&std::io::Error) -> Option<String>) -> Option<String> {
    let own = error.downcast_ref().and_then(advice);
    own.or_else(|| error.source().and_then(|cause| limit(cause, advice)))
}

/// An error with its causes, in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = unsaid_cause(error);
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text.push_str(&format!(": {part}"));
        }
        cause = unsaid_cause(error);
    }
    text.replace('\n', " ")
}

/// An error of etcd's client says its causes itself, in plainer words.
fn unsaid_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    error.source().filter(|_| !error.is::<rallypoint_etcd::Error>())
}

/// What clap has to say, in one line: what is wrong, and the nearest thing that is right.
pub(crate) fn one_line(rendered: &str) -> String {
    let told = rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let told = told.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let mut text = String::new();
    for line in told {
        // A flag that is mistyped was meant as one.
        if line.starts_with("tip: to pass '") {
            continue;
        }
        let line = &without_aliases(line);
        if !text.is_empty() {
            text.push_str(if text.ends_with(':') { " " } else { "; " });
        }
        text.push_str(line.strip_prefix("tip: ").unwrap_or(line));
    }
    text
}

/// The flag that is suggested, as the help has it: those with underscores are for torchrun's commands.
fn without_aliases(line: &str) -> String {
    match line.split_once("a similar argument exists: ") {
        Some((before, flag)) => format!("{before}a similar argument exists: {}", flag.replace('_', "-")),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_keeps_can_be_used_again() {
        let closed = |reason: &str, place| {
            let error = RendezvousError::Closed { run_id: "job".to_owned(), reason: reason.to_owned() };
            Problem::rendezvous(&error, place).text
        };
        assert!(closed("enough", EndpointFlags::Endpoint).ends_with("another --rdzv-id"));
        assert!(closed("enough", EndpointFlags::Endpoint.embedded()).ends_with("; start all nodes again"));
        let ended = format!("node1 {SERVER_ENDED}");
        assert!(closed(&ended, EndpointFlags::Endpoint).ends_with("; start all nodes again"));
    }

    #[test]
    fn clap_is_made_brief() {
        let rendered = "error: unexpected argument '--nnode' found\n\n  tip: a similar argument exists: '--nnodes'\n\n\
                        Usage: rallypoint run --nnodes <MIN[:MAX]> <PROGRAM>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(rendered),
            "error: unexpected argument '--nnode' found; a similar argument exists: '--nnodes'"
        );
        let rendered = "error: unexpected argument '--maxrestarts' found\n\n  tip: a similar argument exists: '--max_restarts'\n  \
                        tip: to pass '--maxrestarts' as a value, use '-- --maxrestarts'\n";
        assert_eq!(
            one_line(rendered),
            "error: unexpected argument '--maxrestarts' found; a similar argument exists: '--max-restarts'"
        );
        let rendered =
            "error: the following required arguments were not provided:\n  <PROGRAM>\n\nUsage: x\n";
        assert_eq!(
            one_line(rendered),
            "error: the following required arguments were not provided: <PROGRAM>"
        );
    }
}
