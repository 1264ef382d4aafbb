//! Who writes the same key through one gateway waits its turn: writes that race lose to each other, all but one, and
//! each would look and try again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turns, OwnedMutexGuard};

use crate::v2::Path;

/// The keys that somebody writes, each with its turns.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<HashMap<Path, Arc<Turns<()>>>>);

/// A turn at a key, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    queue: &'a Queue,
    path: Path,
    /// None once it is given back.
    held: Option<OwnedMutexGuard<()>>,
}

impl Queue {
    fn keys(&self) -> MutexGuard<'_, HashMap<Path, Arc<Turns<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, in the order of coming.
    pub(super) async fn turn(&self, path: &Path) -> Turn<'_> {
        // Whoever gives up while waiting leaves the key as one that has had its turn does.
        let mut turn = Turn { queue: self, path: path.clone(), held: None };
        let turns = Arc::clone(self.keys().entry(path.clone()).or_default());
        turn.held = Some(turns.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut keys = self.queue.keys();
        // Nobody else has it, or waits for it.
        if let Entry::Occupied(entry) = keys.entry(self.path.clone())
            && Arc::strong_count(entry.get()) == 1
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn turns_come_one_after_the_other_and_nothing_is_left_of_them() {
        let (queue, path) = (Queue::default(), Path::clean(b"/a"));
        let first = queue.turn(&path).await;
        let other = queue.turn(&Path::clean(b"/b")).await;
        let mut second = Box::pin(queue.turn(&path));
        let mut third = Box::pin(queue.turn(&path));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        // One that gives up is passed over.
        drop(second);
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        drop((third.await, other));
        assert!(queue.keys().is_empty());
    }
}
