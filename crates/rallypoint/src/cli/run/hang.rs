//! What is done about workers that make no progress: the options, and the folder that workers beat in.

use std::sync::Arc;

use rallypoint_agent::{Guarded, HangSpec, Heartbeats, LookBefore, temporary};
use tracing::warn;

use super::values::Seconds;

/// Workers that make no progress.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Workers")]
pub(crate) struct Hang {
    /// When the workers of the run make no progress for so long, the nodes find out who stopped first: it has failed, its stack
    /// is in the report, and all start again. A worker makes progress by rallypoint.heartbeat(), or by its output. If it is not
    /// given, hangs are not looked for.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_HANG_TIMEOUT",
        value_name = "SECONDS",
        value_parser = some_time
    )]
    hang_timeout: Option<Seconds>,
    /// With --hang-timeout: how long a worker may take to its first sign of progress. If it is not given, as long as it likes:
    /// imports and compilers take minutes.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_HANG_START_TIMEOUT",
        value_name = "SECONDS",
        requires = "hang_timeout",
        value_parser = some_time
    )]
    hang_start_timeout: Option<Seconds>,
    /// With --hang-timeout: how long a worker may take to end, in silence, once its Python has begun to end, or others have ended
    /// and none of the rest waits for another. If it is not given, as long as it likes: it may write its last checkpoint.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_HANG_END_TIMEOUT",
        value_name = "SECONDS",
        requires = "hang_timeout",
        value_parser = some_time
    )]
    hang_end_timeout: Option<Seconds>,
    /// Before what end of the workers their stacks are looked at.
    #[arg(long, env = "RALLYPOINT_STACKS", value_enum, value_name = "WHEN", default_value = "failure")]
    stacks: Stacks,
}

/// When stacks are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Stacks {
    /// Before workers are stopped because one of the run has failed or hangs.
    Failure,
    /// Only because one hangs.
    Hang,
    /// Never.
    Never,
}

fn some_time(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text.parse()?;
    if time.0.is_zero() { Err("write more than 0 seconds, or leave it out".to_owned()) } else { Ok(time) }
}

impl Hang {
    pub(crate) fn spec(&self, guarded: &Guarded) -> HangSpec {
        let mut spec = HangSpec::default();
        spec.timeout = self.hang_timeout.map(|seconds| seconds.0);
        spec.start_timeout = self.hang_start_timeout.map(|seconds| seconds.0);
        spec.end_timeout = self.hang_end_timeout.map(|seconds| seconds.0);
        spec.look_before = match self.stacks {
            Stacks::Failure => LookBefore::Failures,
            Stacks::Hang => LookBefore::Hangs,
            Stacks::Never => LookBefore::Nothing,
        };
        spec.heartbeats = match Heartbeats::open(guarded.folder()) {
            Ok(heartbeats) => Some(Arc::new(heartbeats)),
            Err(error) => {
                let folder = guarded.folder().display();
                warn!(
                    "workers have no place for their heartbeats, and are judged by their output: {folder}: {error}"
                );
                None
            }
        };
        if let Some(beside) = temporary::in_memory(guarded.folder()) {
            // What launchers that were killed have left there. Without a thread for it the next one does it.
            let sweep = move || temporary::sweep_beside(&beside);
            let _ = std::thread::Builder::new().name("temporary".to_owned()).spawn(sweep);
        }
        spec
    }
}
