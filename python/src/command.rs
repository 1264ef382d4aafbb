//! The command `rallypoint`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with its arguments, the first of which is its own name; returns the exit code. `python` runs scripts
/// and modules.
#[pyfunction]
#[pyo3(signature = (arguments, python=None))]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>, python: Option<OsString>) -> u8 {
    py.detach(|| rallypoint::cli::command::run_with(arguments, python))
}
