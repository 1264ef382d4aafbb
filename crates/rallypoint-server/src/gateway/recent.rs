//! What was seen last, as a guess at what a write would see: if it is right, the write needs no look before it.
//!
//! A guess can be wrong at no cost but time. Whatever is written on it compares it, and what would be refused on it is
//! looked at first.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::seen::Seen;
use crate::v2::{Op, Path};

/// Keys that are remembered at a time; then all are forgotten.
const KEYS: usize = 4096;
/// Larger ones are not, path and value together.
const VALUE: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<HashMap<Path, Seen>>);

impl Recent {
    fn keys(&self) -> MutexGuard<'_, HashMap<Path, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request on a key would see, if that is worth a guess.
    pub(super) fn guess(&self, path: &Path, op: &Op) -> Option<Seen> {
        let about_one_node = matches!(
            op,
            Op::Set(_) | Op::Create(_) | Op::Update(_) | Op::CompareAndSwap(..) | Op::CompareAndDelete(_)
        );
        self.keys().get(path).filter(|_| about_one_node).cloned()
    }

    /// Forgets everything: the cluster may be another one now.
    pub(super) fn forget(&self) {
        self.keys().clear();
    }

    /// Remembers what a write has left behind, or that nobody knows.
    pub(super) fn note(&self, path: &Path, seen: Option<Seen>) {
        let mut keys = self.keys();
        let light = |seen: &Seen| {
            let value = seen.node().and_then(|found| found.record.value.as_ref());
            path.as_bytes().len() + value.map_or(0, bytes::Bytes::len) <= VALUE
        };
        match seen.filter(light) {
            Some(seen) => {
                if keys.len() >= KEYS {
                    keys.clear();
                }
                keys.insert(path.clone(), seen);
            }
            None => _ = keys.remove(path),
        }
    }
}
