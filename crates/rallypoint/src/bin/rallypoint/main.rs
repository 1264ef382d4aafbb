//! The command line of Rallypoint; what it does is in the library, since the Python package has the command too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rallypoint::cli::command::run(rallypoint_agent::arguments()))
}
