//! Whom an exclusion means: one node, or all nodes on a machine.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::plain;

/// Who is kept out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whom {
    /// A node, by its name in the run.
    Node(String),
    /// Every node on this machine.
    Host(String),
}

impl Whom {
    /// Whether a node of this name on that machine is meant.
    #[must_use]
    pub fn is(&self, node: &str, host: &str) -> bool {
        match self {
            Whom::Node(name) => name == node,
            Whom::Host(name) => name == host,
        }
    }
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Node(name) => write!(f, "node {}", plain(name)),
            Whom::Host(name) => write!(f, "host {}", plain(name)),
        }
    }
}
