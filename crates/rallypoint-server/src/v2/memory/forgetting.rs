//! How a tree forgets the large parts that were taken out of it, step by step.

use super::buried::{Buried, Remains};
use super::store::Store;

/// Ends that are forgotten before others get at the tree.
const STEP: usize = 1_000;

impl Store {
    /// What was taken out since the last call, for [`Store::forget`].
    pub(crate) fn take_buried(&mut self) -> Vec<Buried> {
        std::mem::take(&mut self.buried)
    }

    /// Forgets some of what was taken out; whether that was all.
    pub(crate) fn forget(&mut self, remains: &mut Remains) -> bool {
        // Another tree has never had it.
        if remains.generation != self.generation {
            return true;
        }
        self.nodes -= std::mem::take(&mut remains.nodes);
        self.weight -= std::mem::take(&mut remains.weight);
        let first = remains.ends.len().saturating_sub(STEP);
        for (end, path) in remains.ends.drain(first..) {
            // There may be another node at its path that ends at the same time.
            if self.root.find(&path).ok().and_then(|node| node.expires) != Some(end) {
                self.ends.remove(&(end, path));
            }
        }
        remains.ends.is_empty()
    }
}
