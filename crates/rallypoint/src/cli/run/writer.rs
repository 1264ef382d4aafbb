//! A thread that writes to the console, so that nobody else waits for a console that takes nothing.
//!
//! What is to be written lies in a queue. Workers' output waits for room in it, which makes a worker wait whose console
//! does not keep up. The launcher's own messages never wait. Nothing is locked while something is written, and what
//! cannot be written is dropped and counted.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rallypoint_agent::Stream;
use tokio::sync::watch;
use tracing::warn;

/// With so many bytes in the queue, workers' output waits.
const FULL: usize = 256 << 10;
/// With so many bytes in the queue, the launcher's own messages are dropped.
const OVERFULL: usize = 2 * FULL;
/// Somebody else has made the console one that does not wait; this is how often it is asked again.
const BUSY: Duration = Duration::from_millis(5);
/// To the beginning of the line, and nothing on it.
const CLEAR: &[u8] = b"\r\x1b[K";

/// Where a writer writes to.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) out: File,
    pub(crate) err: File,
}

/// The queue and the thread behind it.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// How often something was written.
    written: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    pieces: Vec<(Stream, Vec<u8>)>,
    /// Of the pieces that wait, and of those that are being written.
    bytes: usize,
    /// The line at the bottom, on standard error.
    bottom: Option<Vec<u8>>,
    /// The one that can be seen.
    drawn: Option<Vec<u8>>,
    /// Of standard output and of standard error.
    lost: [Option<Lost>; 2],
}

/// What could not be written to a stream.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    pub(crate) lines: u64,
    /// Why, at first.
    pub(crate) error: String,
}

impl Queue {
    fn is_done(&self) -> bool {
        self.bytes == 0 && self.bottom == self.drawn
    }
}

impl Writer {
    pub(crate) fn start(files: Files) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            written: watch::Sender::new(0),
        });
        let writer = Writer(Arc::clone(&shared));
        thread::Builder::new().name("console".to_owned()).spawn(move || shared.write_to(files))?;
        Ok(writer)
    }

    /// Writes lines when there is room for them.
    pub(crate) fn write(&self, stream: Stream, lines: &[u8]) {
        let queue = self.0.lock();
        let full = |queue: &mut Queue| queue.bytes >= FULL;
        let queue = self.0.changed.wait_while(queue, full).unwrap_or_else(PoisonError::into_inner);
        self.0.push(queue, stream, lines);
    }

    /// Writes lines, or drops them where too much waits already.
    pub(crate) fn say(&self, stream: Stream, lines: &[u8]) {
        let queue = self.0.lock();
        if queue.bytes < OVERFULL {
            self.0.push(queue, stream, lines);
        }
    }

    /// Shows a line below all others, or none.
    pub(crate) fn bottom(&self, line: Option<Vec<u8>>) {
        let mut queue = self.0.lock();
        if queue.bottom != line {
            queue.bottom = line;
            drop(queue);
            self.0.changed.notify_all();
        }
    }

    /// What of this stream could not be written so far.
    pub(crate) fn lost(&self, stream: Stream) -> Option<Lost> {
        self.0.lock().lost[index(stream)].clone()
    }

    /// Waits until all is written; for a console that takes nothing no longer than `patience`.
    pub(crate) async fn done(&self, patience: Duration) {
        let mut written = self.0.written.subscribe();
        while !self.0.lock().is_done() {
            if !matches!(tokio::time::timeout(patience, written.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

impl Shared {
    /// Nothing that holds the lock can leave the queue half done.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut queue: MutexGuard<'_, Queue>, stream: Stream, lines: &[u8]) {
        queue.bytes += lines.len();
        match queue.pieces.last_mut() {
            Some((last, bytes)) if *last == stream => bytes.extend_from_slice(lines),
            _ => queue.pieces.push((stream, lines.to_vec())),
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Takes note of what could not be written, and says so at the first time.
    fn lose(&self, stream: Stream, error: &io::Error, rest: &[u8]) {
        let mut queue = self.lock();
        let lost = &mut queue.lost[index(stream)];
        let first = lost.is_none();
        let lost = lost.get_or_insert_with(|| Lost { lines: 0, error: error.to_string() });
        lost.lines += rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        drop(queue);
        // On standard error nobody would see it.
        if first && stream == Stream::Out {
            warn!("standard output cannot be written ({error}); what workers say there is lost");
        }
    }

    fn write_to(&self, mut files: Files) {
        loop {
            let idle = |queue: &mut Queue| queue.pieces.is_empty() && queue.bottom == queue.drawn;
            let mut queue =
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            let pieces = std::mem::take(&mut queue.pieces);
            let (bottom, drawn) = (queue.bottom.clone(), queue.drawn.clone());
            drop(queue);
            // Nobody reads any more; the workers are not to blame.
            if drawn.is_some() {
                let _ = write_all(&mut files.err, CLEAR);
            }
            for (stream, lines) in &pieces {
                let written = match stream {
                    Stream::Out => write_all(&mut files.out, lines),
                    Stream::Err => write_all(&mut files.err, lines),
                };
                if let Err((error, rest)) = written {
                    self.lose(*stream, &error, rest);
                }
            }
            if let Some(line) = &bottom {
                let _ = write_all(&mut files.err, line);
            }
            let mut queue = self.lock();
            queue.bytes -= pieces.iter().map(|(_, lines)| lines.len()).sum::<usize>();
            queue.drawn = bottom;
            drop(queue);
            self.changed.notify_all();
            self.written.send_modify(|times| *times += 1);
        }
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Out => 0,
        Stream::Err => 1,
    }
}

/// Writes all of it, or tells what is left.
fn write_all<'a>(file: &mut File, mut bytes: &'a [u8]) -> Result<(), (io::Error, &'a [u8])> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), bytes)),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(BUSY),
            Err(error) => return Err((error, bytes)),
        }
    }
    Ok(())
}
