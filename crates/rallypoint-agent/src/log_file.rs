//! A thread that writes to a log file, so that nobody else hangs with a disk that takes nothing.
//!
//! What is to be written lies in a queue, and whoever fills it waits for room. When the workers have ended, a file that
//! takes nothing is given up: what waits is dropped, and nobody waits for it any more. A disk that is full may have room
//! again: until then what comes is lost, and counted.

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
    /// Bytes of those who do not wait that found no room, since the last that did.
    lost: u64,
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

    /// Writes if there is room, for those who must not wait. Otherwise it is lost, and counted.
    pub(crate) fn write_if_room(&self, bytes: &[u8]) {
        let shared = &self.0.0;
        let (path, what) = (shared.path.display(), shared.what);
        let mut queue = shared.lock();
        if queue.ended {
            return;
        }
        if queue.come - queue.done >= FULL as u64 {
            let is_first = queue.lost == 0;
            queue.lost += bytes.len() as u64;
            drop(queue);
            if is_first {
                warn!("{path} takes nothing; {what} is lost until it does");
            }
            return;
        }
        queue.bytes.extend_from_slice(bytes);
        queue.come += bytes.len() as u64;
        let lost = std::mem::take(&mut queue.lost);
        drop(queue);
        shared.changed.notify_all();
        if lost > 0 {
            warn!("{path} takes {what} again; {lost} bytes of it were lost");
        }
    }

    /// Nothing more comes: waits for what is not written yet, for so long.
    pub(crate) fn finish(&self, patience: Duration) {
        let shared = &self.0.0;
        let unwritten = |queue: &mut Queue| !queue.ended && queue.done < queue.come;
        let waited = shared.changed.wait_timeout_while(shared.lock(), patience, unwritten);
        let late = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if self.give_up() && late {
            warn!("{} takes nothing; the last of {} is not kept there", shared.path.display(), shared.what);
        }
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

    fn write_to(&self, file: File) {
        let mut file = Refusable { file, lost: 0, is_torn: false };
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
                let written = file.write(piece);
                match &written {
                    Ok(Written::Lost(error)) => {
                        warn!(%error, "{} is lost until there is room for {}", self.what, self.path.display());
                    }
                    Ok(Written::Again { lost }) => {
                        let path = self.path.display();
                        warn!("{path} takes {} again; {lost} bytes of it were lost", self.what);
                    }
                    _ => {}
                }
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

/// A file on a disk that may be full for some time.
struct Refusable<W> {
    file: W,
    /// Bytes that found no room, since the last that did.
    lost: u64,
    /// The last line is in the file without its end.
    is_torn: bool,
}

/// What became of a piece.
#[derive(Debug)]
enum Written {
    /// It is written, or lost as the piece before it.
    AsBefore,
    /// The first for which there is no room.
    Lost(io::Error),
    /// It is written, and so much before it was not.
    Again { lost: u64 },
}

impl<W: Write> Refusable<W> {
    /// An error that will not pass is one.
    fn write(&mut self, piece: &[u8]) -> io::Result<Written> {
        let before = self.lost;
        match self.write_all(piece) {
            Ok(()) if before == 0 => Ok(Written::AsBefore),
            Ok(()) => Ok(Written::Again { lost: std::mem::take(&mut self.lost) }),
            Err(error) if is_full(&error) && before == 0 => Ok(Written::Lost(error)),
            Err(error) if is_full(&error) => Ok(Written::AsBefore),
            Err(error) => Err(error),
        }
    }

    /// What is not written is counted.
    fn write_all(&mut self, piece: &[u8]) -> io::Result<()> {
        let mut left = piece;
        let written = self.end_line().and_then(|()| {
            while !left.is_empty() {
                match self.file.write(left) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => left = &left[count..],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        if written.is_err() {
            self.lost += left.len() as u64;
            let taken = &piece[..piece.len() - left.len()];
            self.is_torn = taken.last().map_or(self.is_torn, |last| *last != b'\n');
        }
        written
    }

    /// What comes after a gap begins a line of its own.
    fn end_line(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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
    fn who_does_not_wait_loses_what_a_file_has_no_room_for_and_goes_on_when_it_has() {
        let (mut read, write) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(write));
        let log = LogFile::start(Path::new("/the/log"), file, WORKERS_SAY).unwrap();
        let line = vec![b'x'; FULL / 4];
        // The pipe has room for less than one of them.
        for _ in 0..8 {
            log.write_if_room(&line);
        }
        let lost = log.0.0.lock().lost;
        assert!(lost > 0 && lost < 8 * line.len() as u64, "{lost}");
        let written = 8 * line.len() as u64 - lost;
        let mut taken = vec![0; usize::try_from(written).unwrap()];
        io::Read::read_exact(&mut read, &mut taken).unwrap();
        log.flush();
        log.write_if_room(b"again");
        let mut again = [0; 5];
        io::Read::read_exact(&mut read, &mut again).unwrap();
        assert_eq!((&again, log.0.0.lock().lost), (b"again", 0));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_waited_for_by_nobody() {
        let (read, write) = io::pipe().unwrap();
        drop(read);
        let file = File::from(std::os::fd::OwnedFd::from(write));
        let log = LogFile::start(Path::new("/the/log"), file, WORKERS_SAY).unwrap();
        log.write(b"line\n");
        log.flush();
        assert!(!log.give_up());
    }

    #[test]
    fn a_full_disk_is_waited_for_by_nobody_and_may_have_room_again() {
        let file = File::options().write(true).open("/dev/full").unwrap();
        let log = LogFile::start(Path::new("/dev/full"), file, WORKERS_SAY).unwrap();
        for _ in 0..3 {
            log.write(b"line\n");
            log.flush();
        }
        assert_eq!(log.behind(), None);
        assert!(log.give_up(), "it was not given up before");
    }

    /// A disk with room for so many bytes.
    struct Disk(Vec<u8>, usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..room]);
            if room == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(room) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_found_no_room_is_counted_and_what_comes_after_it_begins_a_line() {
        let mut file = Refusable { file: Disk(Vec::new(), 8), lost: 0, is_torn: false };
        assert!(matches!(file.write(b"one\n"), Ok(Written::AsBefore)));
        assert!(matches!(file.write(b"second\n"), Ok(Written::Lost(_))));
        assert!(matches!(file.write(b"third\n"), Ok(Written::AsBefore)), "it was told");
        file.file.1 = 100;
        assert!(matches!(file.write(b"fourth\n"), Ok(Written::Again { lost: 9 })));
        assert!(matches!(file.write(b"fifth\n"), Ok(Written::AsBefore)));
        assert_eq!(String::from_utf8(file.file.0).unwrap(), "one\nseco\nfourth\nfifth\n");
    }
}
