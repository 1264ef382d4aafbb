//! Large parts that were taken out of the tree: what they weighed is counted, and they are dropped, where nobody waits.

use super::tree::Node;
use crate::v2::wire::{Path, Time};

/// What was taken out, and where it was.
#[derive(Debug)]
pub(crate) struct Buried {
    path: Path,
    node: Node,
    /// Of the tree that it was in.
    generation: u64,
}

/// What is to be forgotten of it.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(super) nodes: usize,
    pub(super) weight: usize,
    pub(super) ends: Vec<(Time, Path)>,
    pub(super) generation: u64,
}

impl Buried {
    pub(super) fn new(path: Path, node: Node, generation: u64) -> Self {
        Buried { path, node, generation }
    }

    /// Looks at all of it, and drops it. Needs no tree.
    pub(crate) fn into_remains(self) -> Remains {
        let Buried { path, node, generation } = self;
        let mut remains = Remains { nodes: 0, weight: 0, ends: Vec::new(), generation };
        let mut count = |path: &Path, node: &Node| {
            remains.nodes += 1;
            remains.weight += node.weight(path);
            remains.ends.extend(node.expires.map(|end| (end, path.clone())));
        };
        node.for_each_below(&path, &mut count);
        count(&path, &node);
        remains
    }
}
