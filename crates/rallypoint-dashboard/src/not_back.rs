//! Who was lost in any round and has not come back, as the page shows it.

use serde::Serialize;

use crate::absent::words;
use crate::source::Seen;
use crate::text::name;

/// A node that could be there, and is not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct NotBack {
    pub(crate) node: String,
    /// How it was lost.
    words: &'static str,
    at_ms: u64,
}

/// While a round works with fewer than it could, and while the others wait for somebody.
pub(crate) fn not_back(seen: &Seen) -> Vec<NotBack> {
    let is_wanted = if seen.meets() { waits_for_any(seen) } else { seen.state == "running" };
    let all = seen.not_back.iter().filter(|_| is_wanted);
    all.map(|lost| NotBack { node: name(&lost.node), words: words(&lost.why), at_ms: lost.at_ms }).collect()
}

/// Whether the nodes wait for others, and more could come than those whom the last round has lost.
pub(crate) fn waits_for_any(seen: &Seen) -> bool {
    let needed = seen.settings.as_ref().map_or(0, |needs| needs.min_nodes);
    let is_missing = |node: &str| seen.missing.iter().any(|missing| missing.node == node);
    seen.round > 0
        && needed > seen.present()
        && seen.not_back.iter().any(|lost| !is_missing(&lost.node))
        // Whom nothing is told of has to be named among the others.
        && seen.missing.iter().all(|missing| {
            let is = |node: &str| node == missing.node;
            seen.not_back.iter().any(|lost| is(&lost.node)) || seen.nodes.iter().any(|node| is(&node.node))
        })
}
