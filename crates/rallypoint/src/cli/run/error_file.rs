//! The launcher's own error file, for whoever started it and named one: what went wrong, in PyTorch's format.
//!
//! A launcher that is itself a worker tells its own launcher so, and a site that runs jobs its records.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rallypoint_agent::{Exit, FailureReport, Signal, disk};
use serde_json::{Value, json};
use tracing::warn;

use crate::cli::exit::Problem;

const VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";

/// The failure that came first, as its worker wrote it where it did.
pub(crate) fn of_failure(report: &FailureReport) -> Value {
    let first = &report.first;
    let message = first.error.as_ref().map_or_else(|| first.in_short(), |error| error.message.clone());
    let traceback = first.error.as_ref().and_then(|error| error.traceback.clone());
    let time = first.error.as_ref().and_then(|error| error.time).or(first.time);
    let mut record = record(&message, &traceback.unwrap_or_default(), time.unwrap_or_else(SystemTime::now));
    // A signal is a negative number, as Python has it.
    record["message"]["errorCode"] = match first.exit {
        Exit::ExitCode(code) => code.into(),
        Exit::Signal(number) => (-number).into(),
        Exit::Hung(_) => (-Signal::KILL.as_raw()).into(),
    };
    record
}

/// What kept the launcher from its work.
pub(crate) fn of_problem(problem: &Problem) -> Value {
    record(&problem.text, "", SystemTime::now())
}

/// The signal that ended this node.
pub(crate) fn of_signal(signal: Signal) -> Value {
    record(&format!("ended by {}", Exit::Signal(signal.as_raw())), "", SystemTime::now())
}

fn record(message: &str, traceback: &str, time: SystemTime) -> Value {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    json!({
        "message": {
            "message": message,
            "extraInfo": { "py_callstack": traceback, "timestamp": seconds.to_string() },
        }
    })
}

/// Writes the record where the variable says, if it does.
pub(crate) fn keep(record: &Value) {
    let Some(file) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) else { return };
    let text = record.to_string();
    let name = file.clone();
    let written = disk::within(disk::PATIENCE, move || std::fs::write(Path::new(&file), text));
    let why = match written {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        // A pipe that nobody reads takes nothing.
        Err(unknown) => match std::fs::metadata(&name).ok().as_ref().and_then(disk::no_file) {
            Some(kind) => format!("it is {kind} that takes nothing"),
            None => unknown.to_string(),
        },
    };
    warn!("cannot write {VARIABLE}, {}: {why}", Path::new(&name).display());
}
