//! What a tree that is kept on disk has to bring there, and what it is made from again.

use std::sync::Arc;

use super::tree::Node;
use crate::durable::Journal;
use crate::v2::wire::{Event, Path};

/// One change of the tree.
#[derive(Debug)]
pub(crate) enum Change {
    /// A node, without what is in it.
    Put(Path, Node),
    /// With all that was in it.
    Removed(Path),
    /// A request to write that was refused, and counted.
    Counted,
}

/// All of a tree that survives.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) index: u64,
    pub(crate) raft_index: u64,
    /// In the order of their paths, so that each comes after the directory it is in.
    pub(crate) nodes: Vec<(Path, Node)>,
}

/// An event that watchers are told of once it is on disk, and the nodes that went with its own.
#[derive(Debug)]
pub(crate) struct Untold {
    pub(super) event: Arc<Event>,
    pub(super) gone: Vec<Path>,
}

/// What a tree that is kept on disk has beside it.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) journal: Journal<Change>,
    pub(super) untold: Vec<Untold>,
}
