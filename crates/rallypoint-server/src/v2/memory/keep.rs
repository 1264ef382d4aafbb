//! A tree that is also kept on disk: what has to get there, and who is told when it has.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::change::{Change, Keeping, Kept, Untold};
use super::history::History;
use super::store::{Limits, Store};
use super::tree::Node;
use crate::durable::{Journal, Promise, Taken, Ticket};
use crate::v2::wire::{Event, Path};

impl Store {
    /// A tree as it was. Nothing is known of how it came about.
    pub(crate) fn restored(limits: Limits, kept: Kept) -> Self {
        let Kept { index, raft_index, nodes } = kept;
        let mut store = Store::starting_at(limits, index);
        store.history = History::after(store.limits.history, index);
        store.raft_index = raft_index;
        for (path, node) in nodes {
            store.insert(&path, node);
        }
        store
    }

    /// From now on watchers are told of changes only when those have settled. The writer listens to the bell.
    pub(crate) fn keep(&mut self, bell: SyncSender<()>) {
        self.keeping = Some(Keeping { journal: Journal::new(bell), untold: Vec::new() });
    }

    /// For whoever has seen the tree as it is now; none if all of it is on disk.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.keeping.as_ref().and_then(|keeping| keeping.journal.ticket())
    }

    /// To be rung once the lock is free.
    pub(crate) fn bell(&mut self) -> Option<SyncSender<()>> {
        self.keeping.as_mut().and_then(|keeping| keeping.journal.bell())
    }

    /// What is to be written, and whom to tell of what then.
    pub(crate) fn take_changes(&mut self) -> Option<(Taken<Change>, Vec<Untold>)> {
        let keeping = self.keeping.as_mut()?;
        Some((keeping.journal.take()?, std::mem::take(&mut keeping.untold)))
    }

    /// What was taken is on disk.
    pub(crate) fn settle(&mut self, untold: Vec<Untold>) {
        for Untold { event, gone } in untold {
            self.hub.tell(&event);
            for path in gone {
                self.hub.tell_gone(&path, &event);
            }
        }
        if let Some(journal) = self.journal() {
            journal.settle();
        }
    }

    /// What was taken was not kept: the tree is as it was before.
    pub(crate) fn go_back(&mut self, kept: Kept) -> Option<Promise> {
        let Store { root, index, raft_index, ends, nodes, weight, .. } =
            Store::restored(self.limits.clone(), kept);
        self.history.take_back_to(index);
        (self.root, self.index, self.raft_index) = (root, index, raft_index);
        (self.ends, self.nodes, self.weight) = (ends, nodes, weight);
        self.generation += 1;
        let keeping = self.keeping.as_mut()?;
        keeping.untold.clear();
        Some(keeping.journal.give_up())
    }

    pub(crate) fn journal(&mut self) -> Option<&mut Journal<Change>> {
        self.keeping.as_mut().map(|keeping| &mut keeping.journal)
    }

    /// All nodes, for tests.
    #[cfg(test)]
    pub(crate) fn listing(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut add = |path: &Path, node: &Node| all.push(format!("{path:?} {:?}", node.bare()));
        self.root.for_each_below(&Path::default(), &mut add);
        all.push(format!("{:?}", self.ends));
        all
    }

    pub(super) fn note(&mut self, change: impl FnOnce() -> Change) {
        if let Some(journal) = self.journal() {
            journal.push(change());
        }
    }

    /// Tells watchers of an event, now or when it is on disk. `gone` are nodes that went with its own.
    pub(super) fn tell(&mut self, event: &Arc<Event>, gone: Option<&Node>) {
        let Store { hub, keeping, .. } = self;
        let depth = event.node.path.depth();
        let is_gone = |path: &&Path| gone.is_some_and(|gone| gone.has(path.names().skip(depth)));
        let gone: Vec<Path> = hub.watched_below(&event.node.path).filter(is_gone).cloned().collect();
        match keeping {
            None => {
                hub.tell(event);
                for path in gone {
                    hub.tell_gone(&path, event);
                }
            }
            Some(keeping) => keeping.untold.push(Untold { event: Arc::clone(event), gone }),
        }
    }
}
