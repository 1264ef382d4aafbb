//! A call on a stack.

use serde::{Deserialize, Serialize};

/// A call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// The function, or the place in its file where it has no name.
    pub function: String,
    /// The file of the source in Python, or the library.
    pub file: String,
    /// The line; none in compiled code.
    pub line: Option<u32>,
}
