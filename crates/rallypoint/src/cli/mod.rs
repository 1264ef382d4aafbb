//! What the two commands share: diagnostics, signals, exit codes. Not part of the library's interface.

pub mod bench;
pub mod command;
mod connection;
mod dashboard;
#[cfg(test)]
mod documented;
mod exit;
mod gateway;
mod log_output;
mod operator;
mod run;
mod ulimit;
mod variables;

use std::error::Error;
use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs as _};

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

pub use exit::{chain, torchrun_words, torchrun_words_at_first};
pub use log_output::LogOutput;

use crate::server::{Server, ServerError, raise_file_limit};

/// How diagnostics are written, always to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; in colour on a terminal.
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// Starts diagnostics at `level`: `error`, `warn`, `info`, `debug`, `trace`, or a filter of `tracing`.
pub fn start_log(level: &str, format: LogFormat) -> Result<(), String> {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    match LogOutput::to(std::io::stderr()) {
        Ok(log) => start_log_to(level, format, colours, log),
        // It is closed, or there are no files left: the library's own says nothing then.
        Err(_) => start_log_to(level, format, colours, std::io::stderr),
    }
}

/// The same, to a writer of one's own.
fn start_log_to<W>(level: &str, format: LogFormat, colours: bool, writer: W) -> Result<(), String>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    check_level(level)?;
    // Each frame of HTTP/2 would be a line of its own. Whoever wants them says `trace`, or names the part.
    let quiet =
        if level.trim().eq_ignore_ascii_case("debug") { ",h2=info,hyper_util=info,tower=info" } else { "" };
    let filter = EnvFilter::try_new(format!("{level}{quiet}"));
    let filter = filter.map_err(|error| format!("{level:?} is not a log level: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // It would say on stderr that stderr cannot be written, and panic.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.with_ansi(colours).init(),
    }
    Ok(())
}

/// A filter takes any word for the name of a part, and then shows nothing but that.
fn check_level(level: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let means_something = |part: &&str| {
        part.contains(['=', '[']) || LEVELS.iter().any(|level| part.trim().eq_ignore_ascii_case(level))
    };
    match level.split(',').find(|part| !means_something(part)) {
        Some(part) => Err(format!("{part:?} is not a log level: write error, warn, info, debug or trace")),
        None => Ok(()),
    }
}

/// Serves until Ctrl-C or SIGTERM; a second one ends it at once. SIGHUP, which means to daemons that they are to read
/// their configuration again, has it look at its certificates.
pub async fn serve(
    starting: impl Future<Output = Result<Server, ServerError>>,
) -> Result<(), Box<dyn Error>> {
    raise_file_limit();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // While it is listened for, it has no other effect.
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut told = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let mut server = tokio::select! {
        server = starting => server?,
        () = told() => return Ok(()),
    };
    loop {
        tokio::select! {
            () = told() => break,
            ended = server.ended() => return Ok(ended?),
            _ = hang_up.recv() => {
                tracing::info!("SIGHUP: certificates that have changed are read again, and nothing else");
                server.reload();
            }
        }
    }
    tracing::info!("stopping");
    tokio::select! {
        stopped = server.stop() => Ok(stopped?),
        () = told() => Ok(()),
    }
}

/// An address, or the first of a name; that of version 4 where it has both, as what it is called by most often.
fn listen_address(given: &str) -> Result<SocketAddr, String> {
    let example = "it has the form 127.0.0.1:2379, [::1]:2379 or localhost:2379";
    if !given.contains(':') {
        return Err(format!("the port is missing; {example}"));
    }
    let found: Vec<SocketAddr> =
        given.to_socket_addrs().map_err(|error| format!("{error}; {example}"))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("that name has no address; {example}"))
}

/// A URL that clients are told.
fn advertised_url(given: &str) -> Result<String, String> {
    let is_url = given.split_once("://").is_some_and(|(scheme, _)| ["http", "https"].contains(&scheme));
    if is_url {
        Ok(given.to_owned())
    } else {
        Err(format!("a URL has a scheme: write http://{given}, or https"))
    }
}

/// What clients of a server must show, of the file or of the variable.
pub fn server_token(file: Option<&std::path::Path>) -> Result<Option<rallypoint_core::Token>, String> {
    connection::token(file).map_err(|problem| problem.text)
}

/// The same where a server cannot listen: `flag` says where it does.
#[must_use]
pub fn failed_to_serve(error: &(dyn Error + 'static), flag: &str) -> u8 {
    exit::say(format!("error: {}\n", exit::with_flag(&exit::chain(error), flag)));
    1
}

/// One line with the causes, and the exit code of a failure.
#[must_use]
pub fn failed(error: &(dyn Error + 'static)) -> u8 {
    exit::say(format!("error: {}\n", exit::chain(error)));
    1
}
