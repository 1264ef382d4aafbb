//! The wait for what workers have said to be where it goes, when they have ended.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::log_file::LogFile;
use crate::output::Pumping;

/// For output that is still on its way when all workers have ended. Only a process that left its group can hold
/// the stream open for longer, or a console or a file that takes nothing.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked at what output is waiting for.
const STEP: Duration = Duration::from_millis(50);

/// Waits for all streams at once, so that one that does not move costs the others nothing. The last words of workers
/// that have finished are worth a wait of `grace` for a console or a file that takes nothing.
pub(crate) async fn drain(streams: Vec<Pumping>, finished: bool, grace: Duration) {
    let began = Instant::now();
    let mut left: Vec<Stream> = streams.into_iter().map(Stream::new).collect();
    loop {
        left.retain_mut(|stream| !stream.pumping.has_ended());
        let Some(next) = left.first_mut() else { return };
        if tokio::time::timeout(STEP, next.pumping.ended()).await.is_ok() {
            continue;
        }
        let late = |limit: Duration| !finished && began.elapsed() >= limit;
        let of_sinks = if finished { grace } else { DRAIN_TIMEOUT };
        // What waits for such a file then goes on to the console.
        left.iter_mut().for_each(|stream| stream.give_up_files(of_sinks, late(grace)));
        left.iter_mut().for_each(Stream::look);
        let stuck = |stream: &Stream| {
            let patience = if stream.pumping.is_writing() { of_sinks } else { DRAIN_TIMEOUT };
            late(grace + DRAIN_TIMEOUT) || (stream.since.elapsed() >= patience && !stream.waits_for_file())
        };
        if left.iter().all(stuck) {
            if left.iter().any(|stream| stream.pumping.is_writing()) {
                warn!("the console takes nothing; what the workers said last is lost");
            }
            if left.iter().any(|stream| !stream.pumping.is_writing()) {
                warn!("a process that left its worker's group still holds the worker's output");
            }
            return;
        }
    }
}

/// A stream, and when it last moved.
struct Stream {
    pumping: Pumping,
    moved: u64,
    since: Instant,
    files: Vec<Behind>,
}

/// A file, and when it last took something.
struct Behind {
    file: LogFile,
    done: Option<u64>,
    since: Instant,
}

impl Stream {
    fn new(pumping: Pumping) -> Self {
        let (moved, since) = (pumping.moved(), Instant::now());
        let behind = |file: &LogFile| Behind { file: file.clone(), done: file.behind(), since };
        let files = pumping.files().iter().map(behind).collect();
        Stream { pumping, moved, since, files }
    }

    fn look(&mut self) {
        if self.moved != self.pumping.moved() {
            (self.moved, self.since) = (self.pumping.moved(), Instant::now());
        }
    }

    fn waits_for_file(&self) -> bool {
        self.files.iter().any(|behind| behind.file.behind().is_some())
    }

    /// Waits no longer for files that have taken nothing for so long, or for any.
    fn give_up_files(&mut self, patience: Duration, any: bool) {
        for Behind { file, done, since } in &mut self.files {
            let now = file.behind();
            if now != *done || now.is_none() {
                (*done, *since) = (now, Instant::now());
            }
            if now.is_some() && (any || since.elapsed() >= patience) && file.give_up() {
                warn!("{} takes nothing; what the workers said last is not in it", file.path().display());
                self.since = Instant::now();
            }
        }
    }
}
