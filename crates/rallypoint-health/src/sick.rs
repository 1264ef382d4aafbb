//! What is wrong with a node.

use std::fmt;

use crate::check::{Check, names};
use crate::command::Failed;

/// The shell's word for a command that there is not.
const NOT_FOUND: i32 = 127;

/// A check that a node has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sick {
    /// Which.
    pub check: String,
    /// What it found.
    pub why: String,
    /// The last lines that a command wrote.
    pub output: Vec<String>,
}

impl Sick {
    /// A check that was failed for this reason.
    #[must_use]
    pub fn new(check: &Check, why: String) -> Self {
        Sick { check: check.to_string(), why, output: Vec::new() }
    }

    pub(crate) fn of_command(check: &Check, failed: Failed) -> Self {
        let Failed { why, code, output } = failed;
        let why = match code {
            Some(NOT_FOUND) => {
                format!("command not found: {why}; the checks that are built in are {}", names())
            }
            _ => why,
        };
        Sick { output, ..Sick::new(check, why) }
    }

    /// In a line.
    #[must_use]
    pub fn in_short(&self) -> String {
        let last = self.output.last().map(|line| format!(": {line}")).unwrap_or_default();
        format!("the health check {:?} failed: {}{last}", self.check, self.why)
    }
}

impl fmt::Display for Sick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the health check {:?} failed: {}", self.check, self.why)?;
        self.output.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
