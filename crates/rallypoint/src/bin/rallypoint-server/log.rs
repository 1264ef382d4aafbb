//! Where the log goes, as etcd's flags say it.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use rallypoint::cli::{LogFormat, LogOutput, start_log};
use tracing_subscriber::fmt::MakeWriter as _;

/// A place to write the log to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Output {
    Stderr,
    Stdout,
    /// Added to what is in it.
    File(PathBuf),
}

impl Output {
    fn open(&self) -> Result<LogOutput, String> {
        let (opened, name) = match self {
            Output::Stderr => (LogOutput::to(io::stderr()), "stderr".to_owned()),
            Output::Stdout => (LogOutput::to(io::stdout()), "stdout".to_owned()),
            Output::File(path) => {
                let file = File::options().create(true).append(true).open(path);
                (file.and_then(LogOutput::to), path.display().to_string())
            }
        };
        opened.map_err(|error| format!("cannot log to {name}: {error}"))
    }
}

/// All of them at once. None of them is waited for.
struct All(Vec<LogOutput>);

impl Write for All {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One that cannot be written to does not keep the others from it.
        let results: Vec<_> = self.0.iter().map(|output| output.make_writer().write_all(bytes)).collect();
        results.into_iter().collect::<io::Result<()>>().map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log, once.
pub(super) fn start(level: &str, outputs: &[Output]) -> Result<(), String> {
    if outputs == [Output::Stderr] {
        return start_log(level, LogFormat::Text);
    }
    let all = All(outputs.iter().map(Output::open).collect::<Result<_, _>>()?);
    let log = tracing_subscriber::fmt().with_env_filter(level).with_target(false).with_ansi(false);
    // It would say on stderr that one cannot be written, and panic where stderr cannot either.
    let log = log.log_internal_errors(false);
    log.with_writer(Mutex::new(all)).init();
    Ok(())
}
