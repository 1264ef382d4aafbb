//! What takes long is done on threads where nobody waits: by a few at a time, however many ask for it. Who waits for its
//! turn and is given up has cost nothing.

use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinError;

#[derive(Debug)]
pub(crate) struct Aside {
    turns: Arc<Semaphore>,
}

impl Default for Aside {
    fn default() -> Self {
        Aside { turns: Arc::new(Semaphore::new(half_of_the_threads())) }
    }
}

impl Aside {
    /// Does this when it is its turn. It goes on to its end, and has its turn until then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.expect("it is never closed");
        tokio::task::spawn_blocking(move || (work(), turn).0).await
    }
}

/// The other half is for what does not take long.
pub(crate) fn half_of_the_threads() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    (threads / 2).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn only_a_few_are_at_work_at_a_time() {
        let (aside, working, most) = (Aside::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new((working, most));
        let work = || {
            let shared = Arc::clone(&shared);
            aside.run(move || {
                let (working, most) = &*shared;
                most.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                working.fetch_sub(1, Ordering::SeqCst);
            })
        };
        let all: Vec<_> = (0..50).map(|_| work()).collect();
        futures::future::join_all(all).await.into_iter().for_each(|done| done.unwrap());
        assert!(shared.1.load(Ordering::SeqCst) <= half_of_the_threads());
    }
}
