//! What the two commands share: diagnostics, signals, exit codes. Not part of the library's interface.

pub mod command;

use std::error::Error;
use std::io::IsTerminal;

use rallypoint_server::{Config, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

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
    let filter =
        EnvFilter::try_new(level).map_err(|error| format!("{level:?} is not a log level: {error}"))?;
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            log.with_ansi(colour).init();
        }
    }
    Ok(())
}

/// Serves until Ctrl-C or SIGTERM; a second one ends it at once.
pub async fn serve(config: Config) -> Result<(), Box<dyn Error>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut told = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let server = Server::bind(config)?;
    told().await;
    tracing::info!("stopping");
    tokio::select! {
        stopped = server.stop() => Ok(stopped?),
        () = told() => Ok(()),
    }
}

/// One line with the causes, and the exit code of a failure.
#[must_use]
pub fn failed(error: &dyn Error) -> u8 {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if !text.contains(&error.to_string()) {
            text.push_str(&format!(": {error}"));
        }
        cause = error.source();
    }
    eprintln!("error: {text}");
    1
}
