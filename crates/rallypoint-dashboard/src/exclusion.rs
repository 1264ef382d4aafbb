//! Who is excluded from a run, as the page shows it.

use rallypoint_rendezvous::{Exclusion, Whom};
use serde::Serialize;

use crate::text::{line, name};

/// Letters of a reason.
const WORDS: usize = 300;

/// Somebody who is excluded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Excluded {
    /// What is named: a node or a host.
    kind: &'static str,
    name: String,
    /// The name is not shown as it is: who asks for it by what is shown would ask for another.
    is_altered: bool,
    reason: String,
    by: String,
    at_ms: u64,
    /// None for as long as the run lives.
    until_ms: Option<u64>,
}

pub(crate) fn shown(exclusion: &Exclusion) -> Excluded {
    let (kind, of) = match &exclusion.whom {
        Whom::Node(node) => ("node", node),
        Whom::Host(host) => ("host", host),
    };
    let shown = name(of);
    Excluded {
        kind,
        is_altered: shown != *of,
        name: shown,
        reason: line(&exclusion.reason, WORDS),
        by: if exclusion.by.is_empty() { "an operator".to_owned() } else { name(&exclusion.by) },
        at_ms: exclusion.at_ms,
        until_ms: exclusion.until_ms,
    }
}
