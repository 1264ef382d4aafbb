//! Turns at looking at a line: who waits for a lock, or to lead, has to find who is before it.
//!
//! A line of thousands takes a while to look at, and when many leave it at once, each who was behind one of them looks
//! again. They do so one after the other, so that the rest of the server is not kept busy by them; who has left before
//! its turn does not look at all. Lines share a few turns, so that one line does not hold all others up.

use std::hash::{BuildHasher as _, RandomState};

use tokio::sync::{Semaphore, SemaphorePermit};

const TURNS: usize = 64;

#[derive(Debug)]
pub(crate) struct Turns {
    hasher: RandomState,
    turns: [Semaphore; TURNS],
}

impl Default for Turns {
    fn default() -> Self {
        Turns { hasher: RandomState::new(), turns: std::array::from_fn(|_| Semaphore::new(1)) }
    }
}

impl Turns {
    /// Waits for the turn of a line.
    pub(crate) async fn of(&self, line: &[u8]) -> SemaphorePermit<'_> {
        let at = self.hasher.hash_one(line) % TURNS as u64;
        let turn = &self.turns[usize::try_from(at).unwrap_or_default()];
        turn.acquire().await.expect("it is never closed")
    }
}
