//! A thread that writes to a log file, so that nobody else hangs with a disk that takes nothing.
//!
//! What is to be written lies in a queue, and whoever fills it waits for room. When the workers have ended, a file that
//! takes nothing is given up: what waits is dropped, and nobody waits for it any more.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

/// With so many bytes in the queue, a worker's output waits.
const FULL: usize = 256 << 10;
/// After this time a file that takes nothing is named.
const SILENT: Duration = Duration::from_secs(10);

/// What is in most log files.
pub(crate) const WORKERS_SAY: &str = "what workers say";

/// A log file, for all who write to it. When the last of them is gone, the file is closed.
#[derive(Debug, Clone)]
pub(crate) struct LogFile(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// What is written there.
    what: &'static str,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// How many bytes have come, and how many of them are done with, since the beginning.
    come: u64,
    done: u64,
    /// Nothing more will be written: it could not be, or is not waited for.
    ended: bool,
    /// Nobody is left who could write.
    closed: bool,
}

impl LogFile {
    /// `what`: what is written there.
    pub(crate) fn start(path: &Path, file: File, what: &'static str) -> io::Result<Self> {
        let (path, queue, changed) = (path.to_owned(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { path, what, queue, changed });
        let log = LogFile(Arc::new(Handle(Arc::clone(&shared))));
        thread::Builder::new().name("log file".to_owned()).spawn(move || shared.write_to(file))?;
        Ok(log)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.0.path
    }

    /// Writes when there is room. Where nothing can be written any more, it does nothing.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let shared = &self.0.0;
        let mut queue = shared.wait_while(|queue| queue.come - queue.done >= FULL as u64);
        if queue.ended || bytes.is_empty() {
            return;
        }
        queue.bytes.extend_from_slice(bytes);
        queue.come += bytes.len() as u64;
        drop(queue);
        shared.changed.notify_all();
    }

    /// Writes if there is room, for those who must not wait. Otherwise it is lost.
    pub(crate) fn write_if_room(&self, bytes: &[u8]) {
        let shared = &self.0.0;
        let mut queue = shared.lock();
        if queue.ended || queue.come - queue.done >= FULL as u64 {
            return;
        }
        queue.bytes.extend_from_slice(bytes);
        queue.come += bytes.len() as u64;
        drop(queue);
        shared.changed.notify_all();
    }

    /// Nothing more comes: waits for what is not written yet, for so long.
    pub(crate) fn finish(&self, patience: Duration) {
        let shared = &self.0.0;
        let unwritten = |queue: &mut Queue| !queue.ended && queue.done < queue.come;
        drop(shared.changed.wait_timeout_while(shared.lock(), patience, unwritten));
        self.give_up();
    }

    /// Waits until all that has come so far is written, or is given up.
    pub(crate) fn flush(&self) {
        let come = self.0.0.lock().come;
        drop(self.0.0.wait_while(|queue| queue.done < come));
    }

    /// How much of what has come is done with, if not all.
    pub(crate) fn behind(&self) -> Option<u64> {
        let queue = self.0.0.lock();
        (!queue.ended && queue.done < queue.come).then_some(queue.done)
    }

    /// Waits for it no longer. Whether it was waited for.
    pub(crate) fn give_up(&self) -> bool {
        self.0.0.lock().ended_now(&self.0.0.changed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn ended_now(&mut self, changed: &Condvar) -> bool {
        let news = !std::mem::replace(&mut self.ended, true);
        self.bytes = Vec::new();
        changed.notify_all();
        news
    }
}

impl Shared {
    /// Nothing that holds the lock can leave the queue half done.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while this is so and the file may still take something. Names a file that takes nothing for long.
    fn wait_while(&self, waits: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let mut queue = self.lock();
        let mut moved = (queue.done, Instant::now());
        let mut named = false;
        while !queue.ended && waits(&queue) {
            queue = self.changed.wait_timeout(queue, SILENT).unwrap_or_else(PoisonError::into_inner).0;
            if moved.0 != queue.done {
                moved = (queue.done, Instant::now());
            }
            if moved.1.elapsed() >= SILENT && !queue.ended && !std::mem::replace(&mut named, true) {
                drop(queue);
                warn!(
                    "{} has taken nothing for {} s; its worker's output waits for it",
                    self.path.display(),
                    SILENT.as_secs()
                );
                queue = self.lock();
            }
        }
        queue
    }

    fn write_to(&self, mut file: File) {
        loop {
            let idle = |queue: &mut Queue| queue.bytes.is_empty() && !queue.closed && !queue.ended;
            let mut queue =
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            if queue.ended || queue.bytes.is_empty() {
                return;
            }
            let bytes = std::mem::take(&mut queue.bytes);
            drop(queue);
            // In pieces, so that a slow disk is told from one that hangs.
            for piece in bytes.chunks(PIECE) {
                let written = file.write_all(piece);
                let mut queue = self.lock();
                if let Err(error) = written {
                    if queue.ended_now(&self.changed) {
                        warn!(%error, "{} cannot be written any more; {} is not kept there", self.path.display(), self.what);
                    }
                    return;
                }
                queue.done += piece.len() as u64;
                drop(queue);
                self.changed.notify_all();
            }
        }
    }
}

/// What is written at a time.
const PIECE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn all_is_written_before_a_flush_returns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = LogFile::start(&path, File::create(&path).unwrap(), WORKERS_SAY).unwrap();
        let more = log.clone();
        for _ in 0..100 {
            log.write(&vec![b'x'; FULL / 10]);
        }
        drop(log);
        more.flush();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 100 * (FULL / 10) as u64);
        assert_eq!(more.behind(), None);
    }

    #[test]
    fn a_file_that_takes_nothing_is_waited_for_until_it_is_given_up() {
        // A pipe that nobody reads.
        let (_read, write) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(write));
        let log = LogFile::start(Path::new("/the/log"), file, WORKERS_SAY).unwrap();
        let writer = log.clone();
        let waits = thread::spawn(move || {
            for _ in 0..100 {
                writer.write(&[b'x'; FULL / 10]);
            }
            writer.flush();
        });
        while log.behind().is_none() {
            thread::yield_now();
        }
        assert!(!waits.is_finished());
        assert!(log.give_up() && !log.give_up());
        waits.join().unwrap();
        assert_eq!((log.behind(), log.path()), (None, Path::new("/the/log")));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_waited_for_by_nobody() {
        let file = File::options().write(true).open("/dev/full").unwrap();
        let log = LogFile::start(Path::new("/dev/full"), file, WORKERS_SAY).unwrap();
        log.write(b"line\n");
        log.flush();
        assert!(!log.give_up());
    }
}
